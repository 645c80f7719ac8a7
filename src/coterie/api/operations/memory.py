"""Memories, as whoever the caller names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from coterie.api.operation import Delete, Get, Patch, Post, operation
from coterie.api.shapes import NUMBER, AgentId, Answer, Change, Flag, Params, Shape, ShortText, parse
from coterie.core.agent import AgentState, Text
from coterie.core.errors import InvalidRequest
from coterie.core.memory import Filters, Memory, Scope, Via
from coterie.engine.gateway import Gateway
from coterie.engine.memory import text as memory_text
from coterie.engine.memory.search import Mode
from coterie.engine.memory.text import Format

MemoryText = Annotated[Text, Field(max_length=100_000)]
MemoryId = Annotated[
    Text,
    Field(
        min_length=1, max_length=200, description="A memory's id, or as much of its beginning as is unique."
    ),
]
Reader = Annotated[
    Text,
    Field(max_length=200, description="As whom; without it, nobody in particular, who sees what is global."),
]
Tags = Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=50)]
Moment = Annotated[Text, Field(max_length=64, description="ISO 8601; without a zone it is taken for UTC.")]
StoreScope = Annotated[Text, Field(max_length=20, description="global, which is the default, or private.")]


class MemoryNew(Shape):
    content: MemoryText
    agent_id: AgentId | None = Field(None, description="Whose it is; the default agent's if nobody is named.")
    scope: StoreScope | None = None
    tags: Tags | None = None
    occurred_at: Moment | None = Field(None, description="When it happened, if not now.")
    thread: ShortText | None = Field(
        None, description="Memories of one thread are neighbours in order of arrival."
    )
    source_ref: ShortText | None = Field(None, description="Opaque; comes back with every hit.")


class MemoryRemember(MemoryNew, Change):
    supersedes: MemoryId | None = Field(None, description="An older memory that this one takes the place of.")


class MemoryReader(Params):
    agent_id: Reader | None = None


class MemoryNarrow(MemoryReader):
    scope: Scope | None = None
    tags: Tags | None = Field(None, description="Any of them.")
    since: Moment | None = None
    until: Moment | None = None

    @property
    def filters(self) -> Filters:
        return Filters(self.scope, tuple(filter(None, self.tags or ())), self.since, self.until)


class MemoryRecall(MemoryNarrow):
    query: Annotated[Text, Field(max_length=200_000)]
    limit: Annotated[int, Field(ge=1, le=200), NUMBER] = 10
    mode: Mode = Field("hybrid", description="Words and meaning together, or one of them alone.")


class MemoryList(MemoryNarrow):
    owner: AgentId | None = Field(None, description="Only this agent's, of those that can be seen.")
    superseded: Flag = Field(False, description="Also those that a newer one took the place of.")
    limit: Annotated[int, Field(ge=1, le=1000), NUMBER] = 200
    after: ShortText | None = Field(None, description="The cursor of the page before.")


class MemoryRef(MemoryReader):
    id: MemoryId


class MemoryForget(Change):
    id: MemoryId
    agent_id: Reader | None = None


class MemoryUpdate(MemoryForget):
    content: MemoryText | None = None
    scope: StoreScope | None = None
    tags: Tags | None = None
    occurred_at: Moment | None = None
    pinned: Flag | None = None


class MemoryExport(MemoryReader):
    format: Format = "jsonl"


class MemoryExportAll(Params):
    format: Format = "jsonl"


class MemoryImport(Change):
    content: str = Field(description="What an export wrote, or JSON lines of what `memory.remember` takes.")
    format: Format = "jsonl"
    agent_id: AgentId | None = Field(
        None, description="Whose entries are; those that name another are refused."
    )


class MemoryReindex(Change):
    restart: Flag = Field(False, description="Begin with the first memory; else go on with what is pending.")


class MemoryInfo(Answer):
    id: str
    content: str
    agent_id: str = Field(description="Its owner.")
    scope: Scope
    tags: list[str]
    thread: str | None = None
    source_ref: str | None = None
    file: str | None = Field(None, description="The agent's file that this is a section of.")
    occurred_at: str | None = None
    created_at: str
    updated_at: str
    pinned_at: str | None = None
    superseded_by: str | None = None
    audience: str = Field(description="In whose hearing it was learnt: it comes back there and to the owner.")


class MemoryHit(MemoryInfo):
    score: float
    via: list[Via]


class MemoryHits(Answer):
    memories: list[MemoryHit]
    note: str | None = None
    """Where vectors could take no part: why."""


class MemoryPage(Answer):
    memories: list[MemoryInfo]
    next_cursor: str | None = None


class MemoryForgotten(Answer):
    forgotten: bool
    id: str


class MemoryCounts(Answer):
    """An agent's own memories."""

    shared: int = Field(description="With scope global.")
    private: int
    archived: int
    pinned: int
    files: int = Field(description="Sections of the agent's files, among the private ones.")


class MemoryCount(MemoryCounts):
    agent_id: str


class MemoryVectors(Answer):
    model: str | None = Field(description="Null: search goes by words alone.")
    pending: int = Field(description="Memories that wait for a vector of this model.")
    total: int
    problem: str | None = None


class MemoryStats(Answer):
    agents: list[MemoryCount]
    total: int
    vectors: MemoryVectors


class MemoryExported(Answer):
    format: Format
    count: int
    content: str


class MemoryImported(Answer):
    added: int
    present: int = Field(description="Left alone, because a memory with that id was there already.")


