"""What the agent remembers, beyond this conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.errors import InvalidRequest, Unavailable
from coterie.core.tool import AgentMemory, ToolContext, tool


@tool(capabilities=["memory.write"], safe_to_repeat=True)
async def memory_remember(
    context: ToolContext,
    content: str,
    scope: str = "private",
    tags: list[str] | None = None,
    occurred_at: str | None = None,
    supersedes: str | None = None,
) -> Mapping[str, Any]:
    """Remember a fact for later conversations.

    Args:
        content: the fact, in a sentence that stands on its own
        scope: private, or global to share it with the other agents
        tags: words to file it under
        occurred_at: when it happened, ISO 8601
        supersedes: id of a memory that is no longer right
    """
    if scope not in ("private", "global"):
        raise InvalidRequest("scope is private or global")
    return await _memory(context).remember(
        content, share=scope == "global", tags=tags or (), occurred_at=occurred_at, supersedes=supersedes
    )


@tool(capabilities=["memory.read"], safe_to_repeat=True)
async def memory_recall(context: ToolContext, query: str, limit: int = 8) -> Mapping[str, Any]:
    """Search your memories and past conversations.

    Args:
        query: what you want to know
        limit: how many memories
    """
    if not 1 <= limit <= 50:
        raise InvalidRequest("limit is 1 to 50")
    return await _memory(context).recall(query, limit)


@tool(capabilities=["memory.write"])
async def memory_forget(context: ToolContext, id: str) -> str:
    """Delete one of your own memories.

    Args:
        id: as memory_recall gave it
    """
    await _memory(context).forget(id)
    return "forgotten"


@tool(capabilities=["memory.write"])
async def memory_log(context: ToolContext, text: str) -> str:
    """Add a line to today's log.

    Args:
        text: what happened
    """
    return f"noted in {await _memory(context).log(text)}"


@tool(capabilities=["memory.write"])
async def memory_edit(context: ToolContext, new: str, old: str = "") -> str:
    """Change your MEMORY.md, which you see in every conversation.

    Args:
        new: what stands there afterwards
        old: the passage it replaces, which must occur exactly once; empty to add at the end
    """
    await _memory(context).edit(old, new)
    return "MEMORY.md is changed"


def _memory(context: ToolContext) -> AgentMemory:
    if context.memory is None:
        raise Unavailable("there is no memory here")
    return context.memory
