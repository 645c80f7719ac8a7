"""Bad company for the traffic: a disk that is slow in every other life, an embeddings server that never answers, and
a pulse that tells whether the gateway still answers while it has them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import httpx

from tests.chaos.house import House

SYNC_MS = 50
EVERY = 0.02


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1000)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


class Pulse:
    """Asks for the gateway's health fifty times a second while it is up."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.took: list[float] = []
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            while True:
                life = await self._house.up()
                started = time.perf_counter()
                with contextlib.suppress(httpx.HTTPError, OSError):
                    await client.get(f"{self._house.url}/healthz")
                    if self._house.life.number == life:
                        self.took.append((time.perf_counter() - started) * 1000)
                await asyncio.sleep(EVERY)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def at(self, share: float) -> float:
        ordered = sorted(self.took)
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) if ordered else 0.0
