"""A request in the form of the OpenAI chat protocol: the same value always becomes the same bytes."""

from __future__ import annotations

from typing import Any

from coterie.core.message import Message, TextPart
from coterie.core.ports import ModelRequest, ToolSchema

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
                "tool_call_id": message.call_id or "",
                "content": well_formed(message.text),
            }
        case "system":
            # Many chat templates refuse a system message anywhere but first.
            return {"role": "user", "content": "[System] " + well_formed(message.text)}
        case "user":
            return {"role": "user", "content": well_formed(message.text)}


def _assistant(message: Message) -> dict[str, Any]:
    texts = [part.text for part in message.parts if isinstance(part, TextPart) and part.text]
    text = well_formed("\n\n".join(texts) if message.parts else message.text)
    calls = [
        {
            "id": call.id,
            "type": "function",
            # Some servers parse the arguments of every call in the history, and an empty string is no JSON.
            "function": {"name": call.name, "arguments": well_formed(call.arguments) or "{}"},
        }
        for call in message.tool_calls
    ]
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def well_formed(text: str) -> str:
    """The text itself, or with halves of surrogate pairs joined or replaced where it has any: they have no UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
