"""A turn that waits: it keeps its session and gives its slot to somebody else meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from coterie.core.turn import TurnJob, WaitReason
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.slots import Slot
from coterie.engine.turns.turns import Turns

B = TypeVar("B")
T = TypeVar("T")


class Waiting:
    """Of one turn. Several tools of it may wait at once."""

    def __init__(self, turns: Turns, job: TurnJob, slot: Slot) -> None:
        self._turns = turns
        self._job = job
        self._slot = slot
        self._waits = 0
        self._has_slot = True
        self._changing = asyncio.Lock()
        self.clock: ToolClock | None = None
        """Of the call under way; it stands still meanwhile."""

    async def wait(self, reason: WaitReason, work: Awaitable[T]) -> T:
        """Hold the session but no slot while somebody else works."""
        return await self.begin_and_wait(reason, lambda change: None, lambda _: work)

    async def begin_and_wait(
        self, reason: WaitReason, begin: Callable[[TurnChange], B], wait: Callable[[B], Awaitable[T]]
    ) -> T:
        """As `wait`; what is waited for begins in the transaction that makes this turn wait."""
        async with self._changing:
            begun = await self._turns.begin_and_wait(self._job, reason, begin)
            self._waits += 1
            if self._has_slot:
                self._has_slot = False
                self._slot.give_back()
                if self.clock is not None:
                    self.clock.stop()
        try:
            result = await wait(begun)
        finally:
            self._waits -= 1
        # Not in the finally: a turn that is stopped while it waits must not queue for a slot first.
        await self.go_on()
        return result

    async def go_on(self) -> None:
        """Back to work, once nothing is waited for any more."""
        if self._has_slot:
            return
        async with self._changing:
            if self._waits or self._has_slot:
                return
            await self._slot.take()
            self._has_slot = True
            if self.clock is not None:
                self.clock.go_on()


class ToolClock:
    """How long a tool may take, not counting what it waits for."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._left = 0.0

    def stop(self) -> None:
        when = self._limit.when()
        if when is not None and not self._limit.expired():
            self._left = when - asyncio.get_running_loop().time()
            self._limit.reschedule(None)

    def go_on(self) -> None:
        if self._limit.when() is None and not self._limit.expired():
            with contextlib.suppress(RuntimeError):  # the tool has ended
                self._limit.reschedule(asyncio.get_running_loop().time() + self._left)
