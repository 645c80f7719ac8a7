"""Four protocols against a server that refuses what the real providers refuse, and against aimock."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.core.message import ImagePart, Message, Part, TextPart, ThinkingPart, ToolCall, Usage
from coterie.core.ports import (
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    Previews,
    Reply,
    TextDelta,
    ThinkingDelta,
    ToolSchema,
)
from coterie.core.transcript import Transcript
from coterie.engine.model_check import check
from coterie.models.catalog import ModelCatalog, ProviderSettings
from tests.support.aimock import aimock
from tests.support.providers import (
    KEY,
    OPEN_HEAD,
    PROTOCOLS,
    Answer,
    Call,
    ProviderServer,
    Said,
    beginning,
    broken_stream,
    failure,
    raw,
    reaching,
    serving,
    stream,
)
from tests.support.providers import words as spoken

__all__ = ["aimock"]

MODELS = {
    "chat": "chat/gpt-5",
    "responses": "responses/gpt-5",
    "anthropic": "anthropic/claude-x",
    "google": "google/gemini-3-pro-preview",
}
NEW = ("responses", "anthropic", "google")
SIGNATURE = base64.b64encode(b"signed by me").decode()
TOOLS = (
    ToolSchema("get_weather", "The weather — now", {"type": "object", "properties": {"z": {}, "a": {}}}),
    ToolSchema("get_time", "The time", {"type": "object"}),
)
CONTEXT = "CONTEXT-OF-THIS-REQUEST"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)


def user(text: str, *images: ImagePart) -> Message:
    return Message("u", "user", "user", text, parts=images)


def assistant(*parts: Part) -> Message:
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    return Message("a", "assistant", "agent", text, parts=parts)


def result(call_id: str, text: str, name: str = "get_weather") -> Message:
    return Message("t", "tool", "agent", text, call_id=call_id, tool_name=name)


def ask(*messages: Message, **options: Any) -> ModelRequest:
    return ModelRequest("Be kind.", TOOLS, messages or (user("hello"),), **options)


async def collect(model: Model, request: ModelRequest) -> tuple[list[ModelEvent], Reply]:
    *deltas, reply = [event async for event in model.stream(request)]
    assert isinstance(reply, Reply)
    assert not any(isinstance(event, Reply) for event in deltas)
    return deltas, reply


Scene = Callable[[ProviderServer, Model], Coroutine[Any, Any, None]]


def play(protocol: str, scene: Scene, *answers: Answer | Said, model: str | None = None) -> None:
    """Run a scene with one model; nothing it sends may be refused."""

    async def run() -> None:
        async with serving(*answers) as server, reaching(server.url) as catalog:
            await scene(server, catalog.resolve(model or MODELS[protocol]))
            assert server.refused == []

    asyncio.run(asyncio.wait_for(run(), 60))


def failure_of(protocol: str, answer: Answer) -> ModelError:
    caught: list[ModelError] = []

    async def scene(server: ProviderServer, model: Model) -> None:
        with pytest.raises(ModelError) as info:
            await collect(model, ask())
        assert len(server.asked) == 1, "the engine owns retries"
        assert KEY not in info.value.message
        assert info.value.__cause__ is None
        caught.append(info.value)

    play(protocol, scene, answer)
    return caught[0]


# What arrives


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_text_and_thinking_arrive_in_pieces_and_then_whole(protocol: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        deltas, reply = await collect(model, ask(thinking="low", max_tokens=5000, temperature=0.5))
        assert deltas == [
            ThinkingDelta("We"),
            ThinkingDelta("ll"),
            TextDelta("Hell"),
            TextDelta("o ☃."),
        ]
        thoughts = [part for part in reply.parts if isinstance(part, ThinkingPart)]
        assert thoughts[0].text == "Well"
        assert {thought.model for thought in thoughts} == {model.name}
        assert reply.parts[-1] == TextPart("Hello ☃.")
        assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (40, 3, 32)
        assert reply.finish == "stop"
        headers = server.asked[0].headers
        sent = {headers.get(name) for name in ("authorization", "x-api-key", "x-goog-api-key")} - {None}
        assert sent in ({KEY}, {f"Bearer {KEY}"})

    play(protocol, scene, Said("Hello ☃.", "Well", SIGNATURE))


@pytest.mark.parametrize(
    ("protocol", "finish", "means"),
    [
        ("anthropic", "max_tokens", "length"),
        ("anthropic", "refusal", "refused"),
        ("anthropic", "something_new", "other"),
        ("google", "MAX_TOKENS", "length"),
        ("google", "SAFETY", "refused"),
        ("responses", "max_output_tokens", "length"),
        ("responses", "content_filter", "refused"),
    ],
)
def test_a_reply_says_why_it_ended(protocol: str, finish: str, means: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        assert (await collect(model, ask()))[1].finish == means

    play(protocol, scene, Said("and then", finish=finish))


@pytest.mark.parametrize(
    ("protocol", "model"),
    [
        ("responses", "responses/gpt-5"),
        ("anthropic", "anthropic/claude-sonnet-5"),
        ("google", "google/gemini-2.5-pro"),
    ],
)
def test_what_a_reply_cost_is_known(protocol: str, model: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        _, reply = await collect(model, ask(temperature=0.3))
        assert reply.usage.cost is not None and 0 < reply.usage.cost < 0.01

    play(protocol, scene, Said("hi"), model=model)


def test_a_model_without_a_price_costs_nothing_known() -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        assert (await collect(model, ask()))[1].usage == Usage(40, 3, 32, None)

    play("anthropic", scene, Said("hi"))


@pytest.mark.parametrize("protocol", NEW)
def test_empty_and_repeated_ids_become_distinct(protocol: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        first = ask(user("go"), assistant(ToolCall("x", "get_time", "{}")), result("x", "noon"))
        _, reply = await collect(model, first)
        ids = [part.id for part in reply.parts if isinstance(part, ToolCall)]
        assert len({*ids, "x", ""}) == 5, ids
        assert reply.finish == "tool_calls"
        results = [result(call_id, "ok") for call_id in ids]
        await collect(model, replace(first, messages=(*first.messages, assistant(*reply.parts), *results)))

    calls = [Call("get_time", id="x"), Call("get_time", id="x"), Call("get_time")]
    play(protocol, scene, Said(calls=calls), Said("done"))


def test_hidden_thinking_of_claude_goes_back_as_it_came() -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        server.issued[model.name] = {"hidden"}
        _, reply = await collect(model, ask(thinking=True))
        assert reply.parts[0] == ThinkingPart("", "redacted:hidden", model.name)
        request = ask(user("hello"), assistant(*reply.parts), result("toolu_1", "ok"), thinking=True)
        await collect(model, request)
        blocks = server.asked[1].body["messages"][1]["content"]
        assert blocks[0] == {"type": "redacted_thinking", "data": "hidden"}

    events = Said(calls=[Call("get_time", id="toolu_1")])
    block = {"type": "redacted_thinking", "data": "hidden"}
    start = {"type": "content_block_start", "index": 9, "content_block": block}
    stop = {"type": "content_block_stop", "index": 9}
    hidden = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in (start, stop)).encode()
    head, ping, rest = spoken("anthropic", events).partition(b"event: ping")
    play("anthropic", scene, stream(head + hidden + ping + rest), Said("done"))


# What is sent


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_prefix_is_the_same_bytes_from_one_request_to_the_next(protocol: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        transcript = Transcript([user("what is the weather — é?")])
        for text in ("", "And then?", ""):
            for _ in range(2):
                request = ask(*transcript.sendable(), context=CONTEXT, thinking="low")
                _, reply = await collect(model, request)
                transcript.append(assistant(*reply.parts))
                for part in reply.parts:
                    if isinstance(part, ToolCall):
                        transcript.append(result(part.id, '{"sunny": true}', part.name))
            transcript.append(user(text))
        prefixes = [_stable(protocol, asked.raw) for asked in server.asked]
        assert len(prefixes) == 6
        for before, after in pairwise(prefixes):
            assert after.startswith(before)
            assert len(after) > len(before)

    said = Said("Let me see.", "Hm.", SIGNATURE, [Call("get_weather", '{ "z" : 1.0e1,"a":"é" }')])
    play(protocol, scene, *[said, Said("Sunny.", "So.", SIGNATURE)] * 3)


def _stable(protocol: str, body: bytes) -> bytes:
    """Tools, system prompt and messages as they were sent, up to the trailing context."""
    pieces = [
        _value(body, name)
        for name in (b'"tools":', b'"system":', b'"systemInstruction":', b'"instructions":')
    ]
    field = {"chat": b'"messages":', "responses": b'"input":', "anthropic": b'"messages":'}.get(
        protocol, b'"contents":'
    )
    messages = _value(body, field)
    assert messages.count(CONTEXT.encode()) == 1
    before = messages[: messages.index(CONTEXT.encode())]
    return b"".join(pieces) + before[: before.rindex(b"{")].rstrip(b", ")


def _value(body: bytes, field: bytes) -> bytes:
    """The bytes of one field of the request."""
    if field not in body:
        return b""
    text = body[body.index(field) + len(field) :].decode().lstrip()
    _, end = json.JSONDecoder().raw_decode(text)
    return text[:end].encode()


def test_arguments_keep_the_models_own_string_where_the_protocol_has_strings() -> None:
    own = '{ "z" :"a\\u00e9é.txt",\n\t"a":  1.0e1 }'

    async def scene(server: ProviderServer, model: Model) -> None:
        _, reply = await collect(model, ask())
        assert reply.parts == (ToolCall("call_1", "get_weather", own),)
        await collect(model, ask(user("hello"), assistant(*reply.parts), result("call_1", "ok")))
        items = server.asked[1].body["input"]
        assert [item["arguments"] for item in items if item.get("type") == "function_call"] == [own]

    play("responses", scene, Said(calls=[Call("get_weather", own, "call_1")]), Said("ok"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_can_be_previewed_is_what_is_sent(protocol: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        assert isinstance(model, Previews)
        request = ask(
            user("hi"), assistant(TextPart("Yes?")), user("é"), context="noon", temperature=0.5, max_tokens=99
        )
        seen = await model.body(request)
        assert server.asked == [], "nothing is sent by looking"
        await collect(model, request)
        assert server.asked[0].raw == seen

    play(protocol, scene, Said("ok"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_images_are_sent(protocol: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        picture = ImagePart("image/png", b"\x89PNG not really")
        await collect(model, ask(user("what is this?", picture), assistant(TextPart("A")), user("", picture)))
        body = server.asked[0].body
        assert json.dumps(body).count(base64.b64encode(picture.data).decode()) == 2
        assert "what is this?" in json.dumps(body)

    play(protocol, scene, Said("a cat"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_broken_arguments_and_invented_names_still_make_a_legal_request(protocol: str) -> None:
    texts = ['{"a": ', "[]", "", "null", "NaN", '{"a": NaN}', '{"a": 1e999}', '{"a":"\\ud83d"}', "[" * 5000]
    calls = [
        ToolCall(f"c{number}|{'x' * 60}", f"my tool!{number}", text) for number, text in enumerate(texts)
    ]

    async def scene(server: ProviderServer, model: Model) -> None:
        results = [result(call.id, " ", "other") for call in reversed(calls)]
        await collect(model, ask(user(" "), assistant(*calls), *results))

    play(protocol, scene, Said("sorry"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_transcript_may_begin_and_end_with_the_model(protocol: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        notice = Message("s", "system", "system", "Rose took over", mark="ab12")
        await collect(model, ask(assistant(TextPart("Hello.")), assistant(TextPart("Anyone?"))))
        await collect(model, ask(assistant(ThinkingPart("hm", "x", model.name)), notice, assistant()))
        assert "[System] ⟦ab12⟧ Rose took over" in json.dumps(server.asked[1].body, ensure_ascii=False)
        await collect(model, ModelRequest("", (), (), context="noon"))
        assert len(server.asked) == 3

    play(protocol, scene, Said("Yes."))


@pytest.mark.parametrize("thinking", [None, False, True, "low", "medium", "high"])
@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-x",
        "anthropic/claude-sonnet-5",
        "anthropic/claude-opus-5-5",
        "anthropic/claude-haiku-5-5",
        "google/gemini-2.5-pro",
        "google/gemini-3-pro-preview",
        "responses/gpt-5",
        "responses/gpt-4o",
    ],
)
def test_every_setting_is_said_in_the_providers_words(name: str, thinking: Any) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        await collect(model, ask(thinking=thinking, temperature=1.5, max_tokens=100))
        body = server.asked[0].body
        config = body.get("generationConfig", {}).get("thinkingConfig")
        assert body.get("max_tokens", body.get("max_output_tokens", 100)) >= 100
        if thinking and name != "responses/gpt-4o":
            assert body.get("thinking") or body.get("reasoning") or config

    play(name.partition("/")[0], scene, Said("ok"), model=name)


# From one provider to the next


def test_a_task_walks_from_provider_to_provider_with_nothing_refused() -> None:
    way = ["responses", "anthropic", "google", "chat"] * 3
    ids = {
        "responses": "call_A|b c",
        "anthropic": "toolu_01",
        "google": "",
        "chat": "functions.get_weather:0",
    }

    async def run() -> None:
        async with serving() as server, reaching(server.url) as catalog:
            transcript = Transcript([user("Plan the week.")])
            for step, protocol in enumerate(way):
                calls = [
                    Call("get_weather", '{"a": "é"}', ids[protocol]),
                    Call("get_time", "{}", ids[protocol]),
                ]
                signature = base64.b64encode(f"{protocol} {step}".encode()).decode()
                server.answers.append(Said(f"Step {step}.", f"Thought {step}.", signature, calls))
                model = catalog.resolve(MODELS[protocol])
                request = ask(*transcript.sendable(), context=f"step {step}", thinking="low")
                _, reply = await collect(model, request)
                transcript.append(assistant(*reply.parts))
                first, second = [part for part in reply.parts if isinstance(part, ToolCall)]
                transcript.append(result(first.id, "sunny", first.name))
                if step % 3 == 1:
                    # Steered: a message waits, the second call gets its result from the repair.
                    transcript.append(user("Hurry up."))
                else:
                    transcript.append(result(second.id, "noon", second.name))
            assert server.refused == []
            assert [asked.protocol for asked in server.asked] == way
            for protocol in NEW:
                last = next(asked for asked in reversed(server.asked) if asked.protocol == protocol)
                assert _thoughts_sent(protocol, last.body) == 2, "each model gets its own thoughts back"

    asyncio.run(asyncio.wait_for(run(), 60))


def _thoughts_sent(protocol: str, body: dict[str, Any]) -> int:
    text = json.dumps(body)
    if protocol == "google":
        dummy = base64.b64encode(b"skip_thought_signature_validator").decode()
        return text.count('"thoughtSignature"') - text.count(f'"thoughtSignature": "{dummy}"')
    return text.count('"encrypted_content"' if protocol == "responses" else '"signature"')


def test_thinking_goes_to_no_other_model_of_the_same_provider() -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        thought = ThinkingPart("hm", SIGNATURE, "anthropic/claude-y")
        await collect(
            model, ask(user("hi"), assistant(thought, TextPart("Yes.")), user("so?"), thinking=True)
        )
        assert "hm" not in json.dumps(server.asked[0].body["messages"])

    play("anthropic", scene, Said("ok"))


# What goes wrong


@pytest.mark.parametrize("protocol", NEW)
@pytest.mark.parametrize(
    ("status", "kind", "can_retry"),
    [
        (401, "auth", False),
        (403, "auth", False),
        (404, "unknown_model", False),
        (400, "rejected", False),
        (413, "rejected", False),
        (429, "rate_limit", True),
        (500, "overloaded", True),
        (503, "overloaded", True),
        (529, "overloaded", True),
    ],
)
def test_every_refusal_has_its_kind(protocol: str, status: int, kind: str, can_retry: bool) -> None:
    body = {"error": {"message": f"no, {KEY}", "type": "x", "code": status}, "type": "error"}
    error = failure_of(protocol, failure(status, body, "Retry-After: 7"))
    assert (error.kind, error.can_retry) == (kind, can_retry)
    assert f"HTTP {status}" in error.message
    if kind in ("rate_limit", "overloaded"):
        assert error.retry_after == 7


def test_a_wrong_google_key_is_a_matter_of_the_key() -> None:
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    body = {
        "error": {
            "code": 400,
            "message": "API key not valid. Please pass a valid API key.",
            "status": "INVALID_ARGUMENT",
            "details": [reason],
        }
    }
    error = failure_of("google", failure(400, body))
    assert (error.kind, error.can_retry) == ("auth", False)
    assert "TEST_KEY" in error.message


def test_googles_hint_stands_in_the_body() -> None:
    hint = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "13.5s"}
    body = {"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED", "details": [hint]}}
    error = failure_of("google", failure(429, body))
    assert (error.kind, error.can_retry, error.retry_after) == ("rate_limit", True, 13.5)


def test_an_empty_purse_is_not_tried_again() -> None:
    body = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "Your credit balance is too low"},
    }
    error = failure_of("anthropic", failure(400, body))
    assert (error.kind, error.can_retry) == ("rate_limit", False)


SAID = Said("Well, ", "Hm.", SIGNATURE)
OVERLOADED = {
    "anthropic": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
    "responses": b'event: error\ndata: {"type":"error","code":"server_error","message":"Overloaded","param":null,'
    b'"sequence_number":9}\n\n',
    "google": b'data: {"error":{"code":503,"message":"Overloaded","status":"UNAVAILABLE"}}\n\n',
}


@pytest.mark.parametrize("protocol", NEW)
def test_a_provider_may_change_its_mind_in_mid_stream(protocol: str) -> None:
    error = failure_of(protocol, stream(beginning(protocol, SAID) + OVERLOADED[protocol]))
    assert (error.kind, error.can_retry) == ("overloaded", True)
    assert "Overloaded" in error.message


@pytest.mark.parametrize("protocol", NEW)
@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'event: message_delta\ndata: {"type": "mess\n\n', id="half an event"),
        pytest.param(b"data: <html>\n\n", id="a web page"),
    ],
)
@pytest.mark.parametrize("wrap", [stream, broken_stream], ids=["ended", "broken off"])
def test_half_a_reply_is_no_reply(protocol: str, ending: bytes, wrap: Callable[[bytes], Answer]) -> None:
    error = failure_of(protocol, wrap(beginning(protocol, SAID) + ending))
    assert (error.kind, error.can_retry) == ("garbage", True)


@pytest.mark.parametrize("protocol", NEW)
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(stream(b""), id="empty"),
        pytest.param(stream(b"hello\n\n"), id="no events"),
        pytest.param(failure(200, b"<html>hello</html>"), id="a web page"),
        pytest.param(failure(200, {"hello": "world"}), id="other JSON"),
    ],
)
def test_what_is_not_the_protocol_is_garbage(protocol: str, answer: Answer) -> None:
    error = failure_of(protocol, answer)
    assert (error.kind, error.can_retry) == ("garbage", True)


@pytest.mark.parametrize("protocol", NEW)
def test_a_connection_that_ends_at_once_is_the_networks_fault(protocol: str) -> None:
    error = failure_of(protocol, raw(close=True))
    assert (error.kind, error.can_retry) == ("network", True)


@pytest.mark.parametrize("protocol", NEW)
def test_a_provider_that_is_not_there_is_the_networks_fault(protocol: str) -> None:
    async def run() -> None:
        async with serving() as server:
            url = server.url
        async with reaching(url) as catalog:
            with pytest.raises(ModelError) as caught:
                await collect(catalog.resolve(MODELS[protocol]), ask())
            assert (caught.value.kind, caught.value.can_retry) == ("network", True)
            assert f"cannot be reached at {url}" in caught.value.message

    asyncio.run(run())


@pytest.mark.parametrize("protocol", NEW)
@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_leaving_in_mid_stream_closes_the_connection(protocol: str, how: str) -> None:
    async def scene(server: ProviderServer, model: Model) -> None:
        begun = asyncio.Event()

        async def listen() -> None:
            async with aclosing(model.stream(ask())) as events:
                async for _ in events:
                    begun.set()
                    if how == "closed":
                        return

        task = asyncio.create_task(listen())
        await begun.wait()
        if how == "cancelled":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        await server.gone.wait()

    play(protocol, scene, raw(OPEN_HEAD + beginning(protocol, SAID)))


@pytest.mark.parametrize("protocol", NEW)
def test_a_provider_that_hangs_runs_into_the_idle_timeout(protocol: str) -> None:
    from coterie.models.connections import open_connections
    from coterie.models.pydantic_model import Address

    async def hang(writer: asyncio.StreamWriter) -> None:
        writer.write(OPEN_HEAD + beginning(protocol, SAID))
        await writer.drain()
        await asyncio.Event().wait()

    async def run() -> None:
        async with serving(hang) as server, open_connections() as connections:
            suffix = "/v1" if protocol == "responses" else ""
            make = _maker(protocol)
            model = make(MODELS[protocol], Address(server.url + suffix, KEY), connections, idle_timeout=0.3)
            with pytest.raises(ModelError) as caught:
                await collect(model, ask())
            assert (caught.value.kind, caught.value.can_retry) == ("timeout", True)

    asyncio.run(run())


def _maker(protocol: str) -> Callable[..., Model]:
    from coterie.models.anthropic import AnthropicMessages
    from coterie.models.google import GoogleGemini
    from coterie.models.openai_responses import OpenAIResponses

    makers: dict[str, Callable[..., Model]] = {
        "anthropic": AnthropicMessages,
        "google": GoogleGemini,
        "responses": OpenAIResponses,
    }
    return makers[protocol]


# Any transcript

words = st.text(max_size=12) | st.sampled_from(["", " ", "\n", "hello", "\ud83d", "é☃", "[System] x"])
arguments = st.sampled_from(["{}", '{"a": 1}', '{"a": ', "", "[]", "null", '{"a":"\\ud800"}']) | words
owners = st.sampled_from([*MODELS.values(), "anthropic/other", None])
thinking_parts = st.builds(
    ThinkingPart,
    words,
    st.sampled_from([None, "", SIGNATURE, f"rs_1:{SIGNATURE}", "rs_2:", "x:y", "é"]),
    owners,
)
call_ids = st.sampled_from(["", "call_1", "toolu_1", "a|b", "functions.f:0", "x" * 70, "é"]) | words
calls = st.builds(
    ToolCall, call_ids, st.sampled_from(["get_time", "no tool!", "", "9", "a.b"]) | words, arguments
)
replies = st.lists(st.builds(TextPart, words) | thinking_parts | calls, max_size=5)
pictures = st.lists(st.just(ImagePart("image/png", b"\x89PNG")), max_size=1)


@st.composite
def transcripts(draw: st.DrawFn) -> list[Message]:
    """What a store may hold, in any order; the transcript makes it whole."""
    stored: list[Message] = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["user", "assistant", "assistant", "system"]))
        if kind == "assistant":
            reply = assistant(*draw(replies))
            stored.append(reply)
            answered = (
                draw(st.lists(st.sampled_from(reply.tool_calls), unique=True)) if reply.tool_calls else []
            )
            stored += [result(call.id, draw(words), call.name) for call in answered]
        elif kind == "user":
            stored.append(user(draw(words), *draw(pictures)))
        else:
            stored.append(Message("s", "system", "system", draw(words)))
    return Transcript(stored).sendable()


class Everywhere:
    """One server and its models for all examples."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __enter__(self) -> Everywhere:
        self.loop.run_until_complete(self._open())
        return self

    def __exit__(self, *error: object) -> None:
        self.loop.run_until_complete(self._close())
        self.loop.close()

    async def _open(self) -> None:
        self._serving = serving(Said("ok"))
        self.server = await self._serving.__aenter__()
        for name in MODELS.values():
            self.server.issued[name] = {SIGNATURE, f"rs_1:{SIGNATURE}", "x:y", "rs_2:", "é"}
        self._reaching = reaching(self.server.url)
        self.catalog = await self._reaching.__aenter__()

    async def _close(self) -> None:
        await self._reaching.__aexit__(None, None, None)
        await self._serving.__aexit__(None, None, None)

    def send(self, protocol: str, request: ModelRequest) -> Sequence[str]:
        self.server.refused.clear()
        model = self.catalog.resolve(MODELS[protocol])
        try:
            self.loop.run_until_complete(collect(model, request))
        except ModelError as error:
            return [*self.server.refused, error.message]
        return self.server.refused


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Everywhere]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEY", KEY)
        with Everywhere() as one:
            yield one


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=transcripts(),
    context=st.none() | words,
    system=words,
    thinking=st.sampled_from([None, False, True, "high"]),
)
def test_any_transcript_makes_a_legal_request(
    everywhere: Everywhere,
    protocol: str,
    messages: list[Message],
    context: str | None,
    system: str,
    thinking: Any,
) -> None:
    request = ModelRequest(system, TOOLS, messages, context=context, thinking=thinking, max_tokens=100)
    assert everywhere.send(protocol, request) == []


