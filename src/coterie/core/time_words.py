"""Time in a question: "yesterday", "seit Montag", "between March and May", "le 10.11.2026", as spans of days.

The words stand in tables (`core/time_lexicon.py`, and `core/time_cjk.py` for languages without spaces). A question is in one
language, the one that most of its words belong to, so that "hier" is yesterday in French and here in German. Days are those of
the household, whose zone is the system's. Seasons are those of the north.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import lru_cache

from coterie.core import time_cjk
from coterie.core.time_lexicon import LANGUAGES, UNITS, Language, Word, fold, telling
from coterie.core.time_spans import (
    EVER,
    NEVER,
    WINTER,
    Span,
    day_of,
    month_of,
    months_around,
    season_of,
    unit_of,
    weekday_of,
)

HEAD, TAIL = 2_000, 2_000
"""Characters at the beginning and at the end of a long question that are read for times."""
MOST = 12
"""Times of one question; nobody names more."""
SLACK = {"day": 0, "week": 3, "weekend": 3, "month": 15, "year": 180}
"""Days around "three weeks ago" that are meant, too."""
LATELY = 14
AMBIGUOUS = frozenset(("may", "march", "mar"))
"""Verbs, unless something makes a month of them."""

_DATE = r"(?<![\d.,/-])\d{1,4}(?P<sep>[./-])\d{1,2}(?P=sep)\d{1,4}(?![\d/-]|[.,]\d)"
_SHORT_DATE = r"(?<![\d.,])\d{1,2}\.\d{1,2}\.(?!\d)"
_SEPARATOR = re.compile(r"[./-]")
_TOKEN = re.compile(rf"({_DATE})|({_SHORT_DATE})|(\d{{1,4}})(st|nd|rd|th|er|o|a|e)?(?![^\W_])|([^\W\d_]+)")

__all__ = ["Span", "spans", "tokens", "wanted"]


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number, or a date in digits, with all that it may mean."""

    text: str
    capital: bool = False
    ordinal: bool = False
    meanings: tuple[Word, ...] = ()

    def of(self, kind: str) -> Word | None:
        for word in self.meanings:
            if word.kind == kind:
                return word
        return None

    @property
    def number(self) -> int | None:
        if self.digits is not None:
            return self.digits
        word = self.of("num")
        return None if word is None else word.value

    @property
    def digits(self) -> int | None:
        """What is written in digits of any script that counts by tens."""
        return int(self.text) if self.text.isdecimal() else None

    @property
    def year(self) -> int | None:
        return self.digits if len(self.text) == 4 and self.text[:2] in ("19", "20") else None


def spans(question: str, today: date) -> tuple[Span, ...]:
    """The times that a question names."""
    whole = len(question) <= HEAD + TAIL
    return _spans(question if whole else f"{question[:HEAD]} {question[-TAIL:]}", today)


@lru_cache(maxsize=256)
def _spans(question: str, today: date) -> tuple[Span, ...]:
    """A turn asks several times for those of one message."""
    text = unicodedata.normalize("NFC", question)
    found = list(time_cjk.spans(text, today))
    plain = list(_tokens_of(text))
    if any(token.text in telling() or token.text[0].isdecimal() for token in plain):
        for name, reading in _languages(plain):
            found += _Reading(reading, name, today).all()
    return tuple(dict.fromkeys(found))[:MOST]


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
        f"onyear{day.year:04}",
        f"onmonth{day.month:02}",
        f"onmonth{day.year:04}{day.month:02}",
        f"onday{day.year:04}{day:%m%d}",
    )


def wanted(span: Span) -> tuple[str, ...]:
    """The words of `tokens` that find what lies in a span, at most a few; the newest where it is open."""
    if span.every_year:
        return tuple(f"onmonth{month:02}" for month in span.months)
    first, last = span.searched
    days = (last - first).days + 1
    if days <= 16:
        return tuple(f"onday{day.year:04}{day:%m%d}" for day in (first + timedelta(n) for n in range(days)))
    months = (last.year - first.year) * 12 + last.month - first.month + 1
    if months <= 6:
        return tuple(
            f"onmonth{year:04}{month:02}" for year, month in months_around(first.year, first.month, months)
        )
    return tuple(f"onyear{year:04}" for year in range(span.newest or last.year, first.year - 1, -1)[:5])


