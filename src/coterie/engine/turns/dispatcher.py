"""Runs what is to be done: one turn per session, many sessions at once, and what a crash left over first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from coterie.core.announce import TIMEOUT, milliseconds
from coterie.core.audience import OWNER, rights_of
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError, Damaged, Unavailable, of_the_disk
from coterie.core.message import ToolCall
from coterie.core.ports import ModelError, Reply, TextDelta, ThinkingDelta
from coterie.core.session import Session
from coterie.core.turn import ClaimLost, TurnJob, TurnState
from coterie.engine.household.brain import Brain, Brains
from coterie.engine.turns.active_turn import ActiveTurn, Means
from coterie.engine.turns.limits import TurnStopped
from coterie.engine.turns.live import LiveTurn
from coterie.engine.turns.loop import CallStarted, Steered, ToolResult, TurnEvent, run_turn
from coterie.engine.turns.next_up import next_up
from coterie.engine.turns.slots import Gate, Slot, Slots
from coterie.engine.turns.turns import Again, Claimed, Turns
from coterie.engine.turns.under_way import Worker

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

log = logging.getLogger("coterie.dispatcher")

LONGEST_PAUSE = 30.0


class Dispatcher:
    def __init__(
        self,
        store: Store,
        turns: Turns,
        brains: Brains,
        means: Means,
        slots: Slots,
        gates: Callable[[Session], Sequence[Gate]],
    ) -> None:
        self._store = store
        self._turns = turns
        self._brains = brains
        self._means = means
        self._slots = slots
        self._gates = gates
        """What a session's turns must pass besides the limits of its agent and of the house."""
        self._workers = turns.under_way.workers
        self._stopping = False

    def wake(self, session: Session) -> None:
        """Something was committed for this session."""
        self._worker(session).due += 1

    async def recover(self) -> None:
        """Take up everything that a former process left."""

        def look(tx: Transaction) -> list[Session]:
            found = (tx.sessions.find(session_id) for session_id in tx.turns.sessions_with_work())
            return [session for session in found if session is not None]

        for session in await self._store.look(look):
            self._worker(session).unsure = True

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
        try:
            await self._turns.under_way.until_not_quiet(worker.session.id)
            # No await between the last look and the end: a wake after it makes a new worker.
            while worker.may_have_work and not self._stopping:
                if await self._try(worker, pause):
                    pause = 0.1
                else:
                    worker.unsure = True
                    self._turns.transcripts.drop(worker.session.id)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._workers.pop(worker.session.id, None)

    async def _try(self, worker: Worker, pause: float) -> bool:
        """Run what is next. False where that failed and is to be tried again."""
        try:
            await self._next_turn(worker)
            return True
        except Unavailable as error:
            log.error("session %s must wait: %s", worker.session.key, error.message)
        except ClaimLost as error:
            log.info("session %s: %s", worker.session.key, error.message)
            self._brains.forget()
        except Exception as error:
            disk = of_the_disk(error) if isinstance(error, OSError) else None
            if disk is None:
                log.exception("session %s is tried again in %.1f s", worker.session.key, pause)
            else:
                log.error("session %s must wait: %s", worker.session.key, disk.message)
        return False

    async def _next_turn(self, worker: Worker) -> None:
        session = worker.session
        agent_id = worker.agent or self._brains.agent_of(session)
        brain = self._brains.for_session(session, agent_id)
        limit = brain.spec.limits.concurrency
        own: Sequence[Gate] = () if limit is None else ((f"agent {agent_id}", limit),)
        gates = [*self._gates(session), *own]
        if (full := self._slots.full(gates)) is not None:
            await self._log_wait(worker, full)
        async with self._slots.held(gates) as slot:
            found = await self._turns.claim(session, agent_id, unsure=worker.unsure)
            match found:
                case None:
                    worker.found_nothing()
                case Again(fresh, agent):
                    worker.session, worker.agent = fresh, agent
                    worker.unsure = True  # it may have been more than one thing
                case Claimed():
                    worker.session, worker.agent = found.session, None
                    if not found.resumed:
                        worker.took_one()
                    await self._run_all(worker, found, brain, slot)

    async def _log_wait(self, worker: Worker, full: Gate) -> None:
        session = worker.session
        waits = await self._store.look(lambda tx: next_up(tx, session.id, unsure=worker.unsure))
        if waits is not None:
            job, (name, limit) = waits.job, full
            log.info(
                "queue: run %s of %s, trace %s, waits for a place: %s, %d at once",
                job.run_id,
                session.key,
                job.trace_id,
                name,
                limit,
            )

    async def _run_all(self, worker: Worker, claimed: Claimed, brain: Brain, slot: Slot) -> None:
        """A turn to its end, or until it is steered; then the turn that took over."""
        following: Claimed | None = claimed
        while following is not None:
            fitting, job = brain, following.job
            if job.hop or rights_of(job.audience or OWNER) != brain.place.rights:
                fitting = self._brains.for_session(
                    following.session, brain.agent_id, hop=job.hop or None, audience=job.audience
                )
            turn = ActiveTurn(self._means, following, fitting, slot)
            following = await self._run(worker, turn, recover=following.cut_short)

    async def _run(self, worker: Worker, turn: ActiveTurn, *, recover: bool) -> Claimed | None:
        """The turn that took over, if one did."""
        worker.run_id, worker.run_by = turn.job.run_id, turn.brain.agent_id
        worker.inner = asyncio.create_task(self._drive(worker, turn, recover))
        try:
            await worker.inner
        except asyncio.CancelledError:
            if worker.aborting is None or worker.is_halted:
                raise
            aborted = worker.abort_reason is None
            await turn.end(TurnState.ABORTED if aborted else TurnState.ERROR, worker.abort_reason)
        except (TurnStopped, ModelError) as error:
            await turn.end(TurnState.ERROR, error.message)
        except ClaimLost:
            # The agent was removed, or the session was cleared under our feet.
            self._brains.forget()
            await turn.end(TurnState.ERROR, f"the agent {turn.brain.label} is no longer active")
        except Damaged as error:
            # It cannot be stored that it failed; whoever follows it is told.
            self._turns.live.close(turn.job.run_id, "error", message=error.message)
            raise
        except CoterieError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and of_the_disk(error) is not None:
                raise  # it goes on once there is room
            log.exception("run %s failed", turn.job.run_id)
            await turn.end(TurnState.ERROR, "something went wrong inside Coterie; the log says what")
        finally:
            worker.inner = worker.run_id = worker.run_by = None
            if worker.aborting is not None:
                worker.aborting.set()
                worker.aborting = worker.abort_reason = None
        if turn.successor is not None:
            worker.backlog = True
            worker.took_one()
        return turn.successor

    async def _drive(self, worker: Worker, turn: ActiveTurn, recover: bool) -> None:
        if recover:
            await turn.recover()
        turn.live.emit("started")

        async def steering(unstarted: Sequence[ToolCall]) -> bool:
            return worker.may_be_steered and await turn.steering(unstarted)

        try:
            async with asyncio.timeout(_seconds_left(turn.job)) as limit:
                async with aclosing(run_turn(turn, steering=steering, commit=turn.commit)) as events:
                    async for event in events:
                        _show(turn, event)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TurnStopped(f"{TIMEOUT}: it took longer than {turn.job.timeout_s} seconds") from None


def _seconds_left(job: TurnJob) -> float | None:
    """Whoever asked for a turn may have set a time."""
    if job.timeout_s is None:
        return None
    begun = job.started_at or now_iso()
    return max(0.0, job.timeout_s - milliseconds(begun, now_iso()) / 1000)


def _show(turn: ActiveTurn, event: TurnEvent) -> None:
    """A step of the loop as watchers see it."""
    live: LiveTurn = turn.live
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
        case Steered():
            assert turn.successor is not None
            live.emit("steered", by=turn.successor.job.run_id)
        case Reply():
            pass
