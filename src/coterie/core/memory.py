"""A memory, who may read it, and what a search gives back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from coterie.core.agent import MAIN, AgentSpec
from coterie.core.audience import OWNER
from coterie.core.errors import InvalidRequest, TooLarge

Scope = Literal["global", "private"]
StoredScope = Literal["global", "private", "archived"]
Via = Literal["text", "vector", "near", "time"]
"""How a search came upon a memory: its own words, its meaning, the words of its neighbours, its date."""

MAX_CONTENT = 100_000
MAX_TAGS = 50


@dataclass(frozen=True, slots=True)
class Memory:
    """One thing that somebody wanted to be remembered."""

    id: str
    agent_id: str
    """Its owner."""
    scope: StoredScope
    content: str
    tags: tuple[str, ...] = ()
    thread: str | None = None
    """Memories of one thread are neighbours in order of arrival."""
    source_ref: str | None = None
    """Opaque; comes back with every hit."""
    file: str | None = None
    """The agent's file that this is a section of; None for what was remembered outright."""
    occurred_at: str | None = None
    created_at: str = ""
    updated_at: str = ""
    pinned_at: str | None = None
    superseded_by: str | None = None
    audience: str = OWNER
    """In whose hearing it was learnt: it comes back there and to the owner, nowhere else."""

    @property
    def moment(self) -> str:
        """When it happened, as far as is known."""
        return self.occurred_at or self.created_at


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose eyes a search uses. Every read of memories takes one, so that none can go without a filter."""

    agent_id: str | None
    """None: nobody in particular, who sees what is global."""
    owners: tuple[str, ...] | None = None
    """Whose global memories count; None: everybody's."""
    audience: str = OWNER
    """Who will hear what is found."""
    with_owners: bool = False
    """Whether an outside audience hears what is the owner's, too."""

    @classmethod
    def of(cls, agent_id: str, spec: AgentSpec, audience: str = OWNER) -> Reader:
        owners: tuple[str, ...] | None = None
        match spec.memory.read_policy:
            case "isolated":
                owners = (agent_id,)
            case "group":
                owners = tuple(dict.fromkeys((agent_id, *spec.memory.group)))
        return cls(agent_id, owners, audience, audience != OWNER and spec.outside.memory == "shared")


NOBODY = Reader(None)


@dataclass(frozen=True, slots=True)
class Filters:
    """What a search is narrowed to, beyond what its reader may see."""

    scope: Scope | None = None
    tags: tuple[str, ...] = ()
    """Any of them."""
    since: str | None = None
    until: str | None = None

    @property
    def any(self) -> bool:
        return bool(self.scope or self.tags or self.since or self.until)


@dataclass(frozen=True, slots=True)
class Hit:
    memory: Memory
    score: float
    via: tuple[Via, ...]
    strong: bool = True
    """Whether it is near enough to the question to be shown to somebody who did not ask for memories."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A hit in a past conversation, with what was said around it."""

    session_id: str
    session_key: str
    session_name: str | None
    score: float
    strong: bool
    messages: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)
    """seq, role, origin, speaker, text, created_at, and `hit` on the one that was found."""
    audience: str = OWNER


@dataclass(frozen=True, slots=True)
class Count:
    """How many memories of one owner somebody can see."""

    agent_id: str
    global_: int = 0
    private: int = 0
    archived: int = 0
    pinned: int = 0
    files: int = 0
    """Sections of the agent's own files, among the private ones."""


def check_content(content: str) -> str:
    if not content.strip():
        raise InvalidRequest("a memory must not be empty", details={"field": "content"})
    if len(content) > MAX_CONTENT:
        raise TooLarge(f"a memory has at most {MAX_CONTENT} characters", details={"field": "content"})
    return content


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(kept) > MAX_TAGS:
        raise InvalidRequest(f"a memory has at most {MAX_TAGS} tags", details={"field": "tags"})
    return kept


def moment(value: Any, field: str) -> str | None:
    """An ISO 8601 time in UTC, so that text order is time order; without a zone it is taken for UTC."""
    if value is None or value == "":
        return None
    text = str(value).strip()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text[:100]!r} is not a time; write it as in 2026-05-01T12:00:00Z", details={"field": field}
        ) from None
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return found.isoformat().replace("+00:00", "Z")


def scope_for(asked: str | None, agent_id: str | None, *, default: Scope) -> Scope:
    """The scope of a new memory. Archived is never given; private needs somebody whose it is."""
    if asked is None:
        return default
    if asked not in ("global", "private"):
        raise InvalidRequest(
            f"{asked!r} is not a scope to store with: global or private", details={"field": "scope"}
        )
    if asked == "private" and agent_id is None:
        raise InvalidRequest("a private memory needs the agent it belongs to", details={"field": "agent_id"})
    return "private" if asked == "private" else "global"


def call_memory_id(run_id: str, call_id: str) -> str:
    """The id of what a tool call remembers: a call that is made again after a crash remembers nothing twice."""
    return hashlib.sha256(f"{run_id}:{call_id}".encode()).hexdigest()[:32]


def owner_of(agent_id: str | None) -> str:
    """Rows of an older table name nobody: they are main's."""
    return agent_id or MAIN
