"""Models over the OpenAI chat protocol, against a server that answers with raw bytes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic_ai.models import known_model_names

from coterie.core.message import Message, Part, TextPart, ThinkingPart, ToolCall, Usage
from coterie.core.ports import (
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    TextDelta,
    ThinkingDelta,
    ToolSchema,
)
from coterie.models.catalog import ModelCatalog, ProviderSettings
from coterie.models.openai_chat import Endpoint, OpenAIChat, open_connections
from coterie.models.openai_profile import LISTED

KEY = "sk-very-secret-0123456789"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@dataclass
class Server:
    """Reads requests strictly and gives the scripted answers in order."""

    answers: list[Answer]
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has closed its connection."""
    url: str = ""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.gone.set()
            writer.close()
            self.tasks.discard(task)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        request_line, *lines = head.decode().strip().split("\r\n")
        assert request_line == "POST /v1/chat/completions HTTP/1.1"
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.headers.append(headers)
        self.bodies.append(body)
        await self.answers[len(self.bodies) - 1](writer)
        await writer.drain()
        return not writer.is_closing()

    def body(self, number: int) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.bodies[number])
        return parsed


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[Server]:
    server = Server(list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        for task in list(server.tasks):
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)


@asynccontextmanager
async def talking(
    *answers: Answer, service: str = "openai-compatible", idle_timeout: float = 30, model: str = "local/m"
) -> AsyncIterator[tuple[Server, OpenAIChat]]:
    async with serving(*answers) as server, open_connections() as connections:
        endpoint = Endpoint(
            server.url,
            connections,
            api_key=KEY,
            api_key_env="LOCAL_KEY",
            service=service,
            idle_timeout=idle_timeout,
        )
        yield server, OpenAIChat(model, endpoint)