def _tokens_of(text: str) -> Iterator[Token]:
    # Cut before it is folded, so that capitals are still to be seen.
    for match in _TOKEN.finditer(text):
        whole, _, short, number, ordinal, word = match.groups()
        if whole or short:
            yield Token(whole or short)
        elif number:
            yield Token(number, ordinal=ordinal is not None)
        else:
            folded = fold(word)
            if folded:
                yield Token(folded, capital=word[0].isupper())


def _languages(tokens_: Sequence[Token]) -> Iterator[tuple[str, list[Token]]]:
    """The language of most words; several where they are equal. Without any word of any, that of numbers: all."""
    words = [token.text for token in tokens_ if not token.text[0].isdecimal()]
    scores = {name: sum(map(language.tells.__contains__, words)) for name, language in LANGUAGES.items()}
    best = max(scores.values())
    for name, language in LANGUAGES.items():
        if scores[name] == best and (best or name == "en"):
            yield name, _read(tokens_, language)


def _read(tokens_: Sequence[Token], language: Language) -> list[Token]:
    """With what they mean, longest phrases first."""
    found: list[Token] = []
    place = 0
    while place < len(tokens_):
        token = tokens_[place]
        longest = language.begins.get(token.text, 1)
        for length in range(longest, 0, -1):
            phrase = tuple(t.text for t in tokens_[place : place + length])
            meanings = language.phrases.get(phrase)
            if meanings is not None or length == 1:
                found.append(Token(token.text, token.capital, token.ordinal, meanings or ()))
                place += length
                break
    return found


