"""The short form of `make fuzz`: the same few cases each time, with all that must hold during and after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import TARGETS, fuzz

CASES = {"frames": 40, "http": 150, "files": 8, "keys": 40, "context": 30, "tools": 20, "streams": 40}


@pytest.mark.parametrize("what", TARGETS)
def test_nothing_that_is_sent_brings_the_house_down(what: str, tmp_path: Path) -> None:
    fuzz(what, tmp_path / "home", "coterie", only=range(CASES[what]), patience=60)


@pytest.mark.parametrize(
    ("what", "seed", "case"),
    [
        pytest.param(
            "streams", "1216", 16, id="a call without a name, which then met every turn of its session"
        ),
        pytest.param("context", "1216", 225, id="a digit that is no decimal"),
    ],
)
def test_what_longer_runs_have_found(what: str, seed: str, case: int, tmp_path: Path) -> None:
    fuzz(what, tmp_path / "home", seed, only=[case], patience=60)
