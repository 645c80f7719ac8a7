#!/usr/bin/env python3
"""A model server that answers at once and refuses what a real provider would refuse (stdlib only).

Speaks enough of four wire formats for an agent runtime to be happy:
  GET  /v1/models
  POST /v1/chat/completions   (stream + non-stream)
  POST /v1/responses          (stream + non-stream)
  POST /v1/messages           (Anthropic, stream + non-stream)
  POST /v1/embeddings         (deterministic hashed bag-of-words vectors)

Control plane:
  GET  /_log?since=N   records with index >= N
  GET  /_stats         aggregate of the whole log
  GET  /_bodies        the newest request bodies, as many as keep_bodies says
  POST /_reset         drop the log
  POST /_set           {"delay_ms":0,"tool":"read","tool_args":{...},"usage":true,"strict":true,"steer":"alone"}

As strict as a real provider about the order of calls and results: a conversation
that one would refuse gets a 400 (logged as "refused: why").

Directives, read from the newest user message that carries one (scope() says how
steering and [Backlog] messages are read):
  TOOLS n     ask for n rounds of one harmless tool call, then answer
  DELAY ms    sleep before each response of this turn
  SIZE n      make the final answer n characters long
  CALL name {json}   make the first round call exactly this tool with these args
  [t:xyz]     correlation tag; the final answer echoes every tag it can see

Each log record: i, t_in (epoch ns, request fully read), t_first (epoch ns,
request line read), t_out (epoch ns, response fully flushed), path, bytes,
n_messages, n_tools, tools_bytes, system_chars, stream, tags, action.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit

Json = dict[str, Any]
Entry = tuple[str, str]
"""A message as (kind, text), kind being user, assistant, call or result."""

LOG: list[Json] = []
CFG: Json = {
    "delay_ms": 0,
    "tool": None,
    "tool_args": None,
    "usage": True,
    "keep_bodies": 0,
    "strict": True,
    "steer": "alone",
}
BODIES: list[Json] = []
MODEL = "mock-1"

SAFE_TOOLS = (
    "session_status",
    "current_time",
    "get_time",
    "list_dir",
    "ls",
    "read",
    "read_file",
    "memory_search",
    "glob",
    "grep",
    "exec",
    "shell",
)
"""Read-only tools commonly advertised by gateways, best first."""
SAFE_ARGUMENTS = {
    "path": ".",
    "file_path": "README.md",
    "query": "ok",
    "pattern": "*.md",
    "command": "true",
    "cmd": "true",
    "dir": ".",
    "directory": ".",
}
TAG = re.compile(r"\[t:([A-Za-z0-9_.-]+)\]")
DIRECTIVE = re.compile(r"\b(TOOLS|DELAY|SIZE) \d+\b|\bCALL \w+ \{|\[t:|^\[Backlog\]")
ASKING = re.compile(r"/(chat/completions|responses|messages)$")


class Decision(NamedTuple):
    """What to answer a conversation with: a tool call, or text."""

    action: str
    tool: str | None
    arguments: Any
    answer: str
    delay_ms: int
    tags: list[str]


# Reading a request


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text_of_part(part) for part in content if isinstance(part, dict))
    return ""


def _text_of_part(part: Json) -> str:
    return (
        part.get("text") or (text_of(part.get("content")) if part.get("type") == "tool_result" else "") or ""
    )


def _has(content: Any, kind: str) -> bool:
    if not isinstance(content, list):
        return False
    return any(part.get("type") == kind for part in content if isinstance(part, dict))


def normalise(path: str, body: Json) -> tuple[str, list[tuple[str, Json]], list[Entry]]:
    """System text, tools as (name, schema) and messages of a request in any of the formats."""
    system: list[str] = []
    entries: list[Entry] = []
    if path.endswith("/messages"):
        system.append(text_of(body.get("system", "")))
    if path.endswith("/responses"):
        system.append(body.get("instructions") or "")
    for item in _items(path, body):
        role, content, kind = item.get("role"), item.get("content"), item.get("type")
        if kind == "function_call":
            entries.append(("call", ""))
        elif kind == "function_call_output" or role == "tool":
            entries.append(("result", text_of(content) if content else str(item.get("output", ""))))
        elif role in ("system", "developer"):
            system.append(text_of(content))
        elif role == "assistant":
            called = bool(item.get("tool_calls")) or _has(content, "tool_use")
            entries.append(("call" if called else "assistant", text_of(content)))
        elif role == "user":
            if isinstance(content, str):
                entries.append(("user", content))
            else:
                entries += _user_entries(content)
    return "\n".join(part for part in system if part), _tools(body), entries


def _items(path: str, body: Json) -> list[Json]:
    if not path.endswith("/responses"):
        return body.get("messages") or []
    items = body.get("input")
    return [{"role": "user", "content": items}] if isinstance(items, str) else items or []


def _tools(body: Json) -> list[tuple[str, Json]]:
    functions = (tool.get("function", tool) for tool in body.get("tools") or [])
    return [
        (function["name"], function.get("parameters") or function.get("input_schema") or {})
        for function in functions
        if function.get("name")
    ]


def _user_entries(content: Any) -> list[Entry]:
    """Anthropic sends results in user messages, with what the user said behind them."""
    if not _has(content, "tool_result"):
        return [("user", text_of(content))]
    said = [part for part in content if part.get("type") == "text"]
    return [("result", text_of(content)), *([("user", text_of(said))] if said else [])]


# Refusing one


def illegal(path: str, body: Json) -> str | None:
    """Why a real provider would refuse this conversation, or None."""
    if path.endswith("/responses"):
        return _illegal_items(body.get("input"))
    anthropic = path.endswith("/messages")
    seen: set[Any] = set()
    open_ids: list[Any] = []
    for i, message in enumerate(body.get("messages") or []):
        if anthropic:
            wrong, calls = _anthropic_calls(i, message, open_ids)
        elif message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                return f"messages[{i}]: tool result {message.get('tool_call_id')!r} answers no open call"
            open_ids.remove(message["tool_call_id"])
            continue
        else:
            calls = [call.get("id") for call in message.get("tool_calls") or []]
            wrong = (
                f"messages[{i}]: role {message.get('role')!r} while calls {open_ids} have no result"
                if open_ids
                else None
            )
        if wrong is not None:
            return wrong
        open_ids = list(calls)
        if calls:
            if seen & set(calls) or len(set(calls)) != len(calls):
                return f"messages[{i}]: call id used twice"
            seen |= set(calls)
    return f"calls {open_ids} have no result" if open_ids else None


def _illegal_items(items: Any) -> str | None:
    items = items if isinstance(items, list) else []
    calls = [item.get("call_id") for item in items if item.get("type") == "function_call"]
    outputs = [item.get("call_id") for item in items if item.get("type") == "function_call_output"]
    if len(set(calls)) != len(calls) or sorted(calls) != sorted(outputs):
        return f"function calls {calls} and outputs {outputs} do not pair up"
    return None


def _anthropic_calls(i: int, message: Json, open_ids: list[Any]) -> tuple[str | None, list[Any]]:
    """What is wrong with one message, and the calls it makes."""
    content = message.get("content")
    blocks = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    results: list[Any] = [part.get("tool_use_id") for part in blocks if part.get("type") == "tool_result"]
    calls = [part.get("id") for part in blocks if part.get("type") == "tool_use"]
    wrong = None
    if open_ids and sorted(results) != sorted(open_ids):
        wrong = f"messages.{i}: tool_use ids {open_ids} need their tool_result blocks here, found {results}"
    elif results and not open_ids:
        wrong = f"messages.{i}: tool_result without a tool_use directly before it"
    elif results and any(part.get("type") != "tool_result" for part in blocks[: len(results)]):
        wrong = f"messages.{i}: tool_result blocks must come first"
    return wrong, calls


# Deciding what to answer


def scope(entries: list[Entry]) -> list[Entry]:
    """The messages that the answer is about.

    A user message that came after tool results (a steering message) is answered
    alone; one that starts with [Backlog] takes up the task that it quotes again,
    and only that task's remaining rounds are left. `steer: combine` answers
    everything since the last plain answer together, as a model that is handed
    steering messages in mid-turn would.
    """
    if CFG["steer"] == "combine":
        answered = (i for i, (kind, text) in enumerate(entries) if kind == "assistant" and text.strip())
        return entries[max(answered, default=-1) + 1 :]
    asked = [i for i, (kind, text) in enumerate(entries) if kind == "user" and DIRECTIVE.search(text)]
    if not asked:
        said = (i for i, (kind, _) in enumerate(entries) if kind == "user")
        return entries[max(said, default=0) :]
    last = asked[-1]
    if not entries[last][1].startswith("[Backlog]"):
        return entries[last:]
    return _task_so_far(entries, taken_up(entries, last))


def _task_so_far(entries: list[Entry], task: int) -> list[Entry]:
    """A task and the results it has, whoever spoke in between."""
    kept, current = [entries[task]], None
    for i, (kind, text) in enumerate(entries):
        if kind == "user" and DIRECTIVE.search(text):
            current = taken_up(entries, i) if text.startswith("[Backlog]") else i
        elif kind == "result" and current == task and "skipped" not in text.lower():
            kept.append((kind, text))
    return kept


def taken_up(entries: list[Entry], backlog: int) -> int:
    """The task that a [Backlog] message is about: the one whose tag it quotes, else the latest that asked for TOOLS."""
    quoted = set(TAG.findall(entries[backlog][1]))
    before = [
        i
        for i in reversed(range(backlog))
        if entries[i][0] == "user" and not entries[i][1].startswith("[Backlog]")
    ]
    tagged = (i for i in before if quoted & set(TAG.findall(entries[i][1])))
    latest = (i for i in before if re.search(r"\bTOOLS \d+\b", entries[i][1]))
    return next(tagged, next(latest, backlog))


def decide(tools: list[tuple[str, Json]], entries: list[Entry]) -> Decision:
    # Nobody asks for what a gateway recalls: it quotes other conversations, directives and all.
    turn = scope([entry for entry in entries if not entry[1].startswith("<context>")])
    said = "\n".join(text for kind, text in turn if kind == "user")
    tags = list(dict.fromkeys(TAG.findall(said)))
    delays = re.findall(r"\bDELAY (\d+)\b", said)
    delay = int(delays[-1]) if delays else CFG["delay_ms"]
    wanted, done, call = _rounds(turn)
    if done < wanted and tools:
        tool, arguments = _next_call(dict(tools), tools[0][0], call if done == 0 else None)
        return Decision(f"tool {done + 1}/{wanted}", tool, arguments, "", delay, tags)
    answer = "ok" + "".join(f" [t:{tag}]" for tag in tags)
    sizes = re.findall(r"\bSIZE (\d+)\b", said)
    if sizes:
        size = int(sizes[-1])
        answer = (answer + " " + "x" * size)[: max(size, len(answer))]
    return Decision("final", None, None, answer, delay, tags)


def _rounds(turn: list[Entry]) -> tuple[int, int, tuple[str, Any] | None]:
    """Rounds asked for, rounds done, and the call that the first of them shall make."""
    wanted, done = 0, 0
    call: tuple[str, Any] | None = None
    for kind, text in turn:
        if kind == "result":
            done += 1
        if kind != "user":
            continue
        asked = re.search(r"\bTOOLS (\d+)\b", text)
        if asked:
            wanted, done = int(asked.group(1)), 0
        exact = re.search(r"\bCALL (\w+) (\{.*\})", text)
        if exact:
            try:
                call = (exact.group(1), json.loads(exact.group(2)))
                wanted, done = max(wanted, 1), 0
            except ValueError:
                pass
    return wanted, done, call


def _next_call(schemas: dict[str, Json], first: str, call: tuple[str, Any] | None) -> tuple[str, Any]:
    if call is not None and call[0] in schemas:
        return call
    preferred = CFG["tool"]
    if preferred in schemas:
        given = CFG["tool_args"]
        return preferred, given if given is not None else fill_arguments(schemas[preferred])
    name = next((tool for tool in SAFE_TOOLS if tool in schemas), first)
    return name, fill_arguments(schemas[name])


def fill_arguments(schema: Json | None) -> Json:
    """Something harmless for every required parameter."""
    properties = (schema or {}).get("properties") or {}
    required = (schema or {}).get("required") or []
    return {name: _harmless(name, properties.get(name) or {}) for name in required}


def _harmless(name: str, parameter: Json) -> Any:
    if parameter.get("enum"):
        return parameter["enum"][0]
    match parameter.get("type"):
        case "integer" | "number":
            return parameter.get("minimum", 1)
        case "boolean":
            return False
        case "array":
            return []
        case "object":
            return {}
        case _:
            return SAFE_ARGUMENTS.get(name, "ok")


# Answering, in each of the formats: bytes are a stream, anything else is sent as JSON


def usage(request_bytes: int) -> Json:
    read = request_bytes // 4
    return {"prompt_tokens": read, "completion_tokens": 2, "total_tokens": read + 2}


def sse(data: Json | str, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return (head + "data: " + (data if isinstance(data, str) else json.dumps(data)) + "\n\n").encode()


def chat_answer(stream: bool, decided: Decision, request_bytes: int) -> Json | bytes:
    base: Json = {
        "id": "chatcmpl-" + uuid.uuid4().hex[:12],
        "created": int(time.time()),
        "model": MODEL,
    }
    calls: list[Json] = []
    if decided.tool:
        function = {"name": decided.tool, "arguments": json.dumps(decided.arguments)}
        calls = [{"id": "call_" + uuid.uuid4().hex[:16], "type": "function", "function": function}]
    finish = "tool_calls" if calls else "stop"
    if not stream:
        message: Json = {"role": "assistant", "content": decided.answer or None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return {**base, "object": "chat.completion", "usage": usage(request_bytes), "choices": [choice]}
    base["object"] = "chat.completion.chunk"
    delta: Json = {"role": "assistant"}
    if calls:
        delta["tool_calls"] = [{"index": 0, **calls[0]}]
    else:
        delta["content"] = decided.answer
    sent = sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    sent += sse({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if CFG["usage"]:
        sent += sse({**base, "choices": [], "usage": usage(request_bytes)})
    return sent + sse("[DONE]")


def responses_answer(stream: bool, decided: Decision, request_bytes: int) -> Json | bytes:
    response_id, item_id = "resp_" + uuid.uuid4().hex[:12], "it_" + uuid.uuid4().hex[:12]
    item: Json
    if decided.tool:
        item = {
            "type": "function_call",
            "id": "fc_" + item_id,
            "call_id": "call_" + item_id,
            "name": decided.tool,
            "arguments": json.dumps(decided.arguments),
            "status": "completed",
        }
    else:
        item = {
            "type": "message",
            "id": "msg_" + item_id,
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": decided.answer, "annotations": []}],
        }
    read = request_bytes // 4
    spent = {
        "input_tokens": read,
        "output_tokens": 2,
        "total_tokens": read + 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    full: Json = {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": MODEL,
        "status": "completed",
        "output": [item],
        "usage": spent,
    }
    if not stream:
        return full
    events = enumerate(_responses_events(full, item, decided))
    return b"".join(sse({"type": kind, "sequence_number": i, **data}, kind) for i, (kind, data) in events)


def _responses_events(full: Json, item: Json, decided: Decision) -> Iterator[tuple[str, Json]]:
    place: Json = {"item_id": item["id"], "output_index": 0}
    yield "response.created", {"response": {**full, "status": "in_progress", "output": []}}
    yield "response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress"}}
    if decided.tool:
        arguments = item["arguments"]
        yield "response.function_call_arguments.delta", {**place, "delta": arguments}
        yield "response.function_call_arguments.done", {**place, "arguments": arguments}
    else:
        place["content_index"] = 0
        part = {"type": "output_text", "text": "", "annotations": []}
        yield "response.content_part.added", {**place, "part": part}
        yield "response.output_text.delta", {**place, "delta": decided.answer}
        yield "response.output_text.done", {**place, "text": decided.answer}
    yield "response.output_item.done", {"output_index": 0, "item": item}
    yield "response.completed", {"response": full}


def messages_answer(stream: bool, decided: Decision, request_bytes: int) -> Json | bytes:
    block: Json = {"type": "text", "text": decided.answer}
    if decided.tool:
        block = {
            "type": "tool_use",
            "id": "toolu_" + uuid.uuid4().hex[:12],
            "name": decided.tool,
            "input": decided.arguments,
        }
    message: Json = {
        "id": "msg_" + uuid.uuid4().hex[:12],
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [block],
        "stop_reason": "tool_use" if decided.tool else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": request_bytes // 4, "output_tokens": 2},
    }
    if not stream:
        return message
    return b"".join(
        sse({"type": kind, **data}, kind) for kind, data in _messages_events(message, block, decided)
    )


def _messages_events(message: Json, block: Json, decided: Decision) -> Iterator[tuple[str, Json]]:
    yield "message_start", {"message": {**message, "content": [], "stop_reason": None}}
    if decided.tool:
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(decided.arguments)}
    else:
        empty = {**block, "text": ""}
        delta = {"type": "text_delta", "text": decided.answer}
    yield "content_block_start", {"index": 0, "content_block": empty}
    yield "content_block_delta", {"index": 0, "delta": delta}
    yield "content_block_stop", {"index": 0}
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": stop, "usage": {"output_tokens": 2}}
    yield "message_stop", {}


def embed(text: str, dimensions: int = 256) -> list[float]:
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()):
        number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
        vector[number % dimensions] += 1.0 if number >> 63 else -1.0
    norm: float = sum(x * x for x in vector) ** 0.5 or 1.0
    return [x / norm for x in vector]


# The server


class Request(NamedTuple):
    method: str
    target: SplitResult
    headers: dict[str, str]
    body: bytes
    t_first: int
    t_in: int

    @property
    def path(self) -> str:
        return self.target.path.rstrip("/")


class Response(NamedTuple):
    payload: Any
    status: int = 200
    record: Json | None = None
    """The log record that gets the time at which this was flushed."""


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    line = await reader.readline()
    if not line:
        return None
    t_first = time.time_ns()
    method, target, _ = line.decode("latin1").split(" ", 2)
    headers = {}
    while (header := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = header.decode("latin1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length") or 0))
    return Request(method, urlsplit(target), headers, body, t_first, time.time_ns())


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        chunk = await reader.readexactly(size)
        await reader.readline()
        if not size:
            return body
        body += chunk


async def respond(request: Request) -> Response:
    path = request.path
    if path.startswith("/_") and (answer := control(request)) is not None:
        return Response(answer)
    if path.endswith("/models"):
        known = [{"id": MODEL, "object": "model", "owned_by": "mock"}]
        return Response({"object": "list", "data": known})
    if path.endswith("/embeddings"):
        return embeddings(request)
    if request.method == "POST" and ASKING.search(path):
        return await converse(request)
    return Response({"error": {"message": f"no route {request.method} {path}"}})


def control(request: Request) -> Any:
    """The control plane; None for a path it does not have."""
    match request.path:
        case "/_log":
            return LOG[int(parse_qs(request.target.query).get("since", ["0"])[0]) :]
        case "/_bodies":
            return BODIES
        case "/_stats":
            return {"requests": len(LOG), "bytes": sum(record.get("bytes", 0) for record in LOG)}
        case "/_reset":
            LOG.clear()
            BODIES.clear()
            return {"ok": True}
        case "/_set":
            CFG.update(json.loads(request.body or b"{}"))
            return CFG
        case _:
            return None


def embeddings(request: Request) -> Response:
    body = json.loads(request.body)
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    record = noted(request, action=f"embed {len(texts)}")
    vectors = [{"object": "embedding", "index": i, "embedding": embed(t)} for i, t in enumerate(texts)]
    answer = {
        "object": "list",
        "model": body.get("model"),
        "usage": usage(len(request.body)),
        "data": vectors,
    }
    return Response(answer, record=record)


async def converse(request: Request) -> Response:
    body = json.loads(request.body)
    path = request.path
    wrong = illegal(path, body) if CFG["strict"] else None
    if wrong:
        noted(request, t_out=time.time_ns(), action="refused: " + wrong)
        error = {"type": "invalid_request_error", "code": None, "message": wrong}
        return Response({"error": error}, 400)
    system, tools, entries = normalise(path, body)
    decided = decide(tools, entries)
    stream = bool(body.get("stream"))
    record = noted(
        request,
        n_messages=len(entries),
        n_tools=len(tools),
        tools_bytes=len(json.dumps(body.get("tools") or [])),
        system_chars=len(system),
        stream=stream,
        tags=decided.tags,
        tool=decided.tool,
        action=decided.action,
        kinds="".join(kind[0] for kind, _ in entries[-40:]),
        last_user=next((text for kind, text in reversed(entries) if kind == "user"), "")[-160:],
    )
    if CFG["keep_bodies"]:
        BODIES.append(body)
        del BODIES[: -int(CFG["keep_bodies"])]
    if decided.delay_ms:
        await asyncio.sleep(decided.delay_ms / 1000)
    if path.endswith("completions"):
        make = chat_answer
    elif path.endswith("responses"):
        make = responses_answer
    else:
        make = messages_answer
    return Response(make(stream, decided, len(request.body)), record=record)


def noted(request: Request, **more: Any) -> Json:
    """A new record in the log."""
    record = {
        "i": len(LOG),
        "t_in": request.t_in,
        "t_first": request.t_first,
        "path": request.path,
        "bytes": len(request.body),
        **more,
    }
    LOG.append(record)
    return record


def encode(response: Response) -> bytes:
    payload = response.payload
    head = f"HTTP/1.1 {response.status} OK\r\nConnection: keep-alive\r\nContent-Type: "
    if isinstance(payload, bytes):
        start = f"{head}text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{len(payload):x}\r\n"
        return start.encode() + payload + b"\r\n0\r\n\r\n"
    data = json.dumps(payload).encode()
    return f"{head}application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while (request := await read_request(reader)) is not None:
            response = await respond(request)
            writer.write(encode(response))
            await writer.drain()
            if response.record is not None:
                response.record["t_out"] = time.time_ns()
            if request.headers.get("connection", "").lower() == "close":
                break
    except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
        if isinstance(error, ValueError):
            print("bad request:", error, file=sys.stderr)
    finally:
        writer.close()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8901)
    parser.add_argument("--delay-ms", type=int, default=0)
    parser.add_argument("--tool")
    parser.add_argument("--tool-args", type=json.loads)
    given = parser.parse_args()
    CFG.update(delay_ms=given.delay_ms, tool=given.tool, tool_args=given.tool_args)
    server = await asyncio.start_server(serve_client, "127.0.0.1", given.port, limit=1 << 26)
    print(f"mock llm on http://127.0.0.1:{given.port}/v1", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
