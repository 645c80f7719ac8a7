"""A reply in the OpenAI chat protocol, put together from its pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

from coterie.core.message import Part, TextPart, ThinkingPart, ToolCall
from coterie.core.ports import ModelRequest, TextDelta, ThinkingDelta
from coterie.core.text import well_formed
from coterie.models.failure import Trouble
from coterie.models.openai_failure import trouble_in_stream
from coterie.models.sent_call import DistinctIds

LARGEST_EVENT = 16 * 1024 * 1024
"""Bytes of one event; a server that never ends a line must not fill the memory."""
TRAILER = 0.1
"""Seconds that the end of a reply may take after its last event. Read to the end, a connection can be used again."""
DONE = "[DONE]"

Finish = Literal["stop", "tool_calls", "length", "refused", "other"]
Delta = TextDelta | ThinkingDelta


async def chunks(response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The objects of a stream, up to its end."""
    # Some servers call their events something else.
    response.headers["content-type"] = "text/event-stream; charset=utf-8"
    events = aiter(httpx2.EventSource(response, max_event_size=LARGEST_EVENT))
    async for event in events:
        if event.data.startswith(DONE):
            await _finish_reading(events)
            return
        if not event.data:
            continue
        chunk = json.loads(event.data)
        if not isinstance(chunk, dict):
            raise Trouble("broken_off")
        if error := chunk.get("error"):
            raise trouble_in_stream(error)
        yield chunk


async def _finish_reading(events: AsyncIterator[object]) -> None:
    try:
        async with asyncio.timeout(TRAILER):
            async for _ in events:
                pass
    except (TimeoutError, httpx2.HTTPError):
        pass  # the reply is whole


@dataclass(slots=True)
class _Said:
    """Text or thinking that is still arriving."""

    kind: Literal["text", "thinking"]
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return well_formed("".join(self.pieces))


@dataclass(slots=True)
class _Called:
    """A tool call that is still arriving."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)


class Pieces:
    """A reply that is still arriving: what is new in each chunk, and in the end the whole."""

    def __init__(self, *, skip_blank: bool = False) -> None:
        self.finish_reason: str | None = None
        self.refusal = ""
        self.usage: dict[str, Any] | None = None
        self.model = ""
        """What the endpoint calls the model that answered."""
        self.service_tier: str | None = None
        self._skip_blank = skip_blank
        self._parts: list[_Said | _Called] = []
        self._text: _Said | None = None
        """Where further content goes; None once something else has begun behind it."""
        self._thinking: _Said | None = None
        self._calls: dict[object, _Called] = {}
        """The newest call under each index."""

    def add(self, chunk: dict[str, Any]) -> list[Delta]:
        """Take in one chunk. Raises Trouble where it is no chunk of a reply."""
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage
        self.model = str(chunk.get("model") or self.model)
        self.service_tier = chunk.get("service_tier") or self.service_tier
        choices = chunk.get("choices")
        if not choices:
            return []
        choice = choices[0] if isinstance(choices, list) else None
        delta = (choice.get("delta") or {}) if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(delta, dict):
            raise Trouble("broken_off")
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self.refusal += refusal
            return []
        seen: list[Delta] = []
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if thought and isinstance(thought, str):
            seen.append(self._add_thinking(thought))
        content = _joined(delta.get("content"))
        if content and (said := self._add_content(content)):
            seen.append(said)
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        return seen

    def parts(self, model: str, request: ModelRequest) -> tuple[Part, ...]:
        """Text, thinking and calls in the model's order; every call under an id of its own."""
        ids = DistinctIds(request)
        parts: list[Part] = []
        for part in self._parts:
            if isinstance(part, _Called):
                # A call without a name cannot be made, nor sent back.
                if part.name:
                    arguments = well_formed("".join(part.pieces))
                    parts.append(ToolCall(ids.own(part.id), part.name, arguments))
            elif text := part.text:
                parts.append(TextPart(text) if part.kind == "text" else ThinkingPart(text, None, model))
        return tuple(parts)

    def finish(self, parts: tuple[Part, ...]) -> Finish:
        calls = any(isinstance(part, ToolCall) for part in parts)
        match self.finish_reason:
            case "content_filter":
                return "refused"
            case _ if self.refusal:
                return "refused"
            case "length":
                return "length"
            case "stop" | "tool_calls" | "function_call":
                # Some endpoints say "stop" beside their calls.
                return "tool_calls" if calls else "stop"
        return "tool_calls" if calls else "other"

    def _add_thinking(self, thought: str) -> ThinkingDelta:
        if self._thinking is None:
            self._thinking = _Said("thinking")
            self._parts.append(self._thinking)
            if self._text is not None and self._text.kind == "text":
                self._text = None
        self._thinking.pieces.append(thought)
        return ThinkingDelta(well_formed(thought))

    def _add_content(self, content: str) -> Delta | None:
        """Content is text, unless the model thinks aloud in it between tags of one piece each."""
        said = self._text
        if said is not None and said.kind == "thinking":
            if content == "</think>":
                self._text = None
                return None
        elif content == "<think>":
            self._begin_content("thinking")
            return None
        elif said is None:
            if self._skip_blank and content.isspace():
                return None
            said = self._begin_content("text")
        said.pieces.append(content)
        text = well_formed(content)
        return TextDelta(text) if said.kind == "text" else ThinkingDelta(text)

    def _add_call(self, piece: Any) -> None:
        function = (piece.get("function") or {}) if isinstance(piece, dict) else None
        if not isinstance(function, dict):
            raise Trouble("broken_off")
        index = piece.get("index")
        call_id, name = str(piece.get("id") or ""), str(function.get("name") or "")
        call = self._calls.get(index)
        # Some endpoints give all calls of a reply the same index; then another id or a further name tells them apart.
        if (
            call is None
            or (call_id and call.id and call_id != call.id)
            or (name and call.name and not call_id)
        ):
            call = self._calls[index] = _Called()
            self._parts.append(call)
            self._thinking = None
            if self._text is not None and self._text.kind == "text":
                self._text = None
        call.id = call.id or call_id
        # Others repeat the name in every piece.
        call.name = call.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        call.pieces.append(arguments or "")

    def _begin_content(self, kind: Literal["text", "thinking"]) -> _Said:
        said = self._text = _Said(kind)
        self._parts.append(said)
        self._thinking = None
        return said


def _joined(content: object) -> str:
    """Content as one string; some servers send a list of parts, of which only text is for people."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if isinstance(text, str):
            texts.append(text)
    return "".join(texts)
