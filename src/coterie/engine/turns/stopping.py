"""Stopping: a turn, a waiting message, a whole session, and what others do for any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from coterie.core.announce import SubagentRun
from coterie.core.errors import Conflict, NotFound
from coterie.core.session import Session
from coterie.core.turn import Stop, TurnJob, TurnState
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.turns import Turns

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

STOPPED = "it was stopped together with what asked for it"


class Stopping:
    def __init__(self, store: Store, turns: Turns) -> None:
        self._store = store
        self._turns = turns

    async def abort(self, run_id: str, reason: str | None = None) -> Stop:
        """Stop a turn and what others do for it, or take a waiting message back. Says which.

        With a reason it ends as an error that says so, else as stopped by a person.
        """
        session, job = await self._find(run_id)
        if await self._turns.under_way.abort(job.session_id, run_id, reason):
            ending: Stop = "aborted"
        else:
            ending = await self._take_back(session, job, reason)
        await self.children_of_run(run_id)
        return ending

    async def cancel_queued(self, run_id: str) -> Stop:
        """Take a message back that no model has seen."""
        session, job = await self._find(run_id)
        if job.state is not TurnState.QUEUED:
            raise Conflict(f"the run {run_id} is {job.state.value}, not queued")
        return await self._take_back(session, job, None)

    async def children_of_run(self, run_id: str) -> None:
        """What one turn asked others for ends with it."""
        live = await self._store.look(lambda tx: tx.runs.select(requester_run_id=run_id, live=True))
        await self._stop(live, STOPPED)

    async def children_of_session(self, session_id: str, reason: str = STOPPED) -> bool:
        """Everything that others do for a session. False where there was nothing."""
        live = await self._store.look(lambda tx: tx.runs.select(requester_session_id=session_id, live=True))
        await self._stop(live, reason)
        return bool(live)

    @asynccontextmanager
    async def session(self, session_id: str, reason: str) -> AsyncIterator[None]:
        """Everything in a session and for it has stopped, and nothing begins there until the block ends."""
        async with self._turns.under_way.quiet(session_id):
            await self.children_of_session(session_id, reason)
            try:
                yield
            finally:
                self._turns.transcripts.drop(session_id)

    async def _find(self, run_id: str) -> tuple[Session, TurnJob]:
        def look(tx: Transaction) -> tuple[Session | None, TurnJob | None]:
            job = tx.turns.get(run_id)
            return (None, None) if job is None else (tx.sessions.find(job.session_id), job)

        session, job = await self._store.look(look)
        if session is None or job is None:
            raise NotFound(f"there is no run {run_id[:100]!r}")
        return session, job

    async def _take_back(self, session: Session, job: TurnJob, reason: str | None) -> Stop:
        def take(change: TurnChange) -> Stop:
            if change.cancel_queued(session, job, reason):
                return "cancelled"
            if job.kind == "wake" and change.end(session, job, TurnState.CANCELLED, ours=False):
                change.tx.announcements.block_all(
                    job.session_id, "its wake was taken back", forget_lines=False
                )
                return "cancelled"
            return "aborted" if change.stop(session, job, reason) else "ended"

        return await self._turns.transact(take, self._turns.transcripts.get(session.id))

    async def _stop(self, runs: Sequence[SubagentRun], reason: str) -> None:
        if not runs:
            return
        await self._store.transact(lambda tx: tx.runs.hold([run.run_id for run in runs], reason))
        for run in runs:
            with suppress(NotFound):
                await self.abort(run.run_id)