# The catalog


def test_the_catalog_says_what_there_is_and_never_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    catalog = ModelCatalog(
        {
            "mine": ProviderSettings("anthropic", "https://me:secret@example.test/x", "TEST_KEY"),
            "odd": ProviderSettings("no-such-type"),
        }
    )
    states = {state.name: state for state in catalog.describe()}
    assert KEY not in repr(states) and "secret" not in repr(states)
    assert states["google"].has_key and not states["anthropic"].has_key
    assert states["mine"].has_key and states["mine"].base_url == "https://example.test/x"
    assert states["ollama"].has_key and states["ollama"].key_names == ()
    assert "anthropic/claude-sonnet-5" in states["anthropic"].models
    assert "mine/claude-sonnet-5" in states["mine"].models
    assert all(len(state.models) < 60 for state in states.values())
    with pytest.raises(ModelError) as caught:
        catalog.resolve("anthropic/claude-sonnet-5")
    assert caught.value.kind == "auth"
    assert "ANTHROPIC_API_KEY" in caught.value.message
    monkeypatch.delenv("GEMINI_API_KEY")
    with pytest.raises(ModelError, match="GOOGLE_API_KEY or GEMINI_API_KEY"):
        catalog.resolve("google/gemini-2.5-pro")


def run_script(script: str, *path: str) -> str:
    async def scene() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-W",
            "error",
            "-c",
            f"import sys; sys.path[:0] = {list(path)!r}\n{script}",
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()

    return asyncio.run(scene())


