"""What a large household costs: listing per agent, and finding one by its id.

Counted in processor time of the gateway, which other work on the machine does not change; the two households
take turns all the same.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.row import Row, at_most
from tests.support.gateway import GatewayProcess, Rpc, running

FEW, MANY = 10, 1000
ROUNDS = 8
LOOKUPS = 100
LISTED = 2 * (FEW + 1) * (MANY + 1) // 11
"""Agents listed per round in either house."""


def run() -> list[Row]:
    spent: defaultdict[tuple[str, int], float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        houses: dict[int, tuple[GatewayProcess, Rpc]] = {}
        for count in (FEW, MANY):
            gateway = stack.enter_context(running(household(Path(folder) / str(count), count)))
            houses[count] = gateway, stack.enter_context(gateway.rpc())
        for _ in range(ROUNDS):
            for count, (gateway, rpc) in houses.items():
                clock = processor_clock(gateway.process.pid)
                for what, do in work(rpc, count).items():
                    time.sleep(0.2)  # what the last answer left to do belongs to it
                    began = clock()
                    do()
                    spent[what, count] += clock() - began
    lookups = ROUNDS * LOOKUPS
    few, many = (spent["list", count] / ROUNDS / LISTED for count in (FEW, MANY))
    near, far = (spent["lookup", count] / lookups for count in (FEW, MANY))
    short, long = (spent["get", count] / lookups for count in (FEW, MANY))
    return [
        at_most(f"agents.list per agent, {MANY} beside {FEW}", f"{us(many)} / {us(few)}", many / few, 1.0),
        at_most(f"lookup by id, {MANY} beside {FEW}", f"{us(far)} / {us(near)}", far / near, 1.1),
        # Its answer names every agent that this one may talk to: that much may be dearer, and no more.
        at_most(f"agents.get, {MANY} beside {FEW}", f"{us(long)} / {us(short)}", long / short, 1.3),
    ]


def household(home: Path, count: int) -> Path:
    home.mkdir(parents=True)
    entries = "".join(
        f"    - {{name: a{n}, label: Agent {n}, description: Number {n}}}\n" for n in range(count)
    )
    (home / "agent.yaml").write_text(f"agents:\n  roster:\n{entries}")
    return home


def work(rpc: Rpc, count: int) -> dict[str, Callable[[], None]]:
    """The same number of agents listed, and of agents looked up, in either house."""

    def listing() -> None:
        for _ in range(LISTED // (count + 1)):
            assert len(rpc.call("agents.list")["agents"]) == count + 1

    def looking(method: str) -> None:
        for number in range(LOOKUPS):
            rpc.call(method, agent_id=f"a{number * count // LOOKUPS}")

    return {
        "lookup": lambda: looking("agents.files.list"),
        "get": lambda: looking("agents.get"),
        "list": listing,
    }


def processor_clock(pid: int) -> Callable[[], float]:
    """Seconds that a process has computed; where the system does not tell, those on the wall."""
    facts = Path(f"/proc/{pid}/stat")
    if not facts.exists():
        return time.perf_counter

    def clock() -> float:
        fields = facts.read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return clock


def us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"
