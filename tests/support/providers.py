"""A server on loopback that speaks four providers' protocols in raw bytes, and refuses what they would refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from coterie.models.catalog import ModelCatalog, ProviderSettings
from tests.support.legality import anthropic_problems, chat_problems, google_problems, responses_problems

KEY = "sk-very-secret-0123456789"
PROTOCOLS = ("chat", "responses", "anthropic", "google")
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True)
class Said:
    """What a scripted model says, in every protocol."""

    text: str = ""
    thought: str = ""
    signature: str = ""
    calls: Sequence[Call] = ()
    finish: str | None = None
    """In the protocol's own word; None for the natural one."""


@dataclass
class Asked:
    protocol: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.raw)
        return parsed


@dataclass
class ProviderServer:
    answers: list[Answer | Said] = field(default_factory=list)
    """In order; the last one is repeated."""
    asked: list[Asked] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    issued: dict[str, set[str]] = field(default_factory=dict)
    """Signatures by the model that made them."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while not writer.is_closing():
                await self._serve_one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.gone.set()
            writer.close()
            self._tasks.discard(task)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        request_line, *lines = head.decode().strip().split("\r\n")
        path = request_line.split(" ")[1]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        raw = await reader.readexactly(int(headers["content-length"]))
        asked = Asked(_protocol(path), path, headers, raw)
        self.asked.append(asked)
        model = asked.body["model"] if asked.protocol != "google" else path.split("/models/")[1].split(":")[0]
        issued = self.issued.setdefault(f"{asked.protocol}/{model}", set())
        problems = _PROBLEMS[asked.protocol](asked.body, issued)
        if problems:
            self.refused += [f"{asked.protocol}: {problem}" for problem in problems]
            await failure(400, {"error": {"message": problems[0], "type": "invalid_request_error"}})(writer)
            return
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, Said):
            issued |= set(_signatures(asked.protocol, answer))
            answer = saying(asked.protocol, answer, model)
        await answer(writer)
        await writer.drain()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def serving(*answers: Answer | Said) -> AsyncIterator[ProviderServer]:
    server = ProviderServer(list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await server.stop()


@asynccontextmanager
async def reaching(url: str) -> AsyncIterator[ModelCatalog]:
    """Every provider by the name of its protocol, all at one address."""
    catalog = ModelCatalog(
        {
            "chat": ProviderSettings("openai", f"{url}/v1", "TEST_KEY"),
            "responses": ProviderSettings("openai-responses", f"{url}/v1", "TEST_KEY"),
            "anthropic": ProviderSettings("anthropic", url, "TEST_KEY"),
            "google": ProviderSettings("google", url, "TEST_KEY"),
        }
    )
    try:
        yield catalog
    finally:
        await catalog.aclose()


# Bytes


def raw(*pieces: bytes, close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if close:
            writer.close()

    return answer


def failure(status: int, body: object, *headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status} X",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


def stream(data: bytes) -> Answer:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(data)}\r\n\r\n"
    return raw(head.encode() + data)


def broken_stream(data: bytes) -> Answer:
    """The bytes, and then the connection ends without the end of the body."""
    return raw(OPEN_HEAD + data, close=True)


OPEN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\n"


def saying(protocol: str, said: Said, model: str = "m") -> Answer:
    return stream(words(protocol, said, model))


def words(protocol: str, said: Said, model: str = "m") -> bytes:
    """The whole stream in the protocol's own events."""
    return b"".join(_WRITERS[protocol](said, model))


def beginning(protocol: str, said: Said) -> bytes:
    """The stream up to its last words, without what says that it is over."""
    events = list(_WRITERS[protocol](said, "m"))
    return b"".join(events[: -_ENDINGS[protocol]])


def _event(data: object, name: str | None = None) -> bytes:
    line = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
    return (f"event: {name}\n{line}" if name else line).encode()


def _protocol(path: str) -> str:
    ends = {
        "/v1/chat/completions": "chat",
        "/v1/responses": "responses",
        "/v1/messages": "anthropic",
    }
    if path.split("?")[0] in ends:
        return ends[path.split("?")[0]]
    assert path.startswith("/v1beta/models/") and path.endswith(":streamGenerateContent?alt=sse"), path
    return "google"


def _signatures(protocol: str, said: Said) -> Iterator[str]:
    if said.signature:
        yield f"rs_1:{said.signature}" if protocol == "responses" else said.signature


