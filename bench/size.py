"""What a household weighs: bytes of its first request, memory, and the time to its first answer.

python -m bench size [--markdown]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.drive import memory
from bench.house import Mock, furnish, home_folder, line_to, message, mock_process
from bench.line import Line
from bench.row import Row, at_most
from bench.start import alternate, command
from bench.turns import take_turns
from coterie.engine.turns.transcripts import IDLE_SECONDS
from tests.support.gateway import GatewayProcess, running

NAME = "size"

STARTS = 5
IMPORTS = "import starlette.applications, uvicorn, sqlalchemy, pydantic, httpx2"
FIRST_REQUEST = 6_000
IDLE, WARM, GROWTH = 110, 140, 1.1
SESSIONS, TURNS = 100, 10
FORGOTTEN = IDLE_SECONDS * 1.5 + 10
"""Seconds after which the gateway has nothing in memory of sessions that nobody uses."""
SETTLE = 3
"""Seconds without growth after which a gateway counts as idle: some of it is loaded in the background."""


def run() -> list[Row]:
    with mock_process() as mock, home_folder() as home:
        furnish(home, mock.url, agents=())
        return [first_request(home, mock), *resident(home), *first_answer(home, mock)]


def first_request(home: Path, mock: Mock) -> Row:
    """A default agent with no files of its own says hello."""
    with running(home) as gateway:
        line_to(gateway).ask(message("main", "first", "hello"))
    record = mock.log()[-1]
    what = f"first request of a default agent ({record['n_tools']} tools)"
    return at_most(what, f"{record['bytes']:,} bytes", record["bytes"], FIRST_REQUEST)


def resident(home: Path) -> list[Row]:
    """Memory at rest, after 50 turns of one session, after 1,000 over a hundred, and once those are idle."""
    with running(home) as gateway:
        pid = gateway.process.pid
        idle = settled(pid)
        line = line_to(gateway)
        take_turns(line, "main", "rest", 50)
        warm = memory(pid).rss
        tired = after_many(line, pid, "first")
        time.sleep(FORGOTTEN)
        rested = memory(pid).rss
        again = after_many(line, pid, "second")
        line.close()
    turns = f"{SESSIONS * TURNS:,} turns over {SESSIONS} sessions"
    return [
        at_most("RSS idle", f"{idle:.0f} MiB", idle, IDLE, "MiB"),
        at_most("RSS after 50 turns", f"{warm:.0f} MiB", warm, WARM, "MiB"),
        at_most(f"RSS after {turns}", f"{tired:.0f} MiB", tired, WARM, "MiB"),
        at_most("the same / after 50 turns", f"{tired:.0f} / {warm:.0f} MiB", tired / warm, GROWTH),
        Row(f"the same, {FORGOTTEN:.0f} s later", f"{rested:.0f} MiB"),
        at_most(
            f"RSS after {turns} more / before",
            f"{again:.0f} / {tired:.0f} MiB",
            again / tired,
            1.02,
        ),
    ]


def after_many(line: Line, pid: int, name: str) -> float:
    for number in range(SESSIONS):
        take_turns(line, "main", f"{name}-{number}", TURNS)
    return memory(pid).rss


def settled(pid: int) -> float:
    """MiB once nothing more is being loaded."""
    sizes = [0.0]
    while len(sizes) <= SETTLE or sizes[-1] - sizes[-1 - SETTLE] > 0.5:
        time.sleep(1)
        sizes.append(memory(pid).rss)
    return sizes[-1]


def first_answer(home: Path, mock: Mock) -> list[Row]:
    """From the command to the first answered turn, beside importing what gateways are usually made of."""
    fresh = home.with_name("fresh")
    numbers = iter(range(1_000))

    def on_a_fresh_home() -> float:
        place = fresh / str(next(numbers))
        furnish(place, mock.url, agents=())
        return seconds_to_answer(place)

    existing, new, imports = alternate(
        STARTS,
        lambda: seconds_to_answer(home),
        on_a_fresh_home,
        lambda: command(home, sys.executable, "-c", IMPORTS),
    )
    return [
        at_most(
            "start to first answered turn / importing starlette, uvicorn, sqlalchemy, pydantic and httpx2",
            _ms(existing, imports),
            existing / imports,
            1.5,
        ),
        Row("the same on a fresh home", _ms(new, imports), f"{new / imports:.2f}"),
    ]


def seconds_to_answer(home: Path) -> float:
    facts = home / "run" / "gateway.json"
    began = time.perf_counter()
    gateway = GatewayProcess(home)
    try:
        while not _written_by(facts, gateway.process.pid):
            if gateway.process.poll() is not None:
                raise RuntimeError(f"the gateway ended at once:\n{gateway.log.read_text()}")
            time.sleep(0.002)
        gateway.url = json.loads(facts.read_text())["url"]
        line_to(gateway).ask(message("main", "start", "hello"))
        return time.perf_counter() - began
    finally:
        gateway.stop()


def _written_by(facts: Path, pid: int) -> bool:
    try:
        return bool(json.loads(facts.read_text())["pid"] == pid)
    except (OSError, ValueError):
        return False


def _ms(first: float, second: float) -> str:
    return f"{first * 1000:.0f} / {second * 1000:.0f} ms"
