"""Other agents: who they are, asking one, and taking the person to one."""

from __future__ import annotations

from typing import Any, Literal

from coterie.core.errors import Unavailable
from coterie.core.tool import Colleagues, ToolContext, tool


@tool(capabilities=["agents.read"], safe_to_repeat=True)
async def agents_list(context: ToolContext) -> list[dict[str, Any]]:
    """List the agents you can reach."""
    return colleagues(context).peers()


@tool(capabilities=["agents.message"], safe_to_repeat=True)
async def agents_message(
    context: ToolContext,
    agentId: str,
    content: str,
    session: str = "latest-or-create",
    mode: Literal["sync", "async"] = "sync",
    timeout: float = 300,  # noqa: ASYNC109
) -> dict[str, Any]:
    """Ask another agent. sync waits for the answer; async returns at once and the result comes later.

    Args:
        session: latest, create, latest-or-create, or a session id
        timeout: seconds to wait
    """
    return await colleagues(context).message(agentId, content, session=session, mode=mode, seconds=timeout)


@tool(capabilities=["agents.switch"], safe_to_repeat=True)
async def agents_switch(
    context: ToolContext, agentId: str, message: str | None = None, returnSummary: str | bool = False
) -> dict[str, Any]:
    """Take the user to another agent.

    Args:
        message: what to begin with there
        returnSummary: what was decided here, to go back with
    """
    return await colleagues(context).switch(agentId, message, returnSummary)


def colleagues(context: ToolContext) -> Colleagues:
    if context.colleagues is None:
        raise Unavailable("there are no other agents here")
    return context.colleagues
