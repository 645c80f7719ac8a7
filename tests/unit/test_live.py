"""Whoever follows a turn and does not keep up is cut off: what waits for them has a bound."""

from __future__ import annotations

import asyncio

import pytest

from coterie.engine.events import Events
from coterie.engine.turns.live import BEHIND, FellBehind, LiveTurn


def test_a_slow_follower_is_cut_off_and_a_quick_one_is_not() -> None:
    async def story() -> None:
        turn = LiveTurn("run", "agent:main:main", Events())
        slow, quick = turn.follow(), turn.follow()
        both = asyncio.gather(anext(slow), anext(quick))
        await asyncio.sleep(0)
        turn.emit("started")
        await both
        for _ in range(BEHIND + 10):
            turn.emit("delta", text="x")
            await anext(quick)
        turn.emit("final", text="done")
        assert (await anext(quick)).state == "final"
        for _ in range(BEHIND):
            assert (await anext(slow)).state == "delta"
        with pytest.raises(FellBehind):
            await anext(slow)

    asyncio.run(story())
