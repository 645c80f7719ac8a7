"""Vectors of memories, compared exactly: eight bits a dimension in the tables, wider in memory, where NumPy multiplies."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection

from coterie.core.audience import is_outside
from coterie.core.memory import Reader
from coterie.core.ranking import Terms
from coterie.store import full_text

if TYPE_CHECKING:
    import numpy

MOST_ROWS = 200_000
"""Of one part of the store that are compared one by one. Beyond, vectors only judge what the words found."""
KEPT_BYTES = 256 * 2**20
"""In memory, over all parts."""
WIDE_BYTES = 128 * 2**20
"""A part that takes no more is kept as it is multiplied; a larger one is widened block by block."""
MOST_ENTRIES = 10_000
BLOCK = 8_192
LATE = 200
"""Numbers before the last one that was read that may still turn up."""
RECHECK_SECONDS = 60.0
"""How long a part counts as too large, and a row as perhaps gone: longer than any transaction."""

T = TypeVar("T")
Part = tuple[str | None, bool]
"""An owner and whether its private ones are meant; nobody in particular for all that is global."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What ranking needs of one row of the index."""

    owner: str
    thread: str | None
    place: int
    moment: str
    terms: Terms
    names: frozenset[str]
    """Under which it was said, as in "Caroline: hello"."""
    pinned: bool


@dataclass(frozen=True, slots=True)
class Outline:
    """What tells one row from others that say the same."""

    essence: str
    file: str | None
    moment: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near all rows of a reader's parts lie to one vector."""

    numbers: Any
    """In order."""
    scores: Any

    def nearest(self, limit: int) -> Any:
        import numpy as np

        count = min(limit, len(self.numbers))
        if not count:
            return self.numbers
        best = np.argpartition(-self.scores, count - 1)[:count]
        return self.numbers[best[np.argsort(-self.scores[best], kind="stable")]]

    def of(self, numbers: Sequence[int]) -> dict[int, float]:
        """Of these, as far as they are here."""
        import numpy as np

        if not len(self.numbers) or not len(numbers):
            return {}
        wanted = np.asarray(numbers, np.int64)
        places = np.minimum(np.searchsorted(self.numbers, wanted), len(self.numbers) - 1)
        there = self.numbers[places] == wanted
        return dict(zip(wanted[there].tolist(), self.scores[places[there]].tolist(), strict=True))