def raw(*pieces: bytes, close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if close:
            writer.close()

    return answer


def response(status: int, body: bytes, *headers: str, kind: str = "application/json") -> Answer:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def events(*chunks: object, done: bool = True) -> bytes:
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return b"".join(f"data: {line}\n\n".encode() for line in [*lines, *(["[DONE]"] if done else [])])


def sse(*chunks: object) -> Answer:
    return response(200, events(*chunks), kind="text/event-stream")


def chunk(finish: str | None = None, **delta: object) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def usage(**counts: object) -> dict[str, Any]:
    return {**chunk(), "choices": [], "usage": counts}


def piece(index: int, arguments: str, *, id: str | None = None, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return (
        {"index": index, "function": function}
        if id is None
        else {"index": index, "id": id, "function": function}
    )


def user(text: str) -> Message:
    return Message(id="u", role="user", origin="user", text=text)


def assistant(*parts: Part) -> Message:
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    return Message(id="a", role="assistant", origin="user", text=text, parts=parts)


def result(call_id: str, text: str) -> Message:
    return Message(id="t", role="tool", origin="user", text=text, call_id=call_id, tool_name="t")


def ask(*messages: Message, **options: Any) -> ModelRequest:
    return ModelRequest("Be kind.", (), messages or (user("hello"),), **options)


async def collect(model: Model, request: ModelRequest) -> tuple[list[ModelEvent], Reply]:
    seen = [event async for event in model.stream(request)]
    *deltas, reply = seen
    assert isinstance(reply, Reply)
    assert not any(isinstance(event, Reply) for event in deltas)
    return deltas, reply


def reply_to(*answers: Answer, request: ModelRequest | None = None, **options: Any) -> Reply:
    async def scene() -> Reply:
        async with talking(*answers, **options) as (_, model):
            return (await collect(model, request or ask()))[1]

    return asyncio.run(scene())


def failure_of(*answers: Answer, **options: Any) -> ModelError:
    async def scene() -> ModelError:
        async with talking(*answers, **options) as (server, model):
            with pytest.raises(ModelError) as caught:
                await collect(model, ask())
            assert len(server.bodies) == 1, "the engine owns retries"
            return caught.value

    return asyncio.run(scene())


# What arrives


def test_text_arrives_in_pieces_and_then_whole() -> None:
    async def scene() -> None:
        counts = usage(
            prompt_tokens=40,
            completion_tokens=3,
            total_tokens=43,
            prompt_tokens_details={"cached_tokens": 32},
        )
        answer = sse(
            chunk(role="assistant", content=""),
            chunk(content="Hel"),
            chunk(content="lo ☃"),
            chunk("stop"),
            counts,
        )
        async with talking(answer) as (server, model):
            deltas, reply = await collect(model, ask())
            assert deltas == [TextDelta("Hel"), TextDelta("lo ☃")]
            assert reply == Reply((TextPart("Hello ☃"),), Usage(40, 3, 32, None), "stop")
            assert server.headers[0]["authorization"] == f"Bearer {KEY}"

    asyncio.run(scene())


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_is_streamed_and_kept_with_the_model_that_thought_it(name: str) -> None:
    async def scene() -> None:
        answer = sse(chunk(**{name: "well"}), chunk(**{name: ", yes"}), chunk(content="Yes."), chunk("stop"))
        async with talking(answer) as (_, model):
            deltas, reply = await collect(model, ask())
            assert deltas == [ThinkingDelta("well"), ThinkingDelta(", yes"), TextDelta("Yes.")]
            assert reply.parts == (ThinkingPart("well, yes", None, "local/m"), TextPart("Yes."))

    asyncio.run(scene())


def test_an_empty_reply_is_a_reply() -> None:
    assert reply_to(sse(chunk(role="assistant", content=""), chunk("stop"))).parts == ()


def test_a_reply_cut_by_its_length_says_so() -> None:
    assert reply_to(sse(chunk(content="and then"), chunk("length"))).finish == "length"


def test_a_refusal_is_shown_as_text() -> None:
    async def scene() -> None:
        async with talking(sse(chunk(refusal="I will "), chunk(refusal="not."), chunk("stop"))) as (_, model):
            deltas, reply = await collect(model, ask())
            assert deltas == [TextDelta("I will not.")]
            assert (reply.parts, reply.finish) == ((TextPart("I will not."),), "refused")

    asyncio.run(scene())


def test_halves_of_a_character_in_two_chunks_become_one_character() -> None:
    reply = reply_to(sse(chunk(content="a\ud83d"), chunk(content="\ude00b"), chunk("stop")))
    assert reply.parts == (TextPart("a😀b"),)


def streamed(*pieces: bytes) -> Answer:
    """A stream in exactly these packets, ended by the server."""
    return raw(HEAD + b"Connection: close\r\n\r\n", *pieces, close=True)


def line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


HELLO, END = line(chunk(content="hé☃")), line(chunk("stop"))


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"data: " + HELLO + b"\n\ndata: " + END + b"\n\n"], id="without [DONE]"),
        pytest.param([b"data:" + HELLO + b"\n\ndata:" + END + b"\n\ndata:[DONE]\n\n"], id="no space"),
        pytest.param(
            [b"data: " + HELLO + b"\r\n\r\ndata: " + END + b"\r\n\r\ndata: [DONE]\r\n\r\n"], id="CRLF"
        ),
        pytest.param([b"data: " + HELLO + b"\r\rdata: " + END + b"\r\rdata: [DONE]\r\r"], id="CR"),
        pytest.param(
            [b"data: " + HELLO + b"\r", b"\n\r", b"\ndata: " + END + b"\r\n\r", b"\n"], id="CRLF torn apart"
        ),
        pytest.param(
            [b": keep-alive\n\n:\n\ndata: " + HELLO + b"\n\n: PROCESSING\n\ndata: " + END + b"\n\n"],
            id="comments",
        ),
        pytest.param(
            [b"event: message\nid: 7\nretry: 10\ndata: " + HELLO + b"\n\nid: 8\n\ndata: " + END + b"\n\n"],
            id="other fields, and an event without data",
        ),
        pytest.param(
            [b"data: " + HELLO.replace(b", ", b",\ndata: ") + b"\n\ndata: " + END + b"\n\n"],
            id="several lines of data",
        ),
        pytest.param(
            [bytes([byte]) for byte in b"data: " + HELLO + b"\n\ndata: " + END + b"\n\n"],
            id="byte by byte, within characters too",
        ),
        pytest.param(
            [
                b"data: " + HELLO + b"\n\n",
                b"data: " + line(usage(prompt_tokens=1)) + b"\n\n",
                b"data: " + line({"id": "c", "choices": None}) + b"\n\ndata: {}\n\n",
                b"data: " + line({"choices": [{"delta": None, "finish_reason": "stop"}]}) + b"\n\n",
            ],
            id="chunks that say nothing",
        ),
        pytest.param(
            [b"data: " + HELLO + b"\n\ndata: " + END + b"\n\ndata: [DONE]\n\ndata: {broken\n\n"],
            id="something behind the end",
        ),
    ],
)
def test_events_are_read_however_they_are_cut(pieces: list[bytes]) -> None:
    assert reply_to(streamed(*pieces)).parts == (TextPart("hé☃"),)


