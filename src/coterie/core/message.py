"""A message and its parts, in Coterie's own form. Providers convert it; nothing else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.errors import InvalidRequest, TooLarge

NOBODY = ""
"""Whose messages are whose agent was purged."""
MAX_MESSAGE = 1_000_000
"""Characters of one message."""
SNIPPET = 200
"""Characters that a list of sessions shows of the last thing said."""
Role = Literal["user", "assistant", "tool", "system"]
Origin = Literal["user", "agent", "schedule", "system", "external"]


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """What a model thought. The signature means something only to the model that made it."""

    text: str
    signature: str | None = None
    model: str | None = None
    """`<provider>/<model>` that produced it; sent back to no other."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asked for. `arguments` is the model's own string, byte for byte."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture that a person sent or a tool brought."""

    media_type: str
    data: bytes = field(repr=False)
    name: str | None = None
    """What its file was called, where the sender said so."""


@dataclass(frozen=True, slots=True)
class DataPart:
    """What a tool found out, as a value; its text is the same value as JSON."""

    data: Any


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file that a tool brought. Models are told of it; people can have it."""

    media_type: str
    data: bytes = field(repr=False)
    name: str | None = None


ResultPart = TextPart | ImagePart | DataPart | FilePart
"""What a tool's result is made of."""
Part = ThinkingPart | ToolCall | ResultPart


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One entry of a transcript."""

    id: str
    role: Role
    origin: Origin
    text: str
    """What a person sees. For role tool: the result as the model sees it."""
    parts: tuple[Part, ...] = ()
    """On assistant messages: text, thinking and calls in the model's order. On user messages: images. On tool
    messages: what the result holds besides text."""
    call_id: str | None = None
    """Only on tool messages: the call that this is the result of."""
    tool_name: str | None = None
    meta: Mapping[str, Any] | None = None
    agent_id: str = "main"
    run_id: str | None = None
    seq: int | None = None
    """Place in the transcript; None while the message waits in the inbox."""
    created_at: str = ""
    mark: str | None = None
    """Drawn when it was committed, where its text is not its person's: see `fence`. Of a tool's result, those of the
    fences inside it, with spaces between."""
    heard_by: str | None = None
    """Who heard the turn that it belongs to, as a word of the index; None where that was the owner."""
    wire: dict[str, Any] = field(default_factory=dict, repr=False)
    """Forms of this message that providers have already made, by protocol. Never stored."""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """In US dollars; None where no price is known."""

    def __add__(self, other: Usage) -> Usage:
        cost = None if self.cost is None and other.cost is None else (self.cost or 0) + (other.cost or 0)
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            cost,
        )


def snippet(messages: Sequence[Message]) -> str | None:
    """What a list shows of a session: its agent's newest words, or why there are none. None: nothing of that is here."""
    for message in reversed(messages):
        answers = message.role == "assistant" or (
            message.role == "system" and "error" in (message.meta or {})
        )
        if answers and message.text.strip():
            return message.text[:SNIPPET]
    return None


def check_text(text: str, *, needed: bool = True) -> None:
    """What may be said to an agent, by a person or by another."""
    if needed and not text.strip():
        raise InvalidRequest("a message must not be empty", details={"field": "message"})
    if len(text) > MAX_MESSAGE:
        raise TooLarge(f"a message has at most {MAX_MESSAGE} characters", details={"field": "message"})
    if "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidRequest("a message must be Unicode text without NUL", details={"field": "message"})
