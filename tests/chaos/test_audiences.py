"""A short hunt for leaks between audiences; `python -m tests.chaos.audiences` is the long one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.chaos import audiences
from tests.chaos.audiences import OWNER, Mark, may_find, may_see, may_use


def test_nobody_hears_what_is_not_for_them(tmp_path: Path) -> None:
    tally = audiences.hunt(tmp_path, questions=150, seed=3, least=2, each=2, rows=4)
    assert tally.leaks == []
    assert tally.blind == []


def _mark(kind: str, agents: Iterable[str], audience: str, *, private: bool = False) -> Mark:
    return Mark(kind, frozenset(agents), audience, private, ("boat",))


@pytest.mark.parametrize(
    ("agent", "audience", "mark", "seen"),
    [
        ("ada", "dm:bob", _mark("said", ["ada"], "dm:bob"), True),
        ("ada", OWNER, _mark("said", ["ada"], "dm:bob"), True),
        ("ada", "dm:Bob", _mark("said", ["ada"], "dm:bob"), False),
        ("ada", "dm:bob", _mark("said", ["bea"], "dm:bob"), False),
        ("ada", "dm:bob", _mark("said", ["ada"], OWNER), False),
        ("ada", OWNER, _mark("said", ["ada"], "one-off 7"), False),
        ("ada", "one-off 8", _mark("said", ["ada"], "one-off 7"), False),
        ("ada", "dm:bob", _mark("memory", ["bea"], "dm:bob"), True),
        ("ada", "dm:bob", _mark("memory", ["bea"], "dm:bob", private=True), False),
        ("bea", "dm:bob", _mark("memory", ["ada"], "dm:bob"), False),
        ("dora", "dm:bob", _mark("memory", ["ada"], "dm:bob"), True),
        ("dora", "dm:bob", _mark("memory", ["bea"], "dm:bob"), False),
        ("main", "dm:bob", _mark("memory", ["main"], OWNER), False),
        ("ada", "dm:bob", _mark("memory", ["main"], OWNER), True),
        ("main", "dm:bob", _mark("file", ["main"], OWNER), False),
        ("ada", "dm:bob", _mark("file", ["ada"], OWNER), True),
        ("ada", OWNER, _mark("file", ["bea"], OWNER), False),
        (None, OWNER, _mark("memory", ["bea"], "dm:bob"), True),
        (None, OWNER, _mark("memory", ["bea"], OWNER, private=True), False),
    ],
)
def test_the_hunt_knows_the_rule(agent: str | None, audience: str, mark: Mark, seen: bool) -> None:
    assert may_see(agent, audience, mark) is seen


def test_the_hunt_knows_what_is_searched_and_which_tools_there_are() -> None:
    assert may_find(None, _mark("said", ["ada"], "dm:bob"))
    assert not may_find("bea", _mark("said", ["ada"], "dm:bob"))
    assert not may_find(None, _mark("said", ["ada"], "one-off 7"))
    assert may_use("main", "owner", "memory_edit")
    assert may_use("main", "guest", "memory_recall")
    assert not may_use("main", "guest", "files_read")
    assert may_use("main", "api", "files_read")
    assert may_use("ada", "guest", "files_read")
    assert not may_use("ada", "guest", "memory_log")
