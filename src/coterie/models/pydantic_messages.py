"""Stored messages in the form of pydantic-ai, so arranged that every provider accepts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from coterie.core.fence import shown
from coterie.core.message import ImagePart, Message, TextPart, ThinkingPart, ToolCall
from coterie.core.ports import ModelRequest, ToolSchema
from coterie.core.text import well_formed
from coterie.models.sent_call import sent_id, sent_name, sent_object, sent_string

# Anthropic refuses text without a visible character, Gemini empty parts.
EMPTY_MESSAGE = "(empty message)"
EMPTY_RESULT = "(no output)"
BEGIN = "(the conversation begins)"
GO_ON = "(go on)"

Sent = tuple[pai.ModelRequestPart, ...] | tuple[pai.ModelResponsePart, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """How one model of one provider wants to be told what was said."""

    name: str
    """`<provider>/<model>`: thinking goes back to no other."""
    key: str
    """Under which a message keeps what it became."""
    argument_objects: bool
    """Whether arguments travel as objects; otherwise as the model's own string."""
    recall: Callable[[ThinkingPart], pai.ThinkingPart | None]
    """A thought as its own model takes it back, if it does."""
    signs_next: bool = False
    """Whether a thought without text is the signature of the part behind it."""


def sent_messages(request: ModelRequest, form: Form) -> list[pai.ModelMessage]:
    """The transcript and its trailing context: a user first and last, the roles in turns, results as called."""
    run = _Run()
    calls: dict[str, str] = {}
    results: list[pai.ModelRequestPart] = []
    for message in request.messages:
        parts: Sent | None = message.wire.get(form.key)
        if message.role == "tool":
            if parts is None:
                parts = message.wire[form.key] = (_result(message, calls),)
            results += parts  # type: ignore[arg-type]
            continue
        run.requests(_as_called(results, calls))
        results = []
        if message.role == "assistant":
            if parts is None:
                parts = message.wire[form.key] = tuple(_reply(message, form))
            calls = {
                part.tool_call_id: part.tool_name for part in parts if isinstance(part, pai.ToolCallPart)
            }
            run.responses(parts)  # type: ignore[arg-type]
        else:
            if parts is None:
                parts = message.wire[form.key] = (_prompt(message),)
            run.requests(parts)  # type: ignore[arg-type]
    run.requests(_as_called(results, calls))
    if request.context is not None and request.context.strip():
        run.requests([pai.UserPromptPart(well_formed(request.context))])
    return run.whole()


def parameters(system: str, tools: Iterable[ToolSchema]) -> ModelRequestParameters:
    """The stable part of a request, in the order given."""
    return ModelRequestParameters(
        function_tools=[_tool(tool) for tool in tools],
        instruction_parts=[pai.InstructionPart(content=well_formed(system))] if system.strip() else [],
    )


class _Run:
    """Messages under construction; neighbours of one role become one."""

    def __init__(self) -> None:
        self._messages: list[pai.ModelMessage] = []

    def requests(self, parts: Sequence[pai.ModelRequestPart]) -> None:
        last = self._messages[-1] if self._messages else None
        if not parts:
            return
        if isinstance(last, pai.ModelRequest):
            last.parts = [*last.parts, *parts]
        else:
            self._messages.append(pai.ModelRequest(parts=list(parts)))

    def responses(self, parts: Sequence[pai.ModelResponsePart]) -> None:
        last = self._messages[-1] if self._messages else None
        if not parts:
            return
        if isinstance(last, pai.ModelResponse):
            last.parts = [*last.parts, *parts]
        else:
            if last is None:
                self.requests([pai.UserPromptPart(BEGIN)])
            self._messages.append(pai.ModelResponse(parts=list(parts)))

    def whole(self) -> list[pai.ModelMessage]:
        if not self._messages or isinstance(self._messages[-1], pai.ModelResponse):
            self.requests([pai.UserPromptPart(GO_ON)])
        return self._messages


def _prompt(message: Message) -> pai.UserPromptPart:
    text = well_formed(shown(message))
    if message.role == "system":
        return pai.UserPromptPart(text)
    images = [
        pai.BinaryContent(data=part.data, media_type=part.media_type)
        for part in message.parts
        if isinstance(part, ImagePart)
    ]
    if not images:
        return pai.UserPromptPart(text if text.strip() else EMPTY_MESSAGE)
    return pai.UserPromptPart([text, *images] if text.strip() else images)


def _result(message: Message, calls: dict[str, str]) -> pai.ToolReturnPart:
    call_id = sent_id(message.call_id or "")
    # Gemini matches results to calls by name as well.
    name = calls.get(call_id) or sent_name(message.tool_name or "unknown")
    text = well_formed(shown(message))
    return pai.ToolReturnPart(name, text if text.strip() else EMPTY_RESULT, tool_call_id=call_id)


def _as_called(results: list[pai.ModelRequestPart], calls: dict[str, str]) -> list[pai.ModelRequestPart]:
    if len(results) < 2:
        return results
    order = {call_id: place for place, call_id in enumerate(calls)}
    return sorted(
        results,
        key=lambda part: order.get(part.tool_call_id, 0) if isinstance(part, pai.ToolReturnPart) else 0,
    )


def _reply(message: Message, form: Form) -> list[pai.ModelResponsePart]:
    sent: list[pai.ModelResponsePart] = []
    for part in message.parts or (TextPart(message.text),):
        match part:
            case TextPart(text):
                if text.strip():
                    sent.append(pai.TextPart(well_formed(text)))
                elif form.signs_next:
                    _drop_thoughts(sent)
            case ThinkingPart():
                said = replace(part, text=well_formed(part.text))
                thought = form.recall(said) if part.model == form.name else None
                if thought is not None and (_is_signed(thought) or _continues(sent, thought)):
                    sent.append(thought)
            case ToolCall():
                sent.append(_call(part, form))
            case ImagePart():
                pass  # no provider takes pictures as a model's words
    # A thought that led to nothing is refused.
    _drop_thoughts(sent)
    return sent


def _is_signed(thought: pai.ThinkingPart) -> bool:
    return bool(thought.signature or thought.provider_details)


def _continues(sent: list[pai.ModelResponsePart], thought: pai.ThinkingPart) -> bool:
    """Whether the thought is a further paragraph of the one before, which carries the signature of both."""
    last = sent[-1] if sent else None
    return isinstance(last, pai.ThinkingPart) and bool(last.id) and last.id == thought.id


def _drop_thoughts(parts: list[pai.ModelResponsePart]) -> None:
    while parts and isinstance(parts[-1], pai.ThinkingPart):
        parts.pop()


def _call(call: ToolCall, form: Form) -> pai.ToolCallPart:
    name, call_id = sent_name(call.name), sent_id(call.id)
    arguments = sent_object(call.arguments) if form.argument_objects else sent_string(call.arguments)
    return pai.ToolCallPart(name, arguments, tool_call_id=call_id)


def sent_schema(tool: ToolSchema) -> dict[str, Any]:
    """The schema of a tool's arguments as providers accept it."""
    schema = dict(tool.parameters)
    if schema.get("type") == "object":
        schema.setdefault("properties", {})  # OpenAI refuses an object that does not name any
    return schema


def _tool(tool: ToolSchema) -> ToolDefinition:
    # Left open, the library decides from the schema whether the provider enforces it, and adapts it.
    return ToolDefinition(
        name=tool.name,
        parameters_json_schema=sent_schema(tool),
        description=tool.description,
        strict=False,
    )
