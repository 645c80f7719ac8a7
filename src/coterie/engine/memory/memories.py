"""Memories: remembered, found, edited, forgotten, carried in and out. Reached only through handles."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coterie.config import Embeddings
from coterie.core.agent import DEFAULT_ALIAS, AgentSpec, AgentState
from coterie.core.audience import is_outside
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
    moment,
    scope_for,
)
from coterie.core.ports import Embedder
from coterie.core.threads import on_thread
from coterie.engine.events import Events
from coterie.engine.household.registry import Registry
from coterie.engine.household.workspace import Workspace
from coterie.engine.memory.embedding import GuardedEmbedder, guarded
from coterie.engine.memory.files import MemoryFiles, append_to_log, edit_memory_file
from coterie.engine.memory.importing import Imported, Reading, carry_in
from coterie.engine.memory.search import MemorySearch, Mode
from coterie.store.trouble import Busy

if TYPE_CHECKING:
    from coterie.store.transaction import Store

log = logging.getLogger("coterie.memory")

EXPORT_PAGE = 2_000
REINDEX_BATCH = 256
REINDEX_PAUSE = 0.02
"""Between two batches in the background, so that others get their turn."""
RETRY_SECONDS = 60
BUSY_TRIES = 20
MODEL = "memory_model"
"""Under this key the store says whose vectors it holds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the vectors are."""

    model: str | None
    pending: int
    total: int
    problem: str | None = None


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
                self._made = (settings, guarded(self._make_embedder(settings)))
                self._wake()
            return self._made[1]

    def use(self, embedder: Embedder) -> None:
        """Another one, until the configuration changes."""
        self._made = (self._registry.sync.config.memory.embeddings, guarded(embedder))

    @property
    def by_words_alone(self) -> str | None:
        """Why vectors take no part in searches now, where they should."""
        embedder = self.embedder
        return embedder.problem if isinstance(embedder, GuardedEmbedder) else None

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
        before = await on_thread("memory", self.progress)
        if not before.pending:
            return RETRY_SECONDS
        log.info("%d memories get vectors of %s", before.pending, before.model)
        while (progress := await on_thread("memory", self.reindex_some)).pending:
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
        """One transaction; another process that writes just now is waited for. Nothing else is tried again: what was
        committed, and could not be synced, would be there twice."""
        for tries in range(BUSY_TRIES):
            try:
                with self._store.write() as tx:
                    work(tx)
                return
            except Busy:
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
        noted = Memory(
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
        vectors, model = self._memories.vectors([noted.content])
        memory = noted
        first: Memory | None = None

        def save(tx: Any) -> None:
            nonlocal memory, first
            first = None if memory_id is None else tx.memories.get(self._reader, memory_id)
            if first is not None:
                return
            older = None if supersedes is None else self._supersedable(tx, supersedes)
            if older is not None and self._reader.agent_id is None:
                # What somebody knows stays theirs when it is put right: they may see nobody else's.
                memory = replace(noted, agent_id=older.agent_id)
            self._require_owner(tx, memory.agent_id)
            tx.memories.add([memory], vectors, model)
            if older is not None:
                tx.memories.supersede(older, memory)

        self._memories.write(save)
        if first is not None:
            return first
        self._memories.changed(memory.agent_id, "remembered", id=memory.id)
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
            nonlocal after
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
            tx.memories.save(after, (vectors[0], model) if vectors else None)

        self._memories.write(save)
        assert after is not None
        self._memories.changed(after.agent_id, "updated", id=after.id)
        return after

    def forget(self, memory_id: str) -> Memory:
        """For good, with what it took the place of."""
        gone: list[Memory] = []

        def remove(tx: Any) -> None:
            found = self._changeable(tx, memory_id)
            # What its owner noted before goes with it, seen from here or not: it is the same fact.
            older = tx.memories.history(
                replace(self._reader, agent_id=found.agent_id, owners=None), found.id, None
            )
            gone[:] = [found, *(m for m in older if m.agent_id == found.agent_id and self._may_change(m))]
            tx.memories.remove([memory.id for memory in gone])

        self._memories.write(remove)
        self._memories.changed(gone[0].agent_id, "forgotten", id=gone[0].id)
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
            found: list[Memory] = tx.memories.history(self._reader, self._visible(tx, memory_id).id)
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
                    limit=EXPORT_PAGE,
                    after=after,
                )
            yield from map(portable, page)
            if len(page) < EXPORT_PAGE:
                return
            after = (page[-1].created_at, page[-1].id)

    def import_(self, entries: Iterable[Mapping[str, Any]]) -> Imported:
        """All is read before anything is stored. Nothing is merged: an id that is there already is left alone."""
        reading = Reading(
            self._owner,
            self._reader.agent_id is not None,
            lambda name: self._memories.as_agent(name)._owner,  # it must exist and be active
            now_iso(),
        )
        memories = list(reading.all(list(entries)))
        added = present = 0
        try:
            for new, there in carry_in(self._memories, memories, reading.given, self._require_owner):
                added, present = added + new, present + there
        finally:
            if added:
                self._memories.changed(self._reader.agent_id, "imported", count=added)
        return Imported(added, present)

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
        """By its id, or by as much of its beginning as no other has that this reader sees."""
        found: Memory | None = tx.memories.get(self._reader, memory_id)
        if found is None:
            ids, count = tx.memories.beginning(self._reader, memory_id)
            if count > 1:
                raise Conflict(
                    f"{count} memories have an id that begins with {memory_id[:100]!r}; give more of it",
                    details={"count": count},
                )
            found = tx.memories.get(self._reader, ids[0]) if ids else None
        if found is None:
            raise NotFound(f"there is no memory {memory_id[:100]!r} here")
        return found

    def _changeable(self, tx: Any, memory_id: str) -> Memory:
        """To be edited, hidden or deleted: for each the same right is needed."""
        seen = self._visible(tx, memory_id)
        found: Memory | None = tx.memories.held(self._reader, seen.id)
        if found is None:
            raise NotFound(f"there is no memory {memory_id[:100]!r} here")
        if is_outside(self._reader.audience) and found.audience != self._reader.audience:
            raise Conflict(f"the memory {found.id} is the owner's")
        if not self._may_change(found):
            raise Conflict(f"the memory {found.id} belongs to another agent: {found.agent_id}")
        if found.file is not None:
            raise Conflict(f"this is a part of {found.file}; edit the file")
        return found

    def _may_change(self, memory: Memory) -> bool:
        """An agent changes its own, for whoever it was learnt from; nobody in particular, all that they see."""
        if is_outside(self._reader.audience) and memory.audience != self._reader.audience:
            return False
        return self._reader.agent_id in (None, memory.agent_id)

    def _supersedable(self, tx: Any, memory_id: str) -> Memory:
        """What holds now: two that took the place of one would both hold."""
        older = self._changeable(tx, memory_id)
        if older.superseded_by is None:
            return older
        head = tx.memories.newest(self._reader, older)
        raise Conflict(
            f"the memory {older.id} was superseded already"
            + (
                f", by {head.id}; supersede that one" if head is not None else " by one that is not seen here"
            ),
            details=None if head is None else {"superseded_by": head.id},
        )


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
