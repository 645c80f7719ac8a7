"""One run: cases from a seed, played by a few clients at once, and the house looked at all the while."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import context, files, frames, http, keys, streams, tools
from tests.fuzz.world import Finding, World, memory, opened
from tests.support.gateway import RpcError
from tests.support.providers import PROTOCOLS

CLIENTS = 4
EVERY = 20
"""Cases after which the log is read."""


@dataclass(frozen=True)
class Target:
    case: Callable[[Random], Any]
    play: Callable[[World, Any], None]
    clients: int = CLIENTS
    after: Callable[[World], None] = lambda world: None
    """Puts right what the cases have done to the house."""
    wires: tuple[str, ...] = ("chat",)
    """Whose models are asked at the end."""


TARGETS = {
    "frames": Target(frames.case, frames.play),
    "http": Target(http.case, http.play),
    "files": Target(files.case, files.play, clients=1, after=files.restore),
    "keys": Target(keys.case, keys.play),
    "context": Target(context.case, context.play),
    "tools": Target(tools.case, tools.play),
    "streams": Target(streams.case, streams.play, clients=16, wires=PROTOCOLS),
}


def fuzz(
    what: str,
    home: Path,
    seed: str,
    *,
    seconds: float = 1e9,
    only: Iterable[int] | None = None,
    patience: float,
) -> str:
    """Play cases until the time is over, or only these. Raises the first finding, with the way to see it again."""
    target = TARGETS[what]
    numbers = iter(only) if only is not None else itertools.count()
    deadline = time.monotonic() + seconds
    played, lock = [0], threading.Lock()
    findings: list[Finding] = []

    def client(world: World) -> None:
        while not findings and time.monotonic() < deadline:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            case = target.case(Random(f"{what} {seed} {number}"))
            try:
                target.play(world, case)
                with lock:
                    played[0] += 1
                    if played[0] % EVERY == 0:
                        world.check()
            except Exception as problem:
                again = f"python -m tests.fuzz {what} --seed {seed} --case {number}"
                findings.append(Finding(f"{problem}\n{again} (or one of the {EVERY} before)\n{case!r:.1500}"))

    with opened(home, patience) as world:
        clients = [threading.Thread(target=client, args=(world,)) for _ in range(target.clients)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        if findings:
            raise findings[0]
        world.check()
        try:
            target.after(world)
            world.works(target.wires)
        except (AssertionError, RpcError, TimeoutError) as problem:
            raise Finding(f"afterwards the house does not work: {problem!r}") from problem
        world.check()
        size = memory(world.gateway.process.pid) / 1e6
    return f"{played[0]} cases, /healthz at most {world.slowest * 1000:.0f} ms, {size:.0f} MB at the end"
