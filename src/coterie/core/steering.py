"""What a new message does to a running turn, in words that the model and the person both see."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.message import ToolCall

SKIPPED = (
    "skipped: a new message came first. Call it again when you go on with this task, if it is still needed."
)
UNKNOWN_OUTCOME = (
    "outcome unknown: the service stopped while this call was under way. "
    "It may or may not have taken effect; check before you call it again."
)
ABORTED = "not run: the turn was stopped."
STOPPED_UNDER_WAY = (
    "outcome unknown: the turn was stopped while this call was under way. "
    "It may or may not have taken effect; check before you call it again."
)
STOPPED = "This turn was stopped before it was answered."
NO_RESULT = "no result was recorded for this call."
_QUOTED = 200


def backlog_text(task: str, skipped: Sequence[ToolCall], *, apart: bool = False) -> str:
    """The one message that takes up an interrupted task again; `apart`, with the quotation on a line of its own."""
    quoted = " ".join(task.replace("“", '"').replace("”", '"').split())
    if len(quoted) > _QUOTED:
        quoted = quoted[: _QUOTED - 1] + "…"
    which = "quoted below" if apart else f"“{quoted}”"
    text = f"[Backlog] Go on with the task that was interrupted: {which}. Do what is left; repeat nothing."
    if skipped:
        names = ", ".join(dict.fromkeys(call.name for call in skipped))
        text += f" Skipped calls: {names}."
    return f"{text}\n{quoted}" if apart else text
