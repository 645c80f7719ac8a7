"""A request in the form of OpenAI's responses protocol: the same value always becomes the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_ai import messages as pai

from coterie.core.ports import ModelRequest, ToolSchema
from coterie.core.text import well_formed
from coterie.models.pydantic_messages import Form, sent_messages, sent_schema


def request_body(request: ModelRequest, form: Form) -> dict[str, Any]:
    """System prompt, tools and messages as they are sent."""
    body: dict[str, Any] = {}
    if request.system.strip():
        body["instructions"] = well_formed(request.system)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    parts = (part for message in sent_messages(request, form) for part in message.parts)
    body["input"] = list(_items(parts))
    return body


def _tool(tool: ToolSchema) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": sent_schema(tool),
        # Left out, the endpoint would hold the schema to its own stricter rules.
        "strict": False,
    }


def _items(parts: Iterable[pai.ModelRequestPart | pai.ModelResponsePart]) -> Iterator[dict[str, Any]]:
    thought: dict[str, Any] | None = None
    for part in parts:
        if isinstance(part, pai.ThinkingPart):
            # Paragraphs of one thought are one item.
            if thought is None or thought["id"] != part.id:
                thought = {
                    "type": "reasoning",
                    "id": part.id,
                    "summary": [],
                    "encrypted_content": part.signature,
                }
                yield thought
            if part.content:
                thought["summary"].append({"type": "summary_text", "text": part.content})
            continue
        thought = None
        if isinstance(part, pai.UserPromptPart):
            yield {"role": "user", "content": _content(part)}
        elif isinstance(part, pai.ToolReturnPart):
            yield {"type": "function_call_output", "call_id": part.tool_call_id, "output": part.content}
        elif isinstance(part, pai.TextPart):
            yield {"role": "assistant", "content": part.content}
        elif isinstance(part, pai.ToolCallPart):
            yield {
                "type": "function_call",
                "call_id": part.tool_call_id,
                "name": part.tool_name,
                "arguments": part.args,
            }


def _content(part: pai.UserPromptPart) -> str | list[dict[str, Any]]:
    if isinstance(part.content, str):
        return part.content
    return [
        {"type": "input_text", "text": item}
        if isinstance(item, str)
        else {"type": "input_image", "image_url": item.data_uri, "detail": "auto"}
        for item in part.content
        if isinstance(item, str | pai.BinaryContent)
    ]
