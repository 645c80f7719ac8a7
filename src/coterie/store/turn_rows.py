"""Turns, the inbox they come from, the backlog they may go to, and the outbox: looked at here, changed in turn_writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    LABEL_STYLE_TABLENAME_PLUS_COL,
    Connection,
    Row,
    bindparam,
    func,
    insert,
    or_,
    select,
)

from coterie.core.announce import TraceUse
from coterie.core.message import Message, Usage
from coterie.core.turn import InboxEntry, TurnJob, TurnState, Work
from coterie.store import schema
from coterie.store.columns import json_text
from coterie.store.records import Record
from coterie.store.run_rows import has_open_announcements
from coterie.store.session_rows import parts_json, read_parts, read_session

_j = schema.turn_jobs
_i = schema.inbox
_b = schema.backlog
_o = schema.outbox

UNFINISHED = (TurnState.QUEUED, TurnState.RUNNING, TurnState.WAITING, TurnState.INTERRUPTED)

_JOB = Record(TurnJob, _j)
_ADD_INBOX = insert(_i)
_WAITING = select(_i).where(_i.c.session_id == bindparam("sid")).order_by(_i.c.position)
_FIRST = (
    select(func.min(_i.c.position))
    .where(_i.c.session_id == bindparam("sid"), _i.c.run_id.is_not(None))
    .scalar_subquery()
)
_NEXT = (
    select(
        _i,
        schema.sessions,
        _j.c.kind,
        _j.c.trace_id,
        _j.c.hop,
        _j.c.chain_json,
        _j.c.timeout_s,
        _j.c.created_at,
        has_open_announcements(_i.c.session_id).label("announced"),
    )
    .join(schema.sessions, schema.sessions.c.id == _i.c.session_id)
    .outerjoin(_j, _j.c.run_id == _i.c.run_id)
    .where(_i.c.session_id == bindparam("sid"), _i.c.position <= _FIRST)
    .order_by(_i.c.position)
    .set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL)
)


class TurnRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # Coming in

    def queued_wake(self, session_id: str) -> TurnJob | None:
        row = self._connection.execute(
            select(_j).where(
                _j.c.session_id == session_id, _j.c.kind == "wake", _j.c.state == TurnState.QUEUED.value
            )
        ).first()
        return None if row is None else read_job(row)

    def post(self, entry: InboxEntry) -> None:
        """A message alone, which is consumed with the next turn."""
        self._connection.execute(
            _ADD_INBOX,
            {
                "session_id": entry.session_id,
                "message_id": entry.message_id,
                "run_id": entry.run_id,
                "agent_id": entry.agent_id,
                "role": entry.role,
                "origin": entry.origin,
                "content": entry.text,
                "meta_json": json_text(entry.meta) if entry.meta else None,
                "created_at": entry.created_at,
                "parts_json": parts_json(entry.parts),
            },
        )

    def repeated(self, key: str, since: str) -> tuple[TurnJob, str | None] | None:
        """The turn that an idempotency key stands for, and the hash of what was asked; those that ended before no longer count."""
        fresh = or_(_j.c.ended_at.is_(None), _j.c.ended_at >= since)
        row = self._connection.execute(select(_j).where(_j.c.idempotency_key == key, fresh)).first()
        return None if row is None else (read_job(row), row.body_hash)

    def newest_with_body(self, body_hash: str) -> TurnJob | None:
        """The newest turn that an equal request began."""
        query = select(_j).where(_j.c.body_hash == body_hash).order_by(_j.c.created_at.desc()).limit(1)
        row = self._connection.execute(query).first()
        return None if row is None else read_job(row)

    def waiting(self, session_id: str) -> list[InboxEntry]:
        """What waits in the inbox, in order of arrival."""
        return [read_entry(row) for row in self._connection.execute(_WAITING, {"sid": session_id})]

    def next_work(self, session_id: str) -> Work | None:
        """The entries up to the first that asks for a turn, and that turn; None where nothing does."""
        rows = self._connection.execute(_NEXT, {"sid": session_id}).all()
        if not rows:
            return None
        entries = [read_entry(row, "inbox_") for row in rows]
        last, value = entries[-1], rows[-1]._mapping
        assert last.run_id is not None
        chain = value["turn_jobs_chain_json"]
        job = TurnJob(
            last.run_id,
            session_id,
            last.message_id,
            TurnState.QUEUED,
            kind=value["turn_jobs_kind"] or "message",
            trace_id=value["turn_jobs_trace_id"],
            hop=value["turn_jobs_hop"],
            chain=tuple(json.loads(chain)) if chain else (),
            timeout_s=value["turn_jobs_timeout_s"],
            created_at=value["turn_jobs_created_at"],
        )
        return Work(read_session(rows[0], "sessions_"), entries, job, bool(value["announced"]))

    def noted(self, session_id: str) -> list[InboxEntry]:
        """What waits in the inbox without asking for a turn."""
        return [entry for entry in self.waiting(session_id) if entry.run_id is None]

    def backlog(self, session_id: str) -> list[tuple[str, dict[str, Any]]]:
        """Interrupted tasks, oldest first."""
        rows = self._connection.execute(
            select(_b.c.run_id, _b.c.token_json).where(_b.c.session_id == session_id).order_by(_b.c.position)
        )
        return [(row.run_id, json.loads(row.token_json)) for row in rows]

    def get(self, run_id: str) -> TurnJob | None:
        row = self._connection.execute(select(_j).where(_j.c.run_id == run_id)).first()
        return None if row is None else read_job(row)

    def unfinished(self, session_id: str) -> list[TurnJob]:
        rows = self._connection.execute(
            select(_j)
            .where(_j.c.session_id == session_id, _j.c.state.in_([s.value for s in UNFINISHED]))
            .order_by(_j.c.created_at, _j.c.run_id)
        )
        return [read_job(row) for row in rows]

    def sessions_with_work(self) -> list[str]:
        """Sessions that something waits in, those first whose turn was under way."""
        active = (
            select(_j.c.session_id).where(_j.c.state.in_(("running", "waiting"))).order_by(_j.c.created_at)
        )
        waiting = (
            select(_i.c.session_id)
            .where(_i.c.run_id.is_not(None))
            .group_by(_i.c.session_id)
            .order_by(func.min(_i.c.position))
        )
        backlog = select(_b.c.session_id).group_by(_b.c.session_id).order_by(func.min(_b.c.position))
        wakes = (
            select(_j.c.session_id)
            .where(_j.c.kind == "wake", _j.c.state == TurnState.QUEUED.value)
            .order_by(_j.c.created_at)
        )
        found: dict[str, None] = {}
        for query in (active, waiting, backlog, wakes):
            found.update(dict.fromkeys(self._connection.execute(query).scalars()))
        return list(found)

    def used_by_trace(self, trace_id: str) -> TraceUse:
        """What all turns of a trace used, the unfinished ones included."""
        row = self._connection.execute(
            select(
                func.count(),
                func.count(_j.c.started_at),
                func.coalesce(func.sum(_j.c.input_tokens), 0),
                func.coalesce(func.sum(_j.c.output_tokens), 0),
                func.coalesce(func.sum(_j.c.cached_tokens), 0),
                func.sum(_j.c.cost),
                func.min(_j.c.created_at),
            ).where(_j.c.trace_id == trace_id)
        ).one()
        return TraceUse(
            int(row[0]), int(row[1]), Usage(int(row[2]), int(row[3]), int(row[4]), row[5]), row[6]
        )

    # Going out

    def send(self, session_id: str, run_id: str, message: Message, route: Mapping[str, Any]) -> None:
        """What leaves the house, exactly once per message."""
        self._connection.execute(
            insert(_o).values(
                session_id=session_id,
                run_id=run_id,
                message_id=message.id,
                route_json=json_text(route),
                content=message.text,
                state="queued",
                attempts=0,
                created_at=message.created_at,
            )
        )


def read_job(row: Row[Any]) -> TurnJob:
    usage = Usage(row.input_tokens, row.output_tokens, row.cached_tokens, row.cost)
    return _JOB.read(row._mapping, state=TurnState(row.state), kind=row.kind or "message", usage=usage)


def read_entry(row: Row[Any], prefix: str = "") -> InboxEntry:
    value = row._mapping
    meta = value[f"{prefix}meta_json"]
    return InboxEntry(
        session_id=value[f"{prefix}session_id"],
        message_id=value[f"{prefix}message_id"],
        run_id=value[f"{prefix}run_id"],
        agent_id=value[f"{prefix}agent_id"],
        role=value[f"{prefix}role"],
        origin=value[f"{prefix}origin"],
        text=value[f"{prefix}content"],
        meta=json.loads(meta) if meta else None,
        created_at=value[f"{prefix}created_at"],
        position=value[f"{prefix}position"],
        parts=read_parts(value[f"{prefix}parts_json"]),
    )
