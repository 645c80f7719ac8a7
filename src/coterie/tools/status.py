"""Where a turn is running."""

from __future__ import annotations

from coterie.core.tool import ToolContext, tool


@tool(safe_to_repeat=True)
def system_status(context: ToolContext) -> dict[str, str]:
    """Tell which agent, session and run this is."""
    return {"agentId": context.agent_id, "sessionKey": context.session_key, "runId": context.run_id}
