"""What a slow disk costs: turns beside a health check, with every sync delayed.

    python -m bench disk

The same closed loop as in `turns`, on this machine's disk and with 50 ms more for each sync.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import urlopen

from bench.house import AGENTS, opened_house
from bench.row import Row, at_least, at_most
from bench.turns import SESSIONS, busy
from tests.support.slow_disk import available, slow_disk

NAME = "disk"

SYNC_MS = 50
SECONDS = 10.0
EVERY = 0.01


@dataclass
class Pulse:
    """How long a health check takes, asked a hundred times a second."""

    times: list[float] = field(default_factory=list)

    def at(self, share: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextmanager
def pulse(url: str) -> Iterator[Pulse]:
    taken, ended = Pulse(), threading.Event()

    def ask() -> None:
        while not ended.wait(EVERY):
            started = time.perf_counter()
            with urlopen(f"{url}/healthz", timeout=60) as answer:
                answer.read()
            taken.times.append((time.perf_counter() - started) * 1000)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()


def run() -> list[Row]:
    if not available():
        return [Row("turns/s on a slow disk", "not measured: needs Linux and a C compiler")]
    rows = []
    for name, env in (("this disk", {}), (f"a disk with {SYNC_MS} ms a sync", slow_disk(SYNC_MS))):
        with opened_house(env=env) as house:
            house.mock.set(keep_bodies=0)
            busy(house, AGENTS, 2.0)
            with pulse(house.gateway.url) as taken:
                answered, seconds = busy(house, AGENTS, SECONDS)
        rate, slow = answered / seconds, bool(env)
        what = f"turns/s, {SESSIONS} sessions, {name}"
        rows.append(
            at_least(what, f"{rate:.0f} turns/s", rate, 60) if slow else Row(what, f"{rate:.0f} turns/s")
        )
        what, figure = (
            f"/healthz meanwhile, p50 / p99, {name}",
            f"{taken.at(0.5):.1f} / {taken.at(0.99):.1f} ms",
        )
        rows.append(at_most(what, figure, taken.at(0.99), 50, "ms") if slow else Row(what, figure))
    return rows
