"""Full text, in each database's own way: FTS5 on SQLite, word vectors under a GIN index on PostgreSQL.

Both hold words as `core/words.py` folds them, and only find candidates, inside what the reader may see; ranking is
elsewhere. On SQLite a private memory's words carry their owner's name before them, so that a search among one
agent's memories never passes by another's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, text

from coterie.core.agent import MAIN
from coterie.core.audience import ONCE, is_once, is_outside
from coterie.core.memory import Filters, Reader
from coterie.core.ranking import Terms, asks, speakers
from coterie.core.time_words import tokens
from coterie.core.words import asked, folded

if TYPE_CHECKING:
    import numpy

log = logging.getLogger("coterie.store")

Form = tuple[str, ...]
"""Words of the index that mean the same to a question."""
BATCH = 5_000

# Nothing but spaces and slashes parts the words that we write.
_TOKENS = "tokenize = \"ascii tokenchars '+#.:@_~-'\", detail = none"
_MEMORIES = {
    "sqlite": (f"CREATE VIRTUAL TABLE memories_fts USING fts5(words, {_TOKENS})",),
    "postgresql": (
        """CREATE TABLE memories_fts (
        rowid BIGINT PRIMARY KEY, owner TEXT NOT NULL, private BOOLEAN NOT NULL, audience TEXT,
        words TEXT NOT NULL, vector TSVECTOR NOT NULL)""",
        "CREATE INDEX memories_fts_words ON memories_fts USING gin (vector)",
        "CREATE INDEX memories_fts_owner ON memories_fts (owner, private)",
    ),
}
_SAID = "IN ('user', 'assistant')"
_MESSAGES = {
    "sqlite": (
        f"CREATE VIRTUAL TABLE messages_fts USING fts5(words, {_TOKENS})",
        # Triggers keep the index in the transaction of the message and cost the turn no statement of its own.
        f"""CREATE TRIGGER messages_found AFTER INSERT ON messages WHEN new.role {_SAID} BEGIN
        INSERT INTO messages_fts (rowid, words)
        VALUES (new.number, coterie_words(new.content, new.agent_id, new.heard_by)); END""",
        f"""CREATE TRIGGER messages_lost AFTER DELETE ON messages WHEN old.role {_SAID} BEGIN
        DELETE FROM messages_fts WHERE rowid = old.number; END""",
        # Only a purge changes a message: it has no owner any more.
        f"""CREATE TRIGGER messages_orphaned AFTER UPDATE OF agent_id ON messages WHEN old.role {_SAID} BEGIN
        DELETE FROM messages_fts WHERE rowid = old.number;
        INSERT INTO messages_fts (rowid, words)
        VALUES (new.number, coterie_words(new.content, new.agent_id, new.heard_by)); END""",
    ),
    "postgresql": (
        """CREATE TABLE messages_fts (
        id TEXT PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
        agent_id TEXT NOT NULL, heard_by TEXT, created_at TEXT NOT NULL, vector TSVECTOR NOT NULL)""",
        "CREATE INDEX messages_fts_words ON messages_fts USING gin (vector)",
        "CREATE INDEX messages_fts_agent ON messages_fts (agent_id, heard_by)",
        """CREATE FUNCTION messages_orphaned() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE messages_fts SET agent_id = new.agent_id WHERE id = new.id;
        RETURN NULL; END $$""",
        """CREATE TRIGGER messages_orphaned AFTER UPDATE OF agent_id ON messages
        FOR EACH ROW EXECUTE FUNCTION messages_orphaned()""",
    ),
}
_DROP = {
    "sqlite": (
        *(f"DROP TRIGGER IF EXISTS messages_{name}" for name in ("found", "lost", "orphaned")),
        "DROP TABLE IF EXISTS messages_fts",
        "DROP TABLE IF EXISTS memories_fts",
    ),
    "postgresql": (
        *(f"DROP TRIGGER IF EXISTS messages_{name} ON messages" for name in ("found", "orphaned")),
        *(f"DROP FUNCTION IF EXISTS messages_{name}()" for name in ("found", "orphaned")),
        "DROP TABLE IF EXISTS messages_fts",
        "DROP TABLE IF EXISTS memories_fts",
    ),
}
OUTSIDE = "@outside"
"""The word in the index that all memories share which were learnt outside."""
_ASKS, _PINNED = "@asks", "@pinned"
_SHORT = re.compile(r"[a-z0-9][a-z0-9_-]{0,23}")
_LEXEMES = "array_to_tsvector(array_remove(string_to_array(:words, ' '), '/'))"


def prepare(connection: sqlite3.Connection) -> None:
    """What the triggers call."""
    connection.execute("PRAGMA trusted_schema=ON")  # else they may not call what is ours
    connection.create_function("coterie_words", 3, message_words, deterministic=True)


class Words(NamedTuple):
    """What finds a memory."""

    said: list[str]
    more: list[str]
    """Its tags, and when it was."""
    facts: list[str]


class Entry(NamedTuple):
    """One row of the index of memories."""

    number: int
    owner: str
    private: bool
    audience: str | None
    words: Words


def make_anew(connection: Connection) -> None:
    """Both indexes from the rows, in place of any of an older form. Says how far it is: many rows take a while."""
    dialect = connection.dialect.name
    for statement in (*_DROP[dialect], *_MEMORIES[dialect], *_MESSAGES[dialect]):
        connection.exec_driver_sql(statement)
    _index_memories(connection)
    _index_messages(connection)


def _index_memories(connection: Connection) -> None:
    query = (
        "SELECT i.number, i.owner, i.private, i.audience, i.moment, m.content, m.tags_json, m.pinned_at"
        " FROM memory_index AS i JOIN memories AS m ON m.id = i.memory_id"
        " WHERE i.number > :last ORDER BY i.number LIMIT :limit"
    )
    for rows in _paged(connection, query, "memories", "memory_index"):
        put(
            connection,
            [
                Entry(
                    row.number,
                    str(row.owner),
                    bool(row.private),
                    row.audience,
                    words_of(
                        row.content,
                        json.loads(row.tags_json or "[]"),
                        row.moment,
                        row.pinned_at is not None,
                    ),
                )
                for row in rows
            ],
        )


def _index_messages(connection: Connection) -> None:
    query = (
        "SELECT number, id, content, agent_id, heard_by, created_at FROM messages"
        f" WHERE number > :last AND role {_SAID} ORDER BY number LIMIT :limit"
    )
    for rows in _paged(connection, query, "messages", "messages"):
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(
                "INSERT INTO messages_fts (rowid, words) VALUES (?, ?)",
                [(row.number, message_words(row.content, row.agent_id, row.heard_by)) for row in rows],
            )
        else:
            put_messages(connection, [row._mapping for row in rows])


def _paged(connection: Connection, query: str, what: str, table: str) -> Iterator[Sequence[Any]]:
    total = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    last = done = 0
    while rows := connection.execute(text(query), {"last": last, "limit": BATCH}).all():
        yield rows
        last, done = rows[-1].number, done + len(rows)
        if total > BATCH:
            log.info("indexing %s anew: %d of %d", what, done, total)


def words_of(content: str, tags: Sequence[str], moment: str, pinned: bool) -> Words:
    """What finds one memory, whoever's it is. The dear part of indexing, for which no transaction is needed."""
    facts = [f"~{name}" for name in sorted(speakers([content]))]
    if asks(content):
        facts.append(_ASKS)
    if pinned:
        facts.append(_PINNED)
    more = list(tokens(moment))
    return Words(folded(content), [*folded(" ".join(tags)), *more] if tags else more, facts)


