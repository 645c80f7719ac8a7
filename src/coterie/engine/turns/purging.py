"""What a purge takes of an agent's turns and conversations, in the transaction that deletes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from coterie.core.session import Session
from coterie.core.turn import TurnState
from coterie.engine.events import Events
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.turns import Turns

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction

PURGED = "the agent was purged"


class Purging:
    def __init__(self, turns: Turns, events: Events) -> None:
        self._turns = turns
        self._events = events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def listen(self) -> None:
        """From now on turns run in this process, on this event loop."""
        self._loop = asyncio.get_running_loop()

    def empty(self, tx: Transaction, agent_id: str) -> Callable[[], None]:
        """The sessions bound to an agent go, with everything in them; what it said elsewhere stays, and is nobody's.

        Whoever waits for it is told. To be called once that is on disk: what follows.
        """
        change = self._turns.within(tx)
        sessions = tx.sessions.bound_to(agent_id)
        for session in sessions:
            change.forget_all(session, PURGED, PURGED)
            tx.sessions.remove(session.id)
        for session in sessions:
            self._stop_what_others_do_for(change, session)
            tx.announcements.remove_all(session.id)
        tx.runs.purge(agent_id)
        tx.announcements.purge(agent_id)
        tx.sessions.disown(agent_id)
        tx.usage.disown(agent_id)
        change.disown(agent_id)
        tx.answers.purge(agent_id)
        return lambda: self._follow(change, sessions)

    def _stop_what_others_do_for(self, change: TurnChange, session: Session) -> None:
        tx = change.tx
        for run in tx.runs.select(requester_session_id=session.id, live=True):
            place, job = tx.sessions.find(run.session_id), tx.turns.get(run.run_id)
            if place is not None and job is not None:
                change.end(place, job, TurnState.ABORTED, PURGED, ours=False)

    def _follow(self, change: TurnChange, sessions: list[Session]) -> None:
        """On the event loop of the process that runs turns; in any other, nothing is under way."""
        if self._loop is None or self._loop.is_closed():
            return

        def follow() -> None:
            change.follow()
            for session in sessions:
                self._turns.transcripts.drop(session.id)
                self._begin(self._halt(session.id))
                self._events.session_changed(session, "deleted", deleted=True)

        self._loop.call_soon_threadsafe(follow)

    async def _halt(self, session_id: str) -> None:
        async with self._turns.under_way.quiet(session_id):
            self._turns.transcripts.drop(session_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
