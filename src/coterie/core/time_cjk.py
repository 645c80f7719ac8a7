"""Words for time in Chinese and Japanese, which have no spaces between words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, timedelta

from coterie.core.time_spans import EVER, NEVER, Span, day_of, month_of, season_of, unit_of, weekday_of

_ONE_FORM = str.maketrans("這個週後禮來過間從還", "这个周后礼来过间从还")
_ANY = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_DAYS = {
    "大前天": -3, "前天": -2, "一昨日": -2, "おととい": -2, "昨天": -1, "昨日": -1, "きのう": -1, "今天": 0, "今日": 0, "本日": 0, "きょう": 0,
    "明天": 1, "明日": 1, "あした": 1, "后天": 2, "明后日": 2, "あさって": 2,
}  # fmt: skip
_PARTS = {
    "早上": (5, 12), "上午": (5, 12), "早晨": (5, 12), "午前": (5, 12), "の朝": (5, 12), "下午": (12, 18), "午后": (12, 18), "中午": (11, 14),
    "晚上": (17, 24), "の夜": (17, 24), "の晩": (17, 24), "夜里": (18, 24), "の夕方": (15, 20),
}  # fmt: skip
_DAYPARTS = {"今早": (0, (5, 12)), "今朝": (0, (5, 12)), "今晚": (0, (17, 24)), "今夜": (0, (17, 24)), "今晩": (0, (17, 24)),
             "昨晚": (-1, (17, 24)), "昨夜": (-1, (17, 24)), "昨晩": (-1, (17, 24)), "明早": (1, (5, 12)), "明晚": (1, (17, 24))}  # fmt: skip
_REL = {
    "上上个月": ("month", -2), "上个月": ("month", -1), "上月": ("month", -1), "先月": ("month", -1), "这个月": ("month", 0), "本月": ("month", 0),
    "今月": ("month", 0), "下个月": ("month", 1), "下月": ("month", 1), "来月": ("month", 1), "前年": ("year", -2), "一昨年": ("year", -2),
    "去年": ("year", -1), "昨年": ("year", -1), "今年": ("year", 0), "明年": ("year", 1), "来年": ("year", 1),
    "上周末": ("weekend", -1), "先周末": ("weekend", -1), "这周末": ("weekend", 0), "本周末": ("weekend", 0), "今周末": ("weekend", 0),
    "下周末": ("weekend", 1), "来周末": ("weekend", 1),
}  # fmt: skip
for _word, _value in (("上", -1), ("先", -1), ("这", 0), ("本", 0), ("今", 0), ("下", 1), ("来", 1)):
    for _week in ("周", "个星期", "星期", "个礼拜", "礼拜"):
        _REL[_word + _week] = ("week", _value)
_DIGITS = "零一二三四五六七八九十"
_SEASONS = {"春": 0, "夏": 1, "秋": 2, "冬": 3}
_WEEKDAYS = {**{c: n for n, c in enumerate("一二三四五六")}, "日": 6, "天": 6}
_SIGNS = {c: n for n, c in enumerate("月火水木金土日")}
_UNITS = {
    "天": "day", "日": "day", "日间": "day", "周": "week", "周间": "week", "个星期": "week", "星期": "week", "个礼拜": "week", "个月": "month",
    "か月": "month", "ヶ月": "month", "カ月": "month", "ケ月": "month", "年": "year",
}  # fmt: skip
_LENGTHS = {"day": (1, 0), "week": (7, 3), "month": (30, 15), "year": (365, 180)}


def _either(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_N = rf"\d{{1,3}}|[{_DIGITS[1:]}两]{{1,3}}"
_TIME = re.compile(
    rf"(?P<year>(?:19|20)\d\d)年(?:の)?(?:(?P<month>{_N})月(?:(?P<day>{_N})[日号])?|(?P<year_season>[春夏秋冬])[天季の]?)?"
    rf"|(?P<past>(?:过去|最近|近|ここ)(?:の)?)(?P<past_count>{_N})(?P<past_unit>{_either(_UNITS)})"
    rf"|(?P<count>{_N})(?P<unit>{_either(_UNITS)})(?:之)?(?P<way>前|后|以前|以后)"
    rf"|(?P<md_month>{_N})月(?P<md_day>{_N})[日号]"
    rf"|(?P<daypart>{_either(_DAYPARTS)})"
    rf"|(?P<dayword>{_either(_DAYS)})(?P<part>{_either(_PARTS)})?"
    rf"|(?P<rel>{_either(_REL)})(?:の)?(?:(?P<rel_weekday>[一二三四五六日天])(?![\d月年天周个])|(?P<rel_sign>[{''.join(_SIGNS)}])曜日?"
    rf"|(?P<rel_season>[春夏秋冬])[天季]?|(?P<rel_month>{_N})月(?:(?P<rel_day>{_N})[日号])?)?"
    rf"|(?:星期|礼拜|周)(?P<weekday>[一二三四五六日天])|(?P<sign>[{''.join(_SIGNS)}])曜日?"
    rf"|(?P<alone>{_N})月(?![\d个间])|(?P<season>[春夏秋冬])[天季]"
)
_SINCE = re.compile("以来|以后|之后|から|起|より后")
_BEFORE = re.compile("以前|之前|より前|の前")
_UNTIL = re.compile("まで|为止")
_TO = re.compile("[到至~〜]")


def spans(text: str, today: date) -> Iterator[Span]:
    """The times that a text names."""
    if _ANY.search(text) is None:
        return
    one_form = text.translate(_ONE_FORM)
    place, pending = 0, None
    while (match := _TIME.search(one_form, place)) is not None:
        place = match.end()
        found = list(_meant(match, today))
        if not found:
            continue
        span = found[0]
        if _UNTIL.match(one_form, place) or pending is not None:
            if pending is not None and _once(pending, today).first <= _once(span, today).last:
                yield Span(_once(pending, today).first, _once(span, today).last)
            else:
                once = _once(span, today)
                yield Span(today if once.last >= today else EVER, once.last)
            pending = None
        elif _TO.match(one_form, place):
            pending = span
        elif (since := _SINCE.match(one_form, place)) is not None:
            once = _once(span, today)
            if (
                since.group() == "から"
                and (other := _TIME.search(one_form, since.end()))
                and _UNTIL.match(one_form, other.end())
            ):
                pending = span
            elif since.group() in ("之后", "以后", "より后"):
                yield Span(once.last + timedelta(1), NEVER, newest=today.year + 1)
            else:
                yield Span(once.first, max(once.last, today))
        elif _BEFORE.match(one_form, place):
            yield Span(EVER, _once(span, today).first - timedelta(1))
        else:
            yield from found


def _meant(match: re.Match[str], today: date) -> Iterator[Span]:
    got = {name: value for name, value in match.groupdict().items() if value is not None}
    if "year" in got:
        year = int(got["year"])
        if "year_season" in got:
            yield season_of(year, _SEASONS[got["year_season"]])
        else:
            yield from _dated(year, got.get("month"), got.get("day"))
    elif "past" in got:
        length, _ = _LENGTHS[_UNITS[got["past_unit"]]]
        yield Span(today - timedelta(length * _number(got["past_count"])), today)
    elif "count" in got:
        length, slack = _LENGTHS[_UNITS[got["unit"]]]
        way = -1 if got["way"].endswith("前") else 1
        middle = today + timedelta(way * length * _number(got["count"]))
        yield Span(middle - timedelta(slack), middle + timedelta(slack))
    elif "md_month" in got:
        for year in (today.year, today.year - 1):
            found = list(day_of(year, _number(got["md_month"]), _number(got["md_day"])))
            if found and found[0].first <= today:
                yield found[0]
                break
        for year in (today.year, today.year + 1):
            found = list(day_of(year, _number(got["md_month"]), _number(got["md_day"])))
            if found and found[0].first > today:
                yield found[0]
                break
    elif "daypart" in got:
        offset, hours = _DAYPARTS[got["daypart"]]
        yield from _hours(today + timedelta(offset), hours)
    elif "dayword" in got:
        on = today + timedelta(_DAYS[got["dayword"]])
        yield from _hours(on, _PARTS[got["part"]]) if "part" in got else [Span(on, on)]
    elif "rel" in got:
        yield from _relative(got, today)
    elif "weekday" in got or "sign" in got:
        number = _WEEKDAYS[got["weekday"]] if "weekday" in got else _SIGNS[got["sign"]]
        day = weekday_of(today, number, -1)
        yield Span(day, day)
    elif "alone" in got and 1 <= _number(got["alone"]) <= 12:
        month = month_of(today.year, _number(got["alone"]))
        yield Span(month.first, month.last, every_year=True)
    elif "season" in got:
        season = season_of(today.year, _SEASONS[got["season"]])
        yield Span(season.first, season.last, every_year=True)


def _relative(got: dict[str, str], today: date) -> Iterator[Span]:
    unit, value = _REL[got["rel"]]
    whole = unit_of(unit, today, value)
    if unit == "week" and ("rel_weekday" in got or "rel_sign" in got):
        number = _WEEKDAYS[got["rel_weekday"]] if "rel_weekday" in got else _SIGNS[got["rel_sign"]]
        day = whole.first + timedelta(number)
        yield Span(day, day)
    elif unit == "year" and "rel_season" in got:
        yield season_of(whole.first.year, _SEASONS[got["rel_season"]])
    elif unit == "year" and "rel_month" in got:
        yield from _dated(whole.first.year, got["rel_month"], got.get("rel_day"))
    else:
        yield whole


def _dated(year: int, month: str | None, day: str | None) -> Iterator[Span]:
    if month is None:
        yield Span(date(year, 1, 1), date(year, 12, 31))
    elif not 1 <= _number(month) <= 12:
        return
    elif day is None:
        yield month_of(year, _number(month))
    else:
        yield from day_of(year, _number(month), _number(day))


def _hours(on: date, hours: tuple[int, int]) -> Iterator[Span]:
    yield Span(on, on, hours=hours)
    if hours[1] == 24:
        yield Span(on + timedelta(1), on + timedelta(1), hours=(0, 6))


def _once(span: Span, today: date) -> Span:
    """Of a part of every year, the last that has begun."""
    if not span.every_year or span.first <= today:
        return Span(span.first, span.last)
    year = span.first.year - 1
    return Span(
        span.first.replace(year=year), month_of(year + span.last.year - span.first.year, span.last.month).last
    )


def _number(text: str) -> int:
    """Digits, or numerals up to 99."""
    if text.isdecimal():
        return int(text)
    tens, ten, ones = text.replace("两", "二").partition("十")
    if not ten:
        return _DIGITS.index(tens[0]) if tens else 0
    return 10 * (_DIGITS.index(tens[0]) if tens else 1) + (_DIGITS.index(ones[0]) if ones else 0)
