"""A request in the form of the OpenAI chat protocol: the same value always becomes the same bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from coterie.core.fence import shown
from coterie.core.message import ImagePart, Message, TextPart
from coterie.core.ports import ModelRequest, ToolSchema
from coterie.core.text import well_formed
from coterie.models.sent_call import chat_id, sent_name

WIRE = "openai"


def request_bytes(fields: Mapping[str, Any], request: ModelRequest) -> bytes:
    """A whole body: these fields, messages and tools. What stays the same from turn to turn is made once."""
    said: list[bytes] = []
    if request.system:
        said.append(_system(request.system))
    for message in request.messages:
        wire: bytes | None = message.wire.get(WIRE)
        if wire is None:
            wire = message.wire[WIRE] = _json(wire_message(message))
        said.append(wire)
    if request.context is not None:
        said.append(_json({"role": "user", "content": well_formed(request.context)}))
    ours = {"messages": b"[" + b",".join(said) + b"]"}
    if request.tools:
        ours["tools"] = b"[" + b",".join(map(_tool, request.tools)) + b"]"
    # A field of that name keeps the place for ours.
    body = {**{name: ours.get(name) or _json(value) for name, value in fields.items()}, **ours}
    return b"{" + b",".join(_json(name) + b":" + value for name, value in body.items()) + b"}"


def request_body(request: ModelRequest) -> dict[str, Any]:
    """Messages and tools of a body, as whoever gets it reads them."""
    body: dict[str, Any] = json.loads(request_bytes({}, request))
    return body


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


@lru_cache(maxsize=64)
def _system(text: str) -> bytes:
    return _json({"role": "system", "content": well_formed(text)})


def _tool(tool: ToolSchema) -> bytes:
    wire: bytes | None = tool.wire.get(WIRE)
    if wire is None:
        wire = tool.wire[WIRE] = _json(wire_tool(tool))
    return wire


def wire_tool(tool: ToolSchema) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
    }


def wire_message(message: Message) -> dict[str, Any]:
    match message.role:
        case "assistant":
            return _assistant(message)
        case "tool":
            return {
                "role": "tool",
                "tool_call_id": chat_id(message.call_id or ""),
                "content": well_formed(shown(message)),
            }
        case "system":
            # Many chat templates refuse a system message anywhere but first.
            return {"role": "user", "content": well_formed(shown(message))}
        case "user":
            return {"role": "user", "content": _content(message)}


def _content(message: Message) -> str | list[dict[str, Any]]:
    text = well_formed(shown(message))
    images = [_image(part) for part in message.parts if isinstance(part, ImagePart)]
    if not images:
        return text
    return [{"type": "text", "text": text}, *images] if text.strip() else images


def _image(image: ImagePart) -> dict[str, Any]:
    url = f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(message: Message) -> dict[str, Any]:
    texts = [part.text for part in message.parts if isinstance(part, TextPart) and part.text]
    text = well_formed("\n\n".join(texts) if message.parts else message.text)
    calls = [
        {
            "id": chat_id(call.id),
            "type": "function",
            # Some servers parse the arguments of every call in the history, and an empty string is no JSON.
            "function": {"name": sent_name(call.name), "arguments": well_formed(call.arguments) or "{}"},
        }
        for call in message.tool_calls
    ]
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text or None, "tool_calls": calls}