def _chat_words(said: Said, model: str) -> Iterator[bytes]:
    def chunk(finish: str | None = None, **delta: object) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(
            {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
        )

    for piece in _halves(said.thought):
        yield chunk(reasoning_content=piece)
    for piece in _halves(said.text):
        yield chunk(content=piece)
    for index, call in enumerate(said.calls):
        function = {"name": call.name, "arguments": call.arguments}
        yield chunk(tool_calls=[{"index": index, "id": call.id, "type": "function", "function": function}])
    yield chunk(said.finish or ("tool_calls" if said.calls else "stop"))
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 3,
        "total_tokens": 43,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    yield _event({"id": "c", "created": 1, "model": model, "choices": [], "usage": usage})
    yield _event("[DONE]")


def _responses_words(said: Said, model: str) -> Iterator[bytes]:
    number = -1

    def event(kind: str, **fields: object) -> bytes:
        nonlocal number
        number += 1
        return _event({"type": kind, "sequence_number": number, **fields}, kind)

    def response(status: str, **more: object) -> dict[str, Any]:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": model,
            "status": status,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **more,
        }

    yield event("response.created", response=response("in_progress"))
    if said.thought or said.signature:
        item: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": []}
        yield event("response.output_item.added", output_index=0, item=item)
        place = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
        for piece in _halves(said.thought):
            yield event("response.reasoning_summary_text.delta", **place, delta=piece)
        done = {**item, "encrypted_content": said.signature or None}
        yield event("response.output_item.done", output_index=0, item=done)
    if said.text:
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [],
        }
        yield event("response.output_item.added", output_index=1, item=message)
        place = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
        for piece in _halves(said.text):
            yield event("response.output_text.delta", **place, delta=piece, logprobs=[])
        yield event("response.output_item.done", output_index=1, item=message)
    for index, call in enumerate(said.calls, 2):
        function = {"type": "function_call", "id": f"fc_{index}", "call_id": call.id, "name": call.name}
        yield event("response.output_item.added", output_index=index, item={**function, "arguments": ""})
        place = {"item_id": f"fc_{index}", "output_index": index}
        for piece in _halves(call.arguments):
            yield event("response.function_call_arguments.delta", **place, delta=piece)
        whole = {**function, "arguments": call.arguments}
        yield event("response.output_item.done", output_index=index, item=whole)
    usage = {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 43,
    }
    if said.finish:
        why = {"reason": said.finish}
        yield event(
            "response.incomplete", response=response("incomplete", usage=usage, incomplete_details=why)
        )
    else:
        yield event("response.completed", response=response("completed", usage=usage))


def _anthropic_words(said: Said, model: str) -> Iterator[bytes]:
    def event(kind: str, **fields: object) -> bytes:
        return _event({"type": kind, **fields}, kind)

    usage = {"input_tokens": 8, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 0}
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    yield event("message_start", message=message)
    yield event("ping")
    index = 0
    if said.thought or said.signature:
        block: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
        yield event("content_block_start", index=index, content_block=block)
        for piece in _halves(said.thought):
            delta: dict[str, Any] = {"type": "thinking_delta", "thinking": piece}
            yield event("content_block_delta", index=index, delta=delta)
        delta = {"type": "signature_delta", "signature": said.signature}
        yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
        index += 1
    if said.text:
        yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
        for piece in _halves(said.text):
            yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        yield event("content_block_stop", index=index)
        index += 1
    for call in said.calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield event("content_block_start", index=index, content_block=block)
        for piece in _halves(call.arguments):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
        index += 1
    reason = said.finish or ("tool_use" if said.calls else "end_turn")
    ending = {"stop_reason": reason, "stop_sequence": None}
    yield event("message_delta", delta=ending, usage={**usage, "output_tokens": 3})
    yield event("message_stop")


def _google_words(said: Said, model: str) -> Iterator[bytes]:
    def chunk(*parts: dict[str, Any], **more: object) -> bytes:
        candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **more}
        usage = {
            "promptTokenCount": 40,
            "cachedContentTokenCount": 32,
            "candidatesTokenCount": 3,
            "totalTokenCount": 43,
        }
        return _event({"candidates": [candidate], "usageMetadata": usage, "modelVersion": model})

    for piece in _halves(said.thought):
        yield chunk({"text": piece, "thought": True})
    for piece in _halves(said.text):
        yield chunk({"text": piece})
    signature = {"thoughtSignature": said.signature} if said.signature else {}
    if signature and not said.calls:
        yield chunk({"text": "", **signature})
    for call in said.calls:
        named = {"id": call.id} if call.id else {}
        function = {"name": call.name, "args": json.loads(call.arguments), **named}
        # Of several calls only the first is signed.
        yield chunk({"functionCall": function, **(signature if call is said.calls[0] else {})})
    yield chunk({"text": ""}, finishReason=said.finish or "STOP")


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


_WRITERS = {
    "chat": _chat_words,
    "responses": _responses_words,
    "anthropic": _anthropic_words,
    "google": _google_words,
}
_ENDINGS = {"chat": 3, "responses": 1, "anthropic": 2, "google": 1}
_PROBLEMS = {
    "chat": chat_problems,
    "responses": responses_problems,
    "anthropic": anthropic_problems,
    "google": google_problems,
}
