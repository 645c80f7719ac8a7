"""What was used: by the turns that are there, and by those whose sessions are gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, case, func, literal, null, select, union_all
from sqlalchemy.dialects import postgresql, sqlite

from coterie.core.audience import ONCE, OWNER
from coterie.core.message import NOBODY, Usage
from coterie.core.usage import UsageKey, UsageRow
from coterie.store import schema

_j = schema.turn_jobs
_k = schema.usage_kept
_AMOUNTS = ("input_tokens", "output_tokens", "cached_tokens")
_moment = func.coalesce(_j.c.ended_at, _j.c.started_at)
_day = func.substr(_moment, 1, 10)
_audience = func.coalesce(_j.c.audience, OWNER)
_kept_audience = case(
    (and_(_audience.like(f"{ONCE}:%"), _audience.not_like(f"{ONCE}:%:%")), ONCE), else_=_audience
)
"""Single requests are one audience once they are gone."""


class UsageRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def summary(
        self,
        by: Sequence[UsageKey],
        *,
        since: str | None,
        until: str | None,
        agent_id: str | None,
        limit: int,
    ) -> list[UsageRow]:
        """Turns, tokens and cost per combination of these keys, in their order.

        Of sessions that are gone the day is known, not the hour.
        """
        live = select(
            func.nullif(_j.c.agent_id, NOBODY).label("agent"),
            _j.c.session_id.label("session"),
            _j.c.model.label("model"),
            _day.label("day"),
            _audience.label("audience"),
            literal(1).label("turns"),
            *(_j.c[name] for name in _AMOUNTS),
            _j.c.cost,
            case((_j.c.cost.is_(None), 1), else_=0).label("unpriced"),
        ).where(_j.c.started_at.is_not(None))
        kept = select(
            func.nullif(_k.c.agent_id, NOBODY).label("agent"),
            null().label("session"),
            func.nullif(_k.c.model, "").label("model"),
            _k.c.day,
            _k.c.audience,
            _k.c.turns,
            *(_k.c[name] for name in _AMOUNTS),
            _k.c.cost,
            case((_k.c.cost.is_(None), _k.c.turns), else_=0).label("unpriced"),
        )
        if since is not None:
            live, kept = live.where(_moment >= since), kept.where(_k.c.day >= since[:10])
        if until is not None:
            live, kept = live.where(_moment < until), kept.where(_k.c.day < until)
        if agent_id is not None:
            live, kept = live.where(_j.c.agent_id == agent_id), kept.where(_k.c.agent_id == agent_id)
        every = union_all(live, kept).subquery()
        keys: list[Any] = [every.c[key] for key in by]
        query = select(
            *keys,
            func.coalesce(func.sum(every.c.turns), 0),
            *(func.coalesce(func.sum(every.c[name]), 0) for name in (*_AMOUNTS, "unpriced")),
            func.sum(every.c.cost),
        ).limit(limit)
        if keys:
            query = query.group_by(*keys).order_by(*keys)
        count = len(by)
        found = []
        for row in self._connection.execute(query):
            key = {name: row[i] for i, name in enumerate(by)}
            turns, sent, came, cached, unpriced = map(int, row[count:-1])
            found.append(UsageRow(key, turns, sent, came, cached, row[-1], unpriced))
        return found

    def spent_since(self, agent_id: str, day: str) -> Usage:
        """What an agent's turns used since the beginning of a day, the unfinished ones included."""
        live = select(*(_j.c[name] for name in _AMOUNTS), _j.c.cost).where(
            _j.c.agent_id == agent_id, _moment >= day
        )
        kept = select(*(_k.c[name] for name in _AMOUNTS), _k.c.cost).where(
            _k.c.agent_id == agent_id, _k.c.day >= day
        )
        every = union_all(live, kept).subquery()
        row = self._connection.execute(
            select(*(func.coalesce(func.sum(every.c[n]), 0) for n in _AMOUNTS), func.sum(every.c.cost))
        ).one()
        return Usage(int(row[0]), int(row[1]), int(row[2]), row[3])

    def disown(self, agent_id: str) -> None:
        """An agent that is purged: what it used stays in the sum, and is nobody's."""
        for row in self._connection.execute(select(_k).where(_k.c.agent_id == agent_id)).all():
            _add(self._connection, {**row._mapping, "agent_id": NOBODY})
        self._connection.execute(_k.delete().where(_k.c.agent_id == agent_id))


def keep_usage(connection: Connection, session_id: str) -> None:
    """What a session's turns used, by agent, model, day and audience, before they are gone."""
    agent, model = func.coalesce(_j.c.agent_id, NOBODY), func.coalesce(_j.c.model, "")
    keys = (agent, model, _day, _kept_audience)
    rows = connection.execute(
        select(
            agent.label("agent_id"),
            model.label("model"),
            _day.label("day"),
            _kept_audience.label("audience"),
            func.count().label("turns"),
            *(func.sum(_j.c[name]).label(name) for name in _AMOUNTS),
            func.sum(_j.c.cost).label("cost"),
        )
        .where(_j.c.session_id == session_id, _j.c.started_at.is_not(None))
        .group_by(*keys)
    ).all()
    for row in rows:
        _add(connection, dict(row._mapping))


def _add(connection: Connection, values: dict[str, Any]) -> None:
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(_k).values(values)
    more = statement.excluded
    sums: dict[str, Any] = {name: _k.c[name] + more[name] for name in ("turns", *_AMOUNTS)}
    sums["cost"] = func.coalesce(_k.c.cost + more.cost, _k.c.cost, more.cost)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["agent_id", "model", "day", "audience"], set_=sums)
    )