@pytest.mark.parametrize("kind", ["application/json", "text/plain; charset=latin-1", "text/event-stream"])
def test_events_are_read_whatever_they_are_called(kind: str) -> None:
    reply = reply_to(response(200, b"data: " + HELLO + b"\n\ndata: " + END + b"\n\n", kind=kind))
    assert reply.parts == (TextPart("hé☃"),)


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"\r\ndata: ")
        while not writer.is_closing():
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    error = failure_of(flood)
    assert (error.kind, error.can_retry) == ("garbage", True)


def test_a_server_that_holds_the_line_after_the_end_holds_nobody_up() -> None:
    held = hanging(HEAD + b"\r\n" + events(chunk(content="hi"), chunk("stop")))
    assert reply_to(held, idle_timeout=30).parts == (TextPart("hi"),)


@pytest.mark.parametrize(
    ("deltas", "parts"),
    [
        (
            [{"content": "a"}, {"reasoning": "hm"}, {"content": "b"}],
            (TextPart("a"), ThinkingPart("hm", None, "local/m"), TextPart("b")),
        ),
        (
            [{"content": "<think>"}, {"content": "hm"}, {"content": "</think>"}, {"content": "a"}],
            (ThinkingPart("hm", None, "local/m"), TextPart("a")),
        ),
        (
            [{"content": "a"}, {"tool_calls": [piece(0, "{}", id="x", name="t")]}, {"content": "b"}],
            (TextPart("a"), ToolCall("x", "t", "{}"), TextPart("b")),
        ),
        (
            [{"content": [{"type": "text", "text": "a"}, {"type": "reference", "text": "no"}]}],
            (TextPart("a"),),
        ),
        (
            [{"tool_calls": [{"id": "x", "function": {"name": "t", "arguments": {"a": "é"}}}]}],
            (ToolCall("x", "t", '{"a":"é"}'),),
        ),
        ([{"content": "a", "tool_calls": [piece(0, "{}")]}], (TextPart("a"),)),
        ([{"content": 3, "reasoning": ["x"], "tool_calls": None}], ()),
    ],
)
def test_parts_keep_their_order(deltas: list[dict[str, Any]], parts: tuple[Part, ...]) -> None:
    assert reply_to(sse(*(chunk(**delta) for delta in deltas), chunk("stop"))).parts == parts


@pytest.mark.parametrize(("model", "parts"), [("local/qwen/qwen3", ()), ("local/m", (TextPart("\n\n"),))])
def test_an_empty_line_before_a_call_is_no_text_where_models_are_known_for_it(
    model: str, parts: tuple[Part, ...]
) -> None:
    called = chunk(tool_calls=[piece(0, "{}", id="x", name="t")])
    reply = reply_to(sse(chunk(content="\n\n"), called, chunk("stop")), model=model)
    assert reply.parts == (*parts, ToolCall("x", "t", "{}"))


@pytest.mark.parametrize("counts", [{}, {"prompt_tokens": None}, {"prompt_tokens": "many", "x": []}])
def test_usage_that_is_none_counts_nothing(counts: dict[str, Any]) -> None:
    assert reply_to(sse(chunk("stop"), usage(**counts))).usage == Usage()


def test_usage_that_grows_with_every_chunk_is_counted_once() -> None:
    pieces = [{**chunk(content="a"), "usage": {"prompt_tokens": 5, "completion_tokens": n}} for n in (1, 2)]
    assert reply_to(sse(*pieces, chunk("stop"))).usage == Usage(5, 2)


# Tool calls


def test_arguments_keep_the_models_own_string_both_ways() -> None:
    arguments = '{ "path" :"a\\u00e9é.txt",\n\t"limit":  1.0e1 }'

    async def scene() -> None:
        pieces = [arguments[:5], arguments[5:17], arguments[17:]]
        first = sse(
            chunk(tool_calls=[piece(0, pieces[0], id="call_x", name="files_read")]),
            *(chunk(tool_calls=[piece(0, text)]) for text in pieces[1:]),
            chunk("tool_calls"),
        )
        async with talking(first, sse(chunk(content="ok"), chunk("stop"))) as (server, model):
            _, reply = await collect(model, ask())
            assert reply == Reply((ToolCall("call_x", "files_read", arguments),), Usage(), "tool_calls")
            await collect(model, ask(user("hello"), assistant(*reply.parts), result("call_x", "text")))
            assert json.dumps(arguments, ensure_ascii=False).encode() in server.bodies[1]
            assert server.body(1)["messages"][2:] == [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_x",
                            "type": "function",
                            "function": {"name": "files_read", "arguments": arguments},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_x", "content": "text"},
            ]

    asyncio.run(scene())


