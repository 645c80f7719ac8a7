"""What the offline model shows of agents working together."""

from __future__ import annotations

import re
from typing import Any

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
_LINE = re.compile(r"\[@agent:.+#[a-z0-9-]+\] finish")
_RESULT = re.compile(r"⟦(\w+) result of (.*?), (\w+), run [^⟧]*⟧\n(.*?)\n⟦/\1⟧", re.S)


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
    found = _RESULT.findall(request.context or "")
    lines = [f"{who.split('#')[0]} is done ({status}): {text}" for _, who, status, text in found]
    return "\n".join(lines)


def _known(request: ModelRequest, name: str) -> bool:
    return re.search(rf"^- {re.escape(name.lower())}(?=[ :]|$)", request.system, re.M) is not None
