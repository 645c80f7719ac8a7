"""Files in the agent's own workspace."""

from __future__ import annotations

from coterie.core.errors import InvalidRequest, TooLarge
from coterie.core.tool import ToolContext, tool

MAX_READ = 100_000
"""Characters that one call returns."""
MAX_WRITE = 1_000_000
"""Characters of one file that a model may write."""
MAX_ENTRIES = 1000


@tool(capabilities=["files.read"], safe_to_repeat=True)
def files_read(context: ToolContext, path: str, offset: int = 0, limit: int | None = None) -> str:
    """Read a text file of your workspace.

    Args:
        path: relative path
        offset: lines to skip
        limit: lines to return
    """
    if offset < 0:
        raise InvalidRequest("offset must not be negative")
    if limit is not None and limit < 1:
        raise InvalidRequest("limit must be at least 1")
    text = _read(context, path)
    if offset or limit is not None:
        lines = text.splitlines(keepends=True)
        if offset and offset >= len(lines):
            raise InvalidRequest(f"{path} has only {len(lines)} lines")
        text = "".join(lines[offset : None if limit is None else offset + limit])
    if len(text) > MAX_READ:
        raise TooLarge(
            f"that is {len(text):,} characters and one call returns at most {MAX_READ:,}: use offset and limit"
        )
    return text


@tool(capabilities=["files.write"])
def files_write(context: ToolContext, path: str, content: str) -> str:
    """Create or replace a text file of your workspace.

    Args:
        path: relative path
        content: the whole text
    """
    _write(context, path, content)
    return f"wrote {len(content):,} characters to {path}"


@tool(capabilities=["files.read", "files.write"])
def files_edit(context: ToolContext, path: str, old: str, new: str) -> str:
    """Replace one passage of a text file of your workspace.

    Args:
        path: relative path
        old: the passage, which must occur exactly once
        new: what stands there instead
    """
    if not old:
        raise InvalidRequest("old must not be empty")
    text = _read(context, path)
    found = text.count(old)
    if found == 0:
        raise InvalidRequest(f"{path} does not contain that passage; read it and copy the passage exactly")
    # str.count skips overlapping occurrences, and those are ambiguous too.
    if found > 1 or text.find(old) != text.rfind(old):
        raise InvalidRequest(f"the passage occurs more than once in {path}; include more of its surroundings")
    _write(context, path, text.replace(old, new))
    return f"edited {path}"


@tool(capabilities=["files.read"], safe_to_repeat=True)
def files_list(context: ToolContext, path: str = "") -> str:
    """List a folder of your workspace.

    Args:
        path: relative path of a folder
    """
    entries = sorted(context.workspace.entries("" if path in (".", "./") else path))
    lines = [
        f"{name}/" if size is None else f"{name} ({size:,} bytes)" for name, size in entries[:MAX_ENTRIES]
    ]
    if len(entries) > MAX_ENTRIES:
        lines.append(f"… and {len(entries) - MAX_ENTRIES:,} more")
    return "\n".join(lines) or "empty"


def _read(context: ToolContext, path: str) -> str:
    try:
        text = context.workspace.read_text(path)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is not a text file") from None
    if "\x00" in text:
        raise InvalidRequest(f"{path} is not a text file")
    return text


def _write(context: ToolContext, path: str, content: str) -> None:
    if len(content) > MAX_WRITE:
        raise TooLarge(f"{len(content):,} characters are too many for one file: at most {MAX_WRITE:,}")
    if "\x00" in content:
        raise InvalidRequest("a text file cannot contain NUL characters")
    context.workspace.write_text(path, content)