def test_broken_arguments_arrive_as_they_are() -> None:
    reply = reply_to(sse(chunk(tool_calls=[piece(0, '{"a": ', id="c1", name="t")]), chunk("tool_calls")))
    assert reply.parts == (ToolCall("c1", "t", '{"a": '),)


def calls_of(reply: Reply) -> list[tuple[str, str]]:
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    assert len(calls) == len(reply.parts)
    assert len({call.id for call in calls}) == len(calls), "ids are unique"
    assert all(call.id for call in calls)
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([[piece(0, "{}", id="x", name="a"), piece(1, "[]", id="y", name="b")]], id="at once"),
        pytest.param([[piece(0, "{}", id="x", name="a"), piece(1, "[]", id="x", name="b")]], id="same ids"),
        pytest.param([[piece(0, "{}", id="", name="a"), piece(1, "[]", id="", name="b")]], id="empty ids"),
        pytest.param([[piece(0, "{}", name="a"), piece(1, "[]", name="b")]], id="no ids"),
        pytest.param(
            [[piece(0, "{}", id="x", name="a")], [piece(0, "[]", id="y", name="b")]], id="same index"
        ),
        pytest.param(
            [[piece(0, "{}", id="", name="a")], [piece(0, "[]", id="", name="b")]], id="same index, no ids"
        ),
        pytest.param(
            [
                [piece(0, "{", id="x", name="a"), piece(1, "[", id="y", name="b")],
                [piece(1, "]", id="y", name="b"), piece(0, "}", id="x", name="a")],
            ],
            id="ids and names repeated in every piece",
        ),
    ],
)
def test_several_calls_in_one_reply_are_told_apart(deltas: list[list[dict[str, Any]]]) -> None:
    reply = reply_to(sse(*(chunk(tool_calls=delta) for delta in deltas), chunk("stop")))
    assert calls_of(reply) == [("a", "{}"), ("b", "[]")]
    assert reply.finish == "tool_calls"


def test_an_id_that_the_transcript_has_already_is_replaced() -> None:
    earlier = ask(user("go"), assistant(ToolCall("call_0", "a", "{}")), result("call_0", "done"))
    reply = reply_to(
        sse(chunk(tool_calls=[piece(0, "{}", id="call_0", name="a")]), chunk("tool_calls")), request=earlier
    )
    assert calls_of(reply) == [("a", "{}")]
    assert reply.parts[0] != ToolCall("call_0", "a", "{}")


# What is sent


def test_a_request_is_system_then_transcript_then_context() -> None:
    async def scene() -> None:
        thought = assistant(ThinkingPart("hm", "signed", "local/m"), TextPart("Hi."))
        marker = Message(id="s", role="system", origin="system", text="Rose took over", mark="ab12")
        request = ask(user("hello"), thought, marker, context="It is noon.", temperature=0.5, max_tokens=7)
        async with talking(sse(chunk("stop"))) as (server, model):
            await collect(model, request)
            body = server.body(0)
            assert body["messages"] == [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "Hi."},
                {"role": "user", "content": "[System] ⟦ab12⟧ Rose took over"},
                {"role": "user", "content": "It is noon."},
            ]
            assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == (
                "m",
                0.5,
                7,
                True,
            )
            assert "tools" not in body

    asyncio.run(scene())


