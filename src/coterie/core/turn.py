"""A TurnJob: the unit of work that runs exactly one turn of one session, and the states it may go through."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from coterie.core.message import Usage


class TurnState(StrEnum):
    QUEUED = "queued"  # its message waits in the inbox
    RUNNING = "running"
    WAITING = (
        "waiting"  # holds its session but no slot: a child or a person has the word; until its next step
    )
    INTERRUPTED = "interrupted"  # steered away from; a resume token is in the backlog
    DONE = "done"
    ERROR = "error"
    ABORTED = "aborted"
    CANCELLED = "cancelled"  # before its message was shown to a model


ACTIVE = (TurnState.RUNNING, TurnState.WAITING)
ENDED = (TurnState.DONE, TurnState.ERROR, TurnState.ABORTED, TurnState.CANCELLED)

TRANSITIONS: dict[TurnState, tuple[TurnState, ...]] = {
    TurnState.QUEUED: (TurnState.RUNNING, TurnState.CANCELLED, TurnState.ERROR),
    TurnState.RUNNING: (
        TurnState.RUNNING,  # the next step, or the next process after a crash
        TurnState.WAITING,
        TurnState.INTERRUPTED,
        TurnState.DONE,
        TurnState.ERROR,
        TurnState.ABORTED,
    ),
    TurnState.WAITING: (TurnState.RUNNING, TurnState.ABORTED, TurnState.ERROR),
    TurnState.INTERRUPTED: (TurnState.RUNNING, TurnState.ABORTED, TurnState.ERROR),
    TurnState.DONE: (),
    TurnState.ERROR: (),
    TurnState.ABORTED: (),
    TurnState.CANCELLED: (),
}


TurnKind = Literal["message", "request", "wake"]
"""What asks for a turn: a person's message, another agent that wants an answer, or results that came in."""


Reception = Literal["started", "steering", "queued"]
"""What a message met when it was accepted."""
Stop = Literal["aborted", "cancelled", "ended", "idle"]
"""What came of stopping: a turn, a message taken back, nothing left to stop, nothing there."""


def before(state: TurnState) -> tuple[TurnState, ...]:
    """The states from which this one may be reached."""
    return tuple(source for source, targets in TRANSITIONS.items() if state in targets)


@dataclass(frozen=True, slots=True)
class TurnJob:
    run_id: str
    session_id: str
    message_id: str
    """The message that asked for it."""
    state: TurnState
    agent_id: str | None = None
    """Who runs it; known once it was claimed."""
    epoch: int = 0
    attempts: int = 0
    """Claims since the last committed step."""
    rounds: int = 0
    """Model replies so far."""
    open_call: str | None = None
    """A tool call that was started and has no result yet."""
    kind: TurnKind = "message"
    trace_id: str = ""
    """The run of the message that everything began with."""
    hop: int = 0
    """How many agents handed it on."""
    chain: tuple[str, ...] = ()
    """Those agents, first one first."""
    timeout_s: int | None = None
    """Seconds from its start after which it is stopped."""
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    final_message_id: str | None = None
    created_at: str = ""
    started_at: str | None = None
    ended_at: str | None = None
