"""Decides what runs: one turn per session, many sessions at once, and what a crash left over first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from coterie.core.agent import AgentState
from coterie.core.announce import TIMEOUT, Announcement, milliseconds
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError, Unavailable
from coterie.core.events import final_fields
from coterie.core.message import Message, ToolCall
from coterie.core.ports import ClaimLost, InboxEntry, ModelError, Reply, TextDelta, ThinkingDelta, Work
from coterie.core.session import Session
from coterie.core.turn import ACTIVE, TurnJob, TurnState
from coterie.engine.household.brain import Brain, Brains
from coterie.engine.turns.active_turn import ActiveTurn, Surroundings, TurnStopped, error_note
from coterie.engine.turns.announcing import results_for, turn_ended
from coterie.engine.turns.live import Live
from coterie.engine.turns.loop import CallStarted, ToolResult, TurnEvent, run_turn
from coterie.engine.turns.slots import Gate, Slot, Slots
from coterie.engine.turns.transcripts import Transcripts

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction

log = logging.getLogger("coterie.dispatcher")

ATTEMPTS = 20
"""Claims without a committed step after which a turn is given up. A start that is cut off before the model
was even asked counts as one, so a few restarts in a row must not use them up."""
LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class Worker:
    """Everything that happens in one session, in order."""

    session: Session
    pending: int = 0
    """Messages that came in and were not consumed yet; never too low."""
    backlog: bool = False
    """Interrupted tasks may be waiting."""
    wake: bool = False
    """Results of other agents may be waiting."""
    recover: bool = False
    """Whatever the store says about this session is to be looked at first."""
    agent: str | None = None
    """Whose slot the next turn needs, where that is not the session's agent."""
    turn: ActiveTurn | None = None
    inner: asyncio.Task[None] | None = None
    aborting: asyncio.Event | None = None
    """Set once an abort that was asked for is done."""
    abort_reason: str | None = None
    """Why, where that is an error and not a person's wish."""
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a claim came to."""

    turn: ActiveTurn | None = None
    consumed: Sequence[Message] = ()
    from_inbox: bool = False
    recovered: bool = False
    given_up: tuple[TurnJob, str] | None = None


class Prepare(Protocol):
    """Makes the turn that a claim came to."""

    def __call__(self, job: TurnJob, announced: Sequence[Announcement] = ()) -> ActiveTurn: ...


class Dispatcher:
    def __init__(
        self,
        around: Surroundings,
        brains: Brains,
        transcripts: Transcripts,
        live: Live,
        slots: Slots,
        *,
        run: bool = True,
    ) -> None:
        self._around = around
        self._store = around.store
        self._brains = brains
        self._transcripts = transcripts
        self._live = live
        self._slots = slots
        self._workers: dict[str, Worker] = {}
        self._stopping = False
        self._runs = run
        """False in a process that only takes messages in; another one runs them."""
        self.gates: Callable[[Session], Sequence[Gate]] = lambda session: ()
        """What a session's turns must pass besides the limits of its agent and of the house."""

    # From outside

    def wake(self, session: Session) -> None:
        """A message was committed for this session."""
        if not self._runs:
            return
        worker = self._worker(session)
        worker.pending += 1

    def rouse(self, session: Session) -> None:
        """A result was committed for this session; it comes up when nothing else is to be done there."""
        if not self._runs:
            return
        worker = self._workers.get(session.id) or self._worker(session)
        worker.wake = True

    async def recover(self) -> int:
        """Take up everything that a former process left. Returns the number of sessions."""
        if not self._runs:
            return 0

        def look(tx: Transaction) -> list[Session]:
            found = (tx.sessions.find(session_id) for session_id in tx.turns.sessions_with_work())
            return [session for session in found if session is not None]

        sessions = await self._store.look(look)
        for session in sessions:
            worker = self._worker(session)
            worker.recover = True
        return len(sessions)

    def worker(self, session_id: str) -> Worker | None:
        return self._workers.get(session_id)

    async def abort(self, session_id: str, run_id: str, reason: str | None = None) -> bool:
        """Stop a turn that is under way. False where it is not."""
        worker = self._workers.get(session_id)
        if worker is None or worker.turn is None or worker.inner is None or worker.turn.job.run_id != run_id:
            return False
        done = worker.aborting
        if done is None:
            done = worker.aborting = asyncio.Event()
            worker.abort_reason = reason
            worker.inner.cancel()
        await done.wait()
        return True

    async def halt(self, session_id: str) -> None:
        """Stop everything in a session, leaving the store as it is."""
        worker = self._workers.get(session_id)
        if worker is not None and worker.task is not None:
            worker.task.cancel()
            await asyncio.wait([worker.task])
        self._workers.pop(session_id, None)
        self._transcripts.drop(session_id)

    async def stop(self) -> None:
        """The process ends: every turn stays where its last step left it."""
        self._stopping = True
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # One session

    def _worker(self, session: Session) -> Worker:
        worker = self._workers.get(session.id)
        if worker is None:
            worker = self._workers[session.id] = Worker(session)
            worker.task = asyncio.create_task(self._work(worker), name=f"session {session.key}")
        worker.session = session
        return worker

    async def _work(self, worker: Worker) -> None:
        pause = 0.1
        while not self._stopping:
            try:
                if not await self._next_turn(worker):
                    break
                pause = 0.1
                continue
            except Unavailable as error:
                log.error("session %s must wait: %s", worker.session.key, error.message)
            except ClaimLost as error:
                log.info("session %s: %s", worker.session.key, error.message)
                self._brains.forget()
            except Exception:
                log.exception("session %s is tried again in %.1f s", worker.session.key, pause)
            worker.recover = True
            self._transcripts.drop(worker.session.id)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        # No await between the last look and this: a wake after it makes a new worker.
        self._workers.pop(worker.session.id, None)

    async def _next_turn(self, worker: Worker) -> bool:
        """Run what is next. False where nothing is."""
        if not (worker.recover or worker.pending or worker.backlog or worker.wake):
            return False
        session = worker.session
        agent_id = worker.agent or self._brains.agent_of(session)
        brain = self._brains.for_session(session, agent_id)
        limit = brain.spec.limits.concurrency
        own: Sequence[Gate] = () if limit is None else ((f"agent {agent_id}", limit),)
        async with self._slots.held([*self.gates(session), *own]) as slot:
            turn = await self._begin(worker, brain, slot)
            while turn is not None:
                turn = await self._run(worker, turn)
        return True

    async def _begin(self, worker: Worker, brain: Brain, slot: Slot) -> ActiveTurn | None:
        """Claim the next turn of a session and put its message into the transcript, in one transaction."""
        transcript = self._transcripts.get(worker.session.id)

        def prepare(job: TurnJob, announced: Sequence[Announcement] = ()) -> ActiveTurn:
            session = worker.session
            active = replace(job, state=TurnState.RUNNING, epoch=self._around.epoch, agent_id=brain.agent_id)
            live = self._live.open(job.run_id, session.key)
            fitting = brain if job.hop == 0 else self._brains.for_session(session, brain.agent_id, job.hop)
            if fitting is not brain:
                log.info("run %s has other tools than the session's: handed on %d times", job.run_id, job.hop)
            return ActiveTurn(self._around, session, fitting, active, transcript, live, slot, announced)

        begun = await self._store.transact(lambda tx: self._claim(tx, worker, brain.agent_id, prepare))
        for message in begun.consumed:
            transcript.append(message)
        if begun.given_up is not None:
            job, reason = begun.given_up
            self._live.open(job.run_id, worker.session.key)
            self._live.close(job.run_id, "error", message=reason)
            self._transcripts.drop(worker.session.id)
        if begun.from_inbox:
            worker.pending = max(0, worker.pending - 1)
        if begun.turn is not None and begun.recovered:
            await begun.turn.recover()
        return begun.turn

    def _claim(self, tx: Transaction, worker: Worker, agent_id: str, prepare: Prepare) -> _Begun:
        """What comes first: a turn that was cut short, new messages, interrupted tasks, results of others."""
        session_id = worker.session.id
        if worker.recover:
            # Counted first: what waits may steer the turn that is taken up again.
            worker.pending = max(worker.pending, sum(1 for e in tx.turns.waiting(session_id) if e.run_id))
            job = next((j for j in tx.turns.unfinished(session_id) if j.state in ACTIVE), None)
            if job is not None:
                return self._claim_cut_short(tx, worker, agent_id, job, prepare)
        found = tx.turns.next_work(session_id)
        if found is not None:
            worker.session = found.session
            if self._brains.agent_of(worker.session) != agent_id:
                worker.agent = None
                return _Begun()
            return self._claim_message(tx, found, agent_id, prepare)
        backlog = tx.turns.backlog(session_id)
        worker.pending = 0
        worker.backlog = bool(backlog)
        look_for_wake = worker.wake or worker.recover
        worker.recover = False
        if backlog:
            worker.wake = look_for_wake
            return self._claim_backlog(tx, worker, agent_id, *backlog[0], prepare)
        worker.agent = None
        worker.wake = False
        return self._claim_wake(tx, worker, agent_id, prepare) if look_for_wake else _Begun()

    def _claim_message(self, tx: Transaction, work: Work, agent_id: str, prepare: Prepare) -> _Begun:
        job, at = work.job, now_iso()
        asked = work.entries[-1].agent_id
        if job.kind == "request" and asked != agent_id:
            # Nobody else does it, with other rights.
            consumed = self._take(tx, prepare(job), work.entries)
            gone = self._brains.named(asked) is None
            reason = f"the agent {asked} is no longer active" if gone else "its session went to another agent"
            return replace(self._give_up(tx, job, reason), consumed=consumed, from_inbox=True)
        tx.turns.claim(job.run_id, epoch=self._around.epoch, agent_id=agent_id, at=at)
        if job.kind == "request":
            tx.runs.start(job.run_id, at)
        turn = prepare(job, results_for(tx, job) if work.announced else ())
        return _Begun(turn, self._take(tx, turn, work.entries), from_inbox=True)

    def _claim_wake(self, tx: Transaction, worker: Worker, agent_id: str, prepare: Prepare) -> _Begun:
        """Once the last of them is done, one turn for all that others have brought."""
        session_id = worker.session.id
        session, job = tx.sessions.find(session_id), tx.turns.queued_wake(session_id)
        if session is None or job is None or tx.runs.some_are_live(session_id):
            return _Begun()  # the next one to end looks again
        worker.session = session
        if self._brains.agent_of(session) != agent_id:
            worker.wake = True
            return _Begun()
        announced = results_for(tx, job)
        if not announced:
            tx.turns.end(job.run_id, TurnState.CANCELLED, now_iso())
            return _Begun()
        tx.turns.claim(job.run_id, epoch=self._around.epoch, agent_id=agent_id, at=now_iso())
        turn = prepare(job, announced)
        log.info("wake: run %s, trace %s, for %d results", job.run_id, job.trace_id, len(announced))
        return _Begun(turn, self._take(tx, turn, tx.turns.noted(session_id)))

    def _take(self, tx: Transaction, turn: ActiveTurn, entries: Sequence[InboxEntry]) -> Sequence[Message]:
        """Out of the inbox, into the transcript."""
        consumed: list[Message] = []
        for one in entries:
            tx.turns.take(one)
            consumed.append(turn.consumed(one, len(consumed)))
        tx.sessions.append(turn.session.id, consumed)
        return consumed

    def _claim_backlog(
        self,
        tx: Transaction,
        worker: Worker,
        agent_id: str,
        run_id: str,
        token: Mapping[str, Any],
        prepare: Prepare,
    ) -> _Begun:
        job = tx.turns.get(run_id)
        assert job is not None
        if job.agent_id != agent_id:
            return self._wants_other_agent(tx, worker, job)
        worker.agent = None
        task = tx.sessions.message(job.message_id)
        turn = prepare(job, tx.announcements.shown(job.session_id))
        tx.turns.resume(run_id)
        tx.turns.claim(run_id, epoch=self._around.epoch, agent_id=agent_id, at=now_iso())
        message = turn.backlog_message(token, task.text if task else "")
        tx.sessions.append(job.session_id, [message])
        log.info("resume: run %s, trace %s", run_id, job.trace_id)
        return _Begun(turn, [message])

    def _claim_cut_short(
        self,
        tx: Transaction,
        worker: Worker,
        agent_id: str,
        job: TurnJob,
        prepare: Prepare,
    ) -> _Begun:
        """A turn that another process, or this one before a failure, left in the middle."""
        if job.agent_id != agent_id:
            return self._wants_other_agent(tx, worker, job)
        worker.agent = None
        if job.attempts >= ATTEMPTS:
            reason = f"it was begun {job.attempts} times and never got further; it is not tried again"
            return self._give_up(tx, job, reason)
        tx.turns.claim(job.run_id, epoch=self._around.epoch, agent_id=agent_id, at=now_iso())
        turn = prepare(job, tx.announcements.shown(job.session_id))
        turn.live.attempt = max(turn.live.attempt, job.attempts)
        turn.live.start_over()
        log.info("recover: run %s, trace %s, attempt %d", job.run_id, job.trace_id, turn.live.attempt)
        return _Begun(turn, recovered=True)

    def _wants_other_agent(self, tx: Transaction, worker: Worker, job: TurnJob) -> _Begun:
        """A turn goes on as it began: with the agent that began it, if that is still active."""
        owner = None if job.agent_id is None else tx.agents.get(job.agent_id)
        if owner is not None and owner.state is AgentState.ACTIVE:
            worker.agent = owner.id
            return _Begun()
        worker.agent = None
        return self._give_up(tx, job, f"the agent {job.agent_id} is no longer active")

    def _give_up(self, tx: Transaction, job: TurnJob, reason: str) -> _Begun:
        at = now_iso()
        tx.turns.end(job.run_id, TurnState.ERROR, at, error=reason)
        turn_ended(tx, job, TurnState.ERROR, at, error=reason)
        last = tx.sessions.page(job.session_id, limit=1)
        tx.sessions.append(job.session_id, [error_note(job, reason, at, (last[-1].seq or 0) if last else 0)])
        return _Begun(given_up=(job, reason))

    async def _run(self, worker: Worker, turn: ActiveTurn) -> ActiveTurn | None:
        """A turn to its end, or until it is steered: then the turn that took over."""
        worker.turn = turn
        worker.inner = asyncio.create_task(self._drive(worker, turn))
        try:
            await worker.inner
        except asyncio.CancelledError:
            answered = self._answered(turn)
            if worker.aborting is None or self._is_halted(worker):
                raise
            if not answered:
                await self._aborted(worker, turn)
            return None
        except TurnTooLong as error:
            self._read_again(turn)
            await self._failed(turn, error.message)
            return None
        except (TurnStopped, ModelError) as error:
            await self._failed(turn, error.message)
            return None
        except ClaimLost:
            await self._claim_lost(worker, turn)
            return None
        except CoterieError:
            raise
        except Exception:
            log.exception("run %s failed", turn.job.run_id)
            await self._failed(turn, "something went wrong inside Coterie; the log says what")
            return None
        finally:
            worker.turn = worker.inner = None
            if worker.aborting is not None:
                worker.aborting.set()
                worker.aborting = worker.abort_reason = None
        if turn.successor is not None:
            worker.backlog = True
            worker.pending = max(0, worker.pending - 1)
            turn.live.emit("steered", by=turn.successor.run_id)
            return self._successor(turn, turn.successor)
        answered = self._answered(turn)
        assert answered
        return None

    def _answered(self, turn: ActiveTurn) -> bool:
        """Tell whoever waits, once the answer is on disk: also where the turn is stopped the moment after."""
        if turn.final is None:
            return False
        self._live.close(turn.job.run_id, "final", **final_fields(turn.final, turn.usage))
        return True

    def _is_halted(self, worker: Worker) -> bool:
        """The whole session is to stop, not only its turn."""
        return worker.task is not None and worker.task.cancelling() > 0

    async def _drive(self, worker: Worker, turn: ActiveTurn) -> None:
        turn.live.emit("started")

        async def steering(unstarted: Sequence[ToolCall]) -> bool:
            return worker.pending > 0 and await turn.steering(unstarted)

        try:
            async with asyncio.timeout(_seconds_left(turn.job)) as limit:
                async with aclosing(run_turn(turn, steering=steering, commit=turn.commit)) as events:
                    async for event in events:
                        _show(turn, event)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TurnTooLong(f"{TIMEOUT}: it took longer than {turn.job.timeout_s} seconds") from None

    def _successor(self, turn: ActiveTurn, job: TurnJob) -> ActiveTurn:
        live = self._live.open(job.run_id, turn.session.key)
        brain = turn.brain
        if job.hop != turn.job.hop:
            brain = self._brains.for_session(turn.session, brain.agent_id, job.hop)
        return turn.followed_by(job, brain, live)

    async def _failed(self, turn: ActiveTurn, reason: str) -> None:
        await turn.end(TurnState.ERROR, reason)
        self._live.close(turn.job.run_id, "error", message=reason)

    async def _aborted(self, worker: Worker, turn: ActiveTurn) -> None:
        self._read_again(turn)
        if worker.abort_reason is not None:
            await self._failed(turn, worker.abort_reason)
            return
        await turn.end(TurnState.ABORTED, None)
        self._live.close(turn.job.run_id, "aborted")

    def _read_again(self, turn: ActiveTurn) -> None:
        """A commit may have been under way: what is on disk counts."""
        self._transcripts.drop(turn.session.id)
        turn.transcript = self._transcripts.get(turn.session.id)

    async def _claim_lost(self, worker: Worker, turn: ActiveTurn) -> None:
        """The agent was removed, or the session was cleared under our feet."""
        self._brains.forget()
        self._read_again(turn)
        await self._failed(turn, f"the agent {turn.brain.label} is no longer active")


class TurnTooLong(TurnStopped):
    """Whoever asked for it set a time, and that is over."""


def _seconds_left(job: TurnJob) -> float | None:
    if job.timeout_s is None:
        return None
    begun = job.started_at or now_iso()
    return max(0.0, job.timeout_s - milliseconds(begun, now_iso()) / 1000)


def _show(turn: ActiveTurn, event: TurnEvent) -> None:
    """A step of the loop as watchers see it."""
    live = turn.live
    match event:
        case TextDelta(text):
            live.emit("delta", text=text)
        case ThinkingDelta(text):
            live.emit("thinking", text=text)
        case CallStarted(call):
            live.emit("tool_start", call_id=call.id, name=call.name, arguments=call.arguments)
        case ToolResult(call, text, ok, duration):
            live.emit(
                "tool_end", call_id=call.id, name=call.name, ok=ok, result=text[:2000], duration_ms=duration
            )
        case Reply():
            pass