class _Reading:
    """One pass over a question in one language. Each attempt looks ahead a few words only."""

    def __init__(self, tokens_: Sequence[Token], language: str, today: date) -> None:
        self._tokens = tokens_
        self._language = language
        self._today = today

    def all(self) -> Iterator[Span]:
        place = 0
        while place < len(self._tokens):
            token = self._tokens[place]
            silent = not token.meanings and not token.text[0].isdecimal()
            read = None if silent else self._bounded(place) or self._range(place)
            if read is None:
                place += 1
                continue
            found, place = read
            yield from found

    # Since, before, between

    def _bounded(self, place: int) -> tuple[list[Span], int] | None:
        token = self._tokens[place]
        if token.of("between") is not None:
            between = self._between(place + 1)
            if between is not None:
                return between
        if token.of("before_ago") is not None and (ago := self._count(place)) is not None:
            return ago
        bounds: tuple[tuple[str, Callable[[Span], Span]], ...] = (
            ("since", lambda s: Span(s.first, max(s.last, self._today))),
            ("before", lambda s: Span(EVER, s.first - timedelta(1))),
            ("after", lambda s: Span(s.last + timedelta(1), NEVER, newest=self._today.year + 1)),
            ("until", lambda s: Span(self._today if s.last >= self._today else EVER, s.last)),
        )
        for kind, bound in bounds:
            if token.of(kind) is None:
                continue
            read = self._moment(place + 1, alone=True, ahead=kind == "until")
            if read is not None:
                found = [self._once(span, ahead=kind == "until") for span in read[0]]
                return [bound(span) for span in found if span.first > EVER and span.last < NEVER], read[1]
        return None

    def _between(self, place: int) -> tuple[list[Span], int] | None:
        first = self._moment(place, alone=True)
        if first is None:
            # "between 3 and 7 May"
            place = self._past_fillers(place)
            token = self._at(place)
            number = None if token is None else token.number
            joined = None if number is None else self._joined(place + 1)
            if number is None or joined is None or not 1 <= number <= 31:
                return None
            found = [
                Span(span.first.replace(day=number), span.last)
                for span in joined[0]
                if span.first == span.last and number < span.first.day
            ]
            return (found, joined[1]) if found else None
        joined = self._joined(first[1])
        if joined is None:
            return None
        return self._from_to(first[0], joined[0]), joined[1]

    def _range(self, place: int) -> tuple[list[Span], int] | None:
        """One time, or two with "to" between them."""
        token = self._tokens[place]
        stands = token.of("in") is not None
        read = self._count(place) or self._moment(place)
        if read is None and stands:
            read = self._moment(place + 1, alone=True)
        if read is None:
            return None
        joined = self._joined(read[1], ("to",))
        if joined is not None:
            return self._from_to(read[0], joined[0]), joined[1]
        return read

    def _joined(self, place: int, kinds: tuple[str, ...] = ("and", "to")) -> tuple[list[Span], int] | None:
        token = self._at(place)
        if token is None or not any(token.of(kind) for kind in kinds):
            return None
        return self._moment(place + 1, alone=True)

    def _from_to(self, first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
        """ "March to May 2023": the year of the second is that of the first."""
        begin, end = first[0], self._once(second[0])
        if begin.every_year or len(first) > 1:
            years = (end.last.year, end.last.year - 1)
            begin = next((one for year in years if (one := _moved(begin, year)).first <= end.last), begin)
        elif len(second) > 1:
            years = (begin.first.year, begin.first.year + 1)
            end = next((one for year in years if (one := _moved(end, year)).last >= begin.first), end)
        if end.last < begin.first:
            # "from Monday to Friday" of one week, "December 2022 to March"
            later = timedelta(7) if (end.last - end.first).days < 7 else timedelta(365)
            end = Span(end.first + later, end.last + later)
        return [Span(begin.first, end.last)] if begin.first <= end.last else [begin, end]

    def _once(self, span: Span, ahead: bool = False) -> Span:
        """Of a part of every year, the one that is meant by "since May": the last, or by "until May" the next."""
        if not span.every_year:
            return span
        this = self._today.year
        if ahead:
            return next(
                one for year in (this, this + 1, this + 2) if (one := _moved(span, year)).last >= self._today
            )
        return next(
            one for year in (this + 1, this, this - 1) if (one := _moved(span, year)).first <= self._today
        )

    # One time

    def _moment(
        self, place: int, *, alone: bool = False, ahead: bool = False
    ) -> tuple[list[Span], int] | None:
        """What begins here. `alone`: a month, a year or a season needs no more to be one."""
        start = self._past_fillers(place)
        token = self._at(start)
        if token is None:
            return None
        if not token.text[0].isdecimal() and not token.meanings:
            return None
        for attempt in (self._digits, self._day, self._count, self._relative):
            read = attempt(start)
            if read is not None:
                return read
        read = self._calendar(start, alone or self._before(start, "in"))
        if read is not None:
            return read
        weekday = token.of("weekday")
        if weekday is not None:
            day = weekday_of(self._today, weekday.value, 1 if ahead else -1)
            return self._with_part([Span(day, day)], start + 1)
        return None

    def _digits(self, place: int) -> tuple[list[Span], int] | None:
        parts = _SEPARATOR.split(self._tokens[place].text)
        if len(parts) != 3:
            return None
        a, b, c = parts
        found: list[Span] = []
        if len(a) == 4:
            found += day_of(int(a), int(b), int(c))
        elif not c:
            found += self._near_day(int(a), int(b))
        elif len(c) == 4 or (len(c) == 2 and len(a) == len(b) == 2):
            year = int(c) if len(c) == 4 else 2000 + int(c)
            found += day_of(year, int(b), int(a))
            # Only in English is the month first, for some; who wrote 11/10/2026 meant one of two days.
            if "." not in self._tokens[place].text and self._language == "en":
                found += day_of(year, int(a), int(b))
        return (list(dict.fromkeys(found)), place + 1) if found else None

    def _day(self, place: int) -> tuple[list[Span], int] | None:
        token = self._tokens[place]
        part = token.of("daypart")
        if part is not None:
            return self._hours(self._today + timedelta(part.value), part.more), place + 1
        day = token.of("day")
        if day is not None:
            on = self._today + timedelta(day.value)
            return self._with_part([Span(on, on)], place + 1)
        if token.of("lately") is not None:
            return [Span(self._today - timedelta(LATELY), self._today)], place + 1
        return None

    def _count(self, place: int) -> tuple[list[Span], int] | None:
        """ "3 days ago", "vor 3 Tagen", "in two weeks", "the last five days"."""
        token = self._tokens[place]
        before, ahead, rel = token.of("before_ago"), token.of("ahead"), token.of("rel")
        at = place if token.number is not None and not (before or ahead or rel) else place + 1
        number = self._at(at)
        count = None if number is None else number.number
        if count is None or count > 999:
            return None
        at += 1
        unit_token = self._at(at)
        turned = None
        if unit_token is not None and (turned := unit_token.of("rel")) is not None:
            at += 1  # "les trois derniers jours"
            unit_token = self._at(at)
        unit_word = None if unit_token is None else unit_token.of("unit")
        if unit_word is None:
            return None
        unit = UNITS[unit_word.value]
        behind = self._at(at + 1)
        if before is not None:
            return self._around(unit, -count), at + 1
        if behind is not None and behind.of("ago") is not None:
            return self._around(unit, -count), at + 2
        if behind is not None and (behind_rel := behind.of("rel")) is not None and rel is None:
            rel, at = behind_rel, at + 1
        rel = rel or turned
        if rel is not None and rel.value:
            other = self._step(unit, rel.value * count)
            return [Span(min(other, self._today), max(other, self._today))], at + 1
        if ahead is not None:
            return self._around(unit, count), at + 1
        return None

    def _relative(self, place: int) -> tuple[list[Span], int] | None:
        """ "last week", "la semaine dernière", "next Monday evening", "this summer"."""
        token = self._tokens[place]
        rel, thing, end = token.of("rel"), self._at(place + 1), place + 2
        if rel is None or thing is None or not self._is_thing(thing):
            follows = self._at(place + 1)
            rel = None if follows is None else follows.of("rel")
            thing = token
            if rel is None or rel.value == 0 or not self._is_thing(thing):
                return None
        if (part := thing.of("part")) is not None and rel.value <= 0 and thing.of("day") is None:
            on = self._today - timedelta(1 if rel.value else 0)
            return self._hours(on, part.more), end
        if (unit := thing.of("unit")) is not None:
            if UNITS[unit.value] == "day":
                return None
            return [unit_of(UNITS[unit.value], self._today, rel.value)], end
        if (weekday := thing.of("weekday")) is not None:
            day = weekday_of(self._today, weekday.value, rel.value)
            return self._with_part([Span(day, day)], end)
        if (month := thing.of("month")) is not None:
            if thing.text in AMBIGUOUS and not thing.capital and rel.value == 0:
                return None  # "this may be wrong"
            year = self._at(end)
            if year is not None and year.year is not None:
                return [month_of(year.year, month.value)], end + 1
            return [self._turn(month_of, month.value, rel.value)], end
        season = thing.of("season")
        if season is None:
            return None  # a part of a day that is yet to come, or a word that is also something else
        return [self._turn(season_of, season.value, rel.value)], end

    def _calendar(self, place: int, alone: bool) -> tuple[list[Span], int] | None:
        """ "7 May 2023", "May 7", "mayo de 2023", "summer 2023"; alone: "in May", "in 2023"."""
        token = self._tokens[place]
        number = token.digits
        if number is not None and 1 <= number <= 31:
            at = self._past_fillers(place + 1)
            month = self._month_at(at, sure=alone or token.ordinal)
            if month is not None:
                return self._of_year(month, number, at + 1)
        if (month := self._month_at(place, sure=alone)) is not None or (
            (month := self._month_at(place, sure=True)) is not None and self._year_behind(place + 1)
        ):
            behind = self._at(place + 1)
            if behind is not None and behind.digits is not None and 1 <= behind.digits <= 31:
                return self._of_year(month, behind.digits, place + 2)
            year_at = self._past_fillers(place + 1)
            year = self._at(year_at)
            if year is not None and year.year is not None:
                return [month_of(year.year, month)], year_at + 1
            if alone:
                return [replace(month_of(self._today.year, month), every_year=True)], place + 1
            return None
        if (
            (behind := self._at(place + 1)) is not None
            and behind.ordinal
            and (month := self._month_at(place, sure=True)) is not None
            and behind.digits is not None
            and 1 <= behind.digits <= 31
        ):
            return self._of_year(month, behind.digits, place + 2)
        if (season := token.of("season")) is not None:
            year_at = self._past_fillers(place + 1)
            year = self._at(year_at)
            if year is not None and year.year is not None:
                # The winter of a year may be the one that it begins with, or ends with.
                years = (year.year, year.year + 1) if season.value == WINTER else (year.year,)
                return [season_of(one, season.value) for one in years], year_at + 1
            return (
                ([replace(season_of(self._today.year, season.value), every_year=True)], place + 1)
                if alone
                else None
            )
        if alone and token.year is not None:
            return [Span(date(token.year, 1, 1), date(token.year, 12, 31))], place + 1
        return None

    # Small parts

    def _at(self, place: int) -> Token | None:
        return self._tokens[place] if place < len(self._tokens) else None

    def _before(self, place: int, kind: str) -> bool:
        return place > 0 and self._tokens[place - 1].of(kind) is not None

    def _past_fillers(self, place: int) -> int:
        for _ in range(3):
            token = self._at(place)
            if token is None or token.of("filler") is None:
                break
            behind = self._at(place + 1)
            if token.of("unit") is not None and behind is not None and behind.of("rel") is not None:
                break  # "el año pasado", beside "el año 2023"
            place += 1
        return place

    def _month_at(self, place: int, *, sure: bool) -> int | None:
        token = self._at(place)
        month = None if token is None else token.of("month")
        if token is None or month is None:
            return None
        if token.text in AMBIGUOUS and not (token.capital or self._year_behind(place + 1)):
            article = place > 0 and self._tokens[place - 1].text in ("the", "a")
            if not sure or article:
                return None
        return month.value

    def _year_behind(self, place: int) -> bool:
        token = self._at(self._past_fillers(place))
        return token is not None and token.year is not None

    def _of_year(self, month: int, day: int, place: int) -> tuple[list[Span], int] | None:
        at = self._past_fillers(place)
        year = self._at(at)
        if year is not None and year.year is not None:
            found, end = list(day_of(year.year, month, day)), at + 1
        else:
            found, end = self._near_day(day, month), place
        return (found, end) if found else None

    def _near_day(self, day: int, month: int) -> list[Span]:
        """Of a day without a year: the last one, and the next."""
        found: list[Span] = []
        for years in (
            range(self._today.year, self._today.year - 9, -1),
            range(self._today.year, self._today.year + 9),
        ):
            for year in years:
                one = list(day_of(year, month, day))
                if one and (
                    (one[0].first <= self._today) if years.step < 0 else (one[0].first > self._today)
                ):
                    found += one
                    break
        return found

    def _with_part(self, days: list[Span], place: int) -> tuple[list[Span], int]:
        """ "yesterday evening", "gestern Abend", "Monday morning"."""
        token = self._at(place)
        part = None if token is None else token.of("part")
        if part is None:
            return days, place
        return self._hours(days[0].first, part.more), place + 1

    def _hours(self, on: date, hours: tuple[int, int]) -> list[Span]:
        found = [Span(on, on, hours=hours)]
        if hours[0] >= 18:
            found.append(Span(on + timedelta(1), on + timedelta(1), hours=(0, 6)))
        return found

    def _is_thing(self, token: Token) -> bool:
        return any(token.of(kind) for kind in ("unit", "weekday", "month", "season", "part"))

    def _turn(self, of: Callable[[int, int], Span], what: int, rel: int) -> Span:
        """Last summer is the last that is over, next summer the first that has not begun."""
        year = self._today.year
        if rel < 0:
            return next(s for s in (of(y, what) for y in range(year, year - 3, -1)) if s.last < self._today)
        if rel > 0:
            return next(s for s in (of(y, what) for y in range(year - 1, year + 3)) if s.first > self._today)
        return of(year + (of is season_of and what == WINTER and self._today.month > 6), what)

    def _step(self, unit: str, count: int) -> date:
        days = {"day": 1, "week": 7, "weekend": 7, "month": 30, "year": 365}[unit] * count
        return self._today + timedelta(days)

    def _around(self, unit: str, count: int) -> list[Span]:
        middle, slack = self._step(unit, count), timedelta(SLACK[unit])
        return [Span(middle - slack, middle + slack)]


def _moved(span: Span, year: int) -> Span:
    """A day or a part of a year, in another year. What begins a month or ends one does so in every year."""
    if span.first == span.last:
        return next(iter(day_of(year, span.first.month, span.first.day)), span)
    ends = [month_of(year + day.year - span.first.year, day.month) for day in (span.first, span.last)]
    return Span(ends[0].first, ends[1].last)
