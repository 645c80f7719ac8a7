"""A short run of the children's part of `make chaos`."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.children import children


def test_no_result_of_a_child_is_lost_or_doubled(tmp_path: Path) -> None:
    """Given parents with twenty children each, when the gateway is killed, then each result arrives once."""
    result = children(2, tmp_path / "home", seed=11, beside=2)
    assert result.kept, result.table()
    assert int(result.facts["kills"]) > 0
