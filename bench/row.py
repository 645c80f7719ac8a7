"""One line of the table of figures, and the table itself for a terminal or for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    figure: str
    """What was measured, with its unit."""
    ratio: str = ""
    """The figure beside what it is compared with."""
    target: str = ""
    ok: bool | None = None
    """None where there is no target, only a figure to know."""


def at_most(what: str, figure: str, value: float, limit: float, unit: str = "") -> Row:
    return Row(what, figure, _number(value, unit), f"≤ {_number(limit, unit)}", value <= limit)


def at_least(what: str, figure: str, value: float, limit: float, unit: str = "") -> Row:
    return Row(what, figure, _number(value, unit), f"≥ {_number(limit, unit)}", value >= limit)


def plain(rows: Iterable[Row]) -> str:
    """The table for a terminal."""
    cells = [("what", "figure", "ratio", "target", ""), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)
    return "\n".join(lines)


def markdown(rows: Iterable[Row]) -> str:
    """The table for a page of the documentation."""
    head = ["| what | figure | ratio | target | |", "|---|---|---|---|---|"]
    return "\n".join(head + ["| " + " | ".join(_cells(row)) + " |" for row in rows])


def missed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.ok is False]


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    verdict = {True: "yes", False: "NO", None: ""}[row.ok]
    return row.what, row.figure, row.ratio, row.target, verdict


def _number(value: float, unit: str) -> str:
    digits = 0 if value >= 1000 else 3 if value < 0.1 else 2
    text = f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()
