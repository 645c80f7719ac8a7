"""IDENTITY.md: the few facts in it that programs read, and how they are changed without touching the rest."""

from __future__ import annotations

import re
import unicodedata

from coterie.core.errors import InvalidRequest

FIELDS = ("emoji", "creature", "vibe")

# `- **Emoji:** 🦊`, `* Emoji: 🦊`, `**Emoji**: 🦊`, `Emoji: 🦊`, or the same in a front matter block.
_LINE = re.compile(
    r"^(?P<lead>[ \t]*(?:[-*+][ \t]+)?(?:\*\*|__)?(?P<key>emoji|creature|vibe)(?:\*\*|__)?[ \t]*:(?:\*\*|__)?)"
    r"(?P<gap>[ \t]*)(?P<value>[^\r\n]*)(?P<end>\r?\n?)$",
    re.IGNORECASE,
)


def read_fields(text: str) -> dict[str, str]:
    """Emoji, creature and vibe, as far as the text names them."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        value = match["value"].strip().strip("\"'").strip()
        if value and not _placeholder(value):
            found.setdefault(match["key"].lower(), value)
    return found


def write_fields(text: str, changes: dict[str, str]) -> str:
    """The same text with these fields set. An empty value empties the field."""
    left = {key: _one_line(key, value) for key, value in changes.items()}
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        match = _LINE.match(line)
        if match is None or (key := match["key"].lower()) not in left:
            continue
        value = left.pop(key)
        lines[index] = f"{match['lead']} {value}".rstrip() + (match["end"] or "\n")
    missing = [f"- **{key.capitalize()}:** {value}\n" for key, value in left.items() if value]
    if not missing:
        return "".join(lines)
    at = _after_heading(lines)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join([*lines[:at], *missing, *lines[at:]])


def _after_heading(lines: list[str]) -> int:
    """Where a new field goes: below the last known field, else below the first heading, else on top."""
    known = [i for i, line in enumerate(lines) if _LINE.match(line)]
    if known:
        return known[-1] + 1
    for i, line in enumerate(lines):
        if line.startswith("#"):
            return i + 2 if i + 1 < len(lines) and not lines[i + 1].strip() else i + 1
    return 0


def _one_line(key: str, value: str) -> str:
    if len(value) > 500:
        raise InvalidRequest(f"{key} has at most 500 characters", details={"field": key})
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in value):
        raise InvalidRequest(f"{key} must be one line without control characters", details={"field": key})
    return value.strip()


def is_placeholder(line: str) -> bool:
    """A line that only asks, as `- **Creature:** _(what kind of being is it?)_` does."""
    before, mark, hint = line.strip().partition("_(")
    asked = before.rstrip(" *_")
    return bool(mark) and hint.endswith(")_") and (not asked or asked.endswith((":", "-", "+")))


def _placeholder(value: str) -> bool:
    """Templates hold hints such as `_(one emoji)_`; nobody has answered them yet."""
    return value.startswith(("_(", "(", "<")) and value.endswith((")_", ")", ">"))
