"""Full text, in each database's own way: FTS5 on SQLite, word vectors under a GIN index on PostgreSQL.

Both only find candidates, by one word at a time and inside what the reader may see; ranking is elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, text

from coterie.core.audience import ONCE, is_once, is_outside
from coterie.core.memory import Filters, Reader
from coterie.core.time_words import tokens

LONGEST = 50_000
"""Characters of one text that are indexed; PostgreSQL refuses far longer ones."""

_MEMORIES = {
    "sqlite": (
        """CREATE VIRTUAL TABLE memories_fts USING fts5(
        content, more, part, tokenize = 'porter unicode61 remove_diacritics 2')""",
    ),
    "postgresql": (
        """CREATE TABLE memories_fts (
        rowid BIGINT PRIMARY KEY, owner TEXT NOT NULL, private BOOLEAN NOT NULL, audience TEXT,
        words TSVECTOR NOT NULL)""",
        "CREATE INDEX memories_fts_words ON memories_fts USING gin (words)",
        "CREATE INDEX memories_fts_owner ON memories_fts (owner, private)",
    ),
}
_MESSAGES = {
    "sqlite": (
        """CREATE VIRTUAL TABLE messages_fts USING fts5(
        content, agent_id, heard_by, content = 'messages', content_rowid = 'number',
        tokenize = 'porter unicode61 remove_diacritics 2')""",
        # Triggers keep the index in the transaction of the message and cost the turn no statement of its own.
        f"""CREATE TRIGGER messages_found AFTER INSERT ON messages WHEN new.role IN ('user', 'assistant') BEGIN
        INSERT INTO messages_fts (rowid, content, agent_id, heard_by)
        VALUES (new.number, substr(new.content, 1, {LONGEST}), new.agent_id, new.heard_by); END""",
        f"""CREATE TRIGGER messages_lost AFTER DELETE ON messages WHEN old.role IN ('user', 'assistant') BEGIN
        INSERT INTO messages_fts (messages_fts, rowid, content, agent_id, heard_by)
        VALUES ('delete', old.number, substr(old.content, 1, {LONGEST}), old.agent_id, old.heard_by); END""",
        # Only a purge changes a message: it has no owner any more.
        f"""CREATE TRIGGER messages_orphaned AFTER UPDATE OF agent_id ON messages
        WHEN old.role IN ('user', 'assistant') BEGIN
        INSERT INTO messages_fts (messages_fts, rowid, content, agent_id, heard_by)
        VALUES ('delete', old.number, substr(old.content, 1, {LONGEST}), old.agent_id, old.heard_by);
        INSERT INTO messages_fts (rowid, content, agent_id, heard_by)
        VALUES (new.number, substr(new.content, 1, {LONGEST}), new.agent_id, new.heard_by); END""",
    ),
    "postgresql": (
        """CREATE TABLE messages_fts (
        id TEXT PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
        agent_id TEXT NOT NULL, heard_by TEXT, created_at TEXT NOT NULL, words TSVECTOR NOT NULL)""",
        "CREATE INDEX messages_fts_words ON messages_fts USING gin (words)",
        "CREATE INDEX messages_fts_agent ON messages_fts (agent_id, heard_by)",
        f"""CREATE FUNCTION messages_found() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO messages_fts (id, agent_id, heard_by, created_at, words)
        VALUES (new.id, new.agent_id, new.heard_by, new.created_at,
        to_tsvector('english', left(new.content, {LONGEST})));
        RETURN NULL; END $$""",
        """CREATE TRIGGER messages_found AFTER INSERT ON messages
        FOR EACH ROW WHEN (new.role IN ('user', 'assistant')) EXECUTE FUNCTION messages_found()""",
        """CREATE FUNCTION messages_orphaned() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE messages_fts SET agent_id = new.agent_id WHERE id = new.id;
        RETURN NULL; END $$""",
        """CREATE TRIGGER messages_orphaned AFTER UPDATE OF agent_id ON messages
        FOR EACH ROW EXECUTE FUNCTION messages_orphaned()""",
    ),
}
_DROP_MESSAGES = {
    "sqlite": (
        "DROP TRIGGER IF EXISTS messages_found",
        "DROP TRIGGER IF EXISTS messages_lost",
        "DROP TABLE IF EXISTS messages_fts",
    ),
    "postgresql": (
        "DROP TRIGGER IF EXISTS messages_found ON messages",
        "DROP FUNCTION IF EXISTS messages_found()",
        "DROP TABLE IF EXISTS messages_fts",
    ),
}
OUTSIDE = "outside0"
"""The word in the index that all memories share which were learnt outside."""


def create_memories(connection: Connection) -> None:
    _run(connection, _MEMORIES)


def create_messages(connection: Connection) -> None:
    _run(connection, _MESSAGES)


def drop_messages(connection: Connection) -> None:
    """An index of an older form."""
    _run(connection, _DROP_MESSAGES)


def _run(connection: Connection, statements: Mapping[str, Sequence[str]]) -> None:
    for statement in statements[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def index_messages(connection: Connection) -> None:
    """Those that were there before."""
    if connection.dialect.name == "sqlite":
        into = (
            "(rowid, content, agent_id, heard_by)"
            f" SELECT number, substr(content, 1, {LONGEST}), agent_id, heard_by"
        )
    else:
        into = (
            "(id, agent_id, heard_by, created_at, words)"
            f" SELECT id, agent_id, heard_by, created_at, to_tsvector('english', left(content, {LONGEST}))"
        )
    connection.execute(
        text(f"INSERT INTO messages_fts {into} FROM messages WHERE role IN ('user', 'assistant')")
    )


def index_memories(connection: Connection) -> None:
    """Rows of an older table. Without vectors, which come later."""
    rows = connection.execute(
        text("SELECT id, agent_id, scope, content, thread, occurred_at, created_at, tags_json FROM memories")
    ).all()
    insert = text(
        "INSERT INTO memory_index (memory_id, owner, private, thread, place, moment)"
        " VALUES (:memory_id, :owner, :private, :thread, :place, :moment) RETURNING number"
    )
    for place, row in enumerate(rows, 1):
        if (row.scope or "global") not in ("global", "private"):
            continue
        moment = str(row.occurred_at or row.created_at or "")
        entry = {
            "memory_id": str(row.id),
            "owner": row.agent_id or "main",
            "private": row.scope == "private",
            "thread": row.thread,
            "place": place,
            "moment": moment,
        }
        number = connection.execute(insert, entry).scalar_one()
        put(connection, [entry_of(number, entry, row.content, json.loads(row.tags_json or "[]"))])


def entry_of(number: int, index: Mapping[str, Any], content: str, tags: Sequence[str] = ()) -> dict[str, Any]:
    """What is indexed of one memory."""
    more = " ".join((*tags, *tokens(index["moment"])))
    return {
        "rowid": number,
        "owner": index["owner"],
        "private": bool(index["private"]),
        "audience": index.get("audience"),
        "content": content,
        "more": more,
    }


def put_again(connection: Connection, row: RowMapping) -> None:
    """One memory anew: its row of the index, with content and tags."""
    drop(connection, [row["number"]])
    tags = json.loads(row["tags_json"] or "[]")
    put(connection, [entry_of(row["number"], {**row}, row["content"], tags)])


def put(connection: Connection, entries: Sequence[Mapping[str, Any]]) -> None:
    if not entries:
        return
    if connection.dialect.name == "sqlite":
        rows = [
            (e["rowid"], e["content"][:LONGEST], e["more"], _part(e["owner"], e["private"], e["audience"]))
            for e in entries
        ]
        connection.exec_driver_sql(
            "INSERT INTO memories_fts (rowid, content, more, part) VALUES (?, ?, ?, ?)", rows
        )
        return
    connection.execute(
        text(
            "INSERT INTO memories_fts (rowid, owner, private, audience, words)"
            " VALUES (:rowid, :owner, :private, :audience, to_tsvector('english', :content) || to_tsvector('simple', :more))"
        ),
        [{**e, "content": e["content"][:LONGEST]} for e in entries],
    )


def drop(connection: Connection, numbers: Sequence[int]) -> None:
    if numbers:
        connection.execute(
            text("DELETE FROM memories_fts WHERE rowid = :number"), [{"number": n} for n in numbers]
        )


def find(connection: Connection, reader: Reader, word: str, filters: Filters, limit: int) -> list[int]:
    """Numbers of memories with a word, of those that the reader may see, newest first."""
    narrowed, values = _narrowed(connection, filters)
    values |= {"limit": limit}
    if connection.dialect.name == "sqlite":
        statement = (
            "SELECT rowid FROM memories_fts WHERE memories_fts MATCH :match"
            f"{narrowed} ORDER BY rowid DESC LIMIT :limit"
        )
        values["match"] = _heard(reader, f'part : ({_parts(reader)}) AND {{content more}} : "{_bare(word)}"')
    else:
        seen, more = _visible_sql(reader)
        statement = (
            "SELECT rowid FROM memories_fts WHERE"
            " words @@ (plainto_tsquery('english', :word) || plainto_tsquery('simple', :word))"
            f" AND ({seen}){narrowed} ORDER BY rowid DESC LIMIT :limit"
        )
        values |= {"word": _bare(word), **more}
    return [int(number) for number in connection.execute(text(statement), values).scalars()]


def find_messages(
    connection: Connection, reader: Reader, word: str, *, apart_from: str | None, limit: int
) -> list[str]:
    """Ids of messages with a word, of turns that the reader's agent ran for its audience, newest first."""
    heard, more = heard_sql(reader)
    values: dict[str, Any] = {"agent": reader.agent_id, "word": _bare(word), "apart": apart_from, **more}
    values["limit"] = limit
    shown = f"m.agent_id = :agent AND m.role IN ('user', 'assistant') AND {heard}"
    if apart_from is not None:
        shown += " AND m.session_id <> :apart"
    if connection.dialect.name == "sqlite":
        # The owner is part of the match, so that an agent that said little need not pass by all that others said;
        # so is the audience, for the same reason.
        values["match"] = f'agent_id : "{reader.agent_id}" AND content : "{_bare(word)}"'
        if is_outside(reader.audience):
            values["match"] += f' AND heard_by : "{heard_by(reader.audience)}"'
        statement = (
            "SELECT m.id FROM messages_fts AS f CROSS JOIN messages AS m ON m.number = f.rowid"
            f" WHERE messages_fts MATCH :match AND {shown} ORDER BY f.rowid DESC LIMIT :limit"
        )
    else:
        statement = (
            "SELECT m.id FROM messages_fts AS f JOIN messages AS m ON m.id = f.id"
            " WHERE f.words @@ plainto_tsquery('english', :word) AND f.agent_id = :agent"
            f" AND {shown} ORDER BY f.created_at DESC LIMIT :limit"
        )
    return [str(found) for found in connection.execute(text(statement), values).scalars()]


