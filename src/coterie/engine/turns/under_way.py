"""What this process is doing right now: one worker per session that has something to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coterie.core.session import Session
from coterie.core.turn import Reception


@dataclass(slots=True, eq=False)
class Worker:
    """Everything that happens in one session, in order."""

    session: Session
    due: int = 0
    """Messages and results that may be waiting; never too low while it is sure."""
    backlog: bool = False
    """Interrupted tasks may be waiting."""
    unsure: bool = False
    """Whatever the store says about this session is to be looked at, turns that were cut short included."""
    agent: str | None = None
    """Who runs the next turn, where that is not the session's agent."""
    run_id: str | None = None
    """The turn under way."""
    run_by: str | None = None
    """Its agent."""
    inner: asyncio.Task[None] | None = None
    """That turn."""
    aborting: asyncio.Event | None = None
    """Set once an abort that was asked for is done."""
    abort_reason: str | None = None
    """Why, where that is an error and not a person's wish."""
    task: asyncio.Task[None] | None = None

    @property
    def may_be_steered(self) -> bool:
        return self.unsure or self.due > 0

    @property
    def may_have_work(self) -> bool:
        return self.may_be_steered or self.backlog

    def took_one(self) -> None:
        """Out of the inbox."""
        if not self.unsure:
            self.due = max(0, self.due - 1)

    def found_nothing(self) -> None:
        self.due, self.backlog, self.unsure, self.agent = 0, False, False, None

    @property
    def is_halted(self) -> bool:
        """The whole session is to stop, not only its turn."""
        return self.task is not None and self.task.cancelling() > 0


class UnderWay:
    """The workers of this process, and the ways to stop them."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self._quiet: dict[str, asyncio.Event] = {}
        """Sessions in which nothing may run now; each event says when that is over."""

    def status(self, session: Session, agent_id: str) -> Reception:
        """What will become of a message that came in for this session just now."""
        worker = self.workers.get(session.id)
        if worker is None or (worker.run_id is None and not worker.may_have_work):
            return "started"
        return "steering" if worker.run_by == agent_id and not worker.may_be_steered else "queued"

    def is_running(self, session_id: str) -> bool:
        worker = self.workers.get(session_id)
        return worker is not None and worker.run_id is not None

    def over(self, session_id: str, run_id: str) -> None:
        """A turn has ended on disk; its worker may still be putting things away."""
        worker = self.workers.get(session_id)
        if worker is not None and worker.run_id == run_id:
            worker.run_id = worker.run_by = None

    def changed(self, session: Session) -> None:
        """The session itself is another now: its agent, its name."""
        worker = self.workers.get(session.id)
        if worker is not None:
            worker.session = session

    async def abort(self, session_id: str, run_id: str, reason: str | None) -> bool:
        """Stop a turn. False where it is not under way here."""
        worker = self.workers.get(session_id)
        if worker is None or worker.run_id != run_id or worker.inner is None:
            return False
        done = worker.aborting
        if done is None:
            done = worker.aborting = asyncio.Event()
            worker.abort_reason = reason
            worker.inner.cancel()
        await done.wait()
        return True

    @asynccontextmanager
    async def quiet(self, session_id: str) -> AsyncIterator[None]:
        """Stop everything in a session, leaving the store as it is, and let nothing begin there meanwhile."""
        await self.until_not_quiet(session_id)
        over = self._quiet[session_id] = asyncio.Event()
        try:
            worker = self.workers.get(session_id)
            if worker is not None and worker.task is not None:
                worker.task.cancel()
                await asyncio.wait([worker.task])
            yield
        finally:
            del self._quiet[session_id]
            over.set()

    async def until_not_quiet(self, session_id: str) -> None:
        while (over := self._quiet.get(session_id)) is not None:
            await over.wait()