@operation("memory.remember", "write", http=Post("/api/memory/remember", 201))
def memory_remember(gateway: Gateway, params: MemoryRemember) -> MemoryInfo:
    """Remember something: global unless it says private, the default agent's unless it names one."""
    stored = gateway.memories.as_(params.agent_id).remember(
        params.content,
        scope=params.scope,
        tags=params.tags or (),
        occurred_at=params.occurred_at,
        thread=params.thread,
        source_ref=params.source_ref,
        supersedes=params.supersedes,
    )
    return MemoryInfo.of(stored)


@operation("memory.recall", "read", http=(Post("/api/memory/recall"), Get("/memory/search", q="query")))
def memory_recall(gateway: Gateway, params: MemoryRecall) -> MemoryHits:
    """What fits a question best, of what the agent may see."""
    hits = gateway.memories.as_(params.agent_id).recall(
        params.query, limit=params.limit, filters=params.filters, mode=params.mode
    )
    note = gateway.memories.by_words_alone if params.mode != "text" else None
    return MemoryHits(
        memories=[MemoryHit.of(hit.memory, score=hit.score, via=hit.via) for hit in hits],
        note=None if note is None else f"searched by words alone: {note}",
    )


@operation("memory.list", "read", http=Get("/api/memories"))
def memory_list(gateway: Gateway, params: MemoryList) -> MemoryPage:
    """What the agent may see, in order of arrival."""
    found, cursor = gateway.memories.as_(params.agent_id).page(
        filters=params.filters,
        owner=params.owner,
        superseded=params.superseded,
        limit=params.limit,
        after=params.after,
    )
    return _page(found, cursor)


@operation("memory.get", "read", http=Get("/api/memories/{id}"))
def memory_get(gateway: Gateway, params: MemoryRef) -> MemoryInfo:
    """One memory, by id."""
    return MemoryInfo.of(gateway.memories.as_(params.agent_id).get(params.id))


@operation("memory.history", "read")
def memory_history(gateway: Gateway, params: MemoryRef) -> MemoryPage:
    """What a memory took the place of, newest first."""
    return _page(gateway.memories.as_(params.agent_id).history(params.id))


@operation("memory.update", "write", http=Patch("/api/memories/{id}"))
def memory_update(gateway: Gateway, params: MemoryUpdate) -> MemoryInfo:
    """Edit, tag, pin or share a memory; what is not given stays."""
    changed = gateway.memories.as_(params.agent_id).update(
        params.id,
        content=params.content,
        scope=params.scope,
        tags=params.tags,
        occurred_at=params.occurred_at,
        pinned=params.pinned,
    )
    return MemoryInfo.of(changed)


@operation("memory.forget", "write", http=Delete("/api/memories/{id}"))
def memory_forget(gateway: Gateway, params: MemoryForget) -> MemoryForgotten:
    """Delete a memory and what it took the place of."""
    return MemoryForgotten(forgotten=True, id=gateway.memories.as_(params.agent_id).forget(params.id).id)


@operation("memory.stats", "read", http=Get("/api/memory/stats"))
def memory_stats(gateway: Gateway, params: MemoryReader) -> MemoryStats:
    """How much the agent may see, by owner, and how far the vectors are."""
    handle = gateway.memories.as_(params.agent_id)
    handle.follow_files()
    counts = handle.counts()
    return MemoryStats(
        agents=[MemoryCount.of(count, shared=count.global_) for count in counts],
        total=sum(count.global_ + count.private for count in counts),
        vectors=MemoryVectors.of(gateway.memories.progress()),
    )


@operation("memory.export", "read")
def memory_export(gateway: Gateway, params: MemoryExport) -> MemoryExported:
    """An agent's own memories; with nobody named, all that is global."""
    return _exported(list(gateway.memories.as_(params.agent_id).export()), params.format)


@operation("memory.export_all", "write")
def memory_export_all(gateway: Gateway, params: MemoryExportAll) -> MemoryExported:
    """Every active agent's own memories, one agent after the other."""
    agents = [a for a in gateway.registry.agents() if a.state is AgentState.ACTIVE]
    entries = [entry for a in agents for entry in gateway.memories.as_agent(a.id).export()]
    return _exported(entries, params.format)


@operation("memory.import", "write", http=Post("/api/memory/import", text="content"))
def memory_import(gateway: Gateway, params: MemoryImport) -> MemoryImported:
    """Add memories: JSON lines of what remembering takes, or an export. Nothing is merged."""
    entries = list(_checked(memory_text.read(params.content, params.format)))
    return MemoryImported.of(gateway.memories.as_(params.agent_id).import_(entries))


@operation("memory.reindex", "write")
def memory_reindex(gateway: Gateway, params: MemoryReindex) -> MemoryVectors:
    """Index some more memories; call again while any are pending."""
    if params.restart:
        gateway.memories.begin_reindex()
        return MemoryVectors.of(gateway.memories.progress())
    return MemoryVectors.of(gateway.memories.reindex_some())


def _page(memories: Iterable[Memory], cursor: str | None = None) -> MemoryPage:
    return MemoryPage(memories=[MemoryInfo.of(memory) for memory in memories], next_cursor=cursor)


def _exported(entries: list[dict[str, Any]], form: Format) -> MemoryExported:
    return MemoryExported(format=form, count=len(entries), content=memory_text.write(entries, form))


class _Entry(MemoryNew):
    """One entry of an import, in either spelling."""

    id: MemoryId | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None
    pinned_at: Moment | None = None
    superseded_by: MemoryId | None = None
    audience: ShortText | None = Field(None, description="In whose hearing it was learnt; else the owner's.")


def _checked(entries: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """By their fields. The rest is looked at where they are read, and all before anything is stored."""
    for number, entry in enumerate(entries, 1):
        try:
            read = parse(_Entry, entry)
        except InvalidRequest as problem:
            raise InvalidRequest(f"entry {number}: {problem.message}", details=problem.details) from None
        yield read.__dict__