class VectorCache:
    """Parts of the store that were searched lately. New rows are read as they come, and those that went are dropped:
    numbers are never used twice, and what stands under one never changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: OrderedDict[tuple[str, Part], _Block] = OrderedDict()
        self._codes: dict[str | None, int] = {None: 0}
        """Audiences as numbers; the owner is 0."""
        self._doubtful: dict[int, float] = {}
        """Rows that a transaction removed, until when that is checked: it may not have ended yet, or not well."""
        self.entries: dict[int, Entry] = {}
        """By number, of rows that were ranked lately. Only for numbers that a reader's own query gave."""
        self.outlines: dict[int, Outline] = {}
        """The same of rows that came near to being shown."""

    def keep(self, entries: Mapping[int, Entry]) -> None:
        with self._lock:
            if len(self.entries) > MOST_ENTRIES:
                self.entries = _newer_half(self.entries)
            self.entries.update(entries)

    def keep_outlines(self, outlines: Mapping[int, Outline]) -> None:
        with self._lock:
            if len(self.outlines) > MOST_ENTRIES:
                self.outlines = _newer_half(self.outlines)
            self.outlines.update(outlines)

    def forget(self) -> None:
        """Everything: another model, or all vectors anew."""
        with self._lock:
            self._parts.clear()
            self._doubtful.clear()

    def removed(self, numbers: Iterable[int]) -> None:
        """These rows are about to go."""
        until = time.monotonic() + RECHECK_SECONDS
        with self._lock:
            if self._parts:
                self._doubtful.update(dict.fromkeys(numbers, until))

    def compared(self, connection: Connection, reader: Reader, model: str, vector: bytes) -> Nearness:
        """With every row that the reader may see, of parts that are small enough."""
        import numpy as np

        asked = _unit(np.frombuffer(vector, np.int8))
        found: list[tuple[Any, Any]] = []
        with self._lock:
            # Blocks are never changed in place, so that they may be multiplied without the lock.
            newest = full_text.run(connection, "SELECT max(number) FROM memory_index", {})[0][0] or 0
            blocks = [self._refreshed(connection, model, part, newest) for part in _parts(reader)]
        for block in blocks:
            if block.numbers is None or not len(block.numbers):
                continue
            places = block.heard(self._codes, reader)
            scores = block.scores(asked, places)
            found.append((block.numbers if places is None else block.numbers[places], scores))
        if not found:
            return Nearness(np.empty(0, np.int64), np.empty(0, np.float32))
        if len(found) == 1:
            return Nearness(*found[0])
        numbers, scores = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.argsort(numbers, kind="stable")
        return Nearness(numbers[order], scores[order])

    def _refreshed(self, connection: Connection, model: str, part: Part, newest: int) -> _Block:
        block = self._parts.get((model, part))
        if block is None or (block.numbers is None and time.monotonic() > block.until):
            block = _Block()
        if block.numbers is not None:
            block = self._without_gone(connection, block)
            block = self._with_new(connection, model, part, block, newest)
        self._parts[model, part] = block
        self._parts.move_to_end((model, part))
        while len(self._parts) > 1 and sum(b.size for b in self._parts.values()) > KEPT_BYTES:
            self._parts.popitem(last=False)
        return block

    def _with_new(self, connection: Connection, model: str, part: Part, block: _Block, newest: int) -> _Block:
        owner, private = part
        assert block.numbers is not None
        # Those who write at once on PostgreSQL may end in another order than that of their numbers.
        back = 0 if connection.dialect.name == "sqlite" else LATE
        if newest <= block.last and not back:
            return block
        whose = " AND owner = :owner" if owner is not None else ""
        source = (
            f" FROM memory_index WHERE private = :private{whose} AND number > :last AND model = :model"
            " AND vector IS NOT NULL"
        )
        values: dict[str, Any] = {"private": private, "last": block.last - back, "model": model}
        if whose:
            values["owner"] = owner
        if block.last < 0:
            few = f"SELECT count(*) FROM (SELECT 1{source} LIMIT {MOST_ROWS + 1}) AS few"
            if full_text.run(connection, few, values)[0][0] > MOST_ROWS:
                return _Block.too_large()
        rows = full_text.run(
            connection,
            f"SELECT number, vector, audience{source} ORDER BY number LIMIT {MOST_ROWS + 1}",
            values,
        )
        if back:
            known = set(block.numbers[-back:].tolist())
            rows = [row for row in rows if row[0] not in known]
        if not rows:
            return block.seen_to(newest)
        codes = [self._codes.setdefault(row[2], len(self._codes)) for row in rows]
        return block.with_rows([(row[0], row[1]) for row in rows], codes).seen_to(newest)

    def _without_gone(self, connection: Connection, block: _Block) -> _Block:
        import numpy as np

        if not self._doubtful or block.numbers is None:
            return block
        now = time.monotonic()
        self._doubtful = {number: until for number, until in self._doubtful.items() if until > now}
        doubtful = np.fromiter(self._doubtful, np.int64, len(self._doubtful))
        doubtful = doubtful[np.isin(doubtful, block.numbers)]
        if not len(doubtful):
            return block
        still = {row[0] for row in full_text.run(connection, *listed(connection, doubtful.tolist()))}
        gone = [number for number in doubtful.tolist() if number not in still]
        return block.only(~np.isin(block.numbers, gone)) if gone else block