def put(connection: Connection, entries: Sequence[Entry]) -> None:
    if not entries:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            "INSERT INTO memories_fts (rowid, words) VALUES (?, ?)",
            [(e.number, _spelled(e, e.owner if e.private else None)) for e in entries],
        )
        return
    connection.execute(
        text(
            "INSERT INTO memories_fts (rowid, owner, private, audience, words, vector)"
            f" VALUES (:rowid, :owner, :private, :audience, :words, {_LEXEMES})"
        ),
        [
            {
                "rowid": e.number,
                "owner": e.owner,
                "private": e.private,
                "audience": e.audience,
                "words": _spelled(e, None),
            }
            for e in entries
        ],
    )


def _spelled(entry: Entry, private_to: str | None) -> str:
    """One line: what was said, a slash, and what else finds it."""
    before = "" if private_to is None else _before(private_to)
    said, more, found = entry.words
    facts = [*found]
    if not entry.private:
        facts.append(_shared(entry.owner))
    if entry.audience is not None:
        facts += [OUTSIDE, f"@{heard_by(entry.audience)}"]
    if before:
        said, more = [before + word for word in said], [before + word for word in more]
    return " ".join([*said, "/", *more, *facts])


def read_entry(words: str, owner: str, private: bool) -> tuple[Terms, frozenset[str], bool]:
    """What `_spelled` wrote: the words said, whose names stand before them, and whether the memory is pinned."""
    said, _, more = words.partition("/")
    if private:
        said = f" {said}".replace(f" {_before(owner)}", " ")
    counted = said.split()
    facts = more.split()
    names = frozenset(fact[1:] for fact in facts if fact[0] == "~")
    return Terms(Counter(counted), len(counted), _ASKS in facts), names, _PINNED in facts


