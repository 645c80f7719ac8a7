"""Carrying memories in: read whole before anything is stored, then in writes so short that nobody waits for them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from coterie.core.audience import OWNER
from coterie.core.errors import Conflict, CoterieError
from coterie.core.memory import Memory, check_content, check_tags, moment, scope_for
from coterie.core.session import check_audience
from coterie.store.memory_rows import words_of

EMBEDDED_AT_ONCE = 1_024
FEWEST, MOST = 25, 1_000
"""Rows of one write."""
LENGTH = 300_000
"""Characters of one write, whatever its rows."""
SHORT = 0.016
"""Seconds of work that a write should be; what the last one was decides on the size of the next. Of this thread
alone: on a busy machine smaller writes would only be more."""
_TIMES = ("occurred_at", "created_at", "updated_at", "pinned_at")


@dataclass(frozen=True, slots=True)
class Imported:
    added: int
    present: int
    """Whose id was there already: left as they are."""


class Importable(Protocol):
    """Where memories are carried to."""

    def vectors(self, texts: Sequence[str]) -> tuple[list[bytes | None], str | None]: ...

    def write(self, work: Callable[[Any], None]) -> None: ...


class Reading:
    """Entries of an import as memories. An owner is looked up once, not for every line."""

    def __init__(self, owner: str, named: bool, find: Callable[[str], str], at: str) -> None:
        self._owner = owner
        self._named = named
        """Whether this import is one agent's: it brings in nothing that is another's."""
        self._find = find
        self._at = at
        self._owners = {owner: owner}
        self.given: set[str] = set()
        """Ids that entries came with, and that may be there already."""

    def all(self, entries: Sequence[Mapping[str, Any]]) -> Iterator[Memory]:
        # New ids in order: neighbours in the file are neighbours in the index, and a write touches few of its pages.
        fresh = iter(sorted(secrets.token_hex(16) for _ in entries))
        for number, entry in enumerate(entries, 1):
            try:
                yield self.read(entry, next(fresh))
            except CoterieError as problem:
                raise type(problem)(f"entry {number}: {problem.message}", details=problem.details) from None

    def read(self, entry: Mapping[str, Any], fresh: str) -> Memory:
        """What `remember` takes, and what an export adds to it."""
        get = entry.get
        owner = self._whose(get("agent_id"))
        times = {field: moment(entry[field], field) for field in _TIMES if get(field)}
        created = times.get("created_at") or self._at
        audience = get("audience")
        given = get("id")
        if given:
            self.given.add(given)
        return Memory(
            id=given or fresh,
            agent_id=owner,
            scope=scope_for(get("scope"), owner, default="global"),
            content=check_content(entry["content"]),
            tags=check_tags(entry["tags"]) if get("tags") else (),
            thread=get("thread"),
            source_ref=get("source_ref"),
            occurred_at=times.get("occurred_at"),
            created_at=created,
            updated_at=times.get("updated_at") or created,
            pinned_at=times.get("pinned_at"),
            superseded_by=get("superseded_by"),
            audience=check_audience(audience) if audience else OWNER,
        )

    def _whose(self, name: str | None) -> str:
        if not name:
            return self._owner
        if name not in self._owners:
            self._owners[name] = self._find(name)
        owner = self._owners[name]
        if self._named and owner != self._owner:
            raise Conflict(
                f"an entry belongs to {owner}, and this is an import of {self._owner}'s; name nobody for both",
                details={"field": "agent_id"},
            )
        return owner


def carry_in(
    into: Importable, memories: Sequence[Memory], given: Set[str], require: Callable[[Any, str], None]
) -> Iterator[tuple[int, int]]:
    """In batches, each whole or not at all: how many were added, and how many were there already."""
    size = FEWEST * 4
    for start in range(0, len(memories), EMBEDDED_AT_ONCE):
        some = memories[start : start + EMBEDDED_AT_ONCE]
        vectors, model = into.vectors([memory.content for memory in some])
        words = {memory.id: words_of(memory) for memory in reversed(some)}  # of two with one id the first
        begin = 0
        while begin < len(some):
            end = _end(some, begin, size)
            batch, theirs = some[begin:end], vectors[begin:end]
            added, seconds = _store(into, batch, theirs, model, words, given, require)
            yield added, len(batch) - added
            begin = end
            if seconds > SHORT:
                size = max(FEWEST, size // 2)
            elif seconds < SHORT / 2:
                size = min(MOST, size * 2)


def _end(memories: Sequence[Memory], begin: int, size: int) -> int:
    length = 0
    for place in range(begin, min(begin + size, len(memories))):
        length += len(memories[place].content)
        if length > LENGTH:
            return max(place, begin + 1)
    return min(begin + size, len(memories))


def _store(
    into: Importable,
    memories: Sequence[Memory],
    vectors: Sequence[bytes | None],
    model: str | None,
    words: Mapping[str, Any],
    given: Set[str],
    require: Callable[[Any, str], None],
) -> tuple[int, float]:
    """How many were new, and how long that took under the lock."""
    added, seconds = 0, 0.0

    def save(tx: Any) -> None:
        nonlocal added, seconds
        began = time.thread_time()
        for owner in {memory.agent_id for memory in memories}:
            require(tx, owner)
        taken = tx.memories.taken([memory.id for memory in memories if memory.id in given])
        fresh: dict[str, tuple[Memory, bytes | None]] = {}
        for memory, vector in zip(memories, vectors, strict=True):
            if memory.id not in taken:
                fresh.setdefault(memory.id, (memory, vector))
        tx.memories.add([m for m, _ in fresh.values()], [v for _, v in fresh.values()], model, words)
        added, seconds = len(fresh), time.thread_time() - began

    into.write(save)
    return added, seconds
