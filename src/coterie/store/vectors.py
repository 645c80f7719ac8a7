"""Vectors of memories, searched exactly: eight bits a dimension, in blocks that NumPy multiplies."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, and_, select

from coterie.core.audience import is_outside
from coterie.core.memory import Reader
from coterie.store import schema

if TYPE_CHECKING:
    import numpy

_i = schema.memory_index

MOST_ROWS = 200_000
"""Of one part of the store that are compared one by one. Beyond, vectors only judge what the words found."""
KEPT_ROWS = 400_000
"""In memory, over all parts."""
BLOCK = 8_192

Part = tuple[str | None, bool]
"""An owner and whether its private ones are meant; nobody in particular for all that is global."""


class VectorCache:
    """Parts of the store that were searched lately. New rows are read as they come; numbers are never used twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: OrderedDict[tuple[str, Part], _Block] = OrderedDict()
        self._codes: dict[str | None, int] = {None: 0}
        """Audiences as numbers; the owner is 0."""

    def forget(self) -> None:
        with self._lock:
            self._parts.clear()

    def nearest(
        self, connection: Connection, reader: Reader, model: str, vector: bytes, limit: int
    ) -> list[int]:
        """Numbers of the rows that mean most nearly the same."""
        import numpy as np

        asked = _unit(np.frombuffer(vector, np.int8))
        numbers: list[Any] = []
        scores: list[Any] = []
        for part in _parts(reader):
            block = self._refreshed(connection, model, part)
            heard = None if block is None else block.heard(self._codes, reader)
            if heard is None or not len(heard.numbers):
                continue
            scored = heard.scores(asked)
            count = min(limit, len(scored))
            best = np.argpartition(-scored, count - 1)[:count]
            numbers.append(heard.numbers[best])
            scores.append(scored[best])
        if not numbers:
            return []
        every, order = np.concatenate(numbers), np.argsort(-np.concatenate(scores), kind="stable")[:limit]
        return [int(number) for number in every[order]]

    def _refreshed(self, connection: Connection, model: str, part: Part) -> _Block | None:
        with self._lock:
            block = self._parts.get((model, part)) or _Block()
            owner, private = part
            condition: ColumnElement[bool] = _i.c.private.is_(private)
            if owner is not None:
                condition = and_(condition, _i.c.owner == owner)
            query = (
                select(_i.c.number, _i.c.vector, _i.c.audience)
                .where(condition, _i.c.number > block.last, _i.c.model == model)
                .order_by(_i.c.number)
                .limit(MOST_ROWS + 1)
            )
            rows = connection.execute(query).all() if len(block.numbers) <= MOST_ROWS else []
            kept = [row for row in rows if row.vector]
            codes = [self._codes.setdefault(row.audience, len(self._codes)) for row in kept]
            block.add([(row.number, row.vector) for row in kept], codes)
            self._parts[model, part] = block
            self._parts.move_to_end((model, part))
            while len(self._parts) > 1 and sum(len(b.numbers) for b in self._parts.values()) > KEPT_ROWS:
                self._parts.popitem(last=False)
            return block if len(block.numbers) <= MOST_ROWS else None


class _Block:
    def __init__(self) -> None:
        import numpy as np

        self.numbers: numpy.ndarray[Any, Any] = np.empty(0, np.int64)
        self.vectors: numpy.ndarray[Any, Any] = np.empty((0, 0), np.int8)
        self.lengths: numpy.ndarray[Any, Any] = np.empty(0, np.float32)
        self.audiences: numpy.ndarray[Any, Any] = np.empty(0, np.int32)
        self.last = -1

    def add(self, rows: Sequence[tuple[int, bytes]], codes: Sequence[int] | None = None) -> None:
        import numpy as np

        if not rows:
            return
        self.last = rows[-1][0]
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
        if self.vectors.shape[1] == width:
            fresh = np.concatenate((self.vectors, fresh))
            numbers = np.concatenate((self.numbers, numbers))
            lengths = np.concatenate((self.lengths, lengths))
            audiences = np.concatenate((self.audiences, audiences))
        self.vectors, self.numbers, self.lengths = fresh, numbers, np.maximum(lengths, 1e-6)
        self.audiences = audiences

    def heard(self, codes: Mapping[str | None, int], reader: Reader) -> _Block:
        """The rows that the reader's audience may hear; the owner hears all of them."""
        import numpy as np

        if not is_outside(reader.audience):
            return self
        wanted = self.audiences == codes.get(reader.audience, -1)
        if reader.with_owners:
            wanted |= self.audiences == 0
        places = np.flatnonzero(wanted)
        found = _Block()
        found.numbers, found.lengths = self.numbers[places], self.lengths[places]
        found.vectors = self.vectors[places]
        return found

    def scores(self, asked: Any) -> Any:
        import numpy as np

        if self.vectors.shape[1] != len(asked):
            return np.full(len(self.numbers), -1.0, np.float32)
        found = np.empty(len(self.numbers), np.float32)
        for start in range(0, len(found), BLOCK):
            found[start : start + BLOCK] = self.vectors[start : start + BLOCK].astype(np.float32) @ asked
        return found / self.lengths


def similarities(vector: bytes, others: Mapping[int, bytes]) -> dict[int, float]:
    """Cosine of one vector with each of some others."""
    import numpy as np

    asked = _unit(np.frombuffer(vector, np.int8))
    usable = {number: other for number, other in others.items() if len(other) == len(vector)}
    if not usable:
        return {}
    block = _Block()
    block.add(sorted(usable.items()))
    scored = block.scores(asked)
    return {int(number): float(score) for number, score in zip(block.numbers, scored, strict=True)}


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
