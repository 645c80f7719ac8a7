"""Killed in the moment of the acknowledgement: the message is answered after the restart, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.house import AGENTS, House, MockModel, furnish
from tests.chaos.ledger import Result, Store, count
from tests.chaos.world import World

ANSWER_SECONDS = 60.0


async def kill_after_acknowledgement(
    times: int, home: Path, model: MockModel, tell: Callable[[str], None] = lambda _: None
) -> Result:
    """Send, kill on the acknowledgement, start again, wait for the answer; `times` times."""
    furnish(home, model.url)
    world = World()
    house = House(home, world)
    before_any_request = 0
    try:
        house.start()
        await house.ready()
        for number in range(1, times + 1):
            label = f"a{number}"
            world.sessions[label] = ref = f"agent:{AGENTS[number % len(AGENTS)]}:main:thread:{label}"
            said = world.say(label, 1, "DELAY 150")
            line = await house.line(label)
            said.sent = time.time()
            receipt = await line.call("chat.send", session=ref, message=said.text, idempotency_key=label)
            await house.kill()
            await world.acknowledge(said, receipt["run_id"], time.time())
            house.life.moment = "acknowledged"
            asked = any(said.tag in record.get("tags", ()) for record in model.log())
            before_any_request += not asked
            house.start()
            await house.ready()
            await _answered(house, label, ref)
            tell(f"{number}/{times}: answered")
    finally:
        await house.stop()
    result = count(world, Store(home / "coterie.db"), model.log(), home, home.parent / f"{home.name}.log")
    result.facts["kills on acknowledgement"] = times
    result.facts["of these before any model request"] = before_any_request
    return result


async def _answered(house: House, label: str, ref: str) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        line = await house.line(label)
        if not (await line.call("chat.queue", session=ref))["entries"]:
            return
        await asyncio.sleep(0.02)
