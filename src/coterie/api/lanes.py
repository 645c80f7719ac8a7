"""The requests of one socket that are under way: changes one after the other, everything else beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from coterie.api.operation import Operation

READS = 64
"""Requests that only look, at the same time."""
AHEAD = 1_000
AHEAD_BYTES = 16 * 1024 * 1024
"""Requests that are taken in before earlier ones are answered; then the socket is not read for a while."""


class Lanes:
    def __init__(self) -> None:
        self._reading = asyncio.Semaphore(READS)
        self._writing = asyncio.Lock()
        """Fair: whoever came first goes first, so that two messages stay in order."""
        self._looking: set[asyncio.Task[None]] = set()
        self._changing: set[asyncio.Task[None]] = set()
        self._bytes = 0

    def of(self, operation: Operation) -> AbstractAsyncContextManager[Any]:
        """What a request has to wait for."""
        if operation.overtakes:
            return nullcontext()
        return self._writing if operation.changes else self._reading

    async def start(self, operation: Operation, work: Coroutine[Any, Any, None], size: int) -> None:
        tasks = self._changing if operation.changes else self._looking
        task = asyncio.create_task(work)
        tasks.add(task)
        self._bytes += size

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._bytes -= size

        task.add_done_callback(ended)
        while len(everyone := self._looking | self._changing) > AHEAD or self._bytes > AHEAD_BYTES:
            await asyncio.wait(everyone, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """The client is gone: nobody waits for what was only looked at, and what it asked for is done."""
        for task in self._looking:
            task.cancel()
        while everyone := self._looking | self._changing:
            await asyncio.wait(everyone)
