"""A request in the form of the OpenAI chat protocol: the same value always becomes the same bytes."""

from __future__ import annotations

import base64
from typing import Any

from coterie.core.message import ImagePart, Message, TextPart
from coterie.core.ports import ModelRequest, ToolSchema
from coterie.models.sent_call import chat_id, sent_name
from coterie.models.text import well_formed

WIRE = "openai"


def request_body(request: ModelRequest) -> dict[str, Any]:
    """Tools and messages as they are sent. What a stored message became once is used again."""
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": well_formed(request.system)})
    for message in request.messages:
        wire = message.wire.get(WIRE)
        if wire is None:
            wire = message.wire[WIRE] = wire_message(message)
        messages.append(wire)
    if request.context is not None:
        messages.append({"role": "user", "content": well_formed(request.context)})
    body: dict[str, Any] = {"messages": messages}
    if request.tools:
        body["tools"] = [wire_tool(tool) for tool in request.tools]
    return body


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
                "content": well_formed(message.text),
            }
        case "system":
            # Many chat templates refuse a system message anywhere but first.
            return {"role": "user", "content": "[System] " + well_formed(message.text)}
        case "user":
            return {"role": "user", "content": _content(message)}


def _content(message: Message) -> str | list[dict[str, Any]]:
    text = well_formed(message.text)
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