def test_a_key_may_stand_in_the_keyring(tmp_path: Any) -> None:
    (tmp_path / "keyring.py").write_text(
        "print('asked')\n"
        "def get_password(service, name):\n"
        "    if name == 'BROKEN': raise RuntimeError('locked')\n"
        "    return {('coterie', 'ANTHROPIC_API_KEY'): 'from the ring'}.get((service, name))\n"
    )
    script = """
import os
from coterie.models.keys import find_key
os.environ["OPENAI_API_KEY"] = "from outside"
print(find_key(["OPENAI_API_KEY"]))
print(find_key(["ANTHROPIC_API_KEY"]), find_key(["BROKEN"]), find_key(["NONE"]))
"""
    assert run_script(script, str(tmp_path)).splitlines() == [
        "('from outside', 'OPENAI_API_KEY')",
        "asked",
        "('from the ring', 'ANTHROPIC_API_KEY') None None",
    ]


@pytest.mark.parametrize(
    ("name", "loads", "others"),
    [
        ("anthropic/claude-sonnet-5", "anthropic", ("openai", "google.genai")),
        ("google/gemini-2.5-pro", "google.genai", ("openai", "anthropic")),
        ("openai-responses/gpt-5", "openai", ("anthropic", "google.genai")),
    ],
)
def test_a_provider_loads_when_it_is_first_used_and_no_other_with_it(
    name: str, loads: str, others: tuple[str, ...]
) -> None:
    script = f"""
import os
os.environ.update(OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k", GOOGLE_API_KEY="k")
from coterie.models.catalog import ModelCatalog
catalog = ModelCatalog({{}})
assert "pydantic_ai" not in sys.modules
assert catalog.resolve({name!r}).name == {name!r}
print({loads!r} in sys.modules, [name for name in {others!r} if name in sys.modules])
"""
    assert run_script(script).strip() == "True []"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_can_be_checked(protocol: str) -> None:
    async def run() -> None:
        refusal = failure(401, {"error": {"message": "no", "type": "authentication_error", "code": 401}})
        async with serving(Said("OK"), refusal) as server, reaching(server.url) as catalog:

            async def resolve(name: str) -> Model:
                return catalog.resolve(name)

            good = await check(resolve, MODELS[protocol])
            assert (good.ok, good.error) == (True, None)
            assert good.latency_ms is not None
            bad = await check(resolve, MODELS[protocol])
            assert not bad.ok
            assert bad.error is not None and bad.error.kind == "auth"
            nowhere = await check(resolve, "nowhere/m")
            assert nowhere.error is not None and nowhere.error.kind == "unknown_model"
            assert server.refused == []

    asyncio.run(run())


