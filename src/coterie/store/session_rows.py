"""Sessions and their messages."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from coterie.core.audience import ONCE, OWNER
from coterie.core.message import (
    NOBODY,
    DataPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from coterie.core.session import ASIDE, ListPlace, Session, delegated_key
from coterie.core.words import cleaned
from coterie.store import full_text, schema
from coterie.store.columns import json_text
from coterie.store.records import Record
from coterie.store.usage_rows import keep_usage

_s = schema.sessions
_m = schema.messages
_r = schema.results
_j = schema.turn_jobs

_SESSION = Record(Session, _s)
_BY_KEY = select(_s).where(_s.c.key == bindparam("ref"))
_BY_ID = select(_s).where(_s.c.id == bindparam("ref"))
_TOUCH = (
    update(_s)
    .where(_s.c.id == bindparam("sid"))
    .values(updated_at=bindparam("at"), last_snippet=func.coalesce(bindparam("snippet"), _s.c.last_snippet))
)
_INSERT_MESSAGE = insert(_m)
_ONCE = and_(_s.c.audience.like("once:%"), _s.c.audience.not_like("once:%:%"))
"""Single requests and what they led to. A channel may be called once, and then has a kind and a peer behind it."""
SAID = ("user", "assistant")
"""Roles of messages that people see."""
CANDIDATES = 2_000
"""Messages that the index names before they are looked at."""


class SessionRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, ref: str) -> Session | None:
        """By id or by key; an id never looks like a key."""
        statement = _BY_KEY if ref.startswith("agent:") else _BY_ID
        row = self._connection.execute(statement, {"ref": ref}).first()
        return None if row is None else read_session(row)

    def add(self, session: Session) -> None:
        self._connection.execute(insert(_s), _SESSION.values(session))

    def save(self, session: Session) -> None:
        values = _SESSION.values(session)
        del values["id"]
        self._connection.execute(update(_s).where(_s.c.id == session.id).values(values))

    def touch(self, session_id: str, at: str, snippet: str | None) -> None:
        """Something was said. Without a snippet it keeps the one that it has."""
        self._connection.execute(_TOUCH, {"sid": session_id, "at": at, "snippet": snippet})

    def remove(self, session_id: str) -> None:
        """With its messages, inbox, turns and backlog; what its turns used stays known."""
        keep_usage(self._connection, session_id)
        self._connection.execute(delete(_s).where(_s.c.id == session_id))

    def disown(self, agent_id: str) -> None:
        """An agent that is purged: what it said in others' sessions stays, and belongs to nobody."""
        said = f'"from": {{"agent_id": {json.dumps(agent_id)},'
        theirs = and_(
            _m.c.origin == "agent", _m.c.role == "user", _m.c.meta_json.contains(said, autoescape=True)
        )
        self._connection.execute(
            update(_m).where(or_(_m.c.agent_id == agent_id, theirs)).values(agent_id=NOBODY)
        )
        self._rename_asked_by(agent_id)
        self._connection.execute(
            delete(schema.outbox).where(schema.outbox.c.session_id.not_in(select(_s.c.id)))
        )
        full_text.tidy(self._connection)

    def _rename_asked_by(self, agent_id: str) -> None:
        """Where it asked others: whoever gets its id later has nothing to do with that."""
        nobody = f"purged-{uuid.uuid4().hex[:12]}"
        rows = self._connection.execute(
            select(_s.c.id, _s.c.key).where(
                _s.c.kind == "agent", _s.c.key.contains(f":agent:{agent_id}:", autoescape=True)
            )
        ).all()
        for row in rows:
            parts = row.key.split(":")
            if parts[3] == agent_id:
                key = ":".join([*parts[:3], nobody, *parts[4:]])
                self._connection.execute(update(_s).where(_s.c.id == row.id).values(key=key))

    def bound_to(self, agent_id: str) -> list[Session]:
        rows = self._connection.execute(select(_s).where(_s.c.agent_id == agent_id))
        return [read_session(row) for row in rows]

    def once_before(self, moment: str) -> list[Session]:
        """Single requests from before a moment, and whatever they led to."""
        old = select(_s.c.audience).where(_s.c.kind == "once", _s.c.created_at < moment)
        rows = self._connection.execute(
            select(_s)
            .where(_s.c.audience != OWNER, _ONCE, or_(_s.c.created_at < moment, _s.c.audience.in_(old)))
            .order_by(_s.c.created_at.desc())
        )
        return [read_session(row) for row in rows]

    def by_audience(self, agent_id: str) -> dict[str, int]:
        """How many sessions an agent has with each outside audience; single requests are not counted."""
        rows = self._connection.execute(
            select(_s.c.audience, func.count())
            .where(_s.c.agent_id == agent_id, _s.c.audience != OWNER, ~_ONCE)
            .group_by(_s.c.audience)
        )
        return {str(row[0]): int(row[1]) for row in rows}

    def select(
        self,
        *,
        agents: Sequence[str | None] | None = None,
        kinds: Sequence[str] | None = None,
        limit: int = 200,
        after: ListPlace | None = None,
    ) -> list[Session]:
        """Pinned first, newest pin first; then by last update. Single requests are nobody's conversation."""
        query = (
            select(_s)
            .where(~_ONCE)
            .order_by(_s.c.pinned_at.is_(None), _s.c.pinned_at.desc(), _s.c.updated_at.desc(), _s.c.id)
        )
        if agents is not None:
            query = query.where(_bound_to(agents))
        if kinds is not None:
            query = query.where(_s.c.kind.in_(kinds))
        if after is not None:
            query = query.where(_behind(after))
        return [read_session(row) for row in self._connection.execute(query.limit(limit))]

    def latest(
        self, agents: Sequence[str | None], audience: str, *, idle: bool = False, internal: bool = False
    ) -> Session | None:
        """The most recently updated live conversation of an agent with one audience.

        With `idle`, none whose turn waits for somebody; with `internal`, none that a channel leads to.
        """
        query = (
            select(_s)
            .where(_bound_to(agents), _s.c.audience == audience)
            .where(_s.c.kind.not_in(ASIDE))
            .order_by(_s.c.updated_at.desc())
            .limit(1)
        )
        if idle:
            query = query.where(~exists().where(_j.c.session_id == _s.c.id, _j.c.state == "waiting"))
        if internal:
            query = query.where(_s.c.route_json.is_(None))
        row = self._connection.execute(query).first()
        return None if row is None else read_session(row)

    def latest_delegated(
        self, agent_id: str, caller: str, audience: str, *, idle: bool = False
    ) -> Session | None:
        """Where one agent last asked another on behalf of this audience; with `idle`, none that is at work."""
        prefix = delegated_key(agent_id, caller, "")
        query = (
            select(_s)
            .where(_s.c.agent_id == agent_id, _s.c.kind == "agent", _s.c.audience == audience)
            .where(func.substr(_s.c.key, 1, len(prefix)) == prefix)
            .order_by(_s.c.updated_at.desc())
            .limit(1)
        )
        if idle:
            query = query.where(~exists().where(_j.c.session_id == _s.c.id, _j.c.ended_at.is_(None)))
        row = self._connection.execute(query).first()
        return None if row is None else read_session(row)

    def count_bound_to(self, agent_id: str) -> int:
        count = self._connection.execute(
            select(func.count()).select_from(_s).where(_s.c.agent_id == agent_id)
        )
        return int(count.scalar_one())

    def key_is_taken(self, key: str) -> bool:
        return self._connection.execute(select(_s.c.id).where(_s.c.key == key)).first() is not None

    # Messages

    def transcript(self, session_id: str) -> list[Message]:
        rows = self._connection.execute(select(_m).where(_m.c.session_id == session_id).order_by(_m.c.seq))
        return [message(row) for row in rows]

    def page(
        self, session_id: str, *, limit: int, before: int | None = None, after: int | None = None
    ) -> list[Message]:
        """Ascending; without `after`, the newest ones."""
        query = select(_m).where(_m.c.session_id == session_id)
        if before is not None:
            query = query.where(_m.c.seq < before)
        if after is not None:
            rows = self._connection.execute(
                query.where(_m.c.seq > after).order_by(_m.c.seq).limit(limit)
            ).all()
            return [message(row) for row in rows]
        rows = self._connection.execute(query.order_by(_m.c.seq.desc()).limit(limit)).all()
        return [message(row) for row in reversed(rows)]

    def message(self, message_id: str) -> Message | None:
        row = self._connection.execute(select(_m).where(_m.c.id == message_id)).first()
        return None if row is None else message(row)

    def of_run(self, session_id: str, run_id: str, since: int) -> list[Message]:
        """What one turn left in a transcript, from the place of its message on."""
        query = select(_m).where(_m.c.session_id == session_id, _m.c.seq >= since, _m.c.run_id == run_id)
        return [message(row) for row in self._connection.execute(query.order_by(_m.c.seq))]

    def append(self, session_id: str, messages: Iterable[Message]) -> None:
        rows = [message_values(session_id, one) for one in messages]
        if rows:
            self._connection.execute(_INSERT_MESSAGE, rows if len(rows) > 1 else rows[0])
            full_text.put_messages(self._connection, [row for row in rows if row["role"] in SAID])

    def keep_result(self, session_id: str, call_id: str, content: str, at: str) -> None:
        self._connection.execute(
            insert(_r).values(session_id=session_id, call_id=call_id, content=content, created_at=at)
        )

    def copy_results(self, source_id: str, target_id: str) -> None:
        """For a fork, whose transcript names the same calls."""
        rows = select(literal(target_id), _r.c.call_id, _r.c.content, _r.c.created_at).where(
            _r.c.session_id == source_id
        )
        self._connection.execute(
            insert(_r).from_select(["session_id", "call_id", "content", "created_at"], rows)
        )

    def result_heard_by(self, session_id: str, call_id: str) -> str | None:
        """Who heard the turn that a call's result belongs to; None where that was the owner."""
        query = select(_m.c.heard_by).where(_m.c.session_id == session_id, _m.c.call_id == call_id)
        return self._connection.execute(query.limit(1)).scalar()

    def kept_result(self, session_id: str, call_id: str) -> str | None:
        query = select(_r.c.content).where(_r.c.session_id == session_id, _r.c.call_id == call_id)
        return self._connection.execute(query).scalar()

    def clear(self, session_id: str) -> None:
        self._connection.execute(delete(_r).where(_r.c.session_id == session_id))
        self._connection.execute(delete(_m).where(_m.c.session_id == session_id))

    def search(
        self, query: str, *, session_ids: Sequence[str] | None, limit: int
    ) -> list[tuple[str, Message]]:
        """Messages that people see and that contain the text, newest first."""
        pattern = "%" + query.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        seen = (
            select(_m)
            .where(_m.c.role.in_(SAID))
            .where(or_(_m.c.heard_by.is_(None), func.substr(_m.c.heard_by, 1, len(ONCE)) != ONCE))
            .order_by(_m.c.created_at.desc(), _m.c.seq.desc())
        )
        if session_ids is not None:
            seen = seen.where(_m.c.session_id.in_(session_ids))
        ids = full_text.containing(self._connection, query, CANDIDATES)
        if ids and len(ids) < CANDIDATES:
            wanted = cleaned(query)
            rows = self._connection.execute(seen.where(_m.c.id.in_(ids)))
            found = [row for row in rows if wanted in cleaned(row.content)]
            if found:
                return [(row.session_id, message(row)) for row in found[:limit]]
        # The middle of a word, or words that are everywhere: look at everything.
        everywhere = seen.where(_m.c.content.ilike(pattern, escape="\\")).limit(limit)
        return [(row.session_id, message(row)) for row in self._connection.execute(everywhere)]


