"""A TurnJob: the unit of work that runs exactly one turn of one session, and the states it may go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from coterie.core.errors import CoterieError
from coterie.core.message import Message, Origin, Part, Role, Usage
from coterie.core.session import Session


class TurnState(StrEnum):
    QUEUED = "queued"  # its message waits in the inbox
    RUNNING = "running"
    WAITING = "waiting"  # holds its session but no slot; `waits_for` says for whom; until its next step
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
    # A turn that waits may begin to wait for something else before its next step.
    TurnState.WAITING: (TurnState.RUNNING, TurnState.WAITING, TurnState.ABORTED, TurnState.ERROR),
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
WaitReason = Literal["agent", "approval", "outside"]
"""Who has the word while a turn waits: another agent, a person who is asked first, or somebody outside the house."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who runs turns, and how others can tell that it no longer does."""

    owner: str
    """One process."""
    epoch: int
    """Rises with every owner; under a higher one nothing of a lower one is committed any more."""
    lease_until: str | None = None
    """Until when nobody else may take its turns over. None: until somebody else has the home's lock, which the
    kernel frees when the owner dies."""


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
    audience: str | None = None
    """Who hears it: that of its session, unless that person is the owner themself. Known once it was claimed."""
    waits_for: WaitReason | None = None
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
    delivered_at: str | None = None
    """When its answer had reached whoever waited for it; None also where nobody did."""


class ClaimLost(CoterieError):
    """Another process, or a person, took this turn over: nothing more of ours may be committed."""

    code = "CONFLICT"
    http_status = 409


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A message that was accepted and that no model has seen yet."""

    session_id: str
    message_id: str
    run_id: str | None
    """The turn that it asks for; None for what is merely noted with the next one."""
    agent_id: str
    """Whom the session was bound to when it came."""
    role: Role
    origin: Origin
    text: str
    meta: Mapping[str, Any] | None
    created_at: str
    position: int = 0
    parts: tuple[Part, ...] = ()
    """Images that came with it."""

    def message(self, **more: Any) -> Message:
        """As it stands in a transcript; without a place where it still waits."""
        said: dict[str, Any] = {"agent_id": self.agent_id, "meta": self.meta, **more}
        return Message(
            id=self.message_id,
            role=self.role,
            origin=self.origin,
            text=self.text,
            parts=self.parts,
            run_id=self.run_id,
            created_at=self.created_at,
            **said,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What is next in a session's inbox."""

    session: Session
    entries: Sequence[InboxEntry]
    """The last one asks for the turn; those before it are noted with it."""
    job: TurnJob
    announced: bool
    """Results that other agents brought are open in this session."""
