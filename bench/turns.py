"""What a turn costs beyond the model: time beside a bare model call, growth, throughput, statements.

    python -m bench.turns [--markdown]

Default settings, commits synced, a model that answers at once, over /v1/chat/completions. Turns and bare
requests alternate in small blocks, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import event

from bench.drive import cpu_seconds, machine
from bench.house import (
    AGENTS,
    COMPLETIONS,
    BareProcess,
    House,
    bare_process,
    home_folder,
    message,
    opened_house,
)
from bench.line import Line, closed_loop
from bench.row import Row, at_least, at_most, markdown, plain
from coterie.app import opened
from coterie.core.clock import now_iso
from coterie.core.message import Message
from coterie.core.session import Session, api_key
from coterie.engine.household.home import Home
from coterie.store.database import Database

NAME = "turns"

BLOCK = 10
TURNS = 500
EARLY, LATE = range(100), range(400, 500)
SESSIONS = 32
ROUNDS = 6
SECONDS = 3.0
MANY, FEW = 10_000, 10
TEXT = 20
"""Characters of each of the many messages."""
PAIRS = 4
"""Sessions of each length that take part in the comparison."""
LENGTH_ROUNDS = 25


@dataclass(frozen=True, slots=True)
class Peer:
    """Another gateway, measured with the same mock and driver on two quiet cores."""

    version: str
    measured: str
    early_ms: float
    """Its turn beyond the model at turns 1 to 100 of a session."""
    late_ms: float
    early_share: float
    """How much of it ours may take."""
    late_share: float


PEERS = (
    Peer("openclaw 2026.9.6", "2026-11", 169, 234, 1 / 15, 1 / 8),
    Peer("nanobot-ai 0.3.5", "2026-11", 78, 230, 1 / 8, 1 / 8),
)


@dataclass(slots=True)
class Times:
    """Turns and the bare requests with the same bytes, in milliseconds."""

    turns: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    turns_cpu: float = 0
    bare_cpu: float = 0

    @property
    def turn(self) -> float:
        return median(self.turns)

    @property
    def alone(self) -> float:
        return median(self.bare)

    @property
    def beyond(self) -> float:
        """Each turn beside the bare request with its bytes, a moment later: a slow minute meets both."""
        return median(turn - bare for turn, bare in zip(self.turns, self.bare, strict=True))

    def measure(self, house: House, bare: BareProcess, line: Line, agent: str, user: str, count: int) -> None:
        """So many turns, then the requests they led to once more without the gateway."""
        cpu = cpu_seconds(house.pid)
        self.turns += take_turns(line, agent, user, count)
        self.turns_cpu += (cpu_seconds(house.pid) - cpu) * 1000
        for took, cpu in repeat_equally(house, bare):
            self.bare.append(took)
            self.bare_cpu += cpu

    def rows(self, turns: str) -> list[Row]:
        cpu, bare_cpu = self.turns_cpu / len(self.turns), self.bare_cpu / len(self.bare)
        return [
            at_most(
                f"turn / bare request, {turns}",
                f"{self.turn:.2f} / {self.alone:.2f} ms",
                self.turn / self.alone,
                3,
            ),
            Row(f"CPU of the two, {turns}", f"{cpu:.2f} / {bare_cpu:.2f} ms", f"{cpu / bare_cpu:.2f}"),
        ]


def run() -> list[Row]:
    with opened_house(fill_sessions) as house, bare_process(house.mock) as bare:
        before, own = machine(), cpu_seconds(os.getpid())
        rows = [*growth(house, bare), *length(house, bare), *throughput(house)]
        after, own = machine(), cpu_seconds(os.getpid()) - own
    foreign = max(0.0, after.busy - before.busy - own) / (after.all - before.all)
    return [*rows, Row("share of the machine that other programs took", f"{foreign:.0%}"), *statements()]


# A session that grows


def growth(house: House, bare: BareProcess) -> list[Row]:
    """One session from its first turn to its 500th."""
    house.mock.set(keep_bodies=BLOCK)
    line = house.line()
    warm_up, early, late = Times(), Times(), Times()
    for _ in range(5):
        warm_up.measure(house, bare, line, "dot", "warm-up", BLOCK)
    for first in range(0, TURNS, BLOCK):
        if first in EARLY:
            early.measure(house, bare, line, "dot", "growth", BLOCK)
        elif first in LATE:
            late.measure(house, bare, line, "dot", "growth", BLOCK)
        else:
            take_turns(line, "dot", "growth", BLOCK)
            if first + BLOCK == LATE.start:
                bare.repeat()  # it stood idle for a while
    line.close()
    return [
        *early.rows("turns 1-100"),
        *late.rows("turns 401-500"),
        at_most(
            "turn minus bare, turns 401-500 / 1-100",
            f"{late.beyond:.2f} / {early.beyond:.2f} ms",
            late.beyond / early.beyond,
            1.2,
        ),
        *beside_peers(early.turn, late.turn),
    ]


def beside_peers(early: float, late: float) -> list[Row]:
    rows = []
    for peer in PEERS:
        for turns, ours, theirs, share in (
            ("1-100", early, peer.early_ms, peer.early_share),
            ("401-500", late, peer.late_ms, peer.late_share),
        ):
            rows.append(
                at_most(
                    f"turn / {peer.version} ({peer.measured}), turns {turns}",
                    f"{ours:.2f} / {theirs:.0f} ms",
                    ours / theirs,
                    share,
                )
            )
    return rows


def take_turns(line: Line, agent: str, user: str, count: int) -> list[float]:
    """One after the other; the milliseconds of each."""
    line.refresh()
    took = []
    for _ in range(count):
        tag = f"[t:{uuid.uuid4().hex[:12]}]"
        body = message(agent, user, f"hello {tag}")
        started = time.perf_counter()
        answer = line.ask(body)
        took.append((time.perf_counter() - started) * 1000)
        if tag.encode() not in answer:
            raise RuntimeError(f"the answer belongs to another turn: {answer[:300]!r}")
    return took


def repeat_equally(house: House, bare: BareProcess) -> list[tuple[float, float]]:
    """The newest turns' requests once more without the gateway, and proof that they were as long."""
    before = house.mock.count()
    took = bare.repeat()
    log = house.mock.log(before - len(took))
    sizes = [record["bytes"] for record in log]
    if sizes[: len(took)] != sizes[len(took) :]:
        raise RuntimeError(f"the bare requests differ from the gateway's: {sizes}")
    return took


