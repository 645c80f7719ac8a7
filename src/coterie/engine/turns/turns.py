"""Turns: the one owner of everything that changes a turn job, and of what follows each change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from coterie.core.announce import Announcement
from coterie.core.audience import OWNER, is_outside
from coterie.core.clock import now_iso
from coterie.core.errors import Unavailable
from coterie.core.events import ChatState
from coterie.core.fence import needs_mark, speaker
from coterie.core.message import Message, ToolCall, Usage, snippet
from coterie.core.ports import Waker
from coterie.core.session import Session
from coterie.core.steering import SKIPPED, backlog_text
from coterie.core.transcript import Transcript
from coterie.core.turn import Claim, InboxEntry, TurnJob, TurnState, WaitReason, Work
from coterie.engine.events import Events
from coterie.engine.household.brain import Brains
from coterie.engine.turns.announcing import NO_LONGER_OWNER, results_for, shown_to
from coterie.engine.turns.change import Asked, TurnChange
from coterie.engine.turns.drafts import draft, result
from coterie.engine.turns.live import Live
from coterie.engine.turns.next_up import CutShort, Resumable, Wake, next_up, who_goes_on
from coterie.engine.turns.runs import Runs
from coterie.engine.turns.transcripts import Transcripts
from coterie.engine.turns.under_way import UnderWay
from coterie.store.trouble import NotSynced

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

log = logging.getLogger("coterie.turns")

LONGEST_PAUSE = 5.0
"""Seconds until a disk that failed is tried again."""

T = TypeVar("T")
ATTEMPTS = 20
"""Claims without a committed step after which a turn is given up. A start that is cut off before the model
was even asked counts as one, so a few restarts in a row must not use them up."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A turn that is ours to run, with its message in the transcript."""

    session: Session
    job: TurnJob
    announced: Sequence[Announcement] = ()
    """Results of other agents that it is shown."""
    cut_short: bool = False
    """It goes on from where a crash or a failure left it."""
    resumed: bool = False
    """It came out of the backlog."""


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing was claimed, but something is there: look again, as this agent where one is named."""

    session: Session
    """As it is now."""
    agent_id: str | None = None


class Turns:
    def __init__(
        self,
        store: Store,
        claim: Claim | None,
        brains: Brains,
        waker: Waker,
        events: Events,
        transcripts: Transcripts,
    ) -> None:
        self._store = store
        self._claim = claim
        self._brains = brains
        self._waker = waker
        self._events = events
        self.transcripts = transcripts
        self.live = Live(events)
        self.runs = Runs(events)
        self.under_way = UnderWay()
        self._writing: WeakKeyDictionary[Transcript, asyncio.Lock] = WeakKeyDictionary()
        self._later: set[asyncio.Task[None]] = set()

    @property
    def claim_of_ours(self) -> Claim:
        if self._claim is None:
            raise Unavailable("turns run in the gateway; start it with `coterie serve`")
        return self._claim

    async def transact(
        self, work: Callable[[TurnChange], T], transcript: Transcript | None = None, *, patient: bool = False
    ) -> T:
        """One transaction, and what follows it. `transcript` is that of the session it writes into.

        Where the disk did not take what was committed, whoever asked is told so, and what follows comes when it has. A turn
        is `patient`: it goes on then. So is whoever writes into a transcript, whose next places depend on these.
        """
        done: list[tuple[T, TurnChange]] = []

        def change(tx: Transaction) -> None:
            made = TurnChange(self, tx, transcript)
            done[:] = [(work(made), made)]

        # One writer at a time gives out the next places of a transcript.
        async with contextlib.nullcontext() if transcript is None else self._lock(transcript):
            try:
                await self._store.transact(change)
            except NotSynced as error:
                if not patient and transcript is None:
                    self._follow_later(done[0][1])
                    raise
                log.error("a turn must wait: %s", error.message)
                await self._until_synced()
            [(result, made)] = done
            made.follow()
        return result

    def _follow_later(self, made: TurnChange) -> None:
        async def follow() -> None:
            await self._until_synced()
            made.follow()

        task = asyncio.create_task(follow())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _until_synced(self) -> None:
        pause = 0.1
        while True:
            await asyncio.sleep(pause)
            try:
                return await self._store.settle()
            except NotSynced:
                pause = min(pause * 2, LONGEST_PAUSE)

    def within(self, tx: Transaction) -> TurnChange:
        """A part of somebody else's transaction; what follows is theirs to do, on the event loop."""
        return TurnChange(self, tx, None)

    def _lock(self, transcript: Transcript) -> asyncio.Lock:
        return self._writing.setdefault(transcript, asyncio.Lock())

    # What follows

    def asked(self, asked: Asked) -> None:
        session, job = asked.session, asked.job
        asked.status = self.under_way.status(session, asked.agent_id)
        live = self.live.open(job.run_id, session.key)
        if asked.status != "started":
            live.emit("queued", status=asked.status)
            log.info("queue: run %s of %s, trace %s, %s", job.run_id, session.key, job.trace_id, asked.status)
        if job.kind == "request":
            log.info(
                "ask: run %s of %s, trace %s, for %s, hop %d",
                job.run_id,
                session.key,
                job.trace_id,
                asked.agent_id,
                job.hop,
            )
        self._events.session_changed(session, "message")
        self.work_for(session)

    def work_for(self, session: Session) -> None:
        """Something waits in this session."""
        self._waker.wake(session)

    def ended(self, session: Session, job: TurnJob, state: ChatState, fields: Mapping[str, Any]) -> None:
        self.under_way.over(session.id, job.run_id)
        self.live.open(job.run_id, session.key)
        self.live.close(job.run_id, state, **fields)
        self._events.session_changed(session, "ended")

    def hears(self, session: Session) -> str:
        """Who hears a session now: its audience, or the owner where that is who it is."""
        return self._brains.people.hears(session.audience)

    def _was_for_the_owner(self, session: Session, job: TurnJob) -> bool:
        """A turn that began with rights which whoever hears it no longer has."""
        return job.audience == OWNER and is_outside(self.hears(session))

    # Claiming

    async def claim(self, session: Session, agent_id: str, *, unsure: bool) -> Claimed | Again | None:
        """What comes first in a session, made ours in one transaction, its message in the transcript. None: nothing."""
        transcript = self.transcripts.get(session.id)

        def take(change: TurnChange) -> Claimed | Again | None:
            match next_up(change.tx, session.id, unsure=unsure):
                case None:
                    return None
                case CutShort(job):
                    return self._take_up(change, session, agent_id, job)
                case Resumable(job, token, asked):
                    return self._resume(change, session, agent_id, job, token, asked)
                case Wake(fresh, job, noted):
                    return self._wake(change, fresh, agent_id, job, noted)
                case Work() as work:
                    return self._begin(change, work, agent_id)

        return await self.transact(take, transcript, patient=True)

    def _begin(self, change: TurnChange, work: Work, agent_id: str) -> Claimed | Again:
        """A new message."""
        session, job = work.session, work.job
        if self._brains.agent_of(session) != agent_id:
            return Again(session)
        asked = work.entries[-1].agent_id
        if job.kind == "request" and asked != agent_id:
            # Nobody else does it, with other rights.
            change.append(session, change.consume(work.entries, agent_id))
            gone = self._brains.named(asked) is None
            reason = f"the agent {asked} is no longer active" if gone else "its session went to another agent"
            change.give_up(session, job, reason)
            return Again(session)
        claimed = change.claim(session, job, agent_id)
        announced = results_for(change.tx, claimed) if work.announced else ()
        change.hide_what_the_owner_heard(session, claimed)
        change.append(session, change.consume(work.entries, agent_id))
        return Claimed(session, claimed, announced)

    def _wake(
        self, change: TurnChange, session: Session, agent_id: str, job: TurnJob, noted: Sequence[InboxEntry]
    ) -> Claimed | Again:
        """One turn for all that others have brought."""
        if self._brains.agent_of(session) != agent_id:
            return Again(session)
        heard = replace(job, audience=self.hears(session))
        announced = results_for(change.tx, heard)
        if not announced:
            change.end(session, job, TurnState.CANCELLED, ours=False)
            return Again(session)
        claimed = change.claim(session, job, agent_id)
        change.hide_what_the_owner_heard(session, claimed)
        log.info(
            "wake: run %s of %s, trace %s, for %d results",
            job.run_id,
            session.key,
            job.trace_id,
            len(announced),
        )
        change.append(session, change.consume(noted, agent_id))
        return Claimed(session, claimed, announced)

    def _resume(
        self,
        change: TurnChange,
        session: Session,
        agent_id: str,
        job: TurnJob,
        token: Mapping[str, Any],
        asked: Message | None,
    ) -> Claimed | Again:
        """An interrupted task goes on under its own run."""
        quotes = speaker(asked) if asked is not None and needs_mark(asked) else None
        text = backlog_text(asked.text if asked else "", _skipped(token), apart=quotes is not None)
        if job.agent_id != agent_id:
            return self._as_it_began(change, session, job)
        if self._was_for_the_owner(session, job):
            change.give_up(session, job, NO_LONGER_OWNER)
            return Again(session)
        change.resume(job)
        claimed = change.claim(session, job, agent_id)
        change.hide_what_the_owner_heard(session, claimed)
        change.append(session, [draft(job, "user", "system", text, meta=quotes and {"quotes": quotes})])
        log.info("resume: run %s of %s, trace %s", job.run_id, session.key, job.trace_id)
        return Claimed(session, claimed, shown_to(change.tx, claimed), resumed=True)

    def _take_up(self, change: TurnChange, session: Session, agent_id: str, job: TurnJob) -> Claimed | Again:
        """A turn that was cut short."""
        if job.agent_id != agent_id:
            return self._as_it_began(change, session, job)
        if job.attempts >= ATTEMPTS:
            reason = f"it was begun {job.attempts} times and never got further; it is not tried again"
            change.give_up(session, job, reason)
            return Again(session)
        if self._was_for_the_owner(session, job):
            change.give_up(session, job, NO_LONGER_OWNER)
            return Again(session)
        claimed = change.claim(session, job, agent_id)
        log.info(
            "recover: run %s of %s, trace %s, attempt %d",
            job.run_id,
            session.key,
            job.trace_id,
            job.attempts + 1,
        )
        return Claimed(session, claimed, shown_to(change.tx, claimed), cut_short=True)

    def _as_it_began(self, change: TurnChange, session: Session, job: TurnJob) -> Again:
        owner = who_goes_on(change.tx, job)
        if owner is None:
            change.give_up(session, job, f"the agent {job.agent_id} is no longer active")
        return Again(session, owner)

    # Handing over

    async def hand_over(
        self, session: Session, job: TurnJob, transcript: Transcript, unstarted: Sequence[ToolCall]
    ) -> Claimed | None:
        """If a message waits, it takes over from a turn at a boundary, in one transaction."""

        def hand(change: TurnChange) -> Claimed | None:
            found = change.tx.turns.next_work(session.id)
            if found is None or any(_is_for_another(entry, job) for entry in found.entries):
                return None  # nothing waits, or it came after the session went to another agent
            assert job.agent_id is not None
            change.interrupt(job, unstarted)
            skipped = [result(job, call, SKIPPED) for call in unstarted]
            claimed = change.claim(session, found.job, job.agent_id)
            change.append(session, skipped)
            change.hide_what_the_owner_heard(session, claimed)
            change.append(session, change.consume(found.entries, job.agent_id))
            announced = results_for(change.tx, claimed) if found.announced else ()
            return Claimed(session, claimed, announced)

        taken = await self.transact(hand, transcript, patient=True)
        if taken is not None:
            log.info(
                "steer: run %s of %s, trace %s, gives way to run %s",
                job.run_id,
                session.key,
                job.trace_id,
                taken.job.run_id,
            )
        return taken

    # Steps

    async def step(
        self,
        turn: Running,
        messages: Sequence[Message] = (),
        *,
        replies: int = 0,
        open_call: str | None = None,
        usage: Usage | None = None,
        model: str | None = None,
        final: Message | None = None,
        whole_result: tuple[str, str] | None = None,
    ) -> None:
        """What a turn has done, on disk before it goes on. The last step is the answer.

        `whole_result`: a call's id and its result, where the transcript has it shortened.
        """
        session, job = turn.session, turn.job

        def save(change: TurnChange) -> None:
            change.step(
                job,
                replies=replies,
                open_call=open_call,
                usage=usage,
                cost=turn.usage.cost,
                model=model,
                final=final,
            )
            if messages:
                change.append(session, messages)
            if whole_result is not None:
                change.tx.sessions.keep_result(session.id, *whole_result, messages[0].created_at)
            if final is not None:
                change.answered(session, job, final, turn.usage, announced=bool(turn.announced))

        await self.transact(save, turn.transcript, patient=True)

    async def begin_and_wait(self, job: TurnJob, reason: WaitReason, begin: Callable[[TurnChange], T]) -> T:
        """A turn waits for what begins in the same transaction.

        Nobody can see one without the other: agents that ask each other at the same moment would lock up.
        """

        def both(change: TurnChange) -> T:
            begun = begin(change)
            change.wait(job, reason)
            return begun

        return await self.transact(both, patient=True)

    async def end(
        self, turn: Running, state: TurnState, reason: str | None, messages: Sequence[Message]
    ) -> None:
        """Without an answer: stopped by a person, or by something that went wrong. What is on disk counts: where the
        answer got there first, that is what is told."""
        session, job = turn.session, turn.job

        def save(change: TurnChange) -> None:
            if not change.end(session, job, state, reason):
                change.tell_how_it_ended(session, job, reason)
                return
            change.append(session, messages)
            change.tx.sessions.touch(session.id, now_iso(), snippet(messages))

        await self.transact(save, turn.transcript, patient=True)


class Running(Protocol):
    """As much of a turn under way as its steps need."""

    @property
    def session(self) -> Session: ...

    @property
    def job(self) -> TurnJob: ...

    @property
    def transcript(self) -> Transcript: ...

    @property
    def usage(self) -> Usage:
        """All that the turn has used."""

    @property
    def announced(self) -> Sequence[Announcement]: ...


def _is_for_another(entry: InboxEntry, job: TurnJob) -> bool:
    """A result that came in is for whoever has the session; anything else for whom it was sent to."""
    is_result = entry.run_id is None and entry.origin == "agent"
    return entry.agent_id != job.agent_id and not is_result


def _skipped(token: Mapping[str, Any]) -> list[ToolCall]:
    return [ToolCall(call["id"], call["name"], "") for call in token.get("skipped", [])]
