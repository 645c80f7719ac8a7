"""Nothing that a provider says under a wrong type comes further than the place where every reply passes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from coterie.core.message import ImagePart, Part, TextPart, ThinkingPart, ToolCall, Usage
from coterie.core.ports import Reply, TextDelta, ThinkingDelta
from coterie.core.reply import problem_in

PARTS: tuple[Part, ...] = (
    TextPart("hello"),
    ThinkingPart("hm", "c2ln", "anthropic/m"),
    ThinkingPart("hm"),
    ToolCall("c1", "files_read", "{}"),
)
FINE = Reply(PARTS, Usage(10, 5, 0, 0.25), "tool_calls")
WRONG: list[Any] = [7, 1.5, True, [], {}, ["x"], b"x", range(3), float("nan"), -1, 2**70]


def test_what_a_model_sends() -> None:
    assert problem_in(FINE) is None
    assert problem_in(Reply((), Usage(), "stop")) is None
    assert problem_in(TextDelta("")) is None and problem_in(ThinkingDelta("hm")) is None


@pytest.mark.parametrize("wrong", [None, *WRONG], ids=repr)
def test_a_text_that_is_none(wrong: Any) -> None:
    assert problem_in(TextDelta(wrong)) and problem_in(ThinkingDelta(wrong))
    for place, part in enumerate(PARTS):
        for field in fields(part):
            if wrong is None and field.name in ("signature", "model"):
                continue
            parts = (*PARTS[:place], replace(part, **{field.name: wrong}), *PARTS[place + 1 :])
            assert problem_in(replace(FINE, parts=parts)), field.name


@pytest.mark.parametrize("wrong", [None, 1.5, "7", [], float("nan"), -1, 2**70], ids=repr)
def test_a_count_that_is_none(wrong: Any) -> None:
    for name in ("input_tokens", "output_tokens", "cached_tokens"):
        assert problem_in(replace(FINE, usage=replace(FINE.usage, **{name: wrong}))), name


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", []], ids=repr)
def test_a_cost_that_is_none(wrong: Any) -> None:
    assert problem_in(replace(FINE, usage=replace(FINE.usage, cost=wrong)))


def test_parts_and_ends_that_no_model_makes() -> None:
    assert problem_in(replace(FINE, parts=(ImagePart("image/png", b""),)))
    assert problem_in(replace(FINE, parts=("hello",)))  # type: ignore[arg-type]
    assert problem_in(replace(FINE, finish="because"))  # type: ignore[arg-type]
    assert problem_in("hello")  # type: ignore[arg-type]
