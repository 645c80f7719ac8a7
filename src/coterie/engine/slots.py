"""How many turns run at once, in all and per agent. A turn that waits for others holds no slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    def __init__(self, total: Callable[[], int]) -> None:
        self._limit = total
        """What the configuration says now."""
        self._known: dict[str | None, tuple[int, asyncio.Semaphore]] = {}
        """By agent; under None, those of all together."""

    @asynccontextmanager
    async def held(self, agent_id: str, limit: int | None) -> AsyncIterator[Slot]:
        agent = None if limit is None else self._under(agent_id, limit)
        slot = Slot(self._under(None, self._limit()), agent)
        await slot.take()
        try:
            yield slot
        finally:
            slot.give_back()

    def _under(self, whose: str | None, limit: int) -> asyncio.Semaphore:
        known = self._known.get(whose)
        if known is None or known[0] != limit:
            # Turns that run under an older limit finish under it.
            known = self._known[whose] = (limit, asyncio.Semaphore(limit))
        return known[1]


class Slot:
    """One turn's place."""

    def __init__(self, total: asyncio.Semaphore, agent: asyncio.Semaphore | None) -> None:
        self._total = total
        self._agent = agent
        self._taken = False

    async def take(self) -> None:
        """The agent's first: who waits for that one must not keep others from running."""
        if self._agent is not None:
            await self._agent.acquire()
        try:
            await self._total.acquire()
        except BaseException:
            if self._agent is not None:
                self._agent.release()
            raise
        self._taken = True

    def give_back(self) -> None:
        if self._taken:
            self._taken = False
            self._total.release()
            if self._agent is not None:
                self._agent.release()