class _Block:
    """One part; never changed once it is made."""

    def __init__(self) -> None:
        import numpy as np

        self.numbers: numpy.ndarray[Any, Any] | None = np.empty(0, np.int64)
        """None: too many to be compared."""
        self.vectors: numpy.ndarray[Any, Any] = np.empty((0, 0), np.float32)
        self.lengths: numpy.ndarray[Any, Any] = np.empty(0, np.float32)
        self.audiences: numpy.ndarray[Any, Any] = np.empty(0, np.int32)
        self.last = -1
        self.until = 0.0

    @classmethod
    def too_large(cls) -> _Block:
        found = cls()
        found.numbers, found.until = None, time.monotonic() + RECHECK_SECONDS
        return found

    @property
    def size(self) -> int:
        return int(self.vectors.nbytes)

    def with_rows(self, rows: Sequence[tuple[int, bytes]], codes: Sequence[int] | None = None) -> _Block:
        import numpy as np

        assert self.numbers is not None
        if len(self.numbers) + len(rows) > MOST_ROWS:
            return _Block.too_large()
        found = _Block()
        found.last = max(self.last, rows[-1][0])
        width = len(rows[-1][1])
        fitting = [len(vector) == width for _, vector in rows]
        audiences = np.array(codes if codes is not None else [0] * len(rows), np.int32)[fitting]
        rows = [row for row, fits in zip(rows, fitting, strict=True) if fits]
        fresh = np.frombuffer(b"".join(vector for _, vector in rows), np.int8).reshape(len(rows), width)
        numbers = np.array([number for number, _ in rows], np.int64)
        lengths = np.concatenate(
            [
                np.linalg.norm(fresh[start : start + BLOCK].astype(np.float32), axis=1)
                for start in range(0, len(fresh), BLOCK)
            ]
        )
        lengths = np.maximum(lengths, 1e-6).astype(np.float32)
        whole = len(fresh) + (len(self.numbers) if self.vectors.shape[1] == width else 0)
        kind = np.float32 if whole * width * 4 <= WIDE_BYTES else np.int8
        fresh = fresh.astype(kind)
        if whole > len(fresh):
            fresh = np.concatenate((self.vectors.astype(kind, copy=False), fresh))
            numbers = np.concatenate((self.numbers, numbers))
            lengths = np.concatenate((self.lengths, lengths))
            audiences = np.concatenate((self.audiences, audiences))
        found.vectors, found.numbers, found.lengths, found.audiences = fresh, numbers, lengths, audiences
        in_order = bool((numbers[1:] > numbers[:-1]).all())
        return found if in_order else found.only(np.argsort(numbers))

    def seen_to(self, number: int) -> _Block:
        """There is nothing else up to this number. It says nothing of what is in it, so it may be noted in place."""
        self.last = max(self.last, number)
        return self

    def only(self, wanted: Any) -> _Block:
        assert self.numbers is not None
        found = _Block()
        found.numbers, found.lengths = self.numbers[wanted], self.lengths[wanted]
        found.vectors, found.audiences = self.vectors[wanted], self.audiences[wanted]
        found.last = self.last
        return found

    def heard(self, codes: Mapping[str | None, int], reader: Reader) -> Any:
        """Places of the rows that the reader's audience may hear; None: all of them, as the owner does."""
        import numpy as np

        if not is_outside(reader.audience):
            return None
        wanted = self.audiences == codes.get(reader.audience, -1)
        if reader.with_owners:
            wanted |= self.audiences == 0
        return np.flatnonzero(wanted)

    def scores(self, asked: Any, places: Any = None) -> Any:
        import numpy as np

        vectors = self.vectors if places is None else self.vectors[places]
        lengths = self.lengths if places is None else self.lengths[places]
        if vectors.shape[1] != len(asked):
            return np.full(len(vectors), -1.0, np.float32)
        if vectors.dtype == np.float32:
            return (vectors @ asked) / lengths
        found = np.empty(len(vectors), np.float32)
        for start in range(0, len(found), BLOCK):
            found[start : start + BLOCK] = vectors[start : start + BLOCK].astype(np.float32) @ asked
        return found / lengths


def similarities(vector: bytes, others: Mapping[int, bytes]) -> dict[int, float]:
    """Cosine of one vector with each of some others."""
    import numpy as np

    usable = {number: other for number, other in others.items() if len(other) == len(vector)}
    if not usable:
        return {}
    block = _Block().with_rows(sorted(usable.items()))
    assert block.numbers is not None
    scored = block.scores(_unit(np.frombuffer(vector, np.int8)))
    return dict(zip(block.numbers.tolist(), scored.tolist(), strict=True))


def listed(connection: Connection, numbers: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """A statement for those of these numbers that are still there."""
    source, value = full_text.numbers_sql(connection, numbers)
    return (
        f"SELECT i.number FROM {source} JOIN memory_index AS i ON i.number = j.value",
        {"numbers": value},
    )


def _newer_half(kept: dict[int, T]) -> dict[int, T]:
    return dict(list(kept.items())[len(kept) // 2 :])


def _unit(vector: Any) -> Any:
    import numpy as np

    wide = vector.astype(np.float32)
    length = float(np.linalg.norm(wide))
    return wide / length if length else wide


def _parts(reader: Reader) -> list[Part]:
    shared: list[Part] = (
        [(None, False)] if reader.owners is None else [(owner, False) for owner in reader.owners]
    )
    return shared if reader.agent_id is None else [(reader.agent_id, True), *shared]
