"""make chaos: the real gateway under traffic, killed with -9 again and again. Exit 1 if a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from coterie.engine.turns.turns import ATTEMPTS
from tests.chaos.acknowledged import kill_after_acknowledgement
from tests.chaos.children import children
from tests.chaos.house import House, MockModel, furnish, mock_model
from tests.chaos.ledger import Result, Store, count
from tests.chaos.line import Lost
from tests.chaos.traffic import Crowd
from tests.chaos.trouble import SYNC_MS, Pulse, silent_server
from tests.chaos.world import World
from tests.support.gateway import RpcError
from tests.support.slow_disk import available, slow_disk

LAST_ATTEMPT = ATTEMPTS - 1
"""A turn that was begun this often without getting further is not killed again: by design it would be given up."""
QUIET = 120.0
"""Seconds within which everything must be answered once the killing stops."""
MOMENTS = ("start", "recovering", "acknowledged", "model", "tool", "any")
WEIGHTS = (15, 10, 15, 25, 20, 15)
LONGEST = 20.0
"""Seconds for which a kill waits for its moment, should it never come."""


@dataclass(frozen=True, slots=True)
class Plan:
    kills: int
    seed: int
    sessions: int = 12
    trouble: bool = False
    """With a slow disk in every other life, tools that never come back, and an embeddings server that hangs."""


class Killer:
    """Decides when the gateway dies."""

    def __init__(self, house: House, model: MockModel, random: Random) -> None:
        self._house = house
        self._model = model
        self._world = house.world
        self._random = random

    async def life(self) -> None:
        """Start the gateway and kill it at some moment, perhaps before it answers."""
        moment = self._random.choices(MOMENTS, WEIGHTS)[0]
        self._model.forget_news()
        self._house.start()
        self._house.life.moment = moment
        if moment == "start":
            await asyncio.sleep(self._random.uniform(0.05, 0.95) * self._typical_start())
        elif moment == "recovering":
            await self._house.announced()
            await asyncio.sleep(self._random.uniform(0, 0.06))
        else:
            await self._house.ready()
            waits = {
                "acknowledged": self._acknowledged,
                "model": self._model_asked,
                "tool": self._tool_ran,
                "any": self._any_time,
            }
            await waits[moment]()
        await self._spare_the_unlucky()
        await self._house.kill()

    async def _acknowledged(self) -> None:
        with contextlib.suppress(TimeoutError):
            # Where every sender waits for answers, nothing is acknowledged for a while.
            async with asyncio.timeout(3), self._world.acknowledged:
                for _ in range(self._random.randint(1, 6)):
                    await self._world.acknowledged.wait()
        await asyncio.sleep(self._random.choice((0, 0, self._random.uniform(0, 0.02))))

    async def _model_asked(self) -> None:
        """While the model thinks, or just after it answered."""
        wanted = self._random.randint(1, 40)
        give_up = time.monotonic() + LONGEST
        while self._model.news() < wanted and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self._random.uniform(0, 0.15) * self._typical_start())

    async def _tool_ran(self) -> None:
        """Just after a once-only effect: its result may be committed or not."""
        wanted = self._random.randint(1, 8)
        before, sizes = _size(self._house.effects), 0
        give_up = time.monotonic() + LONGEST
        while sizes < wanted and time.monotonic() < give_up:
            await asyncio.sleep(0.001)
            now = _size(self._house.effects)
            before, sizes = now, sizes + (now != before)
        await asyncio.sleep(self._random.uniform(0, 0.015))

    async def _any_time(self) -> None:
        await asyncio.sleep(self._random.uniform(0, 1.5) * self._typical_start())

    async def _spare_the_unlucky(self) -> None:
        give_up = time.monotonic() + 20
        if self._house.most_attempts() < LAST_ATTEMPT:
            return
        self._world.postponed += 1
        while self._house.most_attempts() >= LAST_ATTEMPT and time.monotonic() < give_up:
            await asyncio.sleep(0.02)

    def _typical_start(self) -> float:
        """Seconds; the measure of how fast this machine is at the moment."""
        took = [life.ready - life.started for life in self._world.lives if life.ready is not None]
        return statistics.median(took[-20:]) if took else 2.0


async def chaos(
    plan: Plan, home: Path, model: MockModel, tell: Callable[[str], None] = lambda _: None
) -> Result:
    """The whole of it, on a home that does not exist yet."""
    with contextlib.ExitStack() as stack:
        more = ""
        if plan.trouble:
            url = stack.enter_context(silent_server())
            more = f"memory: {{embeddings: {{type: openai-compatible, base_url: '{url}', model: m}}}}\n"
        furnish(home, model.url, more)
        return await _run(plan, home, model, tell)


async def _run(plan: Plan, home: Path, model: MockModel, tell: Callable[[str], None]) -> Result:
    world = World()
    slow = slow_disk(SYNC_MS) if plan.trouble and available() else {}
    house = House(home, world, lambda: slow if len(world.lives) % 2 else {})
    crowd = Crowd(house, plan.seed, plan.sessions, trouble=plan.trouble)
    pulse = Pulse(house)
    began = told = time.monotonic()
    try:
        killer = Killer(house, model, Random(plan.seed))
        for number in range(1, plan.kills + 1):
            await killer.life()
            crowd.check()
            if time.monotonic() - told > 20:
                told = time.monotonic()
                tell(_progress(number, plan.kills, told - began, world))
        per_kill = (time.monotonic() - began) / max(1, plan.kills)
        house.start()
        house.life.moment = "last"
        await house.ready()
        try:
            await asyncio.wait_for(crowd.close(), QUIET)
        except TimeoutError:
            world.surprises.append(f"some senders still waited {QUIET:.0f} s after the last kill")
        await _quiet(house)
    finally:
        crowd.stop()
        await pulse.stop()
        await house.stop()
    result = count(world, Store(home / "coterie.db"), model.log(), home, home.parent / f"{home.name}.log")
    for moment in MOMENTS:
        result.facts[f"kills, {moment}"] = sum(1 for life in world.lives if life.moment == moment)
    result.facts["kills put off (attempt budget)"] = world.postponed
    result.facts["seconds per kill"] = round(per_kill, 2)
    result.facts["health checks"] = len(pulse.took)
    result.facts["of these p50 / p99, ms"] = f"{pulse.at(0.5)} / {pulse.at(0.99)}"
    result.facts["processes on a slow disk"] = len(world.lives) // 2 if slow else 0
    result.facts["seed"] = plan.seed
    return result


async def _quiet(house: House) -> None:
    """Until no session has anything unfinished."""
    deadline = time.monotonic() + QUIET
    for label, ref in house.world.sessions.items():
        while time.monotonic() < deadline:
            try:
                line = await house.line(label)
                if not (await line.call("chat.queue", session=ref))["entries"]:
                    break
            except Lost:
                return
            except RpcError as error:
                # A session whose only message was given up was perhaps never made.
                if error.code != "NOT_FOUND":
                    raise
                break
            await asyncio.sleep(0.05)


def _progress(number: int, kills: int, seconds: float, world: World) -> str:
    acknowledged = sum(1 for said in world.said if said.acknowledged)
    rate = seconds / number
    return f"{number}/{kills} kills, {rate:.2f} s each, {acknowledged} messages acknowledged, {world.forks} forks"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--acknowledged", type=int, metavar="N", help="only: kill N times on acknowledgement")
    parser.add_argument(
        "--parents", type=int, default=5, help="parents with twenty children each, at the end"
    )
    parser.add_argument("--children", type=int, metavar="N", help="only: N parents with twenty children each")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument(
        "--plain", action="store_true", help="without slow disks, hanging tools and hanging embeddings"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here as well")
    parser.add_argument("--keep", action="store_true", help="keep the home folder and the log")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process is left behind
    seed = secrets.randbelow(10**6) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="coterie-chaos-"))
    print(f"seed {seed}, home in {folder}", flush=True)
    parents = chosen.parents if chosen.children is None else chosen.children
    results = []
    with mock_model() as model:
        if chosen.acknowledged is not None:
            parents = 0
            results.append(
                asyncio.run(kill_after_acknowledgement(chosen.acknowledged, folder / "home", model, _tell))
            )
        elif chosen.children is None:
            plan = Plan(chosen.kills, seed, chosen.sessions, trouble=not chosen.plain)
            results.append(asyncio.run(chaos(plan, folder / "home", model, _tell)))
    if parents:
        results.append(children(parents, folder / "parents", seed, _tell))
    for result in results:
        print(result.table())
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([result.payload() for result in results], indent=2) + "\n")
    kept = all(result.kept for result in results)
    if kept and not chosen.keep:
        shutil.rmtree(folder)
    else:
        print(f"kept: {folder}")
    return 0 if kept else 1


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
