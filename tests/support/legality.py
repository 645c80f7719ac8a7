"""What each provider demands of a request, as strictly as the real ones do."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
ID = re.compile(r"[a-zA-Z0-9_-]+")
IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
GOOGLE_DUMMY = base64.b64encode(b"skip_thought_signature_validator").decode()


def anthropic_problems(body: dict[str, Any], issued: Collection[str] = ()) -> list[str]:
    """`issued`: the signatures that this very model has made."""
    return list(_anthropic(body, issued))


def google_problems(body: dict[str, Any], issued: Collection[str] = ()) -> list[str]:
    return list(_google(body, issued))


def responses_problems(body: dict[str, Any], issued: Collection[str] = ()) -> list[str]:
    return list(_responses(body, issued))


def chat_problems(body: dict[str, Any], issued: Collection[str] = ()) -> list[str]:
    return list(_chat(body))


def _anthropic(body: dict[str, Any], issued: Collection[str]) -> Iterator[str]:
    messages = body["messages"]
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield "max_tokens is missing"
    if not messages or messages[0]["role"] != "user" or messages[-1]["role"] != "user":
        yield "the first and the last message must be the user's"
    if any(one["role"] == two["role"] for one, two in pairwise(messages)):
        yield "roles do not alternate"
    if any(set(message) != {"role", "content"} for message in messages):
        yield "unknown keys in a message"
    system = body.get("system", "x")
    for block in [{"text": system}] if isinstance(system, str) else system:
        if not block["text"].strip():
            yield "empty system block"
    seen: set[str] = set()
    due: list[str] = []
    for message in messages:
        blocks = message["content"]
        if not isinstance(blocks, list) or not blocks:
            yield "empty content"
            continue
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(due) or len(set(results)) != len(results):
            yield f"results {results} for calls {due}"
        if [block["type"] for block in blocks[: len(results)]] != ["tool_result"] * len(results):
            yield "results do not come first"
        due = []
        for block in blocks:
            yield from _anthropic_block(block, message["role"], issued)
            if block["type"] == "tool_use":
                due.append(block["id"])
                if block["id"] in seen:
                    yield f"call id {block['id']} twice"
                seen.add(block["id"])
        if message["role"] == "assistant" and "thinking" in blocks[-1]["type"]:
            yield "thinking at the end of a message"
    if due:
        yield "calls without results"
    thinking = body.get("thinking")
    if thinking and thinking["type"] == "enabled":
        if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
            yield "thinking budget out of range"
        replies = [message["content"] for message in messages if message["role"] == "assistant"]
        newest = replies[-1] if replies else []
        calls = any(block["type"] == "tool_use" for block in newest)
        if calls and "thinking" not in newest[0]["type"]:
            yield "the newest calls do not begin with thinking"
    if thinking and thinking["type"] != "disabled" and body.get("temperature", 1) != 1:
        yield "temperature beside thinking"
    if not 0 <= body.get("temperature", 1) <= 1:
        yield "temperature out of range"
    yield from _tools(
        (tool["name"], tool["description"], tool["input_schema"]) for tool in body.get("tools", [])
    )


def _anthropic_block(block: dict[str, Any], role: str, issued: Collection[str]) -> Iterator[str]:
    match block["type"]:
        case "text":
            if not block["text"].strip():
                yield "empty text block"
        case "image":
            source = block["source"]
            base64.b64decode(source["data"], validate=True)
            if role != "user" or source["media_type"] not in IMAGES:
                yield "illegal image"
        case "tool_use":
            if role != "assistant" or not ID.fullmatch(block["id"]) or not NAME.fullmatch(block["name"]):
                yield f"illegal call {block['id']!r} {block['name']!r}"
            if not isinstance(block["input"], dict):
                yield "arguments are no object"
        case "tool_result":
            content = block["content"]
            if role != "user" or (isinstance(content, list) and any(not c["text"].strip() for c in content)):
                yield "illegal result"
        case "thinking":
            if role != "assistant" or block["signature"] not in issued:
                yield "a foreign signature"
        case "redacted_thinking":
            if role != "assistant" or block["data"] not in issued:
                yield "foreign redacted thinking"
        case other:
            yield f"unknown block {other}"


def _google(body: dict[str, Any], issued: Collection[str]) -> Iterator[str]:
    contents = body["contents"]
    if not contents or contents[0]["role"] != "user" or contents[-1]["role"] != "user":
        yield "the first and the last content must be the user's"
    due: list[tuple[str, str]] = []
    before = "user"
    for content in contents:
        role, parts = content["role"], content["parts"]
        if role not in ("user", "model") or not parts:
            yield f"illegal content of {role}"
        if role == before == "model":
            yield "two contents of the model in a row"
        before = role
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if [(answer["id"], answer["name"]) for answer in answers] != due:
            yield f"results {answers} for calls {due}"
        if answers and len(answers) != len(parts):
            yield "results beside other parts"
        due = []
        for part in parts:
            yield from _google_part(part, role, issued, first_call=not due)
            if "functionCall" in part:
                due.append((part["functionCall"]["id"], part["functionCall"]["name"]))
    if due:
        yield "calls without results"
    for part in body.get("systemInstruction", {}).get("parts", []):
        if not part["text"].strip():
            yield "empty system instruction"
    yield from _tools(
        (tool["name"], tool["description"], _field(tool, "parametersJsonSchema"))
        for group in body.get("tools", [])
        for tool in group["functionDeclarations"]
    )


def _google_part(
    part: dict[str, Any], role: str, issued: Collection[str], *, first_call: bool
) -> Iterator[str]:
    signature = part.get("thoughtSignature")
    kinds = set(part) - {"thoughtSignature", "thought"}
    if len(kinds) != 1:
        yield f"a part with {kinds}"
    if signature is not None and _unpadded(signature) not in {_unpadded(s) for s in (*issued, GOOGLE_DUMMY)}:
        yield "a foreign signature"
    if "text" in part and not part["text"]:
        yield "empty text"
    if "inlineData" in part and (role != "user" or _field(part["inlineData"], "mimeType") not in IMAGES):
        yield "illegal image"
    if call := part.get("functionCall"):
        if role != "model" or not NAME.fullmatch(call["name"]) or not isinstance(call.get("args", {}), dict):
            yield f"illegal call {call}"
        if first_call and signature is None:
            yield "the first call has no signature"
    answer = part.get("functionResponse")
    if answer and (role != "user" or not isinstance(answer["response"], dict)):
        yield "illegal result"


def _field(value: dict[str, Any], name: str) -> Any:
    """Google takes either spelling of a name, and its SDK sends both."""
    return value[name] if name in value else value[re.sub("([A-Z])", r"_\1", name).lower()]


def _unpadded(signature: str) -> str:
    return signature.replace("-", "+").replace("_", "/").rstrip("=")


def _responses(body: dict[str, Any], issued: Collection[str]) -> Iterator[str]:
    items = body["input"]
    if not items:
        yield "no input"
    if body.get("store") is not False:
        yield "the transcript would be stored"
    due: list[str] = []
    seen: set[str] = set()
    answering = False
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        # The model's own words may stand among its calls.
        same_reply = item.get("role") == "assistant" or kind in ("function_call", "reasoning")
        if due and kind != "function_call_output" and (answering or not same_reply):
            yield f"{kind} between a call and its result"
        match kind:
            case "message":
                yield from _response_message(item)
            case "function_call":
                answering = False
                call_id = item["call_id"]
                if call_id in seen or len(call_id) > 64 or not ID.fullmatch(call_id):
                    yield f"illegal call id {call_id!r}"
                if not NAME.fullmatch(item["name"]) or not isinstance(json.loads(item["arguments"]), dict):
                    yield f"illegal call {item}"
                seen.add(call_id)
                due.append(call_id)
            case "function_call_output":
                answering = True
                if item["call_id"] not in due:
                    yield f"result of no call {item['call_id']!r}"
                else:
                    due.remove(item["call_id"])
                if not isinstance(item["output"], str):
                    yield "illegal result"
            case "reasoning":
                if f"{item['id']}:{item.get('encrypted_content')}" not in issued:
                    yield "foreign reasoning"
                follower = items[place + 1] if place + 1 < len(items) else {"type": "nothing"}
                if follower.get("type", "message") not in ("function_call", "reasoning", "message"):
                    yield "reasoning without its item"
                if follower.get("type", "message") == "message" and follower["role"] != "assistant":
                    yield "reasoning without its item"
            case other:
                yield f"unknown item {other}"
    if due:
        yield "calls without results"
    yield from _tools(
        (tool["name"], tool["description"], tool["parameters"]) for tool in body.get("tools", [])
    )


def _response_message(item: dict[str, Any]) -> Iterator[str]:
    if item["role"] not in ("user", "assistant"):
        yield f"role {item['role']}"
    if isinstance(item["content"], str):
        return
    for part in item["content"]:
        if part["type"] == "input_image":
            if not re.match(r"data:image/(png|jpeg|gif|webp);base64,", part["image_url"]):
                yield "illegal image"
        elif part["type"] != "input_text":
            yield f"unknown content {part['type']}"


def _chat(body: dict[str, Any]) -> Iterator[str]:
    due: list[str] = []
    seen: set[str] = set()
    for message in body["messages"]:
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in due:
                yield f"result of no call {message['tool_call_id']!r}"
            else:
                due.remove(message["tool_call_id"])
            continue
        if due:
            yield f"{role} between a call and its result"
        calls = message.get("tool_calls", [])
        if message["content"] is None and not calls:
            yield "neither text nor calls"
        for call in calls:
            if call["id"] in seen or not 1 <= len(call["id"]) <= 40:
                yield f"illegal call id {call['id']!r}"
            if not NAME.fullmatch(call["function"]["name"]):
                yield f"illegal name {call['function']['name']!r}"
            if not isinstance(call["function"]["arguments"], str):
                yield "arguments are no string"
            seen.add(call["id"])
            due.append(call["id"])
    if due:
        yield "calls without results"


def _tools(tools: Iterator[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    names: set[str] = set()
    for name, description, schema in tools:
        if name in names or not NAME.fullmatch(name) or not description:
            yield f"illegal tool {name!r}"
        if schema.get("type") != "object" or "properties" not in schema:
            yield f"illegal parameters of {name}"
        names.add(name)
