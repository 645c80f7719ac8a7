"""Memories as files that people read and Git compares: JSON lines, or Markdown with a comment for the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from coterie.core.errors import InvalidRequest

Format = Literal["jsonl", "markdown"]

_TITLE = "# Memories\n"
_MARK = re.compile(r"^<!-- memory (\{.*\}) -->$")


def write(entries: Iterable[Mapping[str, Any]], form: Format) -> str:
    if form == "jsonl":
        return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    return "\n".join([_TITLE, *(_section(entry) for entry in entries)])


def read(text: str, form: Format) -> Iterator[dict[str, Any]]:
    """The entries of a text. What is wrong is named with its line."""
    return _lines(text) if form == "jsonl" else _sections(text)


def _lines(text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        entry = _json(line, number)
        yield entry


def _section(entry: Mapping[str, Any]) -> str:
    """A heading for people, everything but the text in a comment, and the text as it is.

    A fence that the text itself does not hold keeps it exact, whatever is in it.
    """
    facts = {key: value for key, value in entry.items() if key != "content"}
    content = str(entry["content"])
    fence = "~~~"
    while fence in content:
        fence += "~"
    spelled = json.dumps(facts, ensure_ascii=False).replace("-->", "--\\u003e")
    when = str(entry.get("occurred_at") or entry.get("created_at") or "")[:10]
    return (
        f"## {when} {entry.get('agent_id', '')}, {entry.get('scope', '')}\n\n"
        f"<!-- memory {spelled} -->\n{fence}\n{content}\n{fence}\n"
    )


def _sections(text: str) -> Iterator[dict[str, Any]]:
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        match = _MARK.match(lines[at])
        if match is None:
            at += 1
            continue
        facts = _json(match.group(1), at + 1)
        begin = at + 1
        fence = lines[begin] if begin < len(lines) else ""
        if not fence or set(fence) != {"~"}:
            raise InvalidRequest(f"line {begin + 1}: a memory begins with a line of ~~~ here")
        try:
            end = lines.index(fence, begin + 1)
        except ValueError:
            raise InvalidRequest(f"line {begin + 1}: the memory that begins here does not end") from None
        yield {**facts, "content": "\n".join(lines[begin + 1 : end])}
        at = end + 1


def _json(text: str, line: int) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"line {line} is not JSON") from None
    if not isinstance(entry, dict):
        raise InvalidRequest(f"line {line} is not a JSON object")
    return entry