def test_the_prefix_is_the_same_bytes_from_one_request_to_the_next() -> None:
    parameters = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}
    tools = (ToolSchema("t", "Does it — now", parameters), ToolSchema("u", "Other", {"type": "object"}))
    tools_bytes = (
        b'"tools":'
        + json.dumps(
            [
                {
                    "type": "function",
                    "function": {"name": "t", "description": "Does it — now", "parameters": parameters},
                },
                {
                    "type": "function",
                    "function": {"name": "u", "description": "Other", "parameters": {"type": "object"}},
                },
            ],
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
    )
    odd = ToolCall("call_1", "t", '{"z" : "☃",  "a":1}')
    transcript = [user("Grüße 😀")]
    further = [
        assistant(TextPart("I look."), odd),
        result("call_1", "two\nlines"),
        assistant(TextPart("Done.")),
        user("more"),
    ]

    async def scene() -> None:
        async with talking(*[sse(chunk("stop"))] * (len(further) + 1)) as (server, model):
            for number in range(len(further) + 1):
                await collect(model, ModelRequest("Be kind.", tools, transcript, context=f"Context {number}"))
                transcript.extend(further[number : number + 1])
            for before, after in zip(server.bodies, server.bodies[1:], strict=False):
                trailing = before.index(b'{"role":"user","content":"Context')
                assert after.startswith(before[:trailing])
                assert before[:trailing].count(b'"messages":[{"role":"system","content":"Be kind."},') == 1
            assert all(body.count(tools_bytes) == 1 for body in server.bodies)

    asyncio.run(scene())


def test_a_message_is_converted_once() -> None:
    async def scene() -> None:
        message = user("hello")
        async with talking(sse(chunk("stop")), sse(chunk("stop"))) as (server, model):
            await collect(model, ask(message))
            message.wire["openai"] = b'{"role":"user","content":"as converted before"}'
            await collect(model, ask(message))
            assert server.body(1)["messages"][1] == {"role": "user", "content": "as converted before"}

    asyncio.run(scene())


def test_text_that_has_no_utf8_is_mended_before_it_is_sent() -> None:
    async def scene() -> None:
        async with talking(sse(chunk("stop"))) as (server, model):
            await collect(model, ask(user("a\udcffb"), context="\ud83d\ude00"))
            assert [message["content"] for message in server.body(0)["messages"][1:]] == ["a\ufffdb", "😀"]

    asyncio.run(scene())


def test_requests_share_a_connection() -> None:
    async def scene() -> None:
        async with talking(*[sse(chunk("stop"))] * 3) as (server, model):
            for _ in range(3):
                await collect(model, ask())
            assert (len(server.bodies), server.connections) == (3, 1)

    asyncio.run(scene())


MESSAGES = b'"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hello"}]'
USAGE = b'"stream_options":{"include_usage":true}'


@pytest.mark.parametrize(
    ("service", "model", "options", "begin", "end"),
    [
        ("ollama", "m", {}, b"", USAGE),
        (
            "ollama",
            "m",
            {"temperature": 0.5, "max_tokens": 7},
            b'"max_tokens":7,',
            USAGE + b',"temperature":0.5',
        ),
        # A model that the library has never heard of is told nothing about thinking.
        ("ollama", "m", {"thinking": "high"}, b"", USAGE),
        (
            "openai",
            "gpt-5.2",
            {"temperature": 0.5, "thinking": "high", "max_tokens": 7},
            b'"max_completion_tokens":7,"reasoning_effort":"high",',
            USAGE,
        ),
        (
            "openai",
            "gpt-5.2",
            {"temperature": 0.5, "thinking": False},
            b'"reasoning_effort":"none",',
            USAGE + b',"temperature":0.5',
        ),
        ("openai", "gpt-5", {"temperature": 0.5, "thinking": False}, b'"reasoning_effort":"minimal",', USAGE),
        ("openai", "gpt-4o", {"temperature": 0.0, "thinking": True}, b"", USAGE + b',"temperature":0.0'),
        (
            "openrouter",
            "google/gemini-2.5-flash",
            {"thinking": False, "max_tokens": 7},
            b'"max_tokens":7,"reasoning_effort":"none",',
            USAGE,
        ),
        ("openrouter", "openai/gpt-5", {"thinking": True}, b'"reasoning_effort":"medium",', USAGE),
    ],
)
def test_a_request_is_these_bytes(
    service: str, model: str, options: dict[str, Any], begin: bytes, end: bytes
) -> None:
    """In the order in which the openai SDK used to send them: another order would miss every prompt cache."""

    async def scene() -> None:
        async with talking(sse(chunk("stop")), sse(chunk("stop")), service=service, model=f"x/{model}") as (
            server,
            chat,
        ):
            request = ask(**options)
            await collect(chat, request)
            await collect(chat, request)
            expected = b'{"model":"%s","stream":true,%s,%s%s}' % (model.encode(), MESSAGES, begin, end)
            assert server.bodies == [expected, expected]
            assert await chat.body(request) == expected
            assert len(server.bodies) == 2

    asyncio.run(scene())


def test_a_value_is_never_sent_in_place_of_another() -> None:
    """What the library said of one temperature is not what the next request asks for."""

    async def scene() -> None:
        async with talking(*[sse(chunk("stop"))] * 2, service="openai", model="openai/gpt-4o") as (
            server,
            chat,
        ):
            for temperature, length in ((0.1, 5), (0.9, 6)):
                await collect(chat, ask(temperature=temperature, max_tokens=length))
            sent = [(body["temperature"], body["max_completion_tokens"]) for body in map(server.body, (0, 1))]
            assert sent == [(0.1, 5), (0.9, 6)]

    asyncio.run(scene())


def test_only_models_that_the_library_may_know_are_looked_up_there() -> None:
    for known in known_model_names():
        family, _, model = known.partition(":")
        if family == "openai":
            assert LISTED.match(model), f"{model} would be sent a temperature that it may refuse"
    assert not any(LISTED.match(name) for name in ("llama3.3", "qwen3:8b", "mistral-small", "my-model"))


def test_an_account_is_named_to_openai_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")

    async def scene(service: str) -> tuple[str | None, str | None]:
        async with talking(sse(chunk("stop")), service=service) as (server, model):
            await collect(model, ask())
            sent = server.headers[0]
            return sent.get("openai-organization"), sent.get("openai-project")

    assert asyncio.run(scene("openai")) == ("org-1", "proj-1")
    assert asyncio.run(scene("openrouter")) == (None, None)


# What goes wrong


def error_body(message: str, **fields: object) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "can_retry"),
    [
        (401, error_body("bad key"), "auth", False),
        (403, error_body("not yours"), "auth", False),
        (404, error_body("nothing here"), "unknown_model", False),
        (400, error_body("The model `m` does not exist"), "unknown_model", False),
        (400, error_body("no", code="model_not_found"), "unknown_model", False),
        (400, error_body("messages[3] is wrong"), "rejected", False),
        (422, b'{"detail": "messages[3] is wrong"}', "rejected", False),
        (413, b"<html>too large</html>", "rejected", False),
        (408, b"", "rate_limit", True),
        (409, b"{}", "rate_limit", True),
        (429, error_body("slow down"), "rate_limit", True),
        (429, error_body("no credit", code="insufficient_quota"), "rate_limit", False),
        (500, b"not json", "overloaded", True),
        (502, b"<html>bad gateway</html>", "overloaded", True),
        (503, error_body("busy"), "overloaded", True),
        (529, error_body("overloaded"), "overloaded", True),
    ],
)
def test_a_status_becomes_the_kind_of_failure(status: int, body: bytes, kind: str, can_retry: bool) -> None:
    error = failure_of(response(status, body))
    assert (error.kind, error.can_retry, error.retry_after) == (kind, can_retry, None)
    assert f"HTTP {status}" in error.message
    assert error.message.startswith("local/m ") or error.message.startswith("local/m:")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("Retry-After: 7", 7.0),
        ("Retry-After: 0.5", 0.5),
        ("retry-after-ms: 1500", 1.5),
        ("Retry-After: soon", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_providers_hint_is_passed_on(status: int, header: str, seconds: float | None) -> None:
    assert failure_of(response(status, b"{}", header)).retry_after == seconds


def test_the_hint_may_be_a_date() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    hint = failure_of(response(429, b"{}", f"Retry-After: {format_datetime(at, usegmt=True)}")).retry_after
    assert hint is not None
    assert 0 < hint <= 3600


def test_an_error_quotes_little_and_never_the_key() -> None:
    error = failure_of(response(401, error_body(f"key {KEY} is wrong " + "x" * 5000)))
    assert KEY not in str(error)
    assert KEY not in repr(error.payload())
    assert error.__cause__ is None
    assert "LOCAL_KEY" in error.message
    assert "key *** is wrong" in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(sse("{not json"), id="not JSON"),
        pytest.param(sse('"text"'), id="JSON, but no object"),
        pytest.param(sse({"choices": "abc"}), id="another shape"),
        pytest.param(sse({"choices": [{"delta": 3}]}), id="yet another shape"),
        pytest.param(sse(chunk("stop", tool_calls="abc")), id="calls of another shape"),
        pytest.param(sse(chunk("stop", tool_calls=[{"function": "f"}])), id="a function of another shape"),
        pytest.param(
            sse(chunk("stop", tool_calls=[{"function": {"name": "t", "arguments": 5}}])),
            id="arguments of another shape",
        ),
        pytest.param(sse(chunk("stop", tool_calls=[{"index": [], "function": {}}])), id="an odd index"),
        pytest.param(response(200, b"<html>log in first</html>", kind="text/html"), id="a web page"),
        pytest.param(response(200, b'{"choices": []}'), id="not a stream"),
        pytest.param(sse(), id="nothing but the end"),
        pytest.param(sse(chunk(content="half an ans")), id="no finish reason"),
        pytest.param(
            raw(HEAD + b"Connection: close\r\n\r\n" + events(chunk(content="half"), done=False), close=True),
            id="closed in mid-stream",
        ),
        pytest.param(
            raw(
                HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
                b"999\r\n" + events(chunk(content="half"), done=False),
                close=True,
            ),
            id="closed in mid-chunk",
        ),
        pytest.param(
            raw(
                HEAD
                + b"Connection: close\r\n\r\n"
                + events(chunk(content="half"), done=False)
                + b'data: {"id": "c", "cho',
                close=True,
            ),
            id="closed in mid-event",
        ),
    ],
)
def test_what_is_not_a_whole_reply_is_garbage(answer: Answer) -> None:
    error = failure_of(answer)
    assert (error.kind, error.can_retry) == ("garbage", True)


