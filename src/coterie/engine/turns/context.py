"""One request: tools, the stable system prompt, the transcript, and one trailing message that is never stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from coterie.core import compaction
from coterie.core.announce import Announcement, results_text
from coterie.core.fence import passing_mark
from coterie.core.message import Message
from coterie.core.ports import ModelRequest
from coterie.core.prompt import context_message
from coterie.core.session import Session
from coterie.engine.household.brain import Brain

RESULTS = 0.2
"""Share of the model's window that other agents' results may take."""

ContextProvider = Callable[[Session, Brain], Mapping[str, str]]
"""Lines for the trailing context message."""


def time_line(session: Session, brain: Brain) -> Mapping[str, str]:
    return {"time": datetime.now().astimezone().isoformat(timespec="seconds")}


def model_request(brain: Brain, messages: Sequence[Message], context: str) -> ModelRequest:
    spec = brain.spec
    return ModelRequest(
        system=brain.system,
        tools=brain.schemas,
        messages=messages,
        context=context,
        temperature=spec.temperature,
        max_tokens=spec.max_tokens,
        thinking=spec.thinking,
    )


def context_text(
    providers: Sequence[ContextProvider],
    session: Session,
    brain: Brain,
    recalled: str | None,
    announced: Sequence[Announcement],
    window: int,
) -> str:
    """Made for one request. Results of other agents get a share of the model's window."""
    lines: dict[str, str] = {}
    for provider in providers:
        lines.update(provider(session, brain))
    if recalled is not None:
        lines["memory"] = recalled
    if announced:
        lines["results"] = results_text(announced, int(window * RESULTS * compaction.CHARACTERS_PER_TOKEN))
    return context_message(lines, passing_mark(session.key))
