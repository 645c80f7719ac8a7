"""IDENTITY.md: three facts are read and changed, and every other byte stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import InvalidRequest
from coterie.core.identity import FIELDS, read_fields, write_fields
from coterie.engine.household.workspace import TEMPLATES


@pytest.mark.parametrize(
    "line",
    [
        "- **Emoji:** 🦊",
        "* Emoji: 🦊",
        "**Emoji**: 🦊",
        "Emoji: 🦊",
        "  + EMOJI :  🦊  ",
        "emoji: '🦊'",
        '__emoji__: "🦊"',
    ],
)
def test_fields_are_read_in_the_ways_people_write_them(line: str) -> None:
    assert read_fields(f"# Identity\n\n{line}\n- **Name:** Dot\n") == {"emoji": "🦊"}


def test_hints_of_a_template_are_not_answers() -> None:
    assert read_fields(TEMPLATES["IDENTITY.md"]) == {}
    assert read_fields("Emoji:\nVibe: <calm?>\nCreature: (which?)\n") == {}


def test_the_first_answer_counts() -> None:
    assert read_fields("Emoji: <one>\nEmoji: 🦊\nEmoji: 🐙\n") == {"emoji": "🦊"}


def test_a_changed_field_leaves_the_rest_byte_for_byte() -> None:
    text = "# Who\r\n\r\n- **Emoji:** 🦊\r\n- **Vibe:**  calm \r\n\r\nThe *vibe* is: good\r\nno end"
    changed = write_fields(text, {"vibe": "wild"})
    assert changed == text.replace("- **Vibe:**  calm \r\n", "- **Vibe:** wild\r\n")


def test_new_fields_go_below_the_known_ones_else_below_the_heading_else_on_top() -> None:
    assert write_fields("# H\n\n- **Emoji:** x\n\ntext\n", {"vibe": "v"}) == (
        "# H\n\n- **Emoji:** x\n- **Vibe:** v\n\ntext\n"
    )
    assert write_fields("# H\n\ntext\n", {"emoji": "x"}) == "# H\n\n- **Emoji:** x\ntext\n"
    assert write_fields("text", {"emoji": "x"}) == "- **Emoji:** x\ntext\n"
    assert write_fields("", {"emoji": "x"}) == "- **Emoji:** x\n"


def test_an_empty_value_empties_the_field() -> None:
    text = write_fields("- **Emoji:** 🦊\n", {"emoji": "", "vibe": ""})
    assert text == "- **Emoji:**\n"
    assert read_fields(text) == {}


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\x00", "a\u2028b", "x" * 501, "\ud800"])
def test_values_that_would_break_the_line_are_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="vibe"):
        write_fields("# H\n", {"vibe": bad})


words = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Zs")), min_size=1, max_size=20)
answers = words.filter(lambda w: w.strip("\"'").strip() == w and w[0] not in "_(<")


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(["# H", "", "text", "- **Emoji:** 🦊", "Vibe: _(how?)_", "creature : owl", "a: b"]),
        max_size=6,
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.dictionaries(st.sampled_from(FIELDS), answers, min_size=1),
)
def test_what_is_written_is_read_back_and_no_other_line_is_lost(
    lines: list[str], end: str, ended: bool, changes: dict[str, str]
) -> None:
    text = end.join(lines) + (end if ended and lines else "")
    result = write_fields(text, changes)
    assert read_fields(result) == {**read_fields(text), **changes}
    kept = [line for line in text.splitlines() if not line.lower().lstrip("-* ").startswith(FIELDS)]
    left = iter(result.splitlines())
    assert all(line in left for line in kept), "in order"
    assert write_fields(result, changes) == result