def test_an_error_inside_a_stream_is_a_failure_and_keeps_its_words() -> None:
    error = failure_of(sse(chunk(content="well"), {"error": {"message": "worker died"}}))
    assert (error.kind, error.can_retry) == ("overloaded", True)
    assert "worker died" in error.message
    limited = failure_of(
        sse(chunk(content="well"), {"error": {"message": "slow", "code": "rate_limit_exceeded"}})
    )
    assert limited.kind == "rate_limit"


@pytest.mark.parametrize(
    ("error", "kind", "can_retry"),
    [
        ("worker died", "overloaded", True),
        ({}, "overloaded", True),
        ({"message": "m", "code": 429}, "rate_limit", True),
        ({"message": "m", "code": "502"}, "overloaded", True),
        ({"message": "m", "type": "insufficient_quota"}, "rate_limit", False),
        ({"message": "m", "code": "context_length_exceeded"}, "rejected", False),
        ({"message": "m", "code": "model_not_found"}, "unknown_model", False),
        ({"message": "m", "code": "invalid_api_key"}, "auth", False),
        ({"message": "m", "type": "server_is_overloaded", "code": None}, "overloaded", True),
        ({"message": "m", "type": {"odd": 1}, "code": ["x"]}, "overloaded", True),
    ],
)
def test_an_error_inside_a_stream_is_told_apart_by_its_code(
    error: object, kind: str, can_retry: bool
) -> None:
    found = failure_of(sse(chunk(content="well"), {"error": error or {"note": "no words"}}))
    assert (found.kind, found.can_retry) == (kind, can_retry)


