"""A short hunt for leaks by every door; `python -m tests.chaos.leaks` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.chaos import leaks


def test_nothing_leaks_by_any_door(tmp_path: Path) -> None:
    tally = leaks.hunt(tmp_path, queries=600, seed=3, least=12)
    assert tally.leaks == []
    assert all(tally.seen[door] > 0 for door in leaks.DOORS), tally.seen


def test_the_hunt_would_notice() -> None:
    tally = leaks.Tally()
    tally.check("rpc", "ada", "boat zqadaxprivatex3 zqbeaxglobalx1")
    assert tally.leaks == []
    for reader, mark in (("ada", "zqbeaxprivatex1"), (None, "zqadaxprivatex1"), ("cleo", "zqadaxglobalx1"),
                         ("ada", "zqinesxglobalx1"), ("dora", "zqedenxglobalx1"), ("bea", "zqadaxsaidx1")):  # fmt: skip
        before = len(tally.leaks)
        tally.check("rpc", reader, mark)
        assert len(tally.leaks) == before + 1, mark