def drop(connection: Connection, numbers: Sequence[int]) -> None:
    if numbers:
        connection.execute(
            text("DELETE FROM memories_fts WHERE rowid = :number"), [{"number": n} for n in numbers]
        )


def find(
    connection: Connection, reader: Reader, wanted: Sequence[Sequence[Form]], filters: Filters, limit: int
) -> list[numpy.ndarray[Any, Any]]:
    """For each list of words, the numbers of memories that have all of them, of those that the reader may see,
    newest first. One statement for all lists."""
    import numpy as np

    if not wanted:
        return []
    narrowed, values = _narrowed(filters)
    values |= {"limit": limit}
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        condition, together = "memories_fts MATCH :m{}", "group_concat(rowid)"
        values |= {f"m{place}": _match(reader, forms) for place, forms in enumerate(wanted)}
    else:
        seen, more = visible_sql(reader, sqlite=False)
        condition, together = f"vector @@ CAST(:m{{}} AS tsquery) AND ({seen})", "array_agg(rowid)"
        values |= {f"m{place}": _tsquery(forms) for place, forms in enumerate(wanted)} | more
    statement = " UNION ALL ".join(
        f"SELECT {place}, {together} FROM (SELECT rowid FROM memories_fts"
        f" WHERE {condition.format(place)}{narrowed} ORDER BY rowid DESC LIMIT :limit) AS f{place}"
        for place in range(len(wanted))
    )
    found: list[Any] = [np.empty(0, np.int64)] * len(wanted)
    for place, numbers in run(connection, statement, values):
        if numbers:
            found[place] = (
                np.fromstring(numbers, np.int64, sep=",") if sqlite else np.array(numbers, np.int64)
            )
    return found


def run(connection: Connection, statement: str, values: Mapping[str, Any]) -> Sequence[Any]:
    """A statement with named values, by the shortest way: a search has no time to lose."""
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        return driver.execute(statement, values).fetchall()
    return connection.execute(text(statement), values).fetchall()


def numbers_sql(connection: Connection, numbers: Sequence[int]) -> tuple[str, Any]:
    """A table `j` with a column `value` of these numbers, and what to give for `:numbers`."""
    if connection.dialect.name == "sqlite":
        return "json_each(:numbers) AS j", json.dumps(numbers)
    return "unnest(CAST(:numbers AS bigint[])) AS j (value)", list(numbers)


def message_words(content: str, agent_id: str, heard: str | None) -> str:
    """What is indexed of one message."""
    whose = [f"@m:{_name(agent_id)}"] if heard is None else [f"@m:{_name(agent_id)}", f"@{heard}"]
    return " ".join([*folded(content), "/", *whose])


