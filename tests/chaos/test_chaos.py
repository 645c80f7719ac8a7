"""A short run of `make chaos`: whatever the moment of a kill, every promise holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.house import mock_model
from tests.chaos.run import Plan, chaos


def test_random_kills_break_no_promise(tmp_path: Path) -> None:
    """Given traffic over many sessions, when the gateway is killed at random moments, then the ledger is clean."""
    with mock_model() as model:
        result = asyncio.run(chaos(Plan(kills=8, seed=7, trouble=True), tmp_path / "home", model))
    assert result.kept, result.table()
    # The run was worth its name only if something was said and something was interrupted.
    assert int(result.facts["messages acknowledged"]) > 20
    assert int(result.facts["once-only effects"]) > 0