def containing(connection: Connection, words: Iterable[str], limit: int) -> list[str] | None:
    """Ids of messages with all these words, the last one perhaps unfinished, newest first; None without words."""
    cleaned = [_bare(word) for word in words if _bare(word)]
    if not cleaned:
        return None
    if connection.dialect.name == "sqlite":
        match = " AND ".join(f'"{word}"' for word in cleaned) + " *"
        statement = (
            "SELECT m.id FROM messages_fts AS f CROSS JOIN messages AS m ON m.number = f.rowid"
            " WHERE messages_fts MATCH :match ORDER BY f.rowid DESC LIMIT :limit"
        )
        values = {"match": f"content : ({match})", "limit": limit}
    else:
        statement = (
            "SELECT id FROM messages_fts WHERE words @@ plainto_tsquery('english', :words)"
            " ORDER BY created_at DESC LIMIT :limit"
        )
        values = {"words": " ".join(cleaned), "limit": limit}
    return [str(found) for found in connection.execute(text(statement), values).scalars()]


def tidy(connection: Connection) -> None:
    """Write the index anew without what was deleted from it, so that no word of it is left in the file."""
    if connection.dialect.name == "sqlite":
        for table in ("memories_fts", "messages_fts"):
            connection.execute(text(f"INSERT INTO {table} ({table}) VALUES ('optimize')"))