# Against aimock

aimock_words = pytest.mark.filterwarnings("ignore:FUNCTION_CALL is not a valid FinishReason")


@aimock_words
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_aimock_streams_thinks_and_calls_tools(protocol: str, aimock: str) -> None:
    async def run() -> None:
        async with reaching(aimock) as catalog:
            model = catalog.resolve(MODELS[protocol])
            deltas, reply = await collect(model, ask(user("say hello"), context=None))
            assert len([delta for delta in deltas if isinstance(delta, TextDelta)]) > 1
            assert reply.parts[-1] == TextPart("Hello there, how are you today, my friend?")

            deltas, reply = await collect(model, ask(user("please think"), thinking="low"))
            assert any(isinstance(delta, ThinkingDelta) for delta in deltas)
            assert reply.parts[-1] == TextPart("I have thought.")

            question = user("what is the weather?")
            _, reply = await collect(model, ask(question, thinking="low"))
            made = [part for part in reply.parts if isinstance(part, ToolCall)]
            assert [(call.name, json.loads(call.arguments)) for call in made] == [
                ("get_weather", {"a": "Oslo"}),
                ("get_time", {}),
            ]
            assert reply.finish == "tool_calls"
            results = [result(call.id, "sunny", call.name) for call in made]
            _, reply = await collect(model, ask(question, assistant(*reply.parts), *results, thinking="low"))
            assert reply.parts[-1] == TextPart("It is sunny in Oslo.")

            with pytest.raises(ModelError) as caught:
                await collect(model, ask(user("too fast")))
            assert (caught.value.kind, caught.value.can_retry) == ("rate_limit", True)

    asyncio.run(asyncio.wait_for(run(), 120))


@aimock_words
def test_aimock_refuses_nothing_on_the_way_from_provider_to_provider(aimock: str) -> None:
    async def run() -> None:
        async with reaching(aimock) as catalog:
            transcript = Transcript([user("what is the weather?")])
            for protocol in ("chat", "anthropic", "google", "responses", "chat"):
                model = catalog.resolve(MODELS[protocol])
                _, reply = await collect(model, ask(*transcript.sendable(), thinking="low"))
                transcript.append(assistant(*reply.parts))
                for call in (part for part in reply.parts if isinstance(part, ToolCall)):
                    transcript.append(result(call.id, "sunny", call.name))
                if reply.finish == "stop":
                    transcript.append(user("what is the weather?"))

    asyncio.run(asyncio.wait_for(run(), 120))