def test_an_endless_error_is_read_no_further_than_it_is_quoted() -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"all is lost " * 10_000)
            await writer.drain()

    error = failure_of(flood)
    assert (error.kind, error.can_retry) == ("overloaded", True)
    assert "all is lost" in error.message


def test_input_that_is_not_passed_on_is_no_matter_of_the_key() -> None:
    flagged = {"message": "flagged", "code": 403, "metadata": {"reasons": ["violence"]}}
    error = failure_of(response(403, json.dumps({"error": flagged}).encode()))
    assert (error.kind, error.can_retry) == ("rejected", False)


def test_a_connection_closed_before_the_answer_is_the_network() -> None:
    error = failure_of(raw(close=True))
    assert (error.kind, error.can_retry) == ("network", True)
    assert "was lost" in error.message


def test_a_refused_connection_is_the_network() -> None:
    async def scene() -> None:
        async with serving() as server:
            pass
        async with open_connections() as connections:
            model = OpenAIChat("local/m", Endpoint(server.url, connections))
            with pytest.raises(ModelError) as caught:
                await collect(model, ask())
            assert (caught.value.kind, caught.value.can_retry) == ("network", True)
            assert f"cannot be reached at {server.url}" in caught.value.message

    asyncio.run(scene())


def hanging(*pieces: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        await raw(*pieces)(writer)
        await asyncio.Event().wait()

    return answer


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((), id="before the headers"),
        pytest.param((HEAD + b"\r\n",), id="before the first event"),
        pytest.param((HEAD + b"\r\n" + events(chunk(content="well"), done=False),), id="in mid-stream"),
    ],
)
def test_an_endpoint_that_hangs_runs_into_the_idle_timeout(pieces: tuple[bytes, ...]) -> None:
    error = failure_of(hanging(*pieces), idle_timeout=0.2)
    assert (error.kind, error.can_retry) == ("timeout", True)


