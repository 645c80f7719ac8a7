"""The few interfaces that the engine talks to. Everything at the edge implements one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from coterie.core.agent import Agent, AgentState
from coterie.core.announce import Announcement, RunStatus, SubagentRun, TraceUse
from coterie.core.errors import CoterieError
from coterie.core.memory import Count, Filters, Memory, Reader
from coterie.core.message import Message, Origin, Part, Role, Usage
from coterie.core.session import ListPlace, Session
from coterie.core.token import Token
from coterie.core.turn import TurnJob, TurnState
from coterie.core.usage import UsageKey, UsageRow

T = TypeVar("T")


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


class ClaimLost(CoterieError):
    """Another process, or a person, took this turn over: nothing more of ours may be committed."""

    code = "CONFLICT"
    http_status = 409


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A message that was accepted and that no model has seen yet."""

    session_id: str
    message_id: str
    run_id: str | None
    """The turn that it asks for; None for what is merely noted with the next one."""
    agent_id: str
    """Whom the session was bound to when it came."""
    role: Role
    origin: Origin
    text: str
    meta: Mapping[str, Any] | None
    created_at: str
    position: int = 0
    parts: tuple[Part, ...] = ()
    """Images that came with it."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is next in a session's inbox."""

    session: Session
    entries: Sequence[InboxEntry]
    """The last one asks for the turn; those before it are noted with it."""
    job: TurnJob
    announced: bool
    """Results that other agents brought are open in this session."""


class SessionRows(Protocol):
    """Sessions and their messages."""

    def find(self, ref: str) -> Session | None: ...

    def add(self, session: Session) -> None: ...

    def save(self, session: Session) -> None: ...

    def touch(self, session_id: str, at: str, snippet: str) -> None: ...

    def remove(self, session_id: str) -> None: ...

    def select(
        self,
        *,
        agents: Sequence[str | None] | None = None,
        kinds: Sequence[str] | None = None,
        limit: int = 200,
        after: ListPlace | None = None,
    ) -> list[Session]: ...

    def latest(
        self, agents: Sequence[str | None], *, idle: bool = False, internal: bool = False
    ) -> Session | None: ...

    def count_bound_to(self, agent_id: str) -> int: ...

    def key_is_taken(self, key: str) -> bool: ...

    def transcript(self, session_id: str) -> Sequence[Message]: ...

    def page(
        self, session_id: str, *, limit: int, before: int | None = None, after: int | None = None
    ) -> Sequence[Message]: ...

    def message(self, message_id: str) -> Message | None: ...

    def of_run(self, session_id: str, run_id: str, since: int) -> Sequence[Message]: ...

    def append(self, session_id: str, messages: Iterable[Message]) -> None: ...

    def keep_result(self, session_id: str, call_id: str, content: str, at: str) -> None:
        """A tool result that is shown shortened, whole."""

    def copy_results(self, source_id: str, target_id: str) -> None: ...

    def kept_result(self, session_id: str, call_id: str) -> str | None: ...

    def clear(self, session_id: str) -> None: ...

    def search(
        self, query: str, *, session_ids: Sequence[str] | None, limit: int
    ) -> Sequence[tuple[str, Message]]: ...


class TurnRows(Protocol):
    """Turns, inbox, backlog, outbox. Every change of state says which state it expects."""

    def submit(
        self, job: TurnJob, entry: InboxEntry, *, key: str | None = None, body_hash: str | None = None
    ) -> None: ...

    def ask_for_wake(self, job: TurnJob) -> None: ...

    def queued_wake(self, session_id: str) -> TurnJob | None: ...

    def post(self, entry: InboxEntry) -> None: ...

    def repeated(self, session_id: str, key: str) -> tuple[TurnJob, str | None] | None: ...

    def newest_with_body(self, session_id: str | None, body_hash: str) -> TurnJob | None: ...

    def waiting(self, session_id: str) -> list[InboxEntry]: ...

    def noted(self, session_id: str) -> list[InboxEntry]: ...

    def next_work(self, session_id: str) -> Work | None:
        """The entries up to the first that asks for a turn, and that turn; None where nothing does."""

    def cancel_queued(self, run_id: str, at: str) -> InboxEntry | None: ...

    def claim(self, run_id: str, *, epoch: int, agent_id: str, at: str) -> None: ...

    def take(self, entry: InboxEntry) -> None: ...

    def step(
        self,
        run_id: str,
        *,
        epoch: int,
        agent_id: str,
        replies: int = 0,
        open_call: str | None = None,
        usage: Usage | None = None,
        cost: float | None = None,
        model: str | None = None,
        state: TurnState = TurnState.RUNNING,
        final: str | None = None,
        at: str | None = None,
    ) -> None: ...

    def move(self, run_id: str, state: TurnState, *, epoch: int) -> None: ...

    def end(
        self, run_id: str, state: TurnState, at: str, *, error: str | None = None, epoch: int | None = None
    ) -> bool: ...

    def put_back(self, session_id: str, run_id: str, token: Mapping[str, Any], at: str) -> None: ...

    def backlog(self, session_id: str) -> list[tuple[str, dict[str, Any]]]: ...

    def resume(self, run_id: str) -> None: ...

    def get(self, run_id: str) -> TurnJob | None: ...

    def unfinished(self, session_id: str) -> list[TurnJob]: ...

    def sessions_with_work(self) -> list[str]: ...

    def spent_since(self, agent_id: str, since: str) -> Usage: ...

    def used_by_trace(self, trace_id: str) -> TraceUse: ...

    def forget_all(self, session_id: str, at: str) -> list[TurnJob]: ...

    def send(self, session_id: str, run_id: str, message: Message, route: Mapping[str, Any]) -> None: ...


