"""What a watcher of a session can see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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
LAST: tuple[ChatState, ...] = ("final", "aborted", "error")


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
