"""What the offline model shows of agents working together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from coterie.core.fence import CLOSE, OPEN
from coterie.core.ports import ModelRequest

EXAMPLES = {
    "agents_message": "“ask rose: which soil?” with an agent's name",
    "subagents_spawn": "“spawn a subagent to say hello”",
}

_ASK = re.compile(r"^(?:please )?(ask|tell) ([a-z0-9][a-z0-9-]*)\b[:,]?\s+(.+)$", re.I | re.S)
_SPAWN = re.compile(r"^(?:please )?spawn (?:a subagent )?(?:to |for )?(.+)$", re.I | re.S)
_GO = re.compile(
    r"^(?:please )?(?:go|switch) to ([a-z0-9][a-z0-9-]*)(?: and (?:discuss|say|ask)? ?(.+))?$", re.I | re.S
)
_PEER = re.compile(r"^- ([a-z0-9-]+)(?=[ :]|$)", re.M)
_LINE = re.compile(r"\[@agent:.+#[a-z0-9-]+\] finish")
_RESULT = re.compile(rf"(\w+) result of ([^{CLOSE}\n]+){CLOSE}\n")


def command(request: ModelRequest, text: str) -> tuple[str, dict[str, Any]] | None:
    """The tool and its arguments that a sentence asks for. Only agents that the prompt names are meant."""
    if (match := _ASK.match(text.strip())) and _known(request, match[2]):
        mode = "sync" if match[1].lower() == "ask" else "async"
        return "agents_message", {"agentId": match[2].lower(), "content": match[3], "mode": mode}
    if (match := _GO.match(text.strip())) and _known(request, match[1]):
        message = {"message": match[2]} if match[2] else {}
        return "agents_switch", {"agentId": match[1].lower(), **message}
    if match := _SPAWN.match(text.strip()):
        return "subagents_spawn", {"task": match[1]}
    return None


def woken(request: ModelRequest) -> str | None:
    """What to say when results came in and nobody said anything."""
    if not request.messages or not _LINE.fullmatch(request.messages[-1].text):
        return None
    lines = [f"{who} is done ({status}): {text}" for who, status, text in _results(request.context or "")]
    return "\n".join(lines)


def _results(context: str) -> Iterator[tuple[str, str, str]]:
    """Who is done, how, and what came of it: each between a mark and the same mark again."""
    pieces = context.split(OPEN)
    for piece, following in pairwise(pieces):
        begins = _RESULT.match(piece)
        if begins and following.startswith(f"/{begins[1]}{CLOSE}"):
            who, _, rest = begins[2].partition("#")
            status = rest.split(", ")[1] if ", " in rest else "done"
            yield who, status, piece[begins.end() :].removesuffix("\n")


def _known(request: ModelRequest, name: str) -> bool:
    return name.lower() in _PEER.findall(request.system)