class RunRows(Protocol):
    """Runs that one agent does for another."""

    def add(self, run: SubagentRun) -> None: ...

    def get(self, run_id: str) -> SubagentRun | None: ...

    def begun_by(self, requester_run_id: str, call_id: str) -> SubagentRun | None: ...

    def select(
        self,
        *,
        requester_session_id: str | None = None,
        requester_run_id: str | None = None,
        live: bool = False,
        status: RunStatus | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[SubagentRun]: ...

    def some_are_live(self, requester_session_id: str) -> bool: ...

    def start(self, run_id: str, at: str) -> None: ...

    def finish(
        self, run_id: str, status: RunStatus, at: str, *, result: str | None, error: str | None, usage: Usage
    ) -> SubagentRun | None: ...

    def announce_later(self, run_id: str) -> bool: ...

    def hold(self, run_ids: Sequence[str], reason: str) -> None: ...

    def remove(self, run_id: str) -> bool: ...


class AnnouncementRows(Protocol):
    """How results come back: one row per run."""

    def add(self, one: Announcement) -> None: ...

    def get(self, run_id: str) -> Announcement | None: ...

    def of(self, run_ids: Sequence[str]) -> dict[str, Announcement]: ...

    def shown(self, session_id: str) -> list[Announcement]: ...

    def bind(self, session_id: str, turn_id: str) -> None: ...

    def answered(self, turn_id: str, at: str) -> None: ...

    def failed(self, turn_id: str, reason: str) -> None: ...

    def block_all(self, session_id: str, reason: str, *, forget_lines: bool) -> None: ...

    def retry(self, run_id: str, message_id: str) -> bool: ...


class UsageRows(Protocol):
    def summary(
        self,
        by: Sequence[UsageKey],
        *,
        since: str | None,
        until: str | None,
        agent_id: str | None,
        limit: int,
    ) -> list[UsageRow]: ...


class MemoryRows(Protocol):
    """Memories and what finds them. Reads take their reader: there is no way round its filter."""

    def add(self, memories: Sequence[Memory], vectors: Sequence[bytes | None], model: str | None) -> None: ...

    def save(self, memory: Memory, vector: bytes | None, model: str | None) -> None: ...

    def remove(self, ids: Sequence[str]) -> None: ...

    def archive(self, agent_id: str) -> None: ...

    def restore(self, agent_id: str) -> None: ...

    def purge(self, agent_id: str) -> None: ...

    def taken(self, ids: Sequence[str]) -> set[str]:
        """Which of these ids are in use, whoever may read them."""

    def get(self, reader: Reader, memory_id: str) -> Memory | None: ...

    def select(
        self,
        reader: Reader,
        filters: Filters,
        *,
        owner: str | None = None,
        superseded: bool = False,
        files: bool = True,
        limit: int | None = None,
        after: tuple[str, str] | None = None,
    ) -> list[Memory]: ...

    def history(self, reader: Reader, memory_id: str) -> list[Memory]: ...

    def pinned(self, reader: Reader) -> list[Memory]: ...

    def sections(self, agent_id: str) -> list[Memory]: ...

    def counts(self, reader: Reader) -> list[Count]: ...

    def any(self, reader: Reader) -> bool: ...

    def total(self, reader: Reader) -> int: ...

    def find(self, reader: Reader, word: str, filters: Filters, limit: int) -> list[int]: ...

    def nearest(
        self, reader: Reader, model: str, vector: bytes, filters: Filters, limit: int
    ) -> list[int]: ...

    def neighbourhood(self, reader: Reader, numbers: Sequence[int]) -> list[int]: ...

    def passages(
        self, reader: Reader, numbers: Sequence[int]
    ) -> list[tuple[int, int, Memory, bytes | None]]: ...

    def allowed(self, numbers: Sequence[int], filters: Filters) -> set[int]: ...

    def similarities(self, vector: bytes, others: Mapping[int, bytes]) -> dict[int, float]: ...

    def begin_reindex(self) -> None: ...

    def turn_to(self, model: str) -> None: ...

    def pending(self) -> tuple[int, int]: ...

    def next_pending(self, limit: int) -> list[tuple[int, str]]: ...

    def put_vectors(self, vectors: Mapping[int, bytes], model: str) -> None: ...


class ConversationRows(Protocol):
    """Past conversations, always those of one agent."""

    def any(self, agent_id: str, *, apart_from: str) -> bool: ...

    def find(self, agent_id: str, word: str, *, apart_from: str | None, limit: int) -> list[str]: ...

    def passages(self, agent_id: str, ids: Sequence[str]) -> list[tuple[str, Message]]: ...


class StoreTransaction(Protocol):
    @property
    def sessions(self) -> SessionRows: ...

    @property
    def turns(self) -> TurnRows: ...

    @property
    def usage(self) -> UsageRows: ...

    @property
    def runs(self) -> RunRows: ...

    @property
    def announcements(self) -> AnnouncementRows: ...

    @property
    def memories(self) -> MemoryRows: ...

    @property
    def conversations(self) -> ConversationRows: ...

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

    async def look(self, work: Callable[[Any], T]) -> T:
        """As `read`, from the event loop, for what is quickly read."""

    async def transact(self, work: Callable[[Any], T]) -> T:
        """As `write`, from the event loop, which never waits for another process's lock."""

    def scrub(self) -> None:
        """After a deletion for good: leave no trace of it in the files."""


class Embedder(Protocol):
    """Turns texts into vectors that lie close together where the texts mean the same."""

    @property
    def name(self) -> str:
        """Of the model and its version: vectors of different names cannot be compared."""

    @property
    def averages(self) -> bool:
        """It averages the vectors of words, so that words which most texts share drown the others."""

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
