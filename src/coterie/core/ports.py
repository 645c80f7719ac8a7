"""The few interfaces that the engine talks to. Everything at the edge implements one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from coterie.core.errors import CoterieError
from coterie.core.message import Message, Part, Usage
from coterie.core.session import Session


class Waker(Protocol):
    """Says that a session has work. Where several processes share a store, one of them hears it."""

    def wake(self, session: Session) -> None:
        """Something was committed for this session. Never waits; a wake that is lost only costs time."""


class Embedder(Protocol):
    """Turns texts into vectors that lie close together where the texts mean the same."""

    @property
    def name(self) -> str:
        """Of the model and its version: vectors of different names cannot be compared."""

    @property
    def averages(self) -> bool:
        """It averages the vectors of words, so that words which most texts share drown the others."""

    @property
    def waits(self) -> bool:
        """For something outside this program, a server or a download: it may hang."""

    @property
    def ready(self) -> bool:
        """Whether the first use, which may take a second, is over."""

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """One vector each, eight bits a dimension. Blocks; raises Unavailable."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as a model is told about it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments object."""
    wire: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Forms of it that providers have already made, by protocol."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request: tools, a stable system prompt, the transcript, and one trailing context message."""

    system: str
    tools: tuple[ToolSchema, ...]
    messages: Sequence[Message]
    context: str | None = None
    """Sent last as a user message, never stored."""
    temperature: float | None = None
    max_tokens: int | None = None
    thinking: bool | Literal["low", "medium", "high"] | None = None


Finish = Literal["stop", "tool_calls", "length", "refused", "other"]
"""Why a reply ends where it does."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; the last thing a stream yields, exactly once."""

    parts: tuple[Part, ...]
    usage: Usage
    finish: Finish


ModelEvent = TextDelta | ThinkingDelta | Reply


class ModelError(CoterieError):
    """A provider failed. `retry_after` is the provider's own hint in seconds."""

    code = "UNAVAILABLE"
    http_status = 503

    def __init__(
        self,
        message: str,
        *,
        kind: Literal[
            "auth", "rate_limit", "overloaded", "network", "timeout", "garbage", "rejected", "unknown_model"
        ],
        can_retry: bool,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, details={"kind": kind})
        self.kind = kind
        self.can_retry = can_retry
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider as people are shown it; never its key."""

    name: str
    type: str
    base_url: str | None
    key_names: tuple[str, ...]
    has_key: bool
    """True as well where none is needed."""
    models: tuple[str, ...]
    """Well-known models as `<provider>/<model>`; more may exist."""
    trouble: str | None = None
    """Why none of its models can be asked; None: they can."""


class Model(Protocol):
    """One model of one provider."""

    @property
    def name(self) -> str:
        """`<provider>/<model>`."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas as they come, then one Reply. Raises ModelError and nothing else."""


@runtime_checkable
class Previews(Protocol):
    """A model that can show what it would send."""

    async def body(self, request: ModelRequest) -> bytes:
        """What would go over the wire, to the last byte; nothing is sent."""