def _behind(place: ListPlace) -> ColumnElement[bool]:
    """Rows that the list shows after this place."""
    later = or_(
        _s.c.updated_at < place.updated_at, and_(_s.c.updated_at == place.updated_at, _s.c.id > place.id)
    )
    if place.pinned_at is None:
        return and_(_s.c.pinned_at.is_(None), later)
    return or_(
        _s.c.pinned_at.is_(None),
        _s.c.pinned_at < place.pinned_at,
        and_(_s.c.pinned_at == place.pinned_at, later),
    )


def _bound_to(agents: Sequence[str | None]) -> ColumnElement[bool]:
    """Sessions of these agents; None stands for sessions that name nobody."""
    named = _s.c.agent_id.in_([a for a in agents if a is not None])
    return or_(named, _s.c.agent_id.is_(None)) if None in agents else named


def read_session(row: Row[Any], prefix: str = "") -> Session:
    return _SESSION.read(row._mapping, prefix)


def message_values(session_id: str, message: Message) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "seq": message.seq,
        "id": message.id,
        "role": message.role,
        "origin": message.origin,
        "content": message.text,
        "parts_json": parts_json(message.parts),
        "call_id": message.call_id,
        "tool_name": message.tool_name,
        "meta_json": json_text(message.meta) if message.meta else None,
        "agent_id": message.agent_id,
        "run_id": message.run_id,
        "created_at": message.created_at,
        "heard_by": message.heard_by,
        "mark": message.mark,
    }


