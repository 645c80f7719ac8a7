"""Which texts are the same to a reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.duplicates import distinct, essence, same

LONG = (
    "On the way home Rose told everybody at the harbour that the ferry to the island would leave the old quay"
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The boat is blue.", "the boat is blue"),
        ("The boat is blue.", "  The boat\n is blue! "),
        ("THE BOAT IS BLUE", "The boat is blue"),
        ("- The boat is blue", "The boat is blue"),
        ("# The boat is blue", "* The boat is blue"),
        ("“The boat” is blue…", '"The boat" is blue'),
        ("Don’t paint the boat", "don't paint the boat"),
        ("Boat is blue", "The boat is blue"),
        ("Caf\u00e9 at the harbour", "cafe\u0301 at the harbour"),
        ("The boat (blue) leaks: badly.", "the boat blue leaks badly"),
        ("船是蓝色的。", "船是蓝色的"),
        ("Das Boot ist blau.", "das Boot ist blau"),
    ],
)
def test_what_may_differ(one: str, other: str) -> None:
    assert same(one, other) and same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # numbers, dates, amounts, units
        (f"{LONG} at 7", f"{LONG} at 8"),
        (f"{LONG} at 7", f"{LONG} at 7 or 8"),
        (f"{LONG} on 3 May", f"{LONG} on 4 May"),
        (f"{LONG} on 2026-05-03", f"{LONG} on 2026-05-04"),
        (f"{LONG} for $5", f"{LONG} for €5"),
        (f"{LONG} for 5 %", f"{LONG} for 5"),
        (f"{LONG} for 1.5 kg", f"{LONG} for 15 kg"),
        (f"{LONG} for .5 kg", f"{LONG} for 5 kg"),
        (f"{LONG} at -5 degrees", f"{LONG} at 5 degrees"),
        (f"{LONG} for 5 kg", f"{LONG} for 5 g"),
        (f"{LONG} for 10:30", f"{LONG} for 10:20"),
        (f"{LONG} in seven minutes", f"{LONG} in eleven minutes"),
        ("2 < 3 and the rest", "2 > 3 and the rest"),
        ("five² is what it says", "five2 is what it says"),
        # negation
        (LONG, LONG.replace("would leave", "would not leave")),
        (LONG, LONG.replace("would leave", "wouldn't leave")),
        (LONG, LONG.replace("would leave", "would never leave")),
        (f"{LONG} with us", f"{LONG} without us"),
        ("no milk for the cat, ever, in the morning or in the evening or at night", "milk for the cat, ever, in the morning or in the evening or at night"),
        ("Die Fähre legt heute Abend vom alten Kai in der Stadt ab", "Die Fähre legt heute Abend nicht vom alten Kai in der Stadt ab"),
        ("Le bateau est bleu et il part ce soir du vieux port", "Le bateau n'est pas bleu et il part ce soir du vieux port"),
        ("El barco es azul y sale esta noche", "El barco no es azul y sale esta noche"),
        ("Лодка синяя и уходит вечером", "Лодка не синяя и уходит вечером"),
        ("船是蓝色的", "船不是蓝色的"),
        ("船は青いです", "船は青くないです"),
        # names, words, order, questions
        (f"{LONG}, said Ann", f"{LONG}, said Ben"),
        ("Ann owes Bob ten euros", "Bob owes Ann ten euros"),
        (LONG, LONG.replace("leave", "reach")),
        ("The boat is blue.", "The boat is blue?"),
        ("Tell the US about it", "Tell us about it"),
        ("It takes vitamin A", "It takes vitamin"),
        ("Vio a Juan en el puerto", "Vio Juan en el puerto"),
        ("Wir treffen uns in Maßen", "Wir treffen uns in Massen"),
        ("It is written in C", "It is written in C++"),
        ("we're by the sea", "were by the sea"),
        ("Ella pescó un año", "Ella pesco un ano"),
        ("Mach das Licht an", "Mach das Licht"),
        ("x" * 30_000, "X" * 30_000),
    ],
)  # fmt: skip
def test_what_keeps_them_apart(one: str, other: str) -> None:
    assert not same(one, other)


@given(st.text(max_size=200))
def test_any_text_is_the_same_as_itself(text: str) -> None:
    assert same(text, text)


@given(st.lists(st.sampled_from(["ten", "boats", "7", "8", "not", "US", "us", "blue", "Ann"]), min_size=1))
def test_another_number_name_or_negation_is_never_the_same(words: list[str]) -> None:
    text = " ".join(words)
    for more in ("not", "8", "Ann", "never", "5%"):
        assert not same(text, f"{text} {more}")


def test_the_newest_is_shown_in_the_place_of_the_best() -> None:
    texts = {1: "The boat is blue", 2: "oars", 3: "the boat is blue.", 4: "- The boat is blue"}
    essences = {key: essence(text) for key, text in texts.items()}
    newness = {1: 1, 2: 9, 3: 3, 4: 2}.__getitem__
    assert distinct(texts, essences, newness, 10) == [(3, 1), (2, 2)]
    assert distinct(texts, essences, newness, 1) == [(3, 1)]


@pytest.mark.parametrize(
    "text", ["-" * 1_000_000, " " * 1_000_000, "(" * 1_000_000, "# " * 500_000, "\n- " * 300_000]
)
def test_no_text_takes_long(text: str) -> None:
    assert same(text, text)