# Sessions of different lengths, equal on the wire


def fill_sessions(home: Path) -> None:
    """Sessions with few long messages and with many short ones, the same number of bytes when sent."""
    # A message costs the wire its text, its role and 25 characters more.
    excess = (MANY - FEW) * (25 + (len("user") + len("assistant")) / 2)
    long_text = (MANY * TEXT + excess) / FEW
    with opened(Home(home)) as gateway:
        for number in range(PAIRS):
            fill_session(gateway.store, f"many-{number}", [TEXT] * MANY)
            fill_session(
                gateway.store, f"few-{number}", [int(long_text), round(long_text + 0.5)] * (FEW // 2)
            )


def fill_session(store: Any, user: str, lengths: Sequence[int]) -> None:
    at = now_iso()
    session = Session(uuid.uuid4().hex, api_key("rose", user), "rose", "api", created_at=at, updated_at=at)
    messages = [
        Message(
            uuid.uuid4().hex,
            "assistant" if place % 2 else "user",
            "agent" if place % 2 else "user",
            "x" * length,
            agent_id="rose",
            seq=place + 1,
            created_at=at,
        )
        for place, length in enumerate(lengths)
    ]
    with store.write() as tx:
        tx.sessions.add(session)
        tx.sessions.append(session.id, messages)


def length(house: House, bare: BareProcess) -> list[Row]:
    """The same bytes in ten thousand messages and in ten."""
    house.mock.set(keep_bodies=1)
    line = house.line()
    many, few = Times(), Times()
    names = [
        (f"{kind}-{number}", times)
        for number in range(PAIRS)
        for kind, times in (("many", many), ("few", few))
    ]
    for user, _ in names:
        take_turns(line, "rose", user, 2)
        bare.repeat()
    for _ in range(LENGTH_ROUNDS):
        for user, times in names:
            times.measure(house, bare, line, "rose", user, 1)
    line.close()
    sent = {record["bytes"] for record in house.mock.log(house.mock.count() - 4)}
    return [
        Row(
            "request with 10,000 messages / with 10",
            " / ".join(f"{size:,}" for size in sorted(sent)) + " bytes",
        ),
        at_most(
            "turn minus bare, 10,000 stored messages / 10",
            f"{many.beyond:.2f} / {few.beyond:.2f} ms",
            many.beyond / few.beyond,
            1.2,
        ),
        Row("turn / bare, 10,000 stored messages", f"{many.turn:.1f} / {many.alone:.1f} ms"),
        Row("turn / bare, 10 stored messages", f"{few.turn:.1f} / {few.alone:.1f} ms"),
    ]


# Many sessions at once


def throughput(house: House) -> list[Row]:
    """32 sessions in a closed loop, over three agents and over one in turn."""
    house.mock.set(keep_bodies=0)
    three: list[float] = []
    one: list[float] = []
    busy(house, AGENTS, 1.0)
    cpu, turns = cpu_seconds(house.pid), 0
    for number in range(ROUNDS):
        pair = ((AGENTS, three), (AGENTS[1:2], one))
        for agents, rates in pair if number % 2 else reversed(pair):
            answered, seconds = busy(house, agents, SECONDS)
            rates.append(answered / seconds)
            turns += answered
    cpu = (cpu_seconds(house.pid) - cpu) / turns * 1000
    return [
        at_least(
            f"turns/s, {SESSIONS} sessions, three agents", f"{median(three):.0f} turns/s", median(three), 100
        ),
        at_least(
            "the same beside one agent",
            f"{median(three):.0f} / {median(one):.0f} turns/s",
            median(several / single for several, single in zip(three, one, strict=True)),
            0.95,
        ),
        Row(f"gateway CPU per turn, {SESSIONS} sessions", f"{cpu:.2f} ms"),
    ]


def busy(house: House, agents: Sequence[str], seconds: float) -> tuple[int, float]:
    run_name = uuid.uuid4().hex[:8]
    lines = [house.line() for _ in range(SESSIONS)]

    def body(number: int, turn: int) -> dict[str, Any]:
        agent = agents[number % len(agents)]
        return message(agent, f"{run_name}-{number}", f"hello [t:{run_name}.{number}.{turn}]")

    def check(number: int, turn: int, answer: bytes) -> None:
        if f"[t:{run_name}.{number}.{turn}]".encode() not in answer:
            raise RuntimeError(f"the answer belongs to another turn: {answer[:300]!r}")

    answered = closed_loop(lines, body, check, seconds)
    for line in lines:
        line.close()
    return answered


# What the store is asked


def statements() -> list[Row]:
    """Statements and commits of a session's second turn, counted where they leave for the database.

    That answers were delivered is written for all turns together, once in two seconds: not counted here.
    """
    with home_folder() as home:
        seen, commits = asyncio.run(_counted_turn(home))
    return [
        at_most("statements per plain turn", f"{len(seen)}", len(seen), 10),
        at_most("commits per plain turn", f"{commits}", commits, 3),
    ]


async def _counted_turn(home: Path) -> tuple[list[str], int]:
    from coterie.api.http import create_app

    seen: list[str] = []
    commits: list[object] = []
    with opened(Home(home), engine=True) as gateway:
        token = gateway.access.make_owner_token()
        store = gateway.store
        assert isinstance(store, Database)

        @event.listens_for(store.engine, "before_cursor_execute")
        def count(_c: object, _cursor: object, statement: str, *_: object) -> None:
            if not statement.startswith("BEGIN"):
                seen.append(statement)

        event.listen(store.engine, "commit", commits.append)

        @asynccontextmanager
        async def lifespan(_: object) -> Any:
            yield

        transport = httpx.ASGITransport(create_app(gateway, lifespan, "127.0.0.1"))
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            gateway.running(),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client,
        ):
            for text in ("first", "second"):
                seen.clear()
                commits.clear()
                answer = await client.post(COMPLETIONS, json=message("main", "count", text))
                answer.raise_for_status()
            await asyncio.sleep(0.1)  # what comes after the answer belongs to the turn too
            return list(seen), len(commits)


def main() -> None:
    rows = run()
    print(markdown(rows) if "--markdown" in sys.argv else plain(rows))


if __name__ == "__main__":
    main()
