"""Words for time, in the languages of a household. Today is a Wednesday, the 18th of November 2026."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.time_lexicon import LANGUAGES
from coterie.core.time_words import Span, spans, tokens, wanted

TODAY = date(2026, 11, 18)

DAYS = {
    "2026-11-16": "the day before yesterday | vorgestern | avant-hier | anteayer | l'altro ieri | anteontem | eergisteren | позавчера"
    " | 前天 | 一昨日 | two days ago | vor zwei Tagen | il y a deux jours | hace dos días | due giorni fa | há dois dias"
    " | twee dagen geleden | два дня назад | 两天前 | 2日前 | last Monday | letzten Montag | lundi dernier | el lunes pasado"
    " | lunedì scorso | segunda-feira passada | afgelopen maandag | в прошлый понедельник | on Monday | 星期一 | 月曜日",
    "2026-11-17": "what did we do yesterday? | was haben wir gestern gemacht? | qu'est-ce qu'on a fait hier ? | ¿qué hicimos ayer?"
    " | che cosa abbiamo fatto ieri? | o que fizemos ontem? | wat deden we gisteren? | что мы делали вчера?"
    " | 我们昨天做了什么？ | 昨日は何をしましたか",
    "2026-11-18": "today | heute | aujourd'hui | hoy | oggi | hoje | vandaag | сегодня | 今天 | 今日",
    "2026-11-19": "tomorrow | morgen | demain | mañana | domani | amanhã | завтра | 明天 | 明日",
    "2026-11-20": "the day after tomorrow | übermorgen | après-demain | pasado mañana | dopodomani | depois de amanhã | overmorgen"
    " | послезавтра | 后天 | 明後日 | in two days | in zwei Tagen | dans deux jours | dentro de dos días | tra due giorni"
    " | daqui a dois dias | over twee dagen | через два дня | 2天后 | 2日後 | this Friday | next Friday",
    "2026-11-23": "next Monday | nächsten Montag | lundi prochain | el próximo lunes | lunedì prossimo | próxima segunda-feira"
    " | volgende maandag | в следующий понедельник | 下周一 | 来週の月曜日",
    "2026-11-10": "10.11.2026 | am 10.11.2026 | 10. November 2026 | 2026-11-10 | 2026/11/10 | on November 10, 2026 | November 10th 2026"
    " | the 10th of November 2026 | le 10 novembre 2026 | el 10 de noviembre de 2026 | il 10 novembre 2026"
    " | 10 de novembro de 2026 | 10 november 2026 | 10 ноября 2026 года | 2026年11月10日 | le 10/11/2026 | 10-11-2026 était quand ?",
    "2026-12-25": "25/12/2026 | 12/25/2026 | 25.12.26",
}  # fmt: skip

SPANS = {
    ("2026-11-09", "2026-11-15"): "last week | letzte Woche | la semaine dernière | la semana pasada | la settimana scorsa"
    " | na semana passada | vorige week | на прошлой неделе | 上周 | 上星期 | 先週",
    ("2026-11-16", "2026-11-22"): "this week | diese Woche | cette semaine | esta semana | questa settimana | deze week"
    " | на этой неделе | 这周 | 本周 | 今週",
    ("2026-11-23", "2026-11-29"): "next week | nächste Woche | la semaine prochaine | la semana que viene | la próxima semana"
    " | la settimana prossima | na próxima semana | volgende week | на следующей неделе | 下周 | 来週",
    ("2026-10-01", "2026-10-31"): "last month | letzten Monat | le mois dernier | el mes pasado | il mese scorso | no mês passado"
    " | vorige maand | в прошлом месяце | 上个月 | 先月 | last October",
    ("2026-12-01", "2026-12-31"): "next month | nächsten Monat | le mois prochain | el próximo mes | il mese prossimo | no próximo mês"
    " | volgende maand | в следующем месяце | 下个月 | 来月 | next December",
    ("2025-01-01", "2025-12-31"): "last year | letztes Jahr | l'année dernière | el año pasado | l'anno scorso | no ano passado"
    " | vorig jaar | в прошлом году | 去年 | 昨年 | in 2025 | im Jahr 2025 | en 2025 | nel 2025 | em 2025 | в 2025 году | 2025年",
    ("2026-01-01", "2026-12-31"): "this year | dieses Jahr | cette année | este año | quest'anno | este ano | dit jaar | в этом году | 今年",
    ("2026-11-14", "2026-11-15"): "last weekend | letztes Wochenende | le week-end dernier | el fin de semana pasado"
    " | lo scorso fine settimana | no fim de semana passado | vorig weekend | в прошлые выходные | 上周末",
    ("2026-06-01", "2026-08-31"): "last summer | letzten Sommer | l'été dernier | el verano pasado | l'estate scorsa | no verão passado"
    " | vorige zomer | прошлым летом | 今年夏天 | summer 2026 | im Sommer 2026 | the summer of 2026",
    ("2025-12-01", "2026-02-28"): "last winter | letzten Winter | l'hiver dernier | el invierno pasado | vorige winter | прошлой зимой",
    ("2026-12-01", "2027-02-28"): "this winter | next winter | nächsten Winter",
    ("2023-05-01", "2023-05-31"): "May 2023 | in may 2023 | Mai 2023 | mai 2023 | mayo de 2023 | maggio 2023 | maio de 2023 | mei 2023"
    " | мая 2023 | 2023年5月",
    ("2026-11-15", "2026-11-18"): "the last three days | in den letzten drei Tagen | les trois derniers jours | los últimos tres días"
    " | negli ultimi tre giorni | nos últimos três dias | de afgelopen drie dagen | за последние три дня | 过去三天 | 過去3日間",
    ("2026-10-25", "2026-10-31"): "three weeks ago | vor drei Wochen | il y a trois semaines | hace tres semanas | tre settimane fa"
    " | há três semanas | três semanas atrás | drie weken geleden | три недели назад | 三个星期前 | 3週間前",
    # open ones
    ("2026-11-16", "2026-11-18"): "since Monday | seit Montag | depuis lundi | desde el lunes | da lunedì | desde segunda-feira"
    " | sinds maandag | с понедельника | 星期一以来 | 月曜日から",
    ("2026-05-01", "2026-11-18"): "since May | since may | seit Mai | depuis mai | desde mayo | da maggio | desde maio | sinds mei"
    " | с мая | 5月以来 | 5月から",
    ("0001-01-01", "2026-04-30"): "before May | vor Mai | avant mai | antes de mayo | prima di maggio | antes de maio | voor mei | до мая"
    " | 5月之前 | 5月以前",
    ("0001-01-01", "2023-05-02"): "before 3 May 2023 | before 2023-05-03 | vor dem 3. Mai 2023 | avant le 3 mai 2023",
    ("2023-05-04", "9999-12-31"): "after 3 May 2023 | nach dem 3.5.2023 | après le 3 mai 2023 | después del 3 de mayo de 2023"
    " | dopo il 3 maggio 2023 | na 3 mei 2023 | после 3 мая 2023",
    ("2026-11-18", "2026-11-20"): "until Friday | by Friday | bis Freitag | jusqu'à vendredi | hasta el viernes | fino a venerdì"
    " | até sexta-feira | tot vrijdag",
    ("0001-01-01", "2023-12-31"): "until 2023 | bis 2023 | hasta 2023 | before 2024 | 2024年以前",
    ("2026-03-01", "2026-05-31"): "between March and May | from March to May | zwischen März und Mai | von März bis Mai"
    " | entre mars et mai | entre marzo y mayo | tra marzo e maggio | entre março e maio | tussen maart en mei | 从3月到5月 | 3月から5月まで",
    ("2023-03-01", "2023-05-31"): "between March and May 2023 | March 2023 to May 2023",
    ("2023-05-03", "2023-05-07"): "from 3 May 2023 to 7 May 2023 | between 3 and 7 May 2023 | vom 3. Mai bis 7. Mai 2023",
    ("2022-12-01", "2023-03-31"): "December 2022 to March 2023",
}  # fmt: skip

HOURS = {
    ("2026-11-18", 5, 12): "this morning | heute Morgen | heute früh | ce matin | esta mañana | stamattina | esta manhã | vanmorgen"
    " | сегодня утром | 今早 | 今天早上 | 今朝",
    ("2026-11-18", 12, 18): "this afternoon | heute Nachmittag | cet après-midi | esta tarde | oggi pomeriggio | vanmiddag | 今天下午",
    ("2026-11-18", 17, 24): "this evening | heute Abend | ce soir | stasera | vanavond | сегодня вечером | 今晚 | 今夜",
    ("2026-11-17", 17, 24): "yesterday evening | gestern Abend | ieri sera | вчера вечером | 昨晚 | 昨夜",
    ("2026-11-19", 5, 12): "tomorrow morning | morgen früh | demain matin | mañana por la mañana | domani mattina | завтра утром | 明天早上",
    ("2026-11-17", 18, 24): "last night | letzte Nacht | anoche | ontem à noite",
}  # fmt: skip

NONE = [
    "", "may I have a second?", "this may be wrong", "may 5 people come?", "did you march 5 miles in the sun", "March on!", "what April said",
    "June told me", "the sun and the moon", "sat on a second chair, mon ami", "fall down the spring", "it was before", "since you asked",
    "after lunch", "before the meeting", "until we meet", "by the door", "between the lines", "next to the last one", "last call for the next person",
    "version 3.10.2", "10.11.20.26", "call 555-0123", "room 2023", "meet at 10:30", "1/2 cup", "for the may pole", "the day is long", "a week",
    "was ist hier passiert?", "wat is hier gebeurd?", "ich mag Mai nicht besonders gern", "non lo so mai", "c'est la mer", "el mar", "un segundo",
    "13.13.2026", "32.01.2026", "2026-02-30", "0000-00-00", "9999-99-99",
]  # fmt: skip


@pytest.mark.parametrize("day", DAYS)
def test_days(day: str) -> None:
    on = date.fromisoformat(day)
    read = {question: spans(question, TODAY) for question in DAYS[day].split(" | ")}
    assert read == dict.fromkeys(read, (Span(on, on),))


@pytest.mark.parametrize("ends", SPANS, ids=" ".join)
def test_longer_spans(ends: tuple[str, str]) -> None:
    first, last = map(date.fromisoformat, ends)
    read = {
        question: tuple((span.first, span.last, span.every_year) for span in spans(question, TODAY))
        for question in SPANS[ends].split(" | ")
    }
    assert read == dict.fromkeys(read, ((first, last, False),))


@pytest.mark.parametrize("when", HOURS, ids=str)
def test_parts_of_a_day(when: tuple[str, int, int]) -> None:
    on = date.fromisoformat(when[0])
    found = {question: spans(question, TODAY) for question in HOURS[when].split(" | ")}
    read = {question: tuple((s.first, s.hours) for s in some[:1]) for question, some in found.items()}
    assert read == dict.fromkeys(read, ((on, when[1:]),))


def test_ordinary_words_are_no_times() -> None:
    read = {question: spans(question, TODAY) for question in NONE}
    assert read == dict.fromkeys(read, ())


@pytest.mark.parametrize(
    "question",
    [
        "in May",
        "in may",
        "im Mai",
        "en mai",
        "en mayo",
        "a maggio",
        "em maio",
        "in mei",
        "в мае",
        "五月",
        "5月に",
    ],
)
def test_a_month_without_a_year_is_that_of_every_year(question: str) -> None:
    [span] = spans(f"{question}", TODAY)
    assert span.holds("2019-05-31T12:00:00Z") and span.holds("2026-05-01") and not span.holds("2026-06-02")
    assert wanted(span) == ("onmonth05",)


@pytest.mark.parametrize("question", ["in winter", "im Winter", "en hiver", "en invierno", "в зиму", "冬天"])
def test_a_winter_lies_in_two_years(question: str) -> None:
    [span] = spans(question, TODAY)
    assert span.holds("2020-12-24T12:00:00Z") and span.holds("2021-02-01") and not span.holds("2021-03-02")
    assert set(wanted(span)) == {"onmonth12", "onmonth01", "onmonth02"}


def test_a_date_that_can_be_read_in_two_ways_is_both_in_english_only() -> None:
    days = {date(2026, 10, 11), date(2026, 11, 10)}
    assert {span.first for span in spans("what did we do on 11/10/2026?", TODAY)} == days
    assert [span.first for span in spans("qu'est-ce qu'on a fait le 11/10/2026 ?", TODAY)] == [
        date(2026, 10, 11)
    ]


def test_a_day_without_a_year_is_the_last_and_the_next() -> None:
    for question in ("on 24 December", "am 24. Dezember", "el 24 de diciembre", "12月24日", "am 24.12."):
        assert {span.first.year for span in spans(question, TODAY)} == {2025, 2026}


def test_a_question_at_the_end_of_a_long_message_is_read() -> None:
    assert spans("the harbour is a place with ships. " * 30_000 + "what was there yesterday?", TODAY)


def test_months_and_weekdays_of_every_language() -> None:
    """Each word of the tables is read as what it stands for."""
    for name, language in LANGUAGES.items():
        asked = {
            "en": "what was in {} 2023",
            "de": "was war im {} 2023",
            "fr": "que est ce dans le {} 2023",
        }.get(name)
        words = {
            word.value: phrase for phrase, [word, *_] in language.phrases.items() if word.kind == "month"
        }
        assert set(words) == set(range(1, 13)), name
        for month, phrase in words.items():
            question = (asked or " ".join(language.common.split()[:4]) + " {} 2023").format(" ".join(phrase))
            assert [span.first for span in spans(question, TODAY)] == [date(2023, month, 1)], question
        weekdays = {
            word.value for words in language.phrases.values() for word in words if word.kind == "weekday"
        }
        assert weekdays == set(range(7)), name


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_days_and_hours_are_those_of_the_household() -> None:
    [yesterday] = spans("yesterday", TODAY)
    assert yesterday.holds("2026-11-16T23:30:00Z") and not yesterday.holds("2026-11-17T23:30:00Z")
    assert yesterday.holds("2026-11-17T00:00:00Z"), "a day without an hour is that day everywhere"
    assert set(wanted(yesterday)) >= {"onday20261116", "onday20261117"}
    [morning] = spans("this morning", TODAY)
    assert morning.holds("2026-11-18T10:59:00Z") and not morning.holds("2026-11-18T11:01:00Z")


@given(st.text(max_size=80), st.dates(date(1990, 1, 1), date(2090, 1, 1)))
def test_any_text_on_any_day(text: str, today: date) -> None:
    for span in spans(text, today):
        assert span.every_year or span.first <= span.last
        assert 0 < len(wanted(span)) <= 17


WORDS = sorted({word for language in LANGUAGES.values() for phrase in language.phrases for word in phrase})


NUMERALS = [chr(c) for c in range(0x110000) if chr(c).isnumeric()]


def test_any_two_words_for_time_can_stand_side_by_side() -> None:
    chosen = random.Random(7).sample(WORDS, 150)
    for one, other in itertools.product(chosen, WORDS):
        spans(f"{one} {other}", TODAY)


def test_numerals_of_every_script_are_read_or_passed_over() -> None:
    for numeral in NUMERALS:
        for text in (
            f"{numeral} days ago",
            f"May {numeral}",
            f"20{numeral}{numeral}",
            f"{numeral}th of May",
            f"昨年{numeral}月",
        ):
            spans(text, TODAY)
    assert spans("٣ days ago", TODAY) == spans("3 days ago", TODAY)


@given(st.lists(st.sampled_from([*WORDS, "3", "31", "2023", "0", "29.2.", "29/02/2024", "一", "上周", "5月", "から", "前"]), max_size=12),
       st.dates(date(1990, 1, 1), date(2090, 1, 1)))  # fmt: skip
def test_any_words_for_time_on_any_day(words: list[str], today: date) -> None:
    for span in spans(" ".join(words), today):
        assert span.every_year or span.first <= span.last
        assert 0 < len(wanted(span)) <= 17


@pytest.mark.parametrize(
    "text",
    ["may " * 250_000, "5 " * 500_000, "1.1." * 250_000, "1-1-" * 250_000, "上周" * 500_000, "since " * 160_000, "(" * 1_000_000,
     "\u0301" * 1_000_000, "1" * 1_000_000, "last " * 200_000, "between 3 and " * 70_000],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    assert len(spans(text, TODAY)) <= 12


def test_what_is_searched_for_is_what_is_indexed() -> None:
    for question, moment in (
        ("last week", "2026-11-10T12:00:00Z"),
        ("last summer", "2026-07-01T12:00:00Z"),
        ("before 2024", "2022-01-01T12:00:00Z"),
        ("after 2024", "2026-10-01T12:00:00Z"),
        ("since May", "2026-06-01T12:00:00Z"),
        ("in May", "2011-05-05"),
        ("last year", "2025-05-05"),
        ("tomorrow", "2026-11-19"),
    ):
        [span] = spans(question, TODAY)
        assert span.holds(moment) and set(wanted(span)) & set(tokens(moment)), question
