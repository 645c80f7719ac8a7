"""Children that work on one task each, beside the conversation."""

from __future__ import annotations

from typing import Any

from coterie.core.tool import ToolContext, tool
from coterie.tools.agents import colleagues


@tool(capabilities=["subagents.spawn"], safe_to_repeat=True)
async def subagents_spawn(
    context: ToolContext,
    task: str,
    agentId: str | None = None,
    label: str | None = None,
    model: str | None = None,
    toolAllowlist: list[str] | None = None,
    timeoutSeconds: float | None = None,
) -> dict[str, Any]:
    """Start a child on a task and go on; its result is brought to you. Say all it must know.

    Args:
        agentId: who does it, else yourself
    """
    return await colleagues(context).spawn(
        task, agent_id=agentId, label=label, model=model, tools=toolAllowlist, seconds=timeoutSeconds
    )


@tool(capabilities=["subagents.read"], safe_to_repeat=True)
async def subagents_list(context: ToolContext) -> list[dict[str, Any]]:
    """List what this session asked others for."""
    return await colleagues(context).runs()


@tool(capabilities=["subagents.read"], safe_to_repeat=True)
async def subagents_status(context: ToolContext, runId: str) -> dict[str, Any]:
    """How a run stands. Do not poll: results are brought to you."""
    return await colleagues(context).run(runId)


@tool(capabilities=["subagents.cancel"], safe_to_repeat=True)
async def subagents_cancel(context: ToolContext, runId: str) -> dict[str, Any]:
    """Stop a run."""
    return await colleagues(context).cancel(runId)
