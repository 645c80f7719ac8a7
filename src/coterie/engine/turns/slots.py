"""How many turns run at once, in all, per agent and per parent. A turn that waits for others holds no slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

Gate = tuple[str, int]
"""A name and how many turns may be inside at once."""


class Slots:
    def __init__(self, total: Callable[[], int]) -> None:
        self._total = total
        """What the configuration says now."""
        self._gates: dict[str, tuple[int, asyncio.Semaphore]] = {}

    @asynccontextmanager
    async def held(self, gates: Sequence[Gate]) -> AsyncIterator[Slot]:
        """The household's own gate is the last: who waits before another must not keep others from running."""
        all_gates = [*gates, ("all turns", self._total())]
        slot = Slot([self._gate(name, limit) for name, limit in all_gates])
        await slot.take()
        try:
            yield slot
        finally:
            slot.give_back()

    def full(self, gates: Sequence[Gate]) -> Gate | None:
        """The first gate at which a turn would have to wait now."""
        all_gates = [*gates, ("all turns", self._total())]
        return next((gate for gate in all_gates if self._gate(*gate).locked()), None)

    def _gate(self, name: str, limit: int) -> asyncio.Semaphore:
        known = self._gates.get(name)
        if known is None or known[0] != limit:
            # Turns that run under an older limit finish under it.
            known = self._gates[name] = (limit, asyncio.Semaphore(limit))
        return known[1]


class Slot:
    """One turn's place."""

    def __init__(self, gates: Sequence[asyncio.Semaphore]) -> None:
        self._gates = gates
        self._taken = False

    async def take(self) -> None:
        """The narrowest gate first: who waits for that one must not keep others from running."""
        passed: list[asyncio.Semaphore] = []
        try:
            for gate in self._gates:
                await gate.acquire()
                passed.append(gate)
        except BaseException:
            for gate in passed:
                gate.release()
            raise
        self._taken = True

    def give_back(self) -> None:
        if self._taken:
            self._taken = False
            for gate in self._gates:
                gate.release()
