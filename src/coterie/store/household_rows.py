"""Agents, small facts about the home, tokens, and first answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from coterie.core.agent import Agent, AgentState, label_key
from coterie.core.errors import Conflict
from coterie.core.token import Token
from coterie.store import schema
from coterie.store.columns import json_text


class AgentRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, agent_id: str) -> Agent | None:
        row = self._connection.execute(select(schema.agents).where(schema.agents.c.id == agent_id)).first()
        return None if row is None else _agent(row)

    def all(self) -> list[Agent]:
        """Every row, main first, then in order of arrival."""
        table = schema.agents
        rows = self._connection.execute(
            select(table).order_by(table.c.id != "main", table.c.created_at, table.c.id)
        )
        return [_agent(row) for row in rows]

    def in_state(self, state: AgentState) -> list[Agent]:
        table = schema.agents
        rows = self._connection.execute(
            select(table).where(table.c.state == state.value).order_by(table.c.id)
        )
        return [_agent(row) for row in rows]

    def default(self) -> Agent | None:
        row = self._connection.execute(select(schema.agents).where(schema.agents.c.is_default)).first()
        return None if row is None else _agent(row)

    def save(self, agents: Iterable[Agent]) -> None:
        """Insert or overwrite rows, labels being free to change places among them."""
        table = schema.agents
        rows = [
            {
                "id": agent.id,
                "label": agent.label,
                "label_key": label_key(agent.label),
                "is_default": agent.is_default,
                "spec_json": json_text(agent.spec),
                "state": agent.state.value,
                "created_at": agent.created_at,
                "updated_at": agent.updated_at,
            }
            for agent in agents
        ]
        if not rows:
            return
        self._connection.execute(
            update(table).where(table.c.id == bindparam("one")).values(label_key=None, is_default=False),
            [{"one": row["id"]} for row in rows],
        )
        if any(row["is_default"] for row in rows):
            self._connection.execute(update(table).where(table.c.is_default).values(is_default=False))
        try:
            _upsert(self._connection, table, *rows, key="id")
        except IntegrityError as error:
            raise Conflict("another agent has that label already") from error

    def remove(self, agent_id: str) -> None:
        self._connection.execute(
            delete(schema.agents).where(
                schema.agents.c.id == agent_id, schema.agents.c.state == AgentState.PURGING.value
            )
        )


class MetaRows:
    """Small facts about the home: what the file and the registry agreed on, the engine's epoch."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, key: str) -> str | None:
        return self._connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == key)).scalar()

    def set(self, key: str, value: str) -> None:
        _upsert(self._connection, schema.meta, {"key": key, "value": value}, key="key")

    def delete(self, key: str) -> None:
        self._connection.execute(delete(schema.meta).where(schema.meta.c.key == key))

    def count_up(self, key: str) -> int:
        """The next number of a counter. Also a lock: others that count wait for this transaction."""
        value = str(int(self.get(key) or "0") + 1) if self._connection.dialect.name == "sqlite" else None
        if value is None:
            _upsert_once(self._connection, schema.meta, {"key": key, "value": "0"})
            row = select(schema.meta.c.value).where(schema.meta.c.key == key).with_for_update()
            value = str(int(self._connection.execute(row).scalar_one()) + 1)
        self.set(key, value)
        return int(value)


class TokenRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, token_id: str) -> Token | None:
        row = self._connection.execute(select(schema.tokens).where(schema.tokens.c.id == token_id)).first()
        return None if row is None else _token(row)

    def all(self) -> list[Token]:
        rows = self._connection.execute(
            select(schema.tokens).order_by(schema.tokens.c.created_at, schema.tokens.c.id)
        )
        return [_token(row) for row in rows]

    def add(self, token: Token) -> None:
        self._connection.execute(
            insert(schema.tokens).values(
                id=token.id,
                scope=token.scope,
                label=token.label,
                secret_hash=token.secret_hash,
                created_at=token.created_at,
                revoked_at=token.revoked_at,
            )
        )

    def revoke(self, token_id: str, at: str) -> bool:
        """False where there is no such live token."""
        table = schema.tokens
        done = self._connection.execute(
            update(table).where(table.c.id == token_id, table.c.revoked_at.is_(None)).values(revoked_at=at)
        )
        return done.rowcount == 1


class AnswerRows:
    """First answers to requests that may be repeated under the same idempotency key."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, key: str, since: str = "") -> tuple[str, str] | None:
        """The hash of the request and the answer it got; older ones no longer count."""
        table = schema.answers
        row = self._connection.execute(
            select(table.c.request_hash, table.c.answer_json).where(
                table.c.idempotency_key == key, table.c.created_at >= since
            )
        ).first()
        return None if row is None else (row[0], row[1])

    def add(self, key: str, request_hash: str, answer_json: str, at: str) -> None:
        _upsert_once(
            self._connection,
            schema.answers,
            {
                "idempotency_key": key,
                "request_hash": request_hash,
                "answer_json": answer_json,
                "created_at": at,
            },
        )

    def purge(self, agent_id: str) -> None:
        """Those that may tell something of an agent: whoever asks again asks anew."""
        named = schema.answers.c.answer_json.contains(f'"{agent_id}"', autoescape=True)
        self._connection.execute(delete(schema.answers).where(named))

    def forget_before(self, at: str) -> None:
        self._connection.execute(delete(schema.answers).where(schema.answers.c.created_at < at))


def _agent(row: Row[Any]) -> Agent:
    return Agent(
        id=row.id,
        label=row.label,
        is_default=bool(row.is_default),
        state=AgentState(row.state),
        spec=json.loads(row.spec_json),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _token(row: Row[Any]) -> Token:
    return Token(row.id, row.scope, row.label, row.secret_hash, row.created_at, row.revoked_at)


def _insert(connection: Connection, table: Any) -> Any:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _upsert(connection: Connection, table: Any, *rows: Mapping[str, Any], key: str) -> None:
    """Rows with the same columns, by one statement."""
    statement = _insert(connection, table)
    changes = {name: statement.excluded[name] for name in rows[0] if name != key}
    connection.execute(statement.on_conflict_do_update(index_elements=[key], set_=changes), list(rows))


def _upsert_once(connection: Connection, table: Any, row: Mapping[str, Any]) -> None:
    connection.execute(_insert(connection, table).values(row).on_conflict_do_nothing())
