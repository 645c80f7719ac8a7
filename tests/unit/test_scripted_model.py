"""The scripted model of the public test kit."""

from __future__ import annotations

import asyncio

import pytest

from coterie.core.message import Message, TextPart, ThinkingPart, ToolCall
from coterie.core.ports import Model, ModelError, ModelEvent, ModelRequest, Reply, TextDelta, ThinkingDelta
from coterie.testing import ScriptedModel, call, thinking


def request(*texts: str) -> ModelRequest:
    return ModelRequest("", (), [Message(id=text, role="user", origin="user", text=text) for text in texts])


def events(model: Model, asked: ModelRequest | None = None) -> list[ModelEvent]:
    async def collect() -> list[ModelEvent]:
        return [event async for event in model.stream(asked or request("hello"))]

    return asyncio.run(collect())


def reply_of(model: Model, asked: ModelRequest | None = None) -> Reply:
    reply = events(model, asked)[-1]
    assert isinstance(reply, Reply)
    return reply


def test_text_comes_in_small_deltas_and_then_whole() -> None:
    *deltas, reply = events(ScriptedModel("one  two\nthree"))
    assert deltas == [TextDelta("one"), TextDelta("  two"), TextDelta("\nthree")]
    assert isinstance(reply, Reply)
    assert (reply.parts, reply.finish) == ((TextPart("one  two\nthree"),), "stop")


def test_thinking_text_and_calls_keep_their_order() -> None:
    odd = call("t", '{"a" :1,}', id="c1")
    model = ScriptedModel([thinking("well then"), "I look.", odd, call("t", {"ä": 1})], name="scripted/a")
    *deltas, reply = events(model)
    assert deltas == [ThinkingDelta("well"), ThinkingDelta(" then"), TextDelta("I"), TextDelta(" look.")]
    assert isinstance(reply, Reply)
    *first, last = reply.parts
    assert first == [
        ThinkingPart("well then", None, "scripted/a"),
        TextPart("I look."),
        ToolCall("c1", "t", '{"a" :1,}'),
    ]
    assert isinstance(last, ToolCall)
    assert (last.name, last.arguments, reply.finish) == ("t", '{"ä": 1}', "tool_calls")
    assert call("t").id != call("t").id


def test_an_exception_is_raised_where_it_stands() -> None:
    model = ScriptedModel(["half", ModelError("busy", kind="overloaded", can_retry=True)], "whole")
    seen: list[ModelEvent] = []

    async def listen() -> None:
        async for event in model.stream(request("hello")):
            seen.append(event)

    with pytest.raises(ModelError, match="busy"):
        asyncio.run(listen())
    assert seen == [TextDelta("half")]
    assert reply_of(model).parts == (TextPart("whole"),)


def test_a_function_sees_the_request() -> None:
    async def later(asked: ModelRequest) -> str:
        await asyncio.sleep(0)
        return asked.messages[-1].text.upper()

    model = ScriptedModel(lambda asked: [call(asked.messages[0].text)], later)
    (part,) = reply_of(model, request("a", "b")).parts
    assert isinstance(part, ToolCall)
    assert part.name == "a"
    assert reply_of(model, request("a", "b")).parts == (TextPart("B"),)


def test_requests_are_remembered_as_they_were() -> None:
    model = ScriptedModel("one", "two")
    asked = request("a")
    assert isinstance(asked.messages, list)
    reply_of(model, asked)
    asked.messages.append(asked.messages[0])
    reply_of(model, asked)
    assert [len(seen.messages) for seen in model.requests] == [1, 2]
    assert model.left == 0


def test_a_script_that_runs_out_says_so() -> None:
    model = ScriptedModel("one")
    reply_of(model)
    with pytest.raises(AssertionError, match=r"1 scripted replies.*'where next'"):
        events(model, request("where next"))


def test_an_empty_reply_has_no_parts() -> None:
    model = ScriptedModel("", [])
    assert reply_of(model).parts == reply_of(model).parts == ()
