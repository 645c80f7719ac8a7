"""What the guide tells a stranger is what a stranger sees."""

from __future__ import annotations

from tests.support.first_five_minutes import PAGE, lived


def test_the_first_five_minutes_are_as_the_guide_tells_them() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert lived() == written, "python -m tests.support.first_five_minutes writes the page again"
