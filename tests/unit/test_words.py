"""Words as the index and questions see them."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.ranking import Question, points_of
from coterie.core.words import asked, folded, sentences, split, stem

_ONE_WORD = re.compile(r"[^\s\"'/@:~\\]+")


@given(st.text(max_size=200))
def test_whatever_is_written_is_found_by_the_words_it_has(text: str) -> None:
    indexed = set(folded(text))
    assert all(indexed.intersection(forms) for forms in asked(text).values())
    assert all(_ONE_WORD.fullmatch(word) for word in indexed)


@given(st.text(max_size=100))
def test_case_and_composition_make_no_difference(text: str) -> None:
    import unicodedata

    apart = unicodedata.normalize("NFD", text)
    assert folded(apart) == folded(unicodedata.normalize("NFC", text))


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "'s",
        "c+",
        "c#",
        ".",
        ".net",
        "我",
        "e\u0301",
        "\u0e48",
        "?",
        "a? ",
        "\n",
        " ",
        "ก",
        "\u0301",
        "İ",
        "ﷺ",
        "1",
        "_",
        "-",
    ],
)
def test_a_megabyte_of_anything_is_read_in_passing(part: str) -> None:
    """Whatever took more than linear time would still be at it."""
    text = (part * 1_000_000)[:1_000_000]
    folded(text)
    asked(text)
    split(text)
    points_of(text)
    assert sum(1 for _ in sentences(text)) <= len(text)


def test_english_forms_of_a_word_are_one() -> None:
    for one, other in [("boats", "boat"), ("running", "runs"), ("generously", "generous"), ("Dot's", "dot")]:
        assert folded(one) == folded(other)


def test_a_question_keeps_single_letters_that_are_names() -> None:
    assert set(asked("Who uses R or C at a table?")) == {"uses", "r", "c", "table"}
    assert "i" not in asked("What did I say about a boat?")


def test_the_words_of_what_is_asked_survive_a_long_message() -> None:
    from datetime import date

    text = " ".join(f"alpha{n} beta{n}." for n in range(500)) + " Where is the kayak? Thanks."
    question = Question.read(text, date(2026, 1, 1))
    narrowed = question.narrowed(dict.fromkeys(question.words, 1))
    assert len(narrowed.words) == 48
    assert "kayak" in narrowed.words


def test_threads_that_stem_at_once_do_not_mix_up_their_words() -> None:
    words = [
        "relational",
        "hopping",
        "conditional",
        "boats",
        "generously",
        "vietnamization",
        "electrical",
        "a",
    ]
    alone = [stem.__wrapped__(word) for word in words]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: [stem.__wrapped__(word) for word in words], range(400)))
    finally:
        sys.setswitchinterval(before)
    assert all(one == alone for one in found)
