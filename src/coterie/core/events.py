"""What a watcher of a session can see."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from coterie.core.message import Message, Usage

ChatState = Literal[
    "queued",
    "started",
    "delta",
    "thinking",
    "tool_start",
    "tool_end",
    "steered",
    "final",
    "aborted",
    "error",
]
SessionChange = Literal["message", "ended", "edited", "deleted"]
"""A message came in, a turn ended, or the session itself is another now."""
LAST: tuple[ChatState, ...] = ("final", "aborted", "error")


def final_fields(message: Message, usage: Usage) -> dict[str, Any]:
    """What the last event of an answered turn says; a model that stood in for another is named, and why it ended early."""
    fields: dict[str, Any] = {"text": message.text, "message_id": message.id, "usage": asdict(usage)}
    meta = message.meta or {}
    return fields | {name: meta[name] for name in ("fallback", "finish") if meta.get(name)}


@dataclass(frozen=True, slots=True)
class ChatEvent:
    """One thing that happened in a turn."""

    run_id: str
    session: str
    seq: int
    state: ChatState
    attempt: int
    """Rises when a reply starts over; what an older attempt streamed no longer counts."""
    fields: dict[str, Any] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "session": self.session,
            "seq": self.seq,
            "state": self.state,
            "attempt": self.attempt,
            **self.fields,
        }
