"""What was used, summed up from the turns themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from coterie.core.usage import UsageKey, UsageRow
from coterie.store import schema

_j = schema.turn_jobs


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
        """Turns, tokens and cost per combination of these keys, in their order."""
        moment = func.coalesce(_j.c.ended_at, _j.c.started_at)
        columns: dict[UsageKey, Any] = {
            "agent": _j.c.agent_id,
            "session": _j.c.session_id,
            "model": _j.c.model,
            "day": func.substr(moment, 1, 10),
        }
        keys = [columns[key] for key in by]
        query = (
            select(
                *(column.label(name) for name, column in zip(by, keys, strict=True)),
                func.count(),
                func.coalesce(func.sum(_j.c.input_tokens), 0),
                func.coalesce(func.sum(_j.c.output_tokens), 0),
                func.coalesce(func.sum(_j.c.cached_tokens), 0),
                func.sum(_j.c.cost),
            )
            .where(_j.c.started_at.is_not(None))
            .limit(limit)
        )
        if keys:
            query = query.group_by(*keys).order_by(*keys)
        if since is not None:
            query = query.where(moment >= since)
        if until is not None:
            query = query.where(moment < until)
        if agent_id is not None:
            query = query.where(_j.c.agent_id == agent_id)
        count = len(by)
        return [
            UsageRow(
                key={name: row[i] for i, name in enumerate(by)},
                turns=int(row[count]),
                input_tokens=int(row[count + 1]),
                output_tokens=int(row[count + 2]),
                cached_tokens=int(row[count + 3]),
                cost=row[count + 4],
            )
            for row in self._connection.execute(query)
        ]