def put_messages(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """On PostgreSQL, whose triggers cannot fold words: after their rows, in the same transaction."""
    if connection.dialect.name == "sqlite":
        return
    entries = [
        {**{key: row[key] for key in ("id", "agent_id", "created_at")}, "heard_by": row.get("heard_by"),
         "words": " ".join(folded(row["content"])) or "/"}
        for row in rows
    ]  # fmt: skip
    if entries:
        connection.execute(
            text(
                "INSERT INTO messages_fts (id, agent_id, heard_by, created_at, vector)"
                f" VALUES (:id, :agent_id, :heard_by, :created_at, {_LEXEMES})"
            ),
            entries,
        )


def find_messages(
    connection: Connection, reader: Reader, wanted: Sequence[Form], *, apart_from: str | None, limit: int
) -> list[list[str]]:
    """For each word, ids of messages that have it, of turns that the reader's agent ran for its audience, newest first."""
    if not wanted:
        return []
    heard, more = heard_sql(reader)
    values: dict[str, Any] = {"agent": reader.agent_id, "apart": apart_from, **more, "limit": limit}
    shown = f"m.agent_id = :agent AND m.role {_SAID} AND {heard}"
    if apart_from is not None:
        shown += " AND m.session_id <> :apart"
    if connection.dialect.name == "sqlite":
        # The owner is part of the match, so that an agent that said little need not pass by all that others said;
        # so is the audience, for the same reason.
        whose = f'"@m:{_name(str(reader.agent_id))}"'
        if is_outside(reader.audience):
            whose += f' AND "@{heard_by(reader.audience)}"'
        values |= {f"m{place}": f"({_any(form)}) AND {whose}" for place, form in enumerate(wanted)}
        one = (
            "SELECT m.id FROM messages_fts AS f CROSS JOIN messages AS m ON m.number = f.rowid"
            f" WHERE messages_fts MATCH :m{{}} AND {shown} ORDER BY f.rowid DESC LIMIT :limit"
        )
        together = "json_group_array(id)"
    else:
        values |= {f"m{place}": _tsquery([form]) for place, form in enumerate(wanted)}
        one = (
            "SELECT m.id FROM messages_fts AS f JOIN messages AS m ON m.id = f.id"
            f" WHERE f.vector @@ CAST(:m{{}} AS tsquery) AND f.agent_id = :agent AND {shown}"
            " ORDER BY f.created_at DESC LIMIT :limit"
        )
        together = "CAST(json_agg(id) AS text)"
    statement = " UNION ALL ".join(
        f"SELECT {place}, {together} FROM ({one.format(place)}) AS f{place}" for place in range(len(wanted))
    )
    found: list[list[str]] = [[] for _ in wanted]
    for place, ids in run(connection, statement, values):
        found[place] = json.loads(ids or "[]")
    return found


def containing(connection: Connection, query: str, limit: int) -> list[str] | None:
    """Ids of messages with all these words, the last one perhaps unfinished, newest first; None without words."""
    forms = list(asked(query).values())
    if not forms:
        return None
    if connection.dialect.name == "sqlite":
        match = " AND ".join([*(f"({_any(form)})" for form in forms[:-1]), f'"{forms[-1][0]}" *'])
        statement = (
            "SELECT m.id FROM messages_fts AS f CROSS JOIN messages AS m ON m.number = f.rowid"
            " WHERE messages_fts MATCH :match ORDER BY f.rowid DESC LIMIT :limit"
        )
    else:
        match = " & ".join([*(f"({_tsquery([form])})" for form in forms[:-1]), f"'{forms[-1][0]}':*"])
        statement = (
            "SELECT id FROM messages_fts WHERE vector @@ CAST(:match AS tsquery)"
            " ORDER BY created_at DESC LIMIT :limit"
        )
    found = run(connection, statement, {"match": match, "limit": limit})
    return [str(row[0]) for row in found]


def tidy(connection: Connection) -> None:
    """Write the index anew without what was deleted from it, so that no word of it is left in the file."""
    if connection.dialect.name == "sqlite":
        for table in ("memories_fts", "messages_fts"):
            connection.execute(text(f"INSERT INTO {table} ({table}) VALUES ('optimize')"))


def heard_by(audience: str) -> str | None:
    """An audience as one word of the index; None for the owner, who hears everything."""
    if not is_outside(audience):
        return None
    digest = hashlib.sha256(audience.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{ONCE if is_once(audience) else 'a'}{digest}0"


def heard_sql(reader: Reader) -> tuple[str, dict[str, Any]]:
    """Which rows of `messages AS m` the reader's audience has heard; one-off calls only their own."""
    if is_outside(reader.audience):
        return "m.heard_by = :heard", {"heard": heard_by(reader.audience)}
    return f"(m.heard_by IS NULL OR substr(m.heard_by, 1, {len(ONCE)}) <> '{ONCE}')", {}


def _any(form: Form, before: str = "") -> str:
    return " OR ".join(f'"{before}{word}"' for word in form)


def _match(reader: Reader, wanted: Sequence[Form]) -> str:
    """All of these words in one memory that the reader may see."""
    shared = " AND ".join(f"({_any(form)})" for form in wanted)
    if reader.owners is not None:
        owners = " OR ".join(f'"{_shared(owner)}"' for owner in reader.owners)
        shared = f"({shared}) AND ({owners})"
    match = f"({shared})"
    if reader.agent_id is not None:
        before = _before(reader.agent_id)
        match += " OR (" + " AND ".join(f"({_any(form, before)})" for form in wanted) + ")"
    if not is_outside(reader.audience):
        return match
    own = f'"@{heard_by(reader.audience)}"'
    if reader.with_owners:
        return f'({match}) NOT ("{OUTSIDE}" NOT {own})'
    return f"({match}) AND {own}"


def _tsquery(wanted: Sequence[Form]) -> str:
    """Words as they are: nothing of them is folded once more."""
    return " & ".join("(" + " | ".join(f"'{word}'" for word in form) + ")" for form in wanted)


def _before(owner: str) -> str:
    """What stands before each word of an owner's private memories."""
    return f"{_name(owner)}:"


def _shared(owner: str) -> str:
    return f"@g:{_name(owner)}"


def _name(owner: str) -> str:
    """An agent as one word of the index. Long names and those of older households are told by a digest."""
    if _SHORT.fullmatch(owner):
        return owner
    return "_" + hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def visible_sql(reader: Reader, table: str = "", *, sqlite: bool) -> tuple[str, dict[str, Any]]:
    """The reader's filter over the index, as SQL."""
    dot = f"{table}." if table else ""
    return _seen_sql(reader, f"NOT {dot}private", f"{dot}private", f"{dot}owner", f"{dot}audience", sqlite)


def visible_rows_sql(reader: Reader, *, sqlite: bool) -> tuple[str, dict[str, Any]]:
    """The same over `memories AS m`. Rows from before there were owners and scopes are main's, for everybody."""
    owner = f"coalesce(m.agent_id, '{MAIN}')"
    shared = "coalesce(m.scope, 'global') = 'global'"
    return _seen_sql(reader, shared, "m.scope = 'private'", owner, "m.audience", sqlite)


def _seen_sql(
    reader: Reader, shared: str, private: str, owner: str, audience: str, sqlite: bool
) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {}
    seen = shared
    if reader.owners is not None:
        if sqlite:
            seen += f" AND {owner} IN (SELECT value FROM json_each(:owners))"
            values["owners"] = json.dumps(reader.owners)
        else:
            seen += f" AND {owner} = ANY(:owners)"
            values["owners"] = list(reader.owners)
    if reader.agent_id is not None:
        seen = f"({seen}) OR ({private} AND {owner} = :me)"
        values["me"] = reader.agent_id
    if is_outside(reader.audience):
        own = f"{audience} = :audience"
        seen = f"({seen}) AND ({own} OR {audience} IS NULL)" if reader.with_owners else f"({seen}) AND {own}"
        values["audience"] = reader.audience
    return seen, values


def _narrowed(filters: Filters) -> tuple[str, dict[str, Any]]:
    if not filters.any:
        return "", {}
    conditions, values = [], {}
    if filters.scope is not None:
        conditions.append("i.private" if filters.scope == "private" else "NOT i.private")
    if filters.since is not None:
        conditions.append("i.moment >= :since")
        values["since"] = filters.since
    if filters.until is not None:
        conditions.append("i.moment < :until")
        values["until"] = filters.until
    joined = ""
    if filters.tags:
        joined = " JOIN memories AS m ON m.id = i.memory_id"
        any_of = []
        for place, tag in enumerate(filters.tags):
            any_of.append(f"m.tags_json LIKE :tag{place} ESCAPE '!'")
            values[f"tag{place}"] = tag_pattern(tag)
        conditions.append(f"({' OR '.join(any_of)})")
    where = " AND ".join(conditions)
    return f" AND rowid IN (SELECT i.number FROM memory_index AS i{joined} WHERE {where})", values


def tag_pattern(tag: str) -> str:
    """Of a LIKE over the tags as they are stored, with `!` as its escape."""
    quoted = json.dumps(tag, ensure_ascii=False)
    for special in "!%_":
        quoted = quoted.replace(special, f"!{special}")
    return f"%{quoted}%"
