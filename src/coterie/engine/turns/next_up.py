"""What comes first in a session: a turn that was cut short, new messages, interrupted tasks, results of others.

Only looks. `Turns.claim` does what follows, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.core.agent import AgentState
from coterie.core.message import Message
from coterie.core.session import Session
from coterie.core.turn import ACTIVE, InboxEntry, TurnJob, Work

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class CutShort:
    """A turn that another process, or this one before a failure, left in the middle."""

    job: TurnJob


@dataclass(frozen=True, slots=True)
class Resumable:
    """A task that was interrupted by a message."""

    job: TurnJob
    token: Mapping[str, Any]
    asked: Message | None
    """The message that it began with."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Results came in, and nobody is waited for any more."""

    session: Session
    job: TurnJob
    noted: Sequence[InboxEntry]


NextUp = CutShort | Work | Resumable | Wake


def next_up(tx: Transaction, session_id: str, *, unsure: bool) -> NextUp | None:
    if unsure:
        left = next((job for job in tx.turns.unfinished(session_id) if job.state in ACTIVE), None)
        if left is not None:
            return CutShort(left)
    found = tx.turns.next_work(session_id)
    if found is not None:
        return found
    backlog = tx.turns.backlog(session_id)
    if backlog:
        run_id, token = backlog[0]
        job = tx.turns.get(run_id)
        assert job is not None
        asked = tx.sessions.message(job.message_id)
        return Resumable(job, token, asked)
    session, wake = tx.sessions.find(session_id), tx.turns.queued_wake(session_id)
    if session is None or wake is None or tx.runs.some_are_live(session_id):
        return None  # the next one to end looks again
    return Wake(session, wake, tx.turns.noted(session_id))


def who_goes_on(tx: Transaction, job: TurnJob) -> str | None:
    """A turn goes on as it began: with the agent that began it, if that is still active."""
    owner = None if job.agent_id is None else tx.agents.get(job.agent_id)
    return owner.id if owner is not None and owner.state is AgentState.ACTIVE else None
