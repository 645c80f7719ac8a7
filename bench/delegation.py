"""What handing work on costs: beside a plain turn, and beside one child.

    python -m bench delegation

The mock model answers at once, except where its delay is named. Moments are taken from its log, on the same clock
as the driver's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from statistics import median
from typing import Any

from bench.house import House, opened_house
from bench.row import Row, at_most
from tests.support.gateway import Rpc

NAME = "delegation"

TIMES = 30
CHILDREN = 20
DELAY_MS = 1_000
OVERHEAD = 8_000


def run() -> list[Row]:
    with opened_house(_furnish_more) as house, house.gateway.rpc() as rpc:
        rpc.call("sessions.watch", all=True)
        for _ in range(5):
            first_request(house, rpc, plain)
            first_request(house, rpc, spawn)
        return [*spawning(house, rpc), *asking(house, rpc), overhead(house, rpc), *in_parallel(house, rpc)]


def _furnish_more(home: Any) -> None:
    with (home / "agent.yaml").open("a") as file:
        file.write(f"subagents: {{max_children: {CHILDREN}, max_concurrent: {CHILDREN}}}\n")
        file.write("delegation: {trace_turns: 100000}\n")


# Ways to ask


def plain(rpc: Rpc, tag: str) -> str:
    sent = rpc.call("chat.send", session=f"agent:dot:api:{tag}", message=f"hello [t:{tag}]")
    return str(sent["run_id"])


def spawn(rpc: Rpc, tag: str) -> str:
    return str(rpc.call("subagents.spawn", task=f"hello [t:{tag}]", agent_id="dot")["run_id"])


def first_request(house: House, rpc: Rpc, ask: Callable[[Rpc, str], str]) -> float:
    """Milliseconds from asking to the model's getting the request."""
    tag = uuid.uuid4().hex[:12]
    since = house.mock.count()
    began = time.time_ns()
    run_id = ask(rpc, tag)
    rpc.wait_for("chat", run_id=run_id, state="final")
    [record] = [r for r in house.mock.log(since) if tag in r["tags"]]
    return float(record["t_first"] - began) / 1e6


def spawning(house: House, rpc: Rpc) -> list[Row]:
    turns, spawns = [], []
    for _ in range(TIMES):
        turns.append(first_request(house, rpc, plain))
        spawns.append(first_request(house, rpc, spawn))
    one, other = median(spawns), median(turns)
    return [
        at_most(
            "spawn to the child's first request / a plain turn's",
            f"{one:.2f} / {other:.2f} ms",
            one / other,
            1.5,
        )
    ]


def asking(house: House, rpc: Rpc) -> list[Row]:
    """From the caller's reply that asks to its next request, which has the answer; beside a whole plain turn."""
    turns, trips = [], []
    for _ in range(TIMES):
        turns.append(whole_turn(rpc))
        trips.append(round_trip(house, rpc))
    one, other = median(trips), median(turns)
    return [
        at_most(
            "sync delegation, there and back / a plain turn", f"{one:.2f} / {other:.2f} ms", one / other, 2.5
        )
    ]


def whole_turn(rpc: Rpc) -> float:
    began = time.perf_counter()
    run_id = plain(rpc, uuid.uuid4().hex[:12])
    rpc.wait_for("chat", run_id=run_id, state="final")
    rpc.events.clear()
    return (time.perf_counter() - began) * 1000


def round_trip(house: House, rpc: Rpc) -> float:
    tag = uuid.uuid4().hex[:12]
    since = house.mock.count()
    ask = '{"agentId": "rose", "content": "hello", "session": "create"}'
    text = f"[t:{tag}] TOOLS 1 CALL agents_message {ask}"
    run_id = rpc.call("chat.send", session=f"agent:dot:api:{tag}", message=text)["run_id"]
    rpc.wait_for("chat", run_id=run_id, state="final")
    rpc.events.clear()
    first, *_, last = [r for r in house.mock.log(since) if tag in r["tags"]]
    return float(last["t_first"] - first["t_out"]) / 1e6


def overhead(house: House, rpc: Rpc) -> Row:
    since = house.mock.count()
    run_id = spawn(rpc, "overhead")
    rpc.wait_for("chat", run_id=run_id, state="final")
    record = house.mock.log(since)[-1]
    what = f"a child's first request ({record['n_tools']} tools)"
    return at_most(what, f"{record['bytes']:,} bytes", record["bytes"], OVERHEAD)


def in_parallel(house: House, rpc: Rpc) -> list[Row]:
    """Twenty children at once beside one, with a model that takes a second."""
    house.mock.set(delay_ms=DELAY_MS)
    one, many = (
        median([together(rpc, 1) for _ in range(3)]),
        median([together(rpc, CHILDREN) for _ in range(3)]),
    )
    house.mock.set(delay_ms=0)
    return [
        at_most(
            f"{CHILDREN} children in parallel / one, model delay {DELAY_MS} ms",
            f"{many:.2f} / {one:.2f} s",
            many / one,
            2,
        )
    ]


def together(rpc: Rpc, count: int) -> float:
    began = time.perf_counter()
    runs = [spawn(rpc, uuid.uuid4().hex[:12]) for _ in range(count)]
    for run_id in runs:
        rpc.wait_for("chat", run_id=run_id, state="final")
    rpc.events.clear()
    return time.perf_counter() - began
