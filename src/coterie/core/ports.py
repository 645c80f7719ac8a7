"""The few interfaces that the engine talks to. Everything at the edge implements one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from coterie.core.agent import Agent, AgentState
from coterie.core.errors import CoterieError
from coterie.core.message import Message, Part, Usage
from coterie.core.token import Token


class AgentRows(Protocol):
    """The registry table."""

    def get(self, agent_id: str) -> Agent | None: ...

    def all(self) -> list[Agent]: ...

    def in_state(self, state: AgentState) -> list[Agent]: ...

    def default(self) -> Agent | None: ...

    def save(self, agents: Iterable[Agent]) -> None:
        """Insert or overwrite, labels and the default being free to change places among the rows given."""

    def remove(self, agent_id: str) -> None:
        """Only a row that is being purged."""


class MetaRows(Protocol):
    """Small facts about the home."""

    def get(self, key: str) -> str | None: ...

    def set(self, key: str, value: str) -> None: ...

    def count_up(self, key: str) -> int:
        """The next number of a counter; others that count wait until this transaction ends."""


class TokenRows(Protocol):
    def get(self, token_id: str) -> Token | None: ...

    def all(self) -> list[Token]: ...

    def add(self, token: Token) -> None: ...

    def revoke(self, token_id: str, at: str) -> bool: ...


class AnswerRows(Protocol):
    """First answers, kept for requests that are repeated under the same idempotency key."""

    def get(self, key: str) -> tuple[str, str] | None: ...

    def add(self, key: str, request_hash: str, answer_json: str, at: str) -> None: ...

    def forget_before(self, at: str) -> None: ...


class StoreTransaction(Protocol):
    @property
    def agents(self) -> AgentRows: ...

    @property
    def meta(self) -> MetaRows: ...

    @property
    def tokens(self) -> TokenRows: ...

    @property
    def answers(self) -> AnswerRows: ...


class Store(Protocol):
    """Where everything is kept."""

    def read(self) -> AbstractContextManager[StoreTransaction]:
        """One consistent view."""

    def write(self) -> AbstractContextManager[StoreTransaction]:
        """All or nothing, on disk when the block ends."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as a model is told about it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments object."""


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
    finish: Literal["stop", "tool_calls", "length", "refused", "other"]


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


class Model(Protocol):
    """One model of one provider."""

    @property
    def name(self) -> str:
        """`<provider>/<model>`."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Deltas as they come, then one Reply. Raises ModelError and nothing else."""
