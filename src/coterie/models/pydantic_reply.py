"""A reply that pydantic-ai has read, in Coterie's own form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Literal

from pydantic_ai import messages as pai

from coterie.core.message import Part, TextPart, ThinkingPart, ToolCall, Usage
from coterie.core.ports import ModelRequest, TextDelta, ThinkingDelta
from coterie.core.text import well_formed
from coterie.models.sent_call import DistinctIds

Thoughts = Callable[[pai.ModelResponsePart], Iterable[ThinkingPart]]


def delta_of(event: pai.ModelResponseStreamEvent) -> TextDelta | ThinkingDelta | None:
    """What a person sees of this event, if anything."""
    if isinstance(event, pai.PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, pai.TextPartDelta) and delta.content_delta:
            return TextDelta(well_formed(delta.content_delta))
        if isinstance(delta, pai.ThinkingPartDelta) and delta.content_delta:
            return ThinkingDelta(well_formed(delta.content_delta))
    elif isinstance(event, pai.PartStartEvent):
        part = event.part
        if isinstance(part, pai.TextPart) and part.content:
            return TextDelta(well_formed(part.content))
        if isinstance(part, pai.ThinkingPart) and part.content:
            return ThinkingDelta(well_formed(part.content))
    return None


def reply_parts(response: pai.ModelResponse, request: ModelRequest, thoughts: Thoughts) -> tuple[Part, ...]:
    """Text, thinking and calls in the model's order; every call under an id of its own."""
    parts: list[Part] = []
    ids = DistinctIds(request)
    for part in response.parts:
        parts.extend(thoughts(part))
        if isinstance(part, pai.TextPart) and part.content:
            parts.append(TextPart(well_formed(part.content)))
        elif isinstance(part, pai.ToolCallPart):
            parts.append(ToolCall(ids.own(part.tool_call_id), part.tool_name, _arguments(part)))
    return tuple(parts)


def reply_finish(
    response: pai.ModelResponse, parts: tuple[Part, ...]
) -> Literal["stop", "tool_calls", "length", "refused", "other"]:
    calls = any(isinstance(part, ToolCall) for part in parts)
    match response.finish_reason:
        case "length":
            return "length"
        case "content_filter":
            return "refused"
        case "tool_call" | "stop":
            # Some endpoints say "stop" beside their calls.
            return "tool_calls" if calls else "stop"
        case None:
            # A reason that the library has no word for.
            return "tool_calls" if calls else "other"
        case _:
            return "other"


class Prices:
    """What replies cost, as far as the library knows."""

    def __init__(self) -> None:
        self._known = True

    def usage(self, response: pai.ModelResponse) -> Usage:
        usage = response.usage
        cost: float | None = None
        if self._known and not usage.unmeasured_requests:
            try:
                cost = float(response.cost().total_price)
            except (LookupError, ValueError):
                # No price is known for this model; it will not be looked up again.
                self._known = False
        return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, cost)


def _arguments(part: pai.ToolCallPart) -> str:
    if part.args is None:
        return ""
    if isinstance(part.args, str):
        return well_formed(part.args)
    return well_formed(json.dumps(part.args, ensure_ascii=False, separators=(",", ":")))
