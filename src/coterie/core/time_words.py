"""Time in a question: "yesterday", "last week", "in May", "on 7 May 2023", as spans of days."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache

MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_SHORT = {name[:3]: number for number, name in enumerate(MONTHS, 1)}
_LONG = {name: number for number, name in enumerate(MONTHS, 1)} | _SHORT | {"sept": 9}
_MONTH = "(" + "|".join([*MONTHS, "sept", *(m[:3] for m in MONTHS if m != "may")]) + r")\.?"
_NUMBERS = {"a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
_YEAR = r"((?:19|20)\d\d)"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"

_ISO = re.compile(rf"\b{_YEAR}-(\d\d)-(\d\d)\b")
_DAY_MONTH = re.compile(rf"\b{_DAY}(?: of)? {_MONTH}(?:,? {_YEAR})?\b")
_MONTH_DAY = re.compile(rf"\b{_MONTH} {_DAY}(?:,? {_YEAR})?\b(?!\d)")
_MONTH_YEAR = re.compile(rf"\b{_MONTH},? {_YEAR}\b")
# Without a year only behind a word that makes it a month: "may" and "march" are verbs too.
_MONTH_ALONE = re.compile(
    rf"\b(?:in|of|since|until|till|by|during|last|this|early|mid|late|through)[ -]{_MONTH}\b"
)
_YEAR_ALONE = re.compile(rf"\b(?:in|of|since|during|until|by) {_YEAR}\b")
_DAYS_BACK = (
    (re.compile(r"\btoday\b"), 0),
    (re.compile(r"\byesterday\b"), 1),
    (re.compile(r"\bday before yesterday\b"), 2),
)
_LAST_NIGHT = re.compile(r"\blast night\b")
_LATELY = re.compile(r"\b(?:recently|lately)\b")
_AGO = re.compile(r"\b(a|one|two|three|four|five|six|seven|\d{1,3}) (day|week|month|year)s? ago\b")
_PAST = re.compile(r"\b(?:last|past|previous) (week|weekend|month|year)\b")
_THIS = re.compile(r"\bthis (week|weekend|month|year)\b")
_LAST_DAYS = re.compile(r"\b(?:last|past) (two|three|four|five|six|seven|\d{1,3}) (day|week|month|year)s\b")
_WEEKDAY = re.compile(rf"\b(?:last|on|this past) ({'|'.join(DAYS)})\b")


@dataclass(frozen=True, slots=True)
class Span:
    """Days from `first` to `last`, both included. Without a year: that part of every year."""

    first: date
    last: date
    every_year: bool = False

    def holds(self, moment: str) -> bool:
        try:
            day = date.fromisoformat(moment[:10])
        except ValueError:
            return False
        if self.every_year:
            return day.month == self.first.month and (self.first == _whole(self).first or day == self.first)
        return self.first <= day <= self.last


def spans(question: str, today: date) -> tuple[Span, ...]:
    """The times that a question names."""
    text = " ".join(question.lower().split())[:2000]
    return tuple(dict.fromkeys(_found(text, today)))


def tokens(moment: str) -> tuple[str, ...]:
    """Words under which a moment is indexed: its year, month, month of year, and day."""
    return _tokens(moment[:10])


@lru_cache(maxsize=1_000)
def _tokens(text: str) -> tuple[str, ...]:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return ()
    return (
        f"onyear{day.year}",
        f"onmonth{day.month:02}",
        f"onmonth{day.year}{day.month:02}",
        f"onday{day:%Y%m%d}",
    )


def wanted(span: Span) -> tuple[str, ...]:
    """The words of `tokens` that find what lies in a span, at most a few."""
    first, last = span.first, span.last
    if span.every_year:
        return (f"onmonth{first.month:02}",)
    days = (last - first).days + 1
    if days <= 14:
        return tuple(f"onday{first + timedelta(n):%Y%m%d}" for n in range(days))
    if (first.year, first.month) == (last.year, last.month):
        return (f"onmonth{first.year}{first.month:02}",)
    return tuple(f"onyear{year}" for year in range(first.year, last.year + 1))[:5]


def _found(text: str, today: date) -> Iterator[Span]:
    exact = False
    for year, month, day in _ISO.findall(text):
        yield from _day(int(year), int(month), int(day))
        exact = True
    for day, month, year in _DAY_MONTH.findall(text):
        yield from _day(int(year) if year else _near_year(_LONG[month], today), _LONG[month], int(day))
        exact = True
    for month, day, year in _MONTH_DAY.findall(text):
        yield from _day(int(year) if year else _near_year(_LONG[month], today), _LONG[month], int(day))
        exact = True
    for month, year in _MONTH_YEAR.findall(text):
        yield _month(int(year), _LONG[month])
        exact = True
    if not exact:
        for month in _MONTH_ALONE.findall(text):
            whole = _month(today.year, _LONG[month])
            yield Span(whole.first, whole.last, every_year=True)
        for year in _YEAR_ALONE.findall(text):
            yield Span(date(int(year), 1, 1), date(int(year), 12, 31))
    yield from _relative(text, today)


def _relative(text: str, today: date) -> Iterator[Span]:
    for word, days in _DAYS_BACK:
        if word.search(text) and not (days == 1 and "before yesterday" in text):
            yield Span(today - timedelta(days), today - timedelta(days))
    if _LAST_NIGHT.search(text):
        yield Span(today - timedelta(1), today)
    if _LATELY.search(text):
        yield Span(today - timedelta(14), today)
    for number, unit in _AGO.findall(text):
        count = _NUMBERS.get(number) or int(number)
        middle = _back(today, unit, count)
        slack = {"day": 0, "week": 3, "month": 15, "year": 180}[unit]
        yield Span(middle - timedelta(slack), middle + timedelta(slack))
    for number, unit in _LAST_DAYS.findall(text):
        yield Span(_back(today, unit, _NUMBERS.get(number) or int(number)), today)
    for unit in _PAST.findall(text):
        yield _unit(unit, today, ago=1)
    for unit in _THIS.findall(text):
        yield _unit(unit, today, ago=0)
    for name in _WEEKDAY.findall(text):
        back = (today.weekday() - DAYS.index(name)) % 7 or 7
        yield Span(today - timedelta(back), today - timedelta(back))


def _unit(unit: str, today: date, ago: int) -> Span:
    monday = today - timedelta(today.weekday() + 7 * ago)
    if unit == "week":
        return Span(monday, monday + timedelta(6))
    if unit == "weekend":
        return Span(monday + timedelta(5), monday + timedelta(6))
    if unit == "month":
        month = today.year * 12 + today.month - 1 - ago
        return _month(month // 12, month % 12 + 1)
    return Span(date(today.year - ago, 1, 1), date(today.year - ago, 12, 31))


def _back(today: date, unit: str, count: int) -> date:
    days = {"day": 1, "week": 7, "month": 30, "year": 365}[unit] * min(count, 999)
    return date.fromordinal(max(1, today.toordinal() - days))


def _day(year: int, month: int, day: int) -> Iterator[Span]:
    try:
        yield Span(date(year, month, day), date(year, month, day))
    except ValueError:
        return


def _month(year: int, month: int) -> Span:
    following = date(year + month // 12, month % 12 + 1, 1)
    return Span(date(year, month, 1), following - timedelta(1))


def _whole(span: Span) -> Span:
    return _month(span.first.year, span.first.month)


def _near_year(month: int, today: date) -> int:
    """The last time that month came round."""
    return today.year if month <= today.month else today.year - 1