def _bare(word: str) -> str:
    """Nothing that means anything to a query language."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in word).strip()


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


def _heard(reader: Reader, match: str) -> str:
    """Of a match over memories, what the reader's audience may hear."""
    if not is_outside(reader.audience):
        return match
    own = f"part : {heard_by(reader.audience)}"
    if reader.with_owners:
        return f"({match}) NOT (part : {OUTSIDE} NOT {own})"
    return f"({match}) AND {own}"


def _part(owner: str, private: bool, audience: str | None) -> str:
    """Where a memory belongs, as words of the index: nobody reads another's without naming it."""
    part = _private(owner) if private else f"shared0 {_shared(owner)}"
    return part if audience is None else f"{part} {OUTSIDE} {heard_by(audience)}"


def _parts(reader: Reader) -> str:
    own = [] if reader.agent_id is None else [_private(reader.agent_id)]
    shared = ["shared0"] if reader.owners is None else [_shared(owner) for owner in reader.owners]
    return " OR ".join((*own, *shared))


def _private(owner: str) -> str:
    return f"p{_spelled(owner)}"


def _shared(owner: str) -> str:
    return f"g{_spelled(owner)}"


def _spelled(owner: str) -> str:
    # Letters of hexadecimal digits and a digit at the end: one word for the tokenizer, and nothing for the stemmer.
    return f"{owner.encode().hex()}0"


def _visible_sql(reader: Reader) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {}
    if reader.owners is None:
        seen = "NOT private"
    else:
        seen = "NOT private AND owner = ANY(:owners)"
        values["owners"] = list(reader.owners)
    if reader.agent_id is not None:
        seen += " OR (private AND owner = :me)"
        values["me"] = reader.agent_id
    if is_outside(reader.audience):
        heard = "audience = :audience OR audience IS NULL" if reader.with_owners else "audience = :audience"
        seen = f"({seen}) AND ({heard})"
        values["audience"] = reader.audience
    return seen, values


def _narrowed(connection: Connection, filters: Filters) -> tuple[str, dict[str, Any]]:
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
