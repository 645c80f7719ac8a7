"""Public test kit: a model that says what it is told to. `coterie.testing.house` has a whole household."""

from __future__ import annotations

import inspect
import json
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from coterie.core.message import Part, TextPart, ThinkingPart, ToolCall, Usage
from coterie.core.ports import ModelEvent, ModelRequest, Reply, TextDelta, ThinkingDelta


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str


_PIECE = re.compile(r"\s*\S+|\s+")

Piece: TypeAlias = str | Thinking | ToolCall | BaseException
Scripted: TypeAlias = Piece | Sequence[Piece]
Step: TypeAlias = Scripted | Callable[[ModelRequest], Scripted | Awaitable[Scripted]]
"""One reply: text, calls, thinking, several of these in order, an exception to raise at that point, or a
function of the request that returns one of them. The function may be async, to hold a reply back."""


def call(name: str, arguments: Mapping[str, Any] | str | None = None, *, id: str | None = None) -> ToolCall:
    """A tool call. Arguments given as text are passed on byte for byte, valid JSON or not."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}), ensure_ascii=False)
    return ToolCall(id or f"call_{uuid.uuid4().hex[:24]}", name, text)


def thinking(text: str) -> Thinking:
    return Thinking(text)


class ScriptedModel:
    """Gives the scripted replies in order and remembers what it was asked. Implements the Model port."""

    def __init__(self, *replies: Step, name: str = "scripted/test") -> None:
        self._name = name
        self._replies = replies
        self.requests: list[ModelRequest] = []
        """Every request so far, as it was when it arrived."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def left(self) -> int:
        """Replies that nobody has asked for yet."""
        return max(0, len(self._replies) - len(self.requests))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The next scripted reply in small deltas, then one Reply."""
        number = len(self.requests)
        self.requests.append(replace(request, messages=tuple(request.messages)))
        if number >= len(self._replies):
            newest = request.messages[-1].text[:200] if request.messages else "none"
            raise AssertionError(
                f"{self._name} has {len(self._replies)} scripted replies and was asked for one more; "
                f"newest message: {newest!r}"
            )
        pieces = await _pieces(self._replies[number], request)
        parts: list[Part] = []
        written = 0
        for piece in pieces:
            if isinstance(piece, BaseException):
                raise piece
            if isinstance(piece, ToolCall):
                parts.append(piece)
                continue
            text = piece if isinstance(piece, str) else piece.text
            for word in _PIECE.findall(text):
                written += 1
                yield TextDelta(word) if isinstance(piece, str) else ThinkingDelta(word)
            parts.append(TextPart(text) if isinstance(piece, str) else ThinkingPart(text, model=self._name))
        calls = any(isinstance(part, ToolCall) for part in parts)
        usage = Usage(input_tokens=len(request.messages), output_tokens=written)
        yield Reply(
            tuple(part for part in parts if part != TextPart("")), usage, "tool_calls" if calls else "stop"
        )


async def _pieces(step: Step, request: ModelRequest) -> Sequence[Piece]:
    if callable(step) and not isinstance(step, BaseException):
        answer = step(request)
        step = await answer if inspect.isawaitable(answer) else answer
    if isinstance(step, str | Thinking | ToolCall | BaseException):
        return [step]
    return step
