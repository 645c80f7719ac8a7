"""Memories and what finds them. Every read takes its reader; what is derived commits with what it is derived from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    text,
    true,
    update,
)

from coterie.core.agent import MAIN
from coterie.core.audience import OWNER, is_outside
from coterie.core.duplicates import essence
from coterie.core.memory import Count, Filters, Memory, Reader, owner_of
from coterie.core.ranking import WINDOW
from coterie.store import full_text, schema
from coterie.store.records import Record
from coterie.store.vectors import Entry, Nearness, Outline, VectorCache, similarities

_m = schema.memories
_MEMORY = Record(Memory, _m)
_i = schema.memory_index
_owner = func.coalesce(_m.c.agent_id, MAIN)
_scope = func.coalesce(_m.c.scope, "global")
_LIVE = ("global", "private")
_COLUMNS = (
    _m.c.id, _m.c.agent_id, _m.c.scope, _m.c.content, _m.c.tags_json, _m.c.thread, _m.c.source_ref, _m.c.file,
    _m.c.occurred_at, _m.c.created_at, _m.c.updated_at, _m.c.pinned_at, _m.c.superseded_by, _m.c.audience,
)  # fmt: skip
_KEYS = tuple(column.name for column in _COLUMNS)
_NAMES = ", ".join(f"m.{name}" for name in _KEYS)
BATCH = 500
_PLAIN = tuple(field.name for field in fields(Memory) if field.name not in ("tags", "audience"))
_plain = attrgetter(*_PLAIN)
_INDEXED = ("number", "memory_id", "owner", "private", "thread", "place", "moment", "vector", "model", "audience")  # fmt: skip


class MemoryRows:
    def __init__(self, connection: Connection, vectors: VectorCache) -> None:
        self._connection = connection
        self._vectors = vectors

    # Writing

    def add(
        self,
        memories: Sequence[Memory],
        vectors: Sequence[bytes | None],
        model: str | None,
        words: Mapping[str, full_text.Words] | None = None,
    ) -> None:
        """Rows, full text and vectors in one go. What a newer one took the place of is in no index. `words`: by id, of
        many, found before the transaction began."""
        if not memories:
            return
        rows = [(*_plain(m), _tags(m), _stored(m.audience)) for m in memories]
        self._insert(_m, (*_PLAIN, "tags_json", "audience"), rows)
        holding = [(m, v) for m, v in zip(memories, vectors, strict=True) if m.superseded_by is None]
        self._index(holding, model, words=words)

    def save(self, memory: Memory, embedded: tuple[bytes | None, str | None] | None) -> None:
        """A memory that was edited, in place of what it was. `embedded`: vector and model of another content."""
        values = _values(memory)
        del values["id"]
        self._connection.execute(update(_m).where(_m.c.id == memory.id).values(values))
        was = self._unindex([memory.id]).get(memory.id)
        if memory.scope in _LIVE and memory.superseded_by is None:
            vector, model = embedded or ((None, None) if was is None else (was.vector, was.model))
            places = {} if was is None else {memory.id: was.place}
            self._index([(memory, None if model is None else vector)], model, places)

    def supersede(self, older: Memory, newer: Memory) -> None:
        """Out of every search, with its history. Whoever calls has read `older` with `held`."""
        self._connection.execute(
            update(_m).where(_m.c.id == older.id).values(superseded_by=newer.id, updated_at=newer.created_at)
        )
        self._unindex([older.id])

    def remove(self, ids: Sequence[str]) -> None:
        """For good. What they took the place of holds again, unless it goes with them."""
        for some in _batches(ids):
            self._unindex(some)
            self._connection.execute(delete(_m).where(_m.c.id.in_(some)))
        for some in _batches(ids):
            self._hold_again(_m.c.superseded_by.in_(some))

    def archive(self, agent_id: str) -> None:
        """Out of every search; what each was before is remembered."""
        self._unindex(self._ids_of(agent_id, _LIVE))
        self._connection.execute(
            update(_m)
            .where(_m.c.agent_id == agent_id, _scope.in_(_LIVE))
            .values(former_scope=_scope, scope="archived")
        )

    def restore(self, agent_id: str) -> None:
        """As it was before; vectors are made again in the background."""
        rows = self._connection.execute(
            select(*_COLUMNS, _m.c.former_scope)
            .where(_m.c.agent_id == agent_id, _m.c.scope == "archived")
            .order_by(_m.c.created_at, _m.c.id)
        ).all()
        self._connection.execute(
            update(_m)
            .where(_m.c.agent_id == agent_id, _m.c.scope == "archived")
            .values(scope=func.coalesce(_m.c.former_scope, "global"), former_scope=None)
        )
        back = [
            (_memory(row, scope=row.former_scope or "global"), None)
            for row in rows
            if row.superseded_by is None
        ]
        self._index(back, None)

    def purge(self, agent_id: str) -> None:
        """For good."""
        ids = self._ids_of(agent_id, None)
        self._unindex(ids)
        self._connection.execute(delete(_m).where(_m.c.agent_id == agent_id))
        for some in _batches(ids):
            self._hold_again(_m.c.superseded_by.in_(some))
        full_text.tidy(self._connection)

    def taken(self, ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for some in _batches(ids):
            query = select(_m.c.id).where(_m.c.id.in_(some))
            found.update(str(one) for one in self._connection.execute(query).scalars())
        return found

    # Reading, as somebody

    def get(self, reader: Reader, memory_id: str) -> Memory | None:
        row = self._connection.execute(
            select(*_COLUMNS).where(_m.c.id == memory_id, _visible_rows(reader))
        ).first()
        return None if row is None else _memory(row)

    def held(self, reader: Reader, memory_id: str) -> Memory | None:
        """As `get`, to be changed: nobody else changes it before this transaction ends."""
        row = self._connection.execute(
            select(*_COLUMNS).where(_m.c.id == memory_id, _visible_rows(reader)).with_for_update()
        ).first()
        return None if row is None else _memory(row)

    def beginning(self, reader: Reader, start: str) -> tuple[list[str], int]:
        """Ids that begin so, at most two, and how many there are."""
        begins = _m.c.id.startswith(start, autoescape=True)
        if self._connection.dialect.name == "sqlite":
            # Its LIKE takes A for a and looks at every row.
            begins = and_(_m.c.id >= start, _m.c.id < start + "\U0010ffff")
        found = select(_m.c.id).where(begins, _visible_rows(reader)).order_by(_m.c.id).limit(2)
        ids = [str(one) for one in self._connection.execute(found).scalars()]
        if len(ids) < 2:
            return ids, len(ids)
        every = select(func.count()).select_from(_m).where(begins, _visible_rows(reader))
        return ids, int(self._connection.execute(every).scalar_one())

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
    ) -> list[Memory]:
        """In order of arrival, oldest first; pages go on behind `after`, a moment of creation and an id."""
        query = select(*_COLUMNS).where(_visible_rows(reader)).order_by(_m.c.created_at, _m.c.id)
        if owner is not None:
            query = query.where(_owner == owner)
        if filters.scope is not None:
            query = query.where(_scope == filters.scope)
        if filters.tags:
            patterns = [full_text.tag_pattern(tag) for tag in filters.tags]
            query = query.where(or_(*(_m.c.tags_json.like(p, escape="!") for p in patterns)))
        moment = func.coalesce(_m.c.occurred_at, _m.c.created_at)
        if filters.since is not None:
            query = query.where(moment >= filters.since)
        if filters.until is not None:
            query = query.where(moment < filters.until)
        if not superseded:
            query = query.where(_m.c.superseded_by.is_(None))
        if not files:
            query = query.where(_m.c.file.is_(None))
        if after is not None:
            query = query.where(
                or_(_m.c.created_at > after[0], and_(_m.c.created_at == after[0], _m.c.id > after[1]))
            )
        return [_memory(row) for row in self._connection.execute(query.limit(limit) if limit else query)]

    def history(self, reader: Reader, memory_id: str, limit: int | None = 100) -> list[Memory]:
        """What a memory took the place of, newest first."""
        found: dict[str, Memory] = {}
        newer = [memory_id]
        while newer and (limit is None or len(found) < limit):
            older: dict[str, Memory] = {}
            for some in _batches(newer):
                rows = self._connection.execute(
                    select(*_COLUMNS)
                    .where(_m.c.superseded_by.in_(some), _visible_rows(reader))
                    .order_by(_m.c.created_at.desc())
                )
                # An import may say that two took the place of each other.
                older |= {row.id: _memory(row) for row in rows if row.id not in found and row.id != memory_id}
            found |= older
            newer = list(older)
        return list(found.values())

    def newest(self, reader: Reader, memory: Memory) -> Memory | None:
        """What holds in the place of a memory; None where the reader may not see it."""
        seen = {memory.id}
        newer: Memory | None = memory
        while newer is not None and newer.superseded_by is not None and newer.superseded_by not in seen:
            seen.add(newer.superseded_by)
            newer = self.get(reader, newer.superseded_by)
        return None if newer is None or newer.superseded_by is not None else newer

    def pinned(self, reader: Reader) -> list[Memory]:
        rows = self._connection.execute(
            select(*_COLUMNS)
            .where(_m.c.pinned_at.is_not(None), _m.c.superseded_by.is_(None), _visible_rows(reader))
            .order_by(_m.c.pinned_at.desc())
            .limit(50)
        )
        return [_memory(row) for row in rows]

    def sections(self, agent_id: str) -> list[Memory]:
        """What is known of an agent's own files."""
        rows = self._connection.execute(
            select(*_COLUMNS)
            .where(_m.c.agent_id == agent_id, _m.c.file.is_not(None), _m.c.scope == "private")
            .order_by(_m.c.created_at, _m.c.id)
        )
        return [_memory(row) for row in rows]

    def counts(self, reader: Reader) -> list[Count]:
        """By owner, of what the reader sees; of its own also what is archived."""
        seen = _visible_rows(reader)
        if reader.agent_id is not None:
            seen = or_(seen, and_(_owner == reader.agent_id, _scope == "archived"))
        rows = self._connection.execute(
            select(
                _owner.label("owner"),
                func.sum(case((_scope == "global", 1), else_=0)).label("shared"),
                func.sum(case((_scope == "private", 1), else_=0)).label("private"),
                func.sum(case((_scope == "archived", 1), else_=0)).label("archived"),
                func.sum(case((_m.c.pinned_at.is_not(None), 1), else_=0)).label("pinned"),
                func.sum(case((_m.c.file.is_not(None), 1), else_=0)).label("files"),
            )
            .where(seen)
            .group_by(_owner)
            .order_by(_owner)
        )
        return [
            Count(r.owner, int(r.shared), int(r.private), int(r.archived), int(r.pinned), int(r.files))
            for r in rows
        ]

    def by_audience(self, reader: Reader) -> dict[str, int]:
        """How many of a reader's own memories were learnt from whom, outside."""
        rows = self._connection.execute(
            select(_i.c.audience, func.count())
            .where(_i.c.audience.is_not(None), _i.c.owner == reader.agent_id, _visible(reader))
            .group_by(_i.c.audience)
        )
        return {str(row[0]): int(row[1]) for row in rows}

    def any(self, reader: Reader) -> bool:
        query = select(_i.c.number).where(_visible(reader)).limit(1)
        return self._connection.execute(query).first() is not None

    # Searching

    def total(self, reader: Reader) -> int:
        query = select(func.count()).select_from(_i).where(_visible(reader))
        return int(self._connection.execute(query).scalar_one())

    def find(
        self, reader: Reader, wanted: Sequence[Sequence[full_text.Form]], filters: Filters, limit: int
    ) -> list[Any]:
        """For each list of words, an array of the numbers that have all of them, newest first."""
        return full_text.find(self._connection, reader, wanted, filters, limit)

    def compared(self, reader: Reader, model: str, vector: bytes) -> Nearness:
        """How near everything lies to a vector that the reader may see."""
        return self._vectors.compared(self._connection, reader, model, vector)

    def similarities(
        self, reader: Reader, model: str, vector: bytes, numbers: Sequence[int]
    ) -> dict[int, float]:
        """Of some rows alone, where there are too many to compare with all."""
        rows = self._listed(reader, numbers, "i.number, i.vector", " AND i.model = :model", {"model": model})
        return similarities(vector, {row[0]: row[1] for row in rows if row[1] is not None})

    def neighbours(self, reader: Reader, numbers: Sequence[int]) -> list[int]:
        """Those that stand beside these in their threads, as far as the reader may see them."""
        source, value = full_text.numbers_sql(self._connection, numbers)
        seen, values = full_text.visible_sql(reader, "n", sqlite=self._is_sqlite)
        join = self._join
        rows = full_text.run(
            self._connection,
            f"SELECT DISTINCT n.number FROM {source} {join} memory_index AS i ON i.number = j.value"
            f" {join} memory_index AS n ON n.owner = i.owner AND n.thread IS NOT NULL AND n.thread = i.thread"
            f" AND n.place BETWEEN i.place - {WINDOW} AND i.place + {WINDOW} WHERE ({seen})",
            {"numbers": value, **values},
        )
        return [row[0] for row in rows]

    def entries(self, reader: Reader, numbers: Sequence[int]) -> dict[int, Entry]:
        """What ranking needs of these. Whatever is known of a number stays true, so it is read once."""
        kept = self._vectors.entries
        found = {number: kept[number] for number in numbers if number in kept}
        missing = [number for number in numbers if number not in found]
        if missing:
            columns = "i.number, i.owner, i.private, i.thread, i.place, i.moment, f.words"
            more = f" {self._join} memories_fts AS f ON f.rowid = i.number"
            for row in self._listed(reader, missing, columns, join=more):
                number, owner, private, thread, place, moment, words = row
                terms, names, pinned = full_text.read_entry(words, owner, private)
                found[number] = Entry(owner, thread, place, moment, terms, names, pinned)
            self._vectors.keep(found)
        return found

    def outlines(self, reader: Reader, numbers: Sequence[int]) -> dict[int, Outline]:
        """What tells these from others that say the same; read once, as their entries."""
        kept = self._vectors.outlines
        found = {number: kept[number] for number in numbers if number in kept}
        missing = [number for number in numbers if number not in found]
        if missing:
            read = self.numbered(reader, missing).items()
            new = {n: Outline(essence(m.content), m.file, m.moment, m.created_at) for n, m in read}
            self._vectors.keep_outlines(new)
            found |= new
        return found

    def numbered(self, reader: Reader, numbers: Sequence[int]) -> dict[int, Memory]:
        """Memories by their numbers, of those that the reader may see: by the index, and by their own rows."""
        join = f" {self._join} memories AS m ON m.id = i.memory_id"
        seen, values = full_text.visible_rows_sql(reader, sqlite=self._is_sqlite)
        rows = self._listed(reader, numbers, f"i.number, {_NAMES}", f" AND ({seen})", values, join)
        return {row[0]: _read(dict(zip(_KEYS, row[1:], strict=True))) for row in rows}

    def allowed(self, numbers: Sequence[int], filters: Filters) -> set[int]:
        """Those that the filters let through."""
        if not filters.any:
            return set(numbers)
        kept: set[int] = set()
        for some in _batches(numbers):
            query = select(_i.c.number).join(_m, _m.c.id == _i.c.memory_id).where(_i.c.number.in_(some))
            kept.update(self._connection.execute(query.where(_narrowed(filters))).scalars())
        return kept

    @property
    def _is_sqlite(self) -> bool:
        return self._connection.dialect.name == "sqlite"

    @property
    def _join(self) -> str:
        """SQLite keeps to the order of a cross join; left to choose, it reads every row that can be seen."""
        return "CROSS JOIN" if self._is_sqlite else "JOIN"

    def _listed(
        self,
        reader: Reader,
        numbers: Sequence[int],
        columns: str,
        where: str = "",
        more: Mapping[str, Any] | None = None,
        join: str = "",
    ) -> Sequence[Any]:
        """Columns of these rows of the index, of those that the reader may see."""
        source, value = full_text.numbers_sql(self._connection, numbers)
        seen, values = full_text.visible_sql(reader, "i", sqlite=self._is_sqlite)
        return full_text.run(
            self._connection,
            f"SELECT {columns} FROM {source} {self._join} memory_index AS i ON i.number = j.value{join}"
            f" WHERE ({seen}){where}",
            {"numbers": value, **values, **(more or {})},
        )

    # Keeping the index whole: no reader, no content given out

    def begin_reindex(self) -> None:
        """Everything is to be indexed again, what is missing included."""
        missing = select(_m.c.id).where(
            _scope.in_(_LIVE), _m.c.superseded_by.is_(None), _m.c.id.not_in(select(_i.c.memory_id))
        )
        for some in _batches(list(self._connection.execute(missing).scalars())):
            rows = self._connection.execute(select(*_COLUMNS).where(_m.c.id.in_(some)))
            self._index([(_memory(row), None) for row in rows], None)
        self._connection.execute(update(_i).values(model=None))
        self._vectors.forget()

    def turn_to(self, model: str) -> None:
        """From now on, vectors of other models count as missing."""
        self._connection.execute(update(_i).where(_i.c.model != model).values(model=None))
        self._vectors.forget()

    def pending(self) -> tuple[int, int]:
        """How many have no vector, of how many."""
        missing = select(func.count()).select_from(_i).where(_i.c.model.is_(None))
        every = select(func.count()).select_from(_i)
        count = self._connection.execute
        return int(count(missing).scalar_one()), int(count(every).scalar_one())

    def next_pending(self, limit: int) -> list[tuple[int, str]]:
        """Number and text of memories that have no vector."""
        query = (
            select(_i.c.number, _m.c.content)
            .join(_m, _m.c.id == _i.c.memory_id)
            .where(_i.c.model.is_(None))
            .order_by(_i.c.number)
            .limit(limit)
        )
        return [(int(row.number), row.content) for row in self._connection.execute(query)]

    def put_vectors(self, vectors: Mapping[int, bytes], model: str) -> None:
        """Full text and vectors of some rows anew, under new numbers. A row that was edited or forgotten meanwhile is
        passed over."""
        for some in _batches(list(vectors)):
            found = self._connection.execute(
                select(_i.c.number, _i.c.place, *_COLUMNS)
                .join(_m, _m.c.id == _i.c.memory_id)
                .where(_i.c.number.in_(some))
                .order_by(_i.c.number)
            ).all()
            entries = [(_memory(row), vectors[row.number]) for row in found]
            places = {row.id: row.place for row in found}
            self._unindex(list(places))
            self._index(entries, model, places)

    # Small parts

    def _hold_again(self, which: ColumnElement[bool]) -> None:
        rows = self._connection.execute(select(*_COLUMNS).where(which)).all()
        if rows:
            ids = [row.id for row in rows]
            self._connection.execute(update(_m).where(_m.c.id.in_(ids)).values(superseded_by=None))
            back = [replace(_memory(row), superseded_by=None) for row in rows]
            self._index([(memory, None) for memory in back if memory.scope in _LIVE], None)

    def _index(
        self,
        entries: Sequence[tuple[Memory, bytes | None]],
        model: str | None,
        places: Mapping[str, int] | None = None,
        words: Mapping[str, full_text.Words] | None = None,
    ) -> None:
        if not entries:
            return
        last: dict[tuple[str, str], int] = {}
        rows: list[tuple[Any, ...]] = []
        texts: list[full_text.Entry] = []
        for (memory, vector), number in zip(entries, self._numbers(len(entries)), strict=True):
            place = (places or {}).get(memory.id)
            if place is None:
                place = self._next_place(memory, last)
            private, moment, audience = memory.scope == "private", memory.moment, _stored(memory.audience)
            rows.append(
                (
                    number, memory.id, memory.agent_id, private, memory.thread, place, moment, vector,
                    None if vector is None else model, audience,
                )
            )  # fmt: skip
            found = words[memory.id] if words is not None else words_of(memory)
            texts.append(full_text.Entry(number, memory.agent_id, private, audience, found))
        self._insert(_i, _INDEXED, rows)
        full_text.put(self._connection, texts)

    def _insert(self, table: Table, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
        """As `insert(table)`, without a look at every parameter of every row: imports have many."""
        mark = "?" if self._connection.dialect.name == "sqlite" else "%s"
        statement = (
            f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"
        )
        self._connection.exec_driver_sql(statement, rows)

    def _numbers(self, count: int) -> Sequence[int]:
        """Numbers that were never used, in order."""
        if self._connection.dialect.name == "sqlite":
            # Nobody else can take one: a transaction that writes is alone.
            last = text("SELECT seq FROM sqlite_sequence WHERE name = 'memory_index'")
            first = int(self._connection.execute(last).scalar() or 0) + 1
            return range(first, first + count)
        drawn = text("SELECT nextval('memory_index_number_seq') FROM generate_series(1, :count)")
        return sorted(int(n) for n in self._connection.execute(drawn, {"count": count}).scalars())

    def _next_place(self, memory: Memory, last: dict[tuple[str, str], int]) -> int:
        if memory.thread is None:
            return 0
        key = (memory.agent_id, memory.thread)
        if key not in last:
            query = select(func.max(_i.c.place)).where(
                _i.c.owner == key[0], _i.c.thread.is_not(None), _i.c.thread == key[1]
            )
            last[key] = int(self._connection.execute(query).scalar() or 0)
        last[key] += 1
        return last[key]

    def _unindex(self, ids: Sequence[str]) -> dict[str, Any]:
        """Out of every index. Returns the rows they had there."""
        were: dict[str, Any] = {}
        for some in _batches(ids):
            rows = self._connection.execute(select(_i).where(_i.c.memory_id.in_(some))).all()
            numbers = [row.number for row in rows]
            full_text.drop(self._connection, numbers)
            self._vectors.removed(numbers)
            self._connection.execute(delete(_i).where(_i.c.memory_id.in_(some)))
            were.update({row.memory_id: row for row in rows})
        return were

    def _ids_of(self, agent_id: str, scopes: Sequence[str] | None) -> list[str]:
        query = select(_m.c.id).where(_m.c.agent_id == agent_id)
        if scopes is not None:
            query = query.where(_scope.in_(scopes))
        return [str(found) for found in self._connection.execute(query).scalars()]


def words_of(memory: Memory) -> full_text.Words:
    return full_text.words_of(memory.content, memory.tags, memory.moment, memory.pinned_at is not None)


def _visible(reader: Reader, table: Any = _i) -> ColumnElement[bool]:
    """The reader's filter over the index."""
    seen: ColumnElement[bool] = table.c.private.is_(False)
    if reader.owners is not None:
        seen = and_(seen, table.c.owner.in_(reader.owners))
    if reader.agent_id is not None:
        seen = or_(seen, and_(table.c.private.is_(True), table.c.owner == reader.agent_id))
    return _heard(reader, table, seen)


def _visible_rows(reader: Reader) -> ColumnElement[bool]:
    """The same over the rows themselves."""
    seen = _scope == "global"
    if reader.owners is not None:
        seen = and_(seen, _owner.in_(reader.owners))
    if reader.agent_id is not None:
        seen = or_(seen, and_(_m.c.scope == "private", _m.c.agent_id == reader.agent_id))
    return _heard(reader, _m, seen)


def _heard(reader: Reader, table: Any, seen: ColumnElement[bool]) -> ColumnElement[bool]:
    """Of what the reader's agent may see, what its audience may hear."""
    if not is_outside(reader.audience):
        return seen
    own: ColumnElement[bool] = table.c.audience == reader.audience
    return and_(seen, or_(own, table.c.audience.is_(None)) if reader.with_owners else own)


def _stored(audience: str) -> str | None:
    """As the tables hold it: nothing for the owner, whose rows were there before audiences were."""
    return audience if is_outside(audience) else None


def _values(memory: Memory) -> dict[str, Any]:
    return {**_MEMORY.values(memory), "audience": _stored(memory.audience)}


def _tags(memory: Memory) -> str | None:
    return json.dumps(memory.tags, ensure_ascii=False) if memory.tags else None


def _narrowed(filters: Filters) -> ColumnElement[bool]:
    found: ColumnElement[bool] = true()
    if filters.scope is not None:
        found = and_(found, _i.c.private.is_(filters.scope == "private"))
    if filters.since is not None:
        found = and_(found, _i.c.moment >= filters.since)
    if filters.until is not None:
        found = and_(found, _i.c.moment < filters.until)
    if filters.tags:
        patterns = [full_text.tag_pattern(tag) for tag in filters.tags]
        found = and_(found, or_(*(_m.c.tags_json.like(p, escape="!") for p in patterns)))
    return found


def _memory(row: Any, scope: Any = None) -> Memory:
    """Rows from before there were owners and scopes read as main's, for everybody."""
    return _read(row._mapping, scope)


def _read(row: Mapping[str, Any], scope: Any = None) -> Memory:
    return _MEMORY.read(
        row,
        id=str(row["id"]),
        agent_id=owner_of(row["agent_id"]),
        scope=scope or row["scope"] or "global",
        created_at=str(row["created_at"] or ""),
        updated_at=str(row["updated_at"] or row["created_at"] or ""),
        audience=row["audience"] or OWNER,
    )


def _batches(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))