def message(row: Row[Any]) -> Message:
    return Message(
        id=row.id,
        role=row.role,
        origin=row.origin,
        text=row.content,
        parts=read_parts(row.parts_json),
        call_id=row.call_id,
        tool_name=row.tool_name,
        meta=json.loads(row.meta_json) if row.meta_json else None,
        agent_id=row.agent_id,
        run_id=row.run_id,
        seq=row.seq,
        created_at=row.created_at,
        mark=row.mark,
        heard_by=row.heard_by,
    )


def parts_json(parts: Sequence[Part]) -> str | None:
    return json_text([_part(part) for part in parts]) if parts else None


def read_parts(stored: str | None) -> tuple[Part, ...]:
    return tuple(_read_part(part) for part in json.loads(stored)) if stored else ()


def _part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ThinkingPart(text, signature, model):
            return {"type": "thinking", "text": text, "signature": signature, "model": model}
        case ToolCall(call_id, name, arguments):
            return {"type": "call", "id": call_id, "name": name, "arguments": arguments}
        case DataPart(data):
            return {"type": "data", "data": data}
        case ImagePart(media_type, data, name) | FilePart(media_type, data, name):
            kind = "image" if isinstance(part, ImagePart) else "file"
            encoded = base64.b64encode(data).decode()
            return {"type": kind, "media_type": media_type, "data": encoded, "name": name}


def _read_part(data: dict[str, Any]) -> Part:
    match data["type"]:
        case "text":
            return TextPart(data["text"])
        case "thinking":
            return ThinkingPart(data["text"], data.get("signature"), data.get("model"))
        case "data":
            return DataPart(data["data"])
        case "image" | "file":
            kind = ImagePart if data["type"] == "image" else FilePart
            return kind(data["media_type"], base64.b64decode(data["data"]), data.get("name"))
        case _:
            return ToolCall(data["id"], data["name"], data["arguments"])
