"""Spans of days, and where weeks, months and seasons begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

EVER, NEVER = date.min, date.max
"""Where a span begins that is open to the past, and ends that is open to the future."""
WINTER = 3
_MIDNIGHT = "T00:00:00Z"
"""What was said to have happened on a day has no hour."""


@dataclass(frozen=True, slots=True)
class Span:
    """Days from `first` to `last`, both included, in the household's zone."""

    first: date
    last: date
    every_year: bool = False
    """That part of every year."""
    hours: tuple[int, int] | None = None
    """On each of these days only from one hour to another."""
    newest: int = 0
    """Of one that is open to the future: the last year worth a look."""

    def holds(self, moment: str) -> bool:
        found = _local(moment)
        if found is None:
            return False
        day, hour = found
        if self.hours is not None and hour is not None and not self.hours[0] <= hour < self.hours[1]:
            return False
        if not self.every_year:
            return self.first <= day <= self.last
        first, last, here = ((d.month, d.day) for d in (self.first, self.last, day))
        return first <= here <= last if first <= last else here >= first or here <= last

    @property
    def months(self) -> list[int]:
        """Of a part of every year."""
        count = (self.last.year - self.first.year) * 12 + self.last.month - self.first.month + 1
        return [month for _, month in months_around(self.first.year, self.first.month, count)]

    @property
    def searched(self) -> tuple[date, date]:
        """Its days as the index knows them, which goes by UTC."""
        if self.first.year < 1900 or self.last.year > 2200:
            return self.first, self.last
        ahead = datetime(self.first.year, self.first.month, self.first.day).astimezone().utcoffset()
        offset = ahead or timedelta()
        return (
            self.first - timedelta(1 if offset > timedelta() else 0),
            self.last + timedelta(1 if offset < timedelta() else 0),
        )


def _local(moment: str) -> tuple[date, int | None] | None:
    """Day and hour here."""
    try:
        if len(moment) <= 10 or moment.endswith(_MIDNIGHT):
            return date.fromisoformat(moment[:10]), None
        here = datetime.fromisoformat(moment).astimezone()
    except (ValueError, OverflowError):
        return None
    return here.date(), here.hour


def day_of(year: int, month: int, day: int) -> Iterator[Span]:
    try:
        found = date(year, month, day)
    except ValueError:
        return
    if EVER < found < NEVER:
        yield Span(found, found)


def month_of(year: int, month: int) -> Span:
    following = date(year + month // 12, month % 12 + 1, 1)
    return Span(date(year, month, 1), following - timedelta(1))


def season_of(year: int, season: int) -> Span:
    """Three months from March, June, September or December on; a winter is named for the year that it ends in."""
    if season == WINTER:
        return Span(date(year - 1, 12, 1), month_of(year, 2).last)
    return Span(date(year, 3 * season + 3, 1), month_of(year, 3 * season + 5).last)


def weekday_of(today: date, weekday: int, rel: int) -> date:
    """The last one before today, this week's, or the next one after today."""
    if rel == 0:
        return today + timedelta(weekday - today.weekday())
    if rel < 0:
        return today - timedelta((today.weekday() - weekday) % 7 or 7)
    return today + timedelta((weekday - today.weekday()) % 7 or 7)


def unit_of(unit: str, today: date, rel: int) -> Span:
    """Last, this or next week, weekend, month or year."""
    monday = today - timedelta(today.weekday() - 7 * rel)
    if unit == "week":
        return Span(monday, monday + timedelta(6))
    if unit == "weekend":
        return Span(monday + timedelta(5), monday + timedelta(6))
    if unit == "month":
        return month_of(*next(months_around(today.year, today.month + rel, 1)))
    return Span(date(today.year + rel, 1, 1), date(today.year + rel, 12, 31))


def months_around(year: int, month: int, count: int) -> Iterator[tuple[int, int]]:
    """Year and month, from this one on; the 0th month is the December before."""
    for number in range(year * 12 + month - 1, year * 12 + month - 1 + count):
        yield number // 12, number % 12 + 1
