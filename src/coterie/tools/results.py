"""The rest of a result that was shown shortened."""

from __future__ import annotations

from coterie.core.errors import InvalidRequest, NotFound
from coterie.core.tool import ToolContext, tool

MAX_CHARACTERS = 20_000


@tool(safe_to_repeat=True)
async def results_read(context: ToolContext, id: str, offset: int = 0, limit: int = 4000) -> str:
    """Read on in a shortened result.

    Args:
        id: as the shortened result names it
        offset: characters to skip
        limit: characters to return
    """
    if offset < 0 or not 1 <= limit <= MAX_CHARACTERS:
        raise InvalidRequest(f"offset must not be negative, limit is 1 to {MAX_CHARACTERS}")
    kept = await context.read_result(id)
    if kept is None:
        raise NotFound(f"there is no shortened result {id[:100]!r} in this session")
    part = kept.text[offset : offset + limit]
    left = len(kept.text) - offset - len(part)
    if kept.said_by is not None:
        part = context.fence(part, kept.said_by)
    return f"{part}\n[{left} more characters]" if left > 0 else part