def test_cancelling_passes_through_and_closes_the_connection() -> None:
    async def scene() -> None:
        begun = asyncio.Event()

        async def listen(model: Model) -> None:
            async for _ in model.stream(ask()):
                begun.set()

        async def reads_on(writer: asyncio.StreamWriter) -> None:
            await raw(HEAD + b"\r\n" + events(chunk(content="well"), done=False))(writer)

        async with talking(reads_on) as (server, model):
            task = asyncio.create_task(listen(model))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.gone.wait()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_closing_the_iterator_closes_the_connection() -> None:
    async def scene() -> None:
        async with talking(raw(HEAD + b"\r\n" + events(chunk(content="well"), done=False))) as (
            server,
            model,
        ):
            stream = model.stream(ask())
            assert await anext(stream) == TextDelta("well")
            closing: Coroutine[Any, Any, None] = stream.aclose()
            await closing
            await server.gone.wait()

    asyncio.run(asyncio.wait_for(scene(), 60))


# Prices and the catalog


def test_openai_itself_has_prices_and_max_completion_tokens() -> None:
    async def scene() -> None:
        named = [{**chunk(content="hi"), "model": "gpt-4o"}, {**chunk("stop"), "model": "gpt-4o"}]
        counts = {**usage(prompt_tokens=1000, completion_tokens=100, total_tokens=1100), "model": "gpt-4o"}
        async with talking(sse(*named, counts), service="openai", model="openai/gpt-4o") as (server, model):
            _, reply = await collect(model, ask(max_tokens=7))
            assert reply.usage.cost is not None
            assert 0 < reply.usage.cost < 1
            assert server.body(0)["max_completion_tokens"] == 7

    asyncio.run(scene())


def test_a_configured_provider_is_reached_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-somebody-else")

    async def scene() -> None:
        hello = sse(chunk(content="hi"), chunk("stop"))
        async with serving(hello, hello) as server:
            catalog = ModelCatalog(
                {
                    "local": ProviderSettings("openai-compatible", server.url, "LOCAL_KEY"),
                    "open": ProviderSettings("openai-compatible", server.url),
                }
            )
            model = catalog.resolve("local/family/m")
            assert model is catalog.resolve("local/family/m")
            assert model.name == "local/family/m"
            await collect(model, ask())
            await collect(catalog.resolve("open/m"), ask())
            await catalog.aclose()
            assert server.body(0)["model"] == "family/m"
            assert server.headers[0]["authorization"] == f"Bearer {KEY}"
            assert "somebody" not in repr(server.headers)

    asyncio.run(scene())


def refusal(providers: dict[str, ProviderSettings], name: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ModelCatalog(providers).resolve(name)
    assert not caught.value.can_retry
    return caught.value


def test_the_catalog_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENROUTER_API_KEY", " ")
    no_key = refusal({}, "openai/gpt-5.2")
    assert (no_key.kind, "OPENAI_API_KEY" in no_key.message) == ("auth", True)
    assert "OPENROUTER_API_KEY" in refusal({}, "openrouter/a/b").message
    unknown = refusal({"local": ProviderSettings("offline")}, "nowhere/m")
    assert unknown.kind == "unknown_model"
    assert (
        "anthropic, google, local, offline, ollama, openai, openai-responses, openrouter" in unknown.message
    )
    assert "base_url" in refusal({"local": ProviderSettings("openai-compatible")}, "local/m").message
    assert "'telepathy'" in refusal({"g": ProviderSettings("telepathy")}, "g/m").message
    for name in ("demo", "offline/", "/demo"):
        assert refusal({}, name).kind == "unknown_model"


def test_the_catalog_loads_a_provider_only_when_it_is_used() -> None:
    script = """
import os, sys
from coterie.models.catalog import ModelCatalog
os.environ.update(OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k")
catalog = ModelCatalog({})
assert catalog.resolve("offline/demo").name == "offline/demo"
assert not {"openai", "pydantic_ai", "httpx2"} & set(sys.modules)
assert catalog.resolve("ollama/llama").name == "ollama/llama"
assert "httpx2" in sys.modules and "genai_prices" not in sys.modules
assert catalog.resolve("openai/gpt-5.2").name == "openai/gpt-5.2"
assert not {"openai", "pydantic_ai"} & set(sys.modules)
assert catalog.resolve("anthropic/claude-sonnet-5").name == "anthropic/claude-sonnet-5"
assert "pydantic_ai" in sys.modules
"""

    async def scene() -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        return await process.wait()

    assert asyncio.run(scene()) == 0
