"""Runs that one agent does for another, and the announcements of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, func, insert, or_, select, update

from coterie.core.announce import SUMMARY, Announcement, RunStatus, SubagentRun
from coterie.core.message import Usage
from coterie.store import schema
from coterie.store.records import Record

_r = schema.subagent_runs
_a = schema.announcements
_RUN = Record(SubagentRun, _r)
_ANNOUNCEMENT = Record(Announcement, _a, text="content")
_live = _r.c.status.in_(("queued", "running"))
_open = _a.c.state != "delivered"
_brief = [
    func.substr(column, 1, SUMMARY).label(column.name) if column.name in ("task", "result") else column
    for column in _r.c
]
"""A page of runs must not bring a page of whole results."""


class RunRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, run: SubagentRun) -> None:
        self._connection.execute(insert(_r), _RUN.values(run))

    def get(self, run_id: str) -> SubagentRun | None:
        row = self._connection.execute(select(_r).where(_r.c.run_id == run_id)).first()
        return None if row is None else _run(row)

    def begun_by(self, requester_run_id: str, call_id: str) -> SubagentRun | None:
        """What a call began when it was made before."""
        row = self._connection.execute(
            select(_r).where(_r.c.requester_run_id == requester_run_id, _r.c.call_id == call_id)
        ).first()
        return None if row is None else _run(row)

    def select(
        self,
        *,
        requester_session_id: str | None = None,
        requester_run_id: str | None = None,
        live: bool = False,
        status: RunStatus | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[SubagentRun]:
        """Newest first, with long tasks and results cut."""
        query = select(*_brief).order_by(_r.c.created_at.desc(), _r.c.run_id).limit(limit)
        if requester_session_id is not None:
            query = query.where(_r.c.requester_session_id == requester_session_id)
        if requester_run_id is not None:
            query = query.where(_r.c.requester_run_id == requester_run_id)
        if live:
            query = query.where(_live)
        if status is not None:
            query = query.where(_r.c.status == status)
        if before is not None:
            query = query.where(_r.c.created_at < before)
        return [_run(row) for row in self._connection.execute(query)]

    def some_are_live(self, requester_session_id: str) -> bool:
        """Whether a session still waits for results that will be announced."""
        found = select(_r.c.run_id).where(
            _r.c.requester_session_id == requester_session_id, _live, _r.c.announce
        )
        return self._connection.execute(found.limit(1)).first() is not None

    def start(self, run_id: str, at: str) -> None:
        self._connection.execute(
            update(_r)
            .where(_r.c.run_id == run_id, _r.c.status == "queued")
            .values(status="running", started_at=at)
        )

    def finish(
        self, run_id: str, status: RunStatus, at: str, *, result: str | None, error: str | None, usage: Usage
    ) -> SubagentRun | None:
        """The end of a live run, with its result; None where it had ended before."""
        done = self._connection.execute(
            update(_r)
            .where(_r.c.run_id == run_id, _live)
            .values(
                status=status,
                result=result,
                error=error,
                ended_at=at,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
                cost=usage.cost,
            )
        )
        return self.get(run_id) if done.rowcount == 1 else None

    def announce_later(self, run_id: str) -> bool:
        """Nobody waits for it any more. False where it has ended already."""
        done = self._connection.execute(update(_r).where(_r.c.run_id == run_id, _live).values(announce=True))
        return done.rowcount == 1

    def hold(self, run_ids: Sequence[str], reason: str) -> None:
        """Their results must not wake anybody."""
        self._connection.execute(
            update(_r).where(_r.c.run_id.in_(run_ids), _live).values(held_because=reason)
        )

    def purge(self, agent_id: str) -> None:
        """What an agent did for others and had others do, with tasks and results; what was announced stays."""
        theirs = or_(_r.c.agent_id == agent_id, _r.c.requester_agent_id == agent_id)
        self._connection.execute(delete(_r).where(theirs, ~_live))

    def remove_all(self, session_id: str) -> None:
        """What was done in a session and for it, as far as it has ended."""
        there = or_(_r.c.session_id == session_id, _r.c.requester_session_id == session_id)
        self._connection.execute(delete(_r).where(there, ~_live))

    def remove(self, run_id: str) -> bool:
        done = self._connection.execute(delete(_r).where(_r.c.run_id == run_id, ~_live))
        return done.rowcount == 1


class AnnouncementRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, one: Announcement) -> None:
        self._connection.execute(insert(_a), _ANNOUNCEMENT.values(one))

    def get(self, run_id: str) -> Announcement | None:
        row = self._connection.execute(select(_a).where(_a.c.run_id == run_id)).first()
        return None if row is None else _announcement(row)

    def of(self, run_ids: Sequence[str]) -> dict[str, Announcement]:
        rows = self._connection.execute(select(_a).where(_a.c.run_id.in_(run_ids)))
        return {row.run_id: _announcement(row) for row in rows}

    def shown(self, session_id: str) -> list[Announcement]:
        """What a turn of this session is shown: everything that no turn has answered for."""
        rows = self._connection.execute(
            select(_a)
            .where(_a.c.session_id == session_id, _open, _a.c.message_id.is_not(None))
            .order_by(_a.c.created_at, _a.c.run_id)
        )
        return [_announcement(row) for row in rows]

    def bind(self, session_id: str, turn_id: str) -> None:
        """This turn answers for whatever is open."""
        self._connection.execute(
            update(_a)
            .where(_a.c.session_id == session_id, _open, _a.c.message_id.is_not(None))
            .values(turn_id=turn_id)
        )

    def answered(self, turn_id: str, at: str) -> None:
        self._connection.execute(
            update(_a)
            .where(_a.c.turn_id == turn_id, _open)
            .values(state="delivered", reason=None, delivered_at=at)
        )

    def failed(self, turn_id: str, reason: str) -> None:
        """The turn that answered for these ended without an answer."""
        self._connection.execute(
            update(_a)
            .where(_a.c.turn_id == turn_id, _a.c.state == "pending")
            .values(state="blocked", reason=reason)
        )

    def block_all(self, session_id: str, reason: str, *, forget_lines: bool) -> None:
        """Whatever is open in a session that was wiped, or whose wake was taken back."""
        forgotten: dict[str, Any] = {"message_id": None} if forget_lines else {}
        self._connection.execute(
            update(_a)
            .where(_a.c.session_id == session_id, _open)
            .values(state="blocked", reason=reason, turn_id=None, **forgotten)
        )

    def withhold(self, run_id: str, reason: str) -> None:
        """Blocked, and no longer shown: whoever is there now must not know."""
        self._connection.execute(
            update(_a)
            .where(_a.c.run_id == run_id, _open)
            .values(state="blocked", reason=reason, turn_id=None, message_id=None)
        )

    def purge(self, agent_id: str) -> None:
        """Those of sessions that are gone, where this agent asked or answered."""
        named = or_(
            _a.c.session_key.startswith(f"agent:{agent_id}:", autoescape=True),
            _a.c.meta_json.contains(f'"agent_id": "{agent_id}"', autoescape=True),
        )
        gone = _a.c.session_id.not_in(select(schema.sessions.c.id))
        self._connection.execute(delete(_a).where(named, gone))

    def remove_all(self, session_id: str) -> None:
        """Those for a session that is gone for good."""
        self._connection.execute(delete(_a).where(_a.c.session_id == session_id))

    def retry(self, run_id: str, message_id: str) -> bool:
        """A blocked one is on its way again. False where it is not blocked."""
        done = self._connection.execute(
            update(_a)
            .where(_a.c.run_id == run_id, _a.c.state == "blocked")
            .values(state="pending", reason=None, turn_id=None, message_id=message_id)
        )
        return done.rowcount == 1


def has_open_announcements(session_id: Any) -> Any:
    """As a column of a query over sessions."""
    return exists().where(
        _a.c.session_id == session_id,
        or_(_a.c.state == "pending", _a.c.state == "blocked"),
        _a.c.message_id.is_not(None),
    )


def _run(row: Row[Any]) -> SubagentRun:
    usage = (
        None
        if row.input_tokens is None
        else Usage(row.input_tokens, row.output_tokens, row.cached_tokens, row.cost)
    )
    return _RUN.read(row._mapping, usage=usage)


def _announcement(row: Row[Any]) -> Announcement:
    return _ANNOUNCEMENT.read(row._mapping)
