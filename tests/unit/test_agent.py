"""What an agent is: ids, labels, patterns, and what it takes over from a template."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from coterie.core.agent import (
    Agent,
    AgentSpec,
    AgentState,
    check_id,
    check_label,
    check_new_id,
    check_pattern,
    inherit,
    label_key,
)
from coterie.core.errors import CoterieError, InvalidRequest

BAD_IDS = [
    "",
    "../x",
    "a/b",
    "Main",
    "a" * 51,
    "🦊",
    "-a",
    "a_b",
    "a b",
    "a\n",
    "a\x00",
    ".",
    "..",
    "ａ",
    "é",
    "a.b",
]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_bad_id_is_refused_with_the_rule(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="an id is 1 to 50 characters of a-z, 0-9 and '-'"):
        check_id(bad)


@given(st.text(max_size=60))
def test_an_id_is_a_slug_and_nothing_else(text: str) -> None:
    fits = re.match(r"^[a-z0-9][a-z0-9-]{0,49}$", text) is not None and not text.endswith("\n")
    try:
        accepted = check_id(text) == text
    except InvalidRequest:
        accepted = False
    assert accepted == fits


@pytest.mark.parametrize("word", ["main", "default", "subagents", *BAD_IDS])
def test_words_that_can_never_name_a_new_agent(word: str) -> None:
    with pytest.raises(CoterieError) as refused:
        check_new_id(word)
    assert refused.value.code == ("CONFLICT" if word == "main" else "INVALID_REQUEST")
    assert refused.value.details == {"field": "id"}


@pytest.mark.parametrize("good", ["Dot", "a" * 100, "Zoë & Søn", "日本", "👩‍👩‍👧", "x (y)", "7"])
def test_labels_are_what_people_write(good: str) -> None:
    assert check_label(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        " a",
        "a ",
        "a" * 101,
        "[a",
        "a]",
        "#a",
        "a\nb",
        "a\tb",
        "a\x00",
        "a\u202eb",
        "a\u2028b",
        "\ud800",
        "👩\u200d👩#x",
    ],
)
def test_labels_that_could_fool_a_reader_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="label"):
        check_label(bad)


def test_labels_that_look_alike_have_one_key() -> None:
    assert label_key("Straße") == label_key("STRASSE")
    assert label_key("Ｄot") == label_key("dot")
    assert label_key("dot") != label_key("dots")


@pytest.mark.parametrize("bad", ["", " a", "a ", "[", "a[b", "[]", "[!]", "[!", "x[]", "\x01"])
def test_patterns_that_do_not_parse(bad: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        check_pattern(bad)


# Templates


def spec(**written: Any) -> dict[str, Any]:
    return AgentSpec.model_validate(written).written()


def test_scalars_override_and_lists_replace() -> None:
    base = spec(description="Base", temperature=0.2, tool_allowlist=["a", "b"], tool_denylist=["c"])
    own = spec(extends="base", temperature=0.9, tool_allowlist=["z"])
    assert inherit([own, base]).written() == {
        "description": "Base",
        "temperature": 0.9,
        "tool_allowlist": ["z"],
        "tool_denylist": ["c"],
        "extends": "base",
    }


def test_the_nearest_template_wins_and_settings_inside_a_section_add_up() -> None:
    grandparent = spec(memory={"recall": False, "recall_tokens": 10}, ui_visible=False)
    parent = spec(extends="grandparent", memory={"recall_tokens": 20})
    own = spec(extends="parent", memory={"read_policy": "isolated"})
    merged = inherit([own, parent, grandparent])
    assert (merged.memory.recall, merged.memory.recall_tokens, merged.memory.read_policy) == (
        False,
        20,
        "isolated",
    )
    assert merged.ui_visible is True, "a template is hidden because it is one"
    assert merged.extends == "parent"


def test_null_takes_a_restriction_back_and_empty_means_nothing() -> None:
    base = spec(tool_allowlist=["a"], skill_allowlist=["s"])
    merged = inherit([spec(extends="base", tool_allowlist=None, skill_allowlist=[]), base])
    assert merged.tool_allowlist is None
    assert merged.skill_allowlist == []


def test_without_a_template_nothing_changes() -> None:
    own = spec(model={"primary": "a/b", "fallbacks": ["c/d"]}, thinking="low")
    assert inherit([own]).written() == own


def test_an_external_template_gives_its_address_on() -> None:
    base = spec(type="external", input_url="https://x.invalid/")
    assert inherit([spec(extends="base"), base]).input_url == "https://x.invalid/"
    with pytest.raises(ValidationError, match="input_url"):
        AgentSpec.model_validate({"type": "external"})


# Forms


def test_what_was_not_said_is_not_stored() -> None:
    assert spec() == {}
    assert spec(model="a/b") == {"model": "a/b"}
    assert spec(model={"primary": "a/b"}) == {"model": "a/b"}
    assert spec(memory={}) == {"memory": {}}
    assert spec(ui_visible=True) == {"ui_visible": True}


def test_the_roster_entry_of_an_agent_leaves_out_a_label_that_is_the_id() -> None:
    made = Agent("dot", "dot", False, AgentState.ACTIVE, {"model": "a/b"}, "", "")
    assert made.entry == {"name": "dot", "model": "a/b"}
    assert Agent("dot", "Dot", False, AgentState.ACTIVE, {}, "", "").entry == {"name": "dot", "label": "Dot"}


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": float("nan")},
        {"temperature": -1},
        {"max_tokens": 10**400},
        {"limits": {"cost_per_day": float("inf")}},
        {"limits": {"cost_per_turn": -1}},
        {"limits": {"concurrency": 0}},
        {"thinking": "enormous"},
        {"system_prompt": "a\x00b"},
        {"model": "nothing"},
        {"model": "a/b\n"},
        {"tool_exposure": "none"},
        {"unknown": 1},
    ],
)
def test_values_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AgentSpec.model_validate(bad)
