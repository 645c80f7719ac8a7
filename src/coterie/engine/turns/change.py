"""One transaction on turns: what it does to them, and what follows once it is on disk."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.core.announce import Asker, RunStatus, SubagentRun
from coterie.core.audience import is_outside
from coterie.core.clock import now_iso
from coterie.core.events import ChatState, final_fields
from coterie.core.fence import with_mark
from coterie.core.message import ImagePart, Message, Origin, ToolCall, Usage, snippet
from coterie.core.session import INTERNAL, Session
from coterie.core.transcript import Transcript
from coterie.core.turn import ACTIVE, InboxEntry, Reception, TurnJob, TurnKind, TurnState, WaitReason
from coterie.engine.turns.announcing import announce, close_run, settle
from coterie.engine.turns.drafts import draft, error_note, stop_note
from coterie.store.full_text import heard_by
from coterie.store.turn_writes import TurnWrites

if TYPE_CHECKING:
    from coterie.engine.turns.turns import Turns
    from coterie.store.transaction import Transaction

log = logging.getLogger("coterie.turns")

NO_LONGER_SHOWN = "What was said here before was said to the owner, and is no longer shown."


@dataclass(slots=True)
class Asked:
    """A turn that was asked for; once it is on disk, the status says what becomes of it."""

    session: Session
    job: TurnJob
    agent_id: str
    status: Reception = "queued"


class TurnChange:
    """The only user of TurnWrites. Made by `Turns.transact`, for one transaction."""

    def __init__(self, turns: Turns, tx: Transaction, transcript: Transcript | None) -> None:
        self.tx = tx
        self._turns = turns
        self._writes = TurnWrites(tx.connection)
        self._transcript = transcript
        self._added = 0
        self._audience: str | None = None
        """Who hears the turn that is being changed; None: whoever its session is for."""
        self.follows: list[Callable[[], None]] = []
        """Done in this order, on the event loop, once everything is on disk."""

    def follow(self) -> None:
        for one in self.follows:
            one()

    # Asking

    def ask(
        self,
        session: Session,
        agent_id: str,
        text: str,
        *,
        origin: Origin = "user",
        asker: Asker | None = None,
        kind: TurnKind = "message",
        images: Sequence[ImagePart] = (),
        meta: Mapping[str, Any] | None = None,
        timeout_s: int | None = None,
        key: str | None = None,
        body_hash: str | None = None,
    ) -> Asked:
        """A message for a session's agent, and the turn that will answer it."""
        run_id, at = uuid.uuid4().hex, now_iso()
        job = TurnJob(
            run_id,
            session.id,
            uuid.uuid4().hex,
            TurnState.QUEUED,
            kind=kind,
            trace_id=(asker.trace_id if asker else None) or run_id,
            hop=asker.hop + 1 if asker else int(kind == "request"),
            chain=(*asker.chain, asker.agent_id) if asker else (),
            timeout_s=timeout_s,
            created_at=at,
        )
        if asker is not None or kind == "request":
            meta = {**_handed_on(job, asker), **(meta or {})}
        entry = InboxEntry(
            session_id=session.id,
            message_id=job.message_id,
            run_id=run_id,
            agent_id=agent_id,
            role="user",
            origin=origin if asker is None else "agent",
            text=text,
            meta=meta,
            created_at=at,
            parts=tuple(images),
        )
        self._writes.submit(job, entry, key=key, body_hash=body_hash)
        asked = Asked(session, job, agent_id)
        self.follows.append(lambda: self._turns.asked(asked))
        return asked

    def delivered(self, run_ids: Sequence[str]) -> None:
        self._writes.delivered(run_ids, now_iso())

    def begin_run(self, run: SubagentRun) -> None:
        """The turn that was just asked for is somebody else's run."""
        self.tx.runs.add(run)
        self.follows.append(lambda: self._turns.runs.begun(run))

    def ask_for_wake(self, session: Session, job: TurnJob) -> None:
        """A turn for results that came in; it comes up when nothing else is to be done there."""
        self._writes.ask_for_wake(job)
        self.follows.append(lambda: self._turns.work_for(session))

    # Running

    def claim(self, session: Session, job: TurnJob, agent_id: str) -> TurnJob:
        """Ours to run, as this agent, for whoever hears this session now."""
        at, audience = now_iso(), self._turns.hears(session)
        self._audience = audience
        claim = self._turns.claim_of_ours
        self._writes.claim(job.run_id, claim, agent_id=agent_id, audience=audience, at=at)
        if job.kind == "request":
            self.tx.runs.start(job.run_id, at)
            self.follows.append(lambda: self._turns.runs.started(job.run_id))
        return replace(
            job,
            state=TurnState.RUNNING,
            agent_id=agent_id,
            audience=audience,
            started_at=job.started_at or at,
        )

    def consume(self, entries: Sequence[InboxEntry], agent_id: str) -> list[Message]:
        """Out of the inbox; the caller puts it into the transcript."""
        for entry in entries:
            self._writes.take(entry)
        return [entry.message(agent_id=agent_id) for entry in entries]

    def hide_what_the_owner_heard(self, session: Session, job: TurnJob) -> None:
        """Somebody who was the owner once must not learn from the transcript what only the owner may know: from here on,
        nothing that was said before is shown to the model."""
        if job.audience is None or not is_outside(job.audience):
            return
        assert self._transcript is not None
        if not any(message.heard_by is None and message.seq for message in self._transcript.sendable()):
            return
        through = self._transcript.last_seq + self._added
        meta = {"compaction": {"through": through, "messages": through}}
        self.append(session, [draft(job, "system", "system", NO_LONGER_SHOWN, meta=meta)])

    def disown(self, agent_id: str) -> None:
        """An agent that is purged: its turns in others' sessions are nobody's."""
        self._writes.disown(agent_id)

    def resume(self, job: TurnJob) -> None:
        self._writes.resume(job.run_id)

    def interrupt(self, job: TurnJob, unstarted: Sequence[ToolCall]) -> None:
        token = {"skipped": [{"id": call.id, "name": call.name} for call in unstarted]}
        self._writes.interrupt(job.run_id, self._turns.claim_of_ours, job.session_id, token, now_iso())

    def step(
        self,
        job: TurnJob,
        *,
        replies: int = 0,
        open_call: str | None = None,
        usage: Usage | None = None,
        cost: float | None = None,
        model: str | None = None,
        final: Message | None = None,
    ) -> None:
        assert job.agent_id is not None
        self._audience = job.audience
        self._writes.step(
            job.run_id,
            self._turns.claim_of_ours,
            agent_id=job.agent_id,
            replies=replies,
            open_call=open_call,
            usage=usage,
            cost=cost,
            model=model,
            final=None if final is None else final.id,
            at=None if final is None else final.created_at,
        )

    def wait(self, job: TurnJob, reason: WaitReason) -> None:
        self._writes.wait(job.run_id, self._turns.claim_of_ours, reason)

    def append(self, session: Session, messages: Sequence[Message]) -> list[Message]:
        """Into the transcript, each at its place. What is not the person's words gets its mark."""
        transcript = self._transcript
        assert transcript is not None
        first = transcript.last_seq + 1 + self._added
        heard = heard_by(self._audience or session.audience)
        placed = [
            replace(with_mark(message), seq=first + i, heard_by=heard) for i, message in enumerate(messages)
        ]
        self._added += len(placed)
        self.tx.sessions.append(session.id, placed)
        self.follows += [partial(transcript.append, message) for message in placed]
        return placed

    # Ending

    def answered(
        self, session: Session, job: TurnJob, final: Message, usage: Usage, *, announced: bool
    ) -> None:
        """After the last step: the snippet, what leaves the house, and whoever asked for it."""
        self.tx.sessions.touch(session.id, final.created_at, snippet([final]))
        if _is_delivered(session, job):
            assert session.route is not None
            self.tx.turns.send(session.id, job.run_id, final, session.route)
        self._over(job, TurnState.DONE, final.created_at, text=final.text, settles=announced)
        self._tell(session, job, "final", **final_fields(final, usage))

    def end(
        self,
        session: Session,
        job: TurnJob,
        state: TurnState,
        reason: str | None = None,
        *,
        ours: bool = True,
    ) -> bool:
        """Without an answer. False where it had ended already or, if it should be ours, is no longer."""
        at = now_iso()
        self._audience = job.audience
        claim = self._turns.claim_of_ours if ours else None
        if not self._writes.end(job.run_id, state, at, error=reason, claim=claim):
            return False
        self._over(job, state, at, error=reason)
        if state is TurnState.ERROR:
            self._tell(session, job, "error", message=reason)
        elif (
            job.kind != "wake" or state is not TurnState.CANCELLED
        ):  # nobody was told of a wake that never began
            self._tell(session, job, "aborted", reason=state.value)
        return True

    def cancel_queued(self, session: Session, job: TurnJob, reason: str | None) -> bool:
        """A message that no model saw yet is taken back, visibly. False where it is too late."""
        at = now_iso()
        entry = self._writes.cancel_queued(job.run_id, at)
        if entry is None:
            return False
        self._over(job, TurnState.CANCELLED, at, error=reason)
        self.append(session, [entry.message(meta={**(entry.meta or {}), "cancelled": True})])
        self._tell(session, job, "aborted", reason=TurnState.CANCELLED.value)
        return True

    def give_up(self, session: Session, job: TurnJob, reason: str) -> None:
        """Where an answer would have stood, the transcript says why there is none."""
        if self.end(session, job, TurnState.ERROR, reason, ours=False):
            self.append(session, [error_note(job, reason)])

    def stop(self, session: Session, job: TurnJob, reason: str | None) -> bool:
        """A turn that is not under way, such as an interrupted task. False where it had ended already."""
        if not self.end(session, job, TurnState.ABORTED, reason, ours=False):
            return False
        note = stop_note(job)
        if any(other.state in ACTIVE for other in self.tx.turns.unfinished(session.id)):
            # Nothing may come between the calls of the turn that runs and their results.
            self.tx.turns.post(_noted(session, note))
        else:
            self.append(session, [note])
        return True

    def tell_how_it_ended(self, session: Session, job: TurnJob, reason: str | None) -> None:
        """For whoever still follows a turn that is no longer ours: it was answered before that was told, or others
        have it now."""
        if self._turns.live.get(job.run_id) is None:
            return
        now = self.tx.turns.get(job.run_id)
        final = self.tx.sessions.message(now.final_message_id) if now and now.final_message_id else None
        if now is None or final is None:
            self._tell(session, job, "error", message=reason or "it was taken over")
            return
        if job.kind == "request":
            self.follows.append(lambda: self._turns.runs.ended(job.run_id, "completed"))
        self._tell(session, job, "final", **final_fields(final, now.usage))

    def forget_all(self, session: Session, reason: str, told: str) -> None:
        """Everything unfinished in a session; whoever asked for it is told, and what came in for it is blocked."""
        at = now_iso()
        for job in self._writes.forget_all(session.id, at):
            self._over(job, TurnState.ABORTED, at, settles=False)
            self._tell(session, job, "aborted", reason=told)
        self.tx.announcements.block_all(session.id, reason, forget_lines=True)

    def _over(
        self,
        job: TurnJob,
        state: TurnState,
        at: str,
        *,
        text: str = "",
        error: str | None = None,
        settles: bool = True,
    ) -> None:
        """What the end of a turn means to others, in the transaction that ends it."""
        if job.kind == "request":
            run = close_run(self.tx, job, state, at, text, error)
            asked = None if run is None else announce(self.tx, run, at)
            if asked is not None:
                self.ask_for_wake(*asked)
            status: RunStatus = "completed" if state is TurnState.DONE else "error"
            self.follows.append(lambda: self._turns.runs.ended(job.run_id, status))
        if settles:
            settle(self.tx, job, state, at, error)

    def _tell(self, session: Session, job: TurnJob, state: ChatState, **fields: Any) -> None:
        self.follows.append(lambda: self._turns.ended(session, job, state, fields))


def _handed_on(job: TurnJob, asker: Asker | None) -> dict[str, Any]:
    """One agent's words to another: told apart from a person's for good. The first send is hop 0."""
    meta: dict[str, Any] = {"trace_id": job.trace_id, "hop": job.hop - 1}
    if asker is not None:
        meta["from"] = {
            "agent_id": asker.agent_id,
            "session_key": asker.session_key,
            "run_id": asker.run_id,
        }
    return meta


def _noted(session: Session, note: Message) -> InboxEntry:
    """A line for the transcript that asks for no turn."""
    return InboxEntry(
        session_id=session.id,
        message_id=note.id,
        run_id=None,
        agent_id=note.agent_id,
        role=note.role,
        origin=note.origin,
        text=note.text,
        meta={**(note.meta or {}), "run_id": note.run_id},
        created_at=note.created_at,
    )


def _is_delivered(session: Session, job: TurnJob) -> bool:
    """What one agent says to another never leaves the house."""
    route = session.route
    return (
        session.deliver and route is not None and route.get("channel") != INTERNAL and job.kind != "request"
    )
