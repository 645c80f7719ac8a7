"""Who hears what: sessions, turns, messages and memories say for whom they are; usage outlives its session.

Of what was there before, the key decides; a child and a fork follow the session that they came from.
"""

import uuid
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from coterie.core.audience import OWNER, once_audience
from coterie.core.errors import InvalidRequest
from coterie.core.session import audience_of, once_key, parse_key
from coterie.store import full_text

revision = "0008"
down_revision = "0007"

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("sessions", sa.Column("audience", sa.Text, nullable=False, server_default=OWNER))
    for name in ("heard_by", "mark"):
        op.add_column("messages", sa.Column(name, sa.Text))
    for table in ("turn_jobs", "announcements", "memories", "memory_index"):
        op.add_column(table, sa.Column("audience", sa.Text))
    outside, learnt = sa.text("audience <> 'owner'"), sa.text("audience IS NOT NULL")
    op.create_index(
        "sessions_by_audience",
        "sessions",
        ["audience", "agent_id"],
        sqlite_where=outside,
        postgresql_where=outside,
    )
    op.create_index(
        "memory_index_by_audience",
        "memory_index",
        ["audience", "owner"],
        sqlite_where=learnt,
        postgresql_where=learnt,
    )
    op.create_table(
        "usage_kept",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("agent_id", "model", "day", "audience")),
        sa.Column("turns", sa.Integer, nullable=False),
        *(
            sa.Column(name, Big, nullable=False)
            for name in ("input_tokens", "output_tokens", "cached_tokens")
        ),
        sa.Column("cost", sa.Float),
    )
    op.create_index("usage_kept_by_day", "usage_kept", ["agent_id", "day"])
    connection = op.get_bind()
    tell_sessions(connection)
    tell_messages(connection)
    tell_memories(connection)  # full text is made anew in 0009


def tell_sessions(connection: sa.Connection) -> None:
    rows = {
        row.id: row
        for row in connection.execute(
            sa.text("SELECT id, key, kind, name, agent_id, parent_id FROM sessions")
        )
    }
    keys = {row.key for row in rows.values()}
    # The first one made it, where it was made for that: as a child, or to ask an agent in.
    asked_from: dict[str, str | None] = {}
    for row in connection.execute(
        sa.text("SELECT session_id, kind, requester_session_key FROM subagent_runs ORDER BY created_at")
    ):
        place = rows.get(row.session_id)
        if row.kind == "subagent" or (place is not None and str(place.name).startswith("Asked by ")):
            asked_from.setdefault(row.session_id, row.requester_session_key)
    change = sa.text("UPDATE sessions SET key = :key, kind = :kind, audience = :audience WHERE id = :id")
    for row in rows.values():
        key, kind = row.key, row.kind
        agent = key.split(":")[1]
        if key == f"agent:{agent}:api:{row.id}":
            key, kind, audience = once_key(agent, row.id), "once", once_audience(row.id)
        else:
            audience = _audience(row, rows, asked_from)
            canonical = _canonical(key)
            if canonical != key and canonical not in keys:
                keys.add(canonical)
                key = canonical
        if audience != OWNER or key != row.key:
            connection.execute(change, {"id": row.id, "key": key, "kind": kind, "audience": audience})


def _audience(row: Any, rows: Mapping[str, Any], asked_from: Mapping[str, str | None]) -> str:
    seen = set()
    while row.kind in ("subagent", "web") and row.id not in seen:
        seen.add(row.id)
        parent = rows.get(row.parent_id)
        if parent is None:
            return _asked_audience(asked_from.get(row.id), rows)
        row = parent
    if row.key == f"agent:{row.key.split(':')[1]}:api:{row.id}":
        return once_audience(row.id)
    return _key_audience(row.key)


def _asked_audience(key: str | None, rows: Mapping[str, Any]) -> str:
    """Of a session that may be gone."""
    if key is None:
        return OWNER
    kind, last = key.split(":")[2], key.split(":")[-1]
    is_id = kind == "api" and (last in rows or _is_uuid(last))
    return once_audience(last) if is_id else _key_audience(key)


def _key_audience(key: str) -> str:
    """Of a key of the former release, in which a channel could be called agent."""
    parts = _canonical(key).split(":")
    if parts[2:3] == ["agent"] and len(parts) >= 5 and parts[3] in ("dm", "group"):
        return ":".join(parts[2:5])
    return audience_of(":".join(parts))


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _canonical(key: str) -> str:
    try:
        return parse_key(key)[2]
    except InvalidRequest:
        return key


def tell_messages(connection: sa.Connection) -> None:
    rows = connection.execute(sa.text("SELECT id, audience FROM sessions WHERE audience <> 'owner'")).all()
    for row in rows:
        values = {"id": row.id, "audience": row.audience, "heard_by": full_text.heard_by(row.audience)}
        connection.execute(sa.text("UPDATE messages SET heard_by = :heard_by WHERE session_id = :id"), values)
        connection.execute(
            sa.text("UPDATE turn_jobs SET audience = :audience WHERE session_id = :id"), values
        )


def tell_memories(connection: sa.Connection) -> None:
    """What an agent noted in a conversation names it as its source."""
    rows = connection.execute(
        sa.text("SELECT id, source_ref FROM memories WHERE source_ref LIKE 'agent:%' AND file IS NULL")
    ).all()
    for row in rows:
        audience = _source_audience(connection, row.source_ref)
        if audience == OWNER:
            continue
        values = {"id": row.id, "audience": audience}
        connection.execute(sa.text("UPDATE memories SET audience = :audience WHERE id = :id"), values)
        connection.execute(
            sa.text("UPDATE memory_index SET audience = :audience WHERE memory_id = :id"), values
        )


def _source_audience(connection: sa.Connection, key: str) -> str:
    known = sa.text("SELECT audience FROM sessions WHERE key = :key")
    found = connection.execute(known, {"key": _canonical(key)}).scalar()
    if found is not None:
        return str(found)
    parts = key.split(":")
    if len(parts) == 4 and parts[2] == "api":
        once = connection.execute(known, {"key": once_key(parts[1], parts[3])}).scalar()
        if once is not None:
            return str(once)
    return _asked_audience(key, {})
