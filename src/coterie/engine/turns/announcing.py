"""What the end of a turn means to whoever asked for it, in the transaction that ends it: the one way of results."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.core.agent import MAIN
from coterie.core.announce import (
    CANCELLED,
    LONGEST_RESULT,
    Announcement,
    SubagentRun,
    announce_meta,
    finish_line,
)
from coterie.core.audience import OWNER, is_outside
from coterie.core.session import Session
from coterie.core.turn import InboxEntry, TurnJob, TurnState

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction

log = logging.getLogger("coterie.announcing")

NO_LONGER_OWNER = "whoever asked for it is no longer known as the owner"


def settle(tx: Transaction, job: TurnJob, state: TurnState, at: str, error: str | None) -> None:
    """The announcements that a turn answered for: it did, or they are visibly left."""
    if state is TurnState.DONE:
        tx.announcements.answered(job.run_id, at)
    else:
        tx.announcements.failed(
            job.run_id, f"the turn that should have used it ended: {error or state.value}"
        )


def results_for(tx: Transaction, job: TurnJob) -> Sequence[Announcement]:
    """What a turn that begins is shown. A wake answers for all of it; a person's turn only if no wake will."""
    session_id = job.session_id
    if job.audience is not None and is_outside(job.audience):
        for one in tx.announcements.shown(session_id):
            if one.audience == OWNER:
                tx.announcements.withhold(one.run_id, NO_LONGER_OWNER)
    if job.kind == "wake" or (
        job.kind == "message"
        and tx.turns.queued_wake(session_id) is None
        and not tx.runs.some_are_live(session_id)
    ):
        tx.announcements.bind(session_id, job.run_id)
    return tx.announcements.shown(session_id)


def shown_to(tx: Transaction, job: TurnJob) -> Sequence[Announcement]:
    """What a turn that goes on is shown."""
    outside = job.audience is not None and is_outside(job.audience)
    shown = tx.announcements.shown(job.session_id)
    return [one for one in shown if not (outside and one.audience == OWNER)]


def may_hear(tx: Transaction, job: TurnJob, run_id: str) -> bool:
    """Whether what came of a run may be told in a turn: what was done for the owner is for nobody else, not even for
    somebody who was the owner when they asked for it."""
    if job.audience is None or not is_outside(job.audience):
        return True
    done = tx.turns.get(run_id)
    return done is not None and done.audience != OWNER


def close_run(
    tx: Transaction, job: TurnJob, state: TurnState, at: str, text: str, error: str | None
) -> SubagentRun | None:
    """The run that a turn was, with its result. None where it had ended before."""
    now = tx.turns.get(job.run_id)
    usage = now.usage if now is not None else job.usage
    if state is TurnState.DONE:
        return tx.runs.finish(
            job.run_id, "completed", at, result=text[:LONGEST_RESULT], error=None, usage=usage
        )
    return tx.runs.finish(job.run_id, "error", at, result=None, error=error or CANCELLED, usage=usage)


def announce(tx: Transaction, run: SubagentRun, at: str) -> tuple[Session, TurnJob] | None:
    """One row and one line for the requester; the session and the turn that is to be asked for, where it may wake."""
    if not run.announce or run.requester_session_id is None or run.requester_session_key is None:
        return None
    agent, job = tx.agents.get(run.agent_id), tx.turns.get(run.run_id)
    announcement = Announcement(
        run_id=run.run_id,
        session_id=run.requester_session_id,
        session_key=run.requester_session_key,
        text=finish_line(agent.label if agent is not None else run.agent_id, run.agent_id),
        meta=announce_meta(run),
        message_id=uuid.uuid4().hex,
        created_at=at,
        audience=None if job is None else job.audience,
    )
    log.info("announce: run %s to %s, trace %s", run.run_id, run.requester_session_key, run.trace_id)
    session = tx.sessions.find(run.requester_session_id)
    if session is None:
        gone = "the session that asked was deleted"
        tx.announcements.add(replace(announcement, state="blocked", reason=gone, message_id=None))
        return None
    note(tx, session, announcement, at)
    if run.held_because is not None:
        tx.announcements.add(replace(announcement, state="blocked", reason=run.held_because))
        return None
    tx.announcements.add(announcement)
    return session, wake_job(announcement, run, at)


def note(tx: Transaction, session: Session, announcement: Announcement, at: str) -> None:
    """The line into the session's inbox; it asks for no turn, so it steers none."""
    assert announcement.message_id is not None
    default = tx.agents.default()
    tx.turns.post(
        InboxEntry(
            session_id=session.id,
            message_id=announcement.message_id,
            run_id=None,
            agent_id=session.agent_id or (default.id if default else MAIN),
            role="system",
            origin="agent",
            text=announcement.text,
            meta=announcement.meta,
            created_at=at,
        )
    )


def wake_job(announcement: Announcement, run: SubagentRun | None, at: str, *, anew: bool = False) -> TurnJob:
    """A turn of the requester's, as deep in the trace as the one that asked, or anew where a person asks."""
    assert announcement.message_id is not None
    told = announcement.meta["announce"]
    run_id = uuid.uuid4().hex
    return TurnJob(
        run_id,
        announcement.session_id,
        announcement.message_id,
        TurnState.QUEUED,
        kind="wake",
        trace_id=run_id if anew else told["trace_id"],
        hop=max(0, len(run.chain) - 1) if run is not None else told["hop"],
        chain=run.chain[:-1] if run is not None else (),
        created_at=at,
    )
