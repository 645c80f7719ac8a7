"""Memories: remembered, found, edited, forgotten, carried in and out. Reached only through handles."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from coterie.config import Embeddings
from coterie.core.agent import DEFAULT_ALIAS, AgentSpec, AgentState
from coterie.core.audience import OWNER, is_outside
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound, Unavailable
from coterie.core.memory import (
    NOBODY,
    Count,
    Filters,
    Hit,
    Memory,
    Reader,
    Scope,
    Turns,
    check_content,
    check_tags,
    scope_for,
)
from coterie.core.ports import Embedder
from coterie.core.session import check_audience
from coterie.engine.events import Events
from coterie.engine.household.registry import Registry
from coterie.engine.household.workspace import Workspace
from coterie.engine.memory.files import MemoryFiles, append_to_log, edit_memory_file
from coterie.engine.memory.search import MemorySearch, Mode

if TYPE_CHECKING:
    from coterie.store.transaction import Store

log = logging.getLogger("coterie.memory")

IMPORT_BATCH = 2_000
REINDEX_BATCH = 256
REINDEX_PAUSE = 0.02
"""Between two batches in the background, so that others get their turn."""
RETRY_SECONDS = 60
BUSY_TRIES = 20
MODEL = "memory_model"
"""Under this key the store says whose vectors it holds."""
_TIMES = ("occurred_at", "created_at", "updated_at", "pinned_at")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the vectors are."""

    model: str | None
    pending: int
    total: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    added: int
    present: int
    """Whose id was there already: left as they are."""


