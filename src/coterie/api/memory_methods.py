"""Memories, as whoever the caller names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from coterie.api import payloads as p
from coterie.api.method import invalid, method
from coterie.core.agent import AgentState
from coterie.core.errors import InvalidRequest
from coterie.core.memory import Count, Filters, Hit, Memory, check_content, check_tags
from coterie.engine.gateway import Gateway
from coterie.engine.memory import text as memory_text
from coterie.engine.memory.memories import Progress


@method("memory.remember", "write")
def memory_remember(gateway: Gateway, params: p.MemoryRemember) -> p.MemoryInfo:
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
    return memory_info(stored)


@method("memory.recall", "read")
def memory_recall(gateway: Gateway, params: p.MemoryRecall) -> p.MemoryHits:
    """What fits a question best, of what the agent may see."""
    hits = gateway.memories.as_(params.agent_id).recall(
        params.query, limit=params.limit, filters=_filters(params), mode=params.mode
    )
    return p.MemoryHits(memories=[memory_hit(hit) for hit in hits])


@method("memory.list", "read")
def memory_list(gateway: Gateway, params: p.MemoryList) -> p.MemoryPage:
    """What the agent may see, in order of arrival."""
    found, cursor = gateway.memories.as_(params.agent_id).page(
        filters=_filters(params),
        owner=params.owner,
        superseded=params.superseded,
        limit=params.limit,
        after=params.after,
    )
    return p.MemoryPage(memories=[memory_info(memory) for memory in found], next_cursor=cursor)


@method("memory.get", "read")
def memory_get(gateway: Gateway, params: p.MemoryRef) -> p.MemoryInfo:
    """One memory, by id."""
    return memory_info(gateway.memories.as_(params.agent_id).get(params.id))


@method("memory.history", "read")
def memory_history(gateway: Gateway, params: p.MemoryRef) -> p.MemoryPage:
    """What a memory took the place of, newest first."""
    found = gateway.memories.as_(params.agent_id).history(params.id)
    return p.MemoryPage(memories=[memory_info(memory) for memory in found])


@method("memory.update", "write")
def memory_update(gateway: Gateway, params: p.MemoryUpdate) -> p.MemoryInfo:
    """Edit, tag, pin or share a memory; what is not given stays."""
    changed = gateway.memories.as_(params.agent_id).update(
        params.id,
        content=params.content,
        scope=params.scope,
        tags=params.tags,
        occurred_at=params.occurred_at,
        pinned=params.pinned,
    )
    return memory_info(changed)


@method("memory.forget", "write")
def memory_forget(gateway: Gateway, params: p.MemoryForget) -> p.MemoryForgotten:
    """Delete a memory and what it took the place of."""
    return p.MemoryForgotten(forgotten=True, id=gateway.memories.as_(params.agent_id).forget(params.id).id)


@method("memory.stats", "read")
def memory_stats(gateway: Gateway, params: p.MemoryReader) -> p.MemoryStats:
    """How much the agent may see, by owner, and how far the vectors are."""
    handle = gateway.memories.as_(params.agent_id)
    handle.follow_files()
    counts = handle.counts()
    return p.MemoryStats(
        agents=[memory_count(count) for count in counts],
        total=sum(count.global_ + count.private for count in counts),
        vectors=_vectors(gateway.memories.progress()),
    )


@method("memory.export", "read")
def memory_export(gateway: Gateway, params: p.MemoryExport) -> p.MemoryExported:
    """An agent's own memories; with nobody named, all that is global."""
    return _exported(list(gateway.memories.as_(params.agent_id).export()), params.format)


@method("memory.export_all", "write")
def memory_export_all(gateway: Gateway, params: p.MemoryExportAll) -> p.MemoryExported:
    """Every active agent's own memories, one agent after the other."""
    agents = [a for a in gateway.registry.agents() if a.state is AgentState.ACTIVE]
    entries = [entry for a in agents for entry in gateway.memories.as_agent(a.id).export()]
    return _exported(entries, params.format)


@method("memory.import", "write")
def memory_import(gateway: Gateway, params: p.MemoryImport) -> p.MemoryImported:
    """Add memories from an export. Nothing is merged."""
    entries = list(_checked(memory_text.read(params.content, params.format)))
    done = gateway.memories.as_(params.agent_id).import_(entries)
    return p.MemoryImported(added=done.added, present=done.present)


@method("memory.reindex", "write")
def memory_reindex(gateway: Gateway, params: p.MemoryReindex) -> p.MemoryVectors:
    """Index some more memories; call again while any are pending."""
    if params.restart:
        gateway.memories.begin_reindex()
        return _vectors(gateway.memories.progress())
    return _vectors(gateway.memories.reindex_some())


@method("sessions.recall", "read")
def sessions_recall(gateway: Gateway, params: p.ConversationsRecall) -> p.ConversationHits:
    """What was said in an agent's own past turns, with the messages around each hit."""
    found = gateway.memories.as_agent(params.agent_id).conversations(params.query, limit=params.limit)
    return p.ConversationHits(
        conversations=[
            p.ConversationHit(
                session_id=one.session_id,
                session_key=one.session_key,
                session_name=one.session_name,
                score=one.score,
                messages=[p.ConversationMessage.model_validate(dict(m)) for m in one.messages],
            )
            for one in found
        ]
    )


def memory_info(memory: Memory) -> p.MemoryInfo:
    return p.MemoryInfo.model_validate(_fields(memory))


def memory_hit(hit: Hit) -> p.MemoryHit:
    return p.MemoryHit.model_validate({**_fields(hit.memory), "score": hit.score, "via": list(hit.via)})


def memory_count(count: Count) -> p.MemoryCount:
    return p.MemoryCount(
        agent_id=count.agent_id,
        shared=count.global_,
        private=count.private,
        archived=count.archived,
        pinned=count.pinned,
        files=count.files,
    )


def _fields(memory: Memory) -> dict[str, Any]:
    return {**asdict(memory), "tags": list(memory.tags)}


def _filters(narrow: p.MemoryNarrow) -> Filters:
    return Filters(narrow.scope, tuple(narrow.tags or ()), narrow.since, narrow.until)


def _vectors(progress: Progress) -> p.MemoryVectors:
    return p.MemoryVectors(
        model=progress.model, pending=progress.pending, total=progress.total, problem=progress.problem
    )


def _exported(entries: list[dict[str, Any]], form: memory_text.Format) -> p.MemoryExported:
    return p.MemoryExported(format=form, count=len(entries), content=memory_text.write(entries, form))


class _Entry(p.MemoryNew):
    """One entry of an import, in either spelling."""

    id: p.MemoryId | None = None
    created_at: p.Moment | None = None
    updated_at: p.Moment | None = None
    pinned_at: p.Moment | None = None
    superseded_by: p.MemoryId | None = None


def _checked(entries: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """All of it is looked at before anything is stored."""
    for number, entry in enumerate(entries, 1):
        try:
            read = _Entry.model_validate(entry)
        except ValidationError as error:
            problem = invalid(error)
            raise InvalidRequest(f"entry {number}: {problem.message}", details=problem.details) from None
        check_content(read.content)
        check_tags(read.tags or ())
        yield read.model_dump(exclude_none=True)