class Memories:
    """Gives out handles, each bound to its reader, and keeps the vectors up to date."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        events: Events,
        make_embedder: Callable[[Embeddings], Embedder | None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._events = events
        self._make_embedder = make_embedder
        self._made: tuple[Embeddings, Embedder | None] | None = None
        self._making = threading.Lock()
        self._wake: Callable[[], None] = lambda: None
        self._problem: str | None = None
        self.search = MemorySearch(store, lambda: self.embedder)
        self.files = MemoryFiles(store, self.vectors)
        self.version = 0
        """Rises with every change made through this process."""
        registry.sync.listen(lambda change: self._agents_changed(*change))

    @property
    def embedder(self) -> Embedder | None:
        """As the configuration says now."""
        settings = self._registry.sync.config.memory.embeddings
        with self._making:
            if self._made is None or self._made[0] != settings:
                self._made = (settings, self._make_embedder(settings))
                self._wake()
            return self._made[1]

    def use(self, embedder: Embedder) -> None:
        """Another one, until the configuration changes."""
        self._made = (self._registry.sync.config.memory.embeddings, embedder)

    def as_agent(self, agent_id: str) -> MemoryHandle:
        """What an agent sees, by its read policy. `default` is whoever is the default."""
        agent = self._registry.get(agent_id)
        if agent.state is not AgentState.ACTIVE:
            raise self._registry.absent(agent.id)
        reader = Reader.of(agent.id, self._registry.spec(agent))
        return MemoryHandle(self, reader, self._registry.workspace(agent), agent.id)

    def bound(self, agent_id: str, spec: AgentSpec, audience: str) -> MemoryHandle:
        """For a turn, which knows its agent, what it may read, and who hears it."""
        reader = Reader.of(agent_id, spec, audience)
        return MemoryHandle(self, reader, self._registry.workspace(agent_id), agent_id)

    def as_nobody(self) -> MemoryHandle:
        """What is global. What is stored belongs to the default agent."""
        return MemoryHandle(self, NOBODY, None, self._registry.get(DEFAULT_ALIAS).id)

    def as_(self, agent_id: str | None) -> MemoryHandle:
        return self.as_nobody() if agent_id is None else self.as_agent(agent_id)

    def archived_count(self, agent_id: str) -> Count:
        """Of an agent that is archived: how much would come back."""
        with self._store.read() as tx:
            counts = tx.memories.counts(Reader(agent_id, (agent_id,)))
        return next((count for count in counts if count.agent_id == agent_id), Count(agent_id))

    # Vectors

    def vectors(self, texts: Sequence[str]) -> tuple[list[bytes | None], str | None]:
        """Of these texts, with the model's name; none where the model cannot be had: they are made later."""
        embedder = self.embedder
        if embedder is None or not texts:
            return [None] * len(texts), None
        try:
            return list(embedder.embed(texts)), embedder.name
        except Unavailable as error:
            log.warning("remembered without a vector for now: %s", error.message)
            self._wake()
            return [None] * len(texts), None

    def progress(self) -> Progress:
        embedder = self._settled()
        with self._store.read() as tx:
            pending, total = tx.memories.pending()
        if embedder is None:
            return Progress(None, 0, total)
        return Progress(embedder.name, pending, total, self._problem if pending else None)

    def begin_reindex(self) -> None:
        with self._store.write() as tx:
            tx.memories.begin_reindex()

    def reindex_some(self) -> Progress:
        """One batch. Cut short anywhere, the next call goes on where it was."""
        embedder = self._settled()
        if embedder is None:
            return self.progress()
        with self._store.read() as tx:
            batch = tx.memories.next_pending(REINDEX_BATCH)
        if batch:
            vectors = embedder.embed([text for _, text in batch])
            made = {number: vector for (number, _), vector in zip(batch, vectors, strict=True)}
            with self._store.write() as tx:
                tx.memories.put_vectors(made, embedder.name)
        self._problem = None
        return self.progress()

    def _settled(self) -> Embedder | None:
        """The embedder, once the store knows that vectors of any other count for nothing."""
        embedder = self.embedder
        if embedder is None:
            return None
        with self._store.read() as tx:
            known = tx.meta.get(MODEL)
        if known != embedder.name:
            with self._store.write() as tx:
                tx.memories.turn_to(embedder.name)
                tx.meta.set(MODEL, embedder.name)
        return embedder

    async def keep_embedding(self) -> None:
        """In the background, for as long as the gateway runs: vectors that are missing or of another model."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        self._wake = lambda: _ignored(loop.call_soon_threadsafe(woken.set))
        self._registry.sync.listen(lambda _: self._wake())
        try:
            while True:
                woken.clear()
                pause: float | None = None
                try:
                    pause = await self._embed_pending()
                except CoterieError as error:
                    self._problem = error.message
                    pause = RETRY_SECONDS
                except Exception:
                    log.exception("the vectors of memories could not be brought up to date")
                    pause = RETRY_SECONDS
                try:
                    async with asyncio.timeout(pause):
                        await woken.wait()
                except TimeoutError:
                    pass
        finally:
            self._wake = lambda: None

    async def _embed_pending(self) -> float | None:
        """How long to wait before the next look; None: until something changes."""
        before = await asyncio.to_thread(self.progress)
        if not before.pending:
            return RETRY_SECONDS
        log.info("%d memories get vectors of %s", before.pending, before.model)
        while (progress := await asyncio.to_thread(self.reindex_some)).pending:
            self._events.publish(
                "memory.changed",
                {"agent_id": None, "change": "reindex", "pending": progress.pending, "total": progress.total},
            )
            await asyncio.sleep(REINDEX_PAUSE)
        self._events.publish(
            "memory.changed", {"agent_id": None, "change": "reindexed", "total": progress.total}
        )
        return None

    # For handles

    def write(self, work: Callable[[Any], None]) -> None:
        """One transaction; another process that writes just now is waited for."""
        for tries in range(BUSY_TRIES):
            try:
                with self._store.write() as tx:
                    work(tx)
                return
            except Unavailable:
                if tries == BUSY_TRIES - 1:
                    raise
                time.sleep(0.05)

    def read(self) -> Any:
        return self._store.read()

    def changed(self, agent_id: str | None, change: str, **more: Any) -> None:
        self.version += 1
        self._events.publish("memory.changed", {"agent_id": agent_id, "change": change, **more})

    def _agents_changed(self, what: str, agent_id: str) -> None:
        if what in ("archived", "restored", "purged"):
            self.files.forget(agent_id)
            self.changed(agent_id, what)
            if what == "restored":
                self._wake()


class MemoryHandle:
    """Memories as one reader sees them. Bound to it when made: there is no parameter to forget."""

    def __init__(self, memories: Memories, reader: Reader, workspace: Workspace | None, owner: str) -> None:
        self._memories = memories
        self._reader = reader
        self._workspace = workspace
        self._owner = owner
        """Whose a new memory becomes."""

    @property
    def reader(self) -> Reader:
        return self._reader

    # Storing

    def remember(
        self,
        content: str,
        *,
        scope: str | None = None,
        default_scope: Scope = "global",
        tags: Sequence[str] = (),
        occurred_at: str | None = None,
        thread: str | None = None,
        source_ref: str | None = None,
        supersedes: str | None = None,
        memory_id: str | None = None,
    ) -> Memory:
        """Stored, indexed and on disk when this returns. The same id again returns what it stored first."""
        at = now_iso()
        memory = Memory(
            id=memory_id or uuid.uuid4().hex,
            agent_id=self._owner,
            scope=scope_for(scope, self._reader.agent_id, default=default_scope),
            content=check_content(content),
            tags=check_tags(tags),
            thread=thread,
            source_ref=source_ref,
            occurred_at=moment(occurred_at, "occurred_at"),
            created_at=at,
            updated_at=at,
            audience=self._reader.audience,
        )
        vectors, model = self._memories.vectors([memory.content])
        first: Memory | None = None

        def save(tx: Any) -> None:
            nonlocal first
            first = None if memory_id is None else tx.memories.get(self._reader, memory_id)
            if first is not None:
                return
            self._require_owner(tx, self._owner)
            tx.memories.add([memory], vectors, model)
            if supersedes is not None:
                older = self._changeable(tx, supersedes)
                tx.memories.save(replace(older, superseded_by=memory.id, updated_at=at), None, None)

        self._memories.write(save)
        if first is not None:
            return first
        self._memories.changed(self._owner, "remembered", id=memory.id)
        return memory

    def update(
        self,
        memory_id: str,
        *,
        content: str | None = None,
        scope: str | None = None,
        tags: Sequence[str] | None = None,
        occurred_at: str | None = None,
        pinned: bool | None = None,
    ) -> Memory:
        """Change what is given; everything else stays."""
        if content is not None:
            check_content(content)
        vectors, model = self._memories.vectors([] if content is None else [content])
        after: Memory | None = None

        def save(tx: Any) -> None:
            nonlocal after, vectors, model
            before = self._changeable(tx, memory_id)
            at = now_iso()
            after = replace(
                before,
                content=before.content if content is None else content,
                scope=before.scope
                if scope is None
                else scope_for(scope, self._reader.agent_id or None, default="global"),
                tags=before.tags if tags is None else check_tags(tags),
                occurred_at=before.occurred_at if occurred_at is None else moment(occurred_at, "occurred_at"),
                pinned_at=before.pinned_at if pinned is None else (at if pinned else None),
                updated_at=at,
            )
            if after.scope == "private" and after.agent_id != self._reader.agent_id:
                raise InvalidRequest(
                    f"this memory belongs to {after.agent_id}; only as {after.agent_id} can it be made private",
                    details={"field": "scope"},
                )
            if content is None:
                vectors, model = self._memories.vectors([after.content])
            tx.memories.save(after, vectors[0], model)

        self._memories.write(save)
        assert after is not None
        self._memories.changed(after.agent_id, "updated", id=memory_id)
        return after

    def forget(self, memory_id: str, *, own: bool = False) -> Memory:
        """For good. With `own`, only what belongs to this reader."""
        gone: list[Memory] = []

        def remove(tx: Any) -> None:
            found = self._changeable(tx, memory_id)
            if own and found.agent_id != self._reader.agent_id:
                raise Conflict(f"the memory {memory_id} belongs to another agent")
            older = [m for m in tx.memories.history(self._reader, memory_id) if m.agent_id == found.agent_id]
            gone[:] = [found, *older]
            tx.memories.remove([memory.id for memory in gone])

        self._memories.write(remove)
        self._memories.changed(gone[0].agent_id, "forgotten", id=memory_id)
        return gone[0]

    # Looking

    def recall(
        self, query: str, *, limit: int = 10, filters: Filters | None = None, mode: Mode = "hybrid"
    ) -> list[Hit]:
        self.follow_files()
        return self._memories.search.memories(
            self._reader, query, limit=limit, filters=_checked(filters), mode=mode
        )

    def quick_recall(
        self, query: str, *, limit: int, filters: Filters, without_file: str | None
    ) -> list[Hit]:
        """For a turn, which does not wait for a model to be loaded."""
        self.follow_files()
        return self._memories.search.memories(
            self._reader, query, limit=limit, filters=filters, patient=False, without_file=without_file
        )

    def conversations(
        self, query: str, *, limit: int = 5, apart_from: str | None = None, words: int = 48
    ) -> list[Turns]:
        """Past conversations of this agent; nobody has none."""
        if self._reader.agent_id is None:
            return []
        return self._memories.search.conversations(
            self._reader, query, limit=limit, apart_from=apart_from, words=words
        )

    def has_conversations(self, *, apart_from: str) -> bool:
        """Whether this agent has other conversations to remember."""
        if self._reader.agent_id is None:
            return False
        with self._memories.read() as tx:
            return bool(tx.conversations.any(self._reader, apart_from=apart_from))

    def get(self, memory_id: str) -> Memory:
        with self._memories.read() as tx:
            return self._visible(tx, memory_id)

    def page(
        self,
        *,
        filters: Filters | None = None,
        owner: str | None = None,
        superseded: bool = False,
        limit: int = 200,
        after: str | None = None,
    ) -> tuple[list[Memory], str | None]:
        """A page in order of arrival, and where the next one begins."""
        self.follow_files()
        with self._memories.read() as tx:
            found = tx.memories.select(
                self._reader,
                _checked(filters),
                owner=owner,
                superseded=superseded,
                limit=limit,
                after=_cursor(after),
            )
        last = found[-1] if len(found) == limit else None
        return found, None if last is None else f"{last.created_at}|{last.id}"

    def history(self, memory_id: str) -> list[Memory]:
        """What a memory took the place of, newest first."""
        with self._memories.read() as tx:
            self._visible(tx, memory_id)
            found: list[Memory] = tx.memories.history(self._reader, memory_id)
            return found

    def pinned(self) -> list[Memory]:
        with self._memories.read() as tx:
            found: list[Memory] = tx.memories.pinned(self._reader)
            return found

    def counts(self) -> list[Count]:
        """By owner, of what this reader sees. Looking changes nothing: files count as they were last followed."""
        with self._memories.read() as tx:
            found: list[Count] = tx.memories.counts(self._reader)
            return found

    def by_audience(self) -> dict[str, int]:
        """How many of its own memories this reader's agent learnt from whom, outside."""
        with self._memories.read() as tx:
            found: dict[str, int] = tx.memories.by_audience(self._reader)
            return found

    def any(self) -> bool:
        with self._memories.read() as tx:
            return bool(tx.memories.any(self._reader))

    # Carrying out and in

    def export(self) -> Iterator[dict[str, Any]]:
        """An agent's own memories; for nobody, everything global. Sections of files stay in their files."""
        owner = self._reader.agent_id
        after: tuple[str, str] | None = None
        while True:
            with self._memories.read() as tx:
                page = tx.memories.select(
                    self._reader,
                    Filters(),
                    owner=owner,
                    superseded=True,
                    files=False,
                    limit=IMPORT_BATCH,
                    after=after,
                )
            yield from map(portable, page)
            if len(page) < IMPORT_BATCH:
                return
            after = (page[-1].created_at, page[-1].id)

    def import_(self, entries: Iterable[Mapping[str, Any]]) -> Imported:
        """In batches, each whole or not at all. Nothing is merged: an id that is there already is left alone."""
        added = present = 0
        for batch in _batches(entries):
            at = now_iso()
            memories = [self._read_portable(entry, at) for entry in batch]
            vectors, model = self._memories.vectors([memory.content for memory in memories])
            new: list[tuple[Memory, bytes | None]] = []
            given = [str(entry["id"]) for entry in batch if entry.get("id")]

            def save(
                tx: Any,
                memories: Sequence[Memory] = memories,
                vectors: Sequence[bytes | None] = vectors,
                model: str | None = model,
                new: list[tuple[Memory, bytes | None]] = new,
                given: Sequence[str] = given,
            ) -> None:
                for owner in {memory.agent_id for memory in memories}:
                    self._require_owner(tx, owner)
                taken = tx.memories.taken(given)
                new[:] = [(m, v) for m, v in zip(memories, vectors, strict=True) if m.id not in taken]
                tx.memories.add([m for m, _ in new], [v for _, v in new], model)

            self._memories.write(save)
            added += len(new)
            present += len(memories) - len(new)
        if added:
            self._memories.changed(self._reader.agent_id, "imported", count=added)
        return Imported(added, present)

    def _read_portable(self, entry: Mapping[str, Any], at: str) -> Memory:
        """One line of an import: what `remember` takes, and what an export adds to it."""
        owner = str(entry.get("agent_id") or self._owner)
        if owner != self._owner:
            owner = self._memories.as_agent(owner)._owner  # it must exist and be active
        times = {field: moment(entry[field], field) for field in _TIMES if entry.get(field)}
        created = times.get("created_at") or at
        return Memory(
            id=str(entry.get("id") or secrets.token_hex(16)),
            agent_id=owner,
            scope=scope_for(entry.get("scope"), owner, default="global"),
            content=check_content(str(entry["content"])),
            tags=check_tags(entry["tags"]) if entry.get("tags") else (),
            thread=entry.get("thread"),
            source_ref=entry.get("source_ref"),
            occurred_at=times.get("occurred_at"),
            created_at=created,
            updated_at=times.get("updated_at") or created,
            pinned_at=times.get("pinned_at"),
            superseded_by=entry.get("superseded_by"),
            audience=check_audience(str(entry.get("audience") or OWNER)),
        )

    # Files

    def follow_files(self) -> None:
        """An edit made a moment ago counts."""
        if self._workspace is not None and self._memories.files.follow(self._workspace):
            self._memories.changed(self._owner, "files")

    def files_changed(self) -> bool:
        return self._workspace is not None and self._memories.files.changed(self._workspace)

    def note(self, text: str) -> str:
        """A line in today's log; returns the file's name."""
        assert self._workspace is not None
        with self._memories.read() as tx:
            self._require_owner(tx, self._owner)
        return append_to_log(self._workspace, text)

    def edit_file(self, old: str, new: str) -> None:
        assert self._workspace is not None
        with self._memories.read() as tx:
            self._require_owner(tx, self._owner)
        edit_memory_file(self._workspace, old, new)

    # Small parts

    def _require_owner(self, tx: Any, agent_id: str) -> None:
        """Nothing is noted for an agent that was removed while its tool was under way."""
        owner = tx.agents.get(agent_id)
        if owner is None or owner.state is not AgentState.ACTIVE:
            raise NotFound(f"there is no active agent {agent_id!r}")

    def _visible(self, tx: Any, memory_id: str) -> Memory:
        found: Memory | None = tx.memories.get(self._reader, memory_id)
        if found is None:
            raise NotFound(f"there is no memory {memory_id[:100]!r} here")
        return found

    def _changeable(self, tx: Any, memory_id: str) -> Memory:
        found = self._visible(tx, memory_id)
        if is_outside(self._reader.audience) and found.audience != self._reader.audience:
            raise Conflict(f"the memory {memory_id} is the owner's")
        if found.file is not None:
            raise Conflict(f"this is a part of {found.file}; edit the file")
        return found


def portable(memory: Memory) -> dict[str, Any]:
    """A memory as an export writes it; what is not there is left out."""
    entry: dict[str, Any] = {
        "id": memory.id,
        "agent_id": memory.agent_id,
        "scope": memory.scope,
        "content": memory.content,
        "tags": list(memory.tags) or None,
        "thread": memory.thread,
        "source_ref": memory.source_ref,
        "occurred_at": memory.occurred_at,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
        "pinned_at": memory.pinned_at,
        "superseded_by": memory.superseded_by,
        "audience": memory.audience if is_outside(memory.audience) else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


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


def _ignored(_: object) -> None:
    return None


def _checked(filters: Filters | None) -> Filters:
    if filters is None:
        return Filters()
    return replace(filters, since=moment(filters.since, "since"), until=moment(filters.until, "until"))


def _cursor(after: str | None) -> tuple[str, str] | None:
    if after is None:
        return None
    created, bar, memory_id = after.partition("|")
    if not bar:
        raise InvalidRequest("that is not a place to go on from", details={"field": "after"})
    return created, memory_id


def _batches(entries: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    batch: list[Mapping[str, Any]] = []
    for entry in entries:
        batch.append(entry)
        if len(batch) == IMPORT_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
