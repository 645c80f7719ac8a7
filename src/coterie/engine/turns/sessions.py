"""Sessions: made, found, switched, forked, cleared, deleted, searched, exported."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.agent import DEFAULT_ALIAS, AgentState, check_model
from coterie.core.audience import is_once, is_outside
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict, InvalidRequest, NotFound
from coterie.core.fence import CLOSE, OPEN, mark_of, plain, shown, speaker, with_mark
from coterie.core.message import DataPart, FilePart, ImagePart, Message, Origin, Role, snippet
from coterie.core.session import MADE, ListPlace, Session, audience_of, once_key, parse_key, web_key
from coterie.core.turn import ACTIVE, InboxEntry, TurnJob
from coterie.engine.events import Events
from coterie.engine.household.brain import Brains
from coterie.engine.household.registry import Registry
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.stopping import Stopping
from coterie.engine.turns.turns import Turns
from coterie.store.full_text import heard_by

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

MAX_NAME = 200
MAX_ATTRIBUTES = 64 * 1024
PAGE = 200
ONCE_SECONDS = 86_400
"""How long a single request is kept."""
SAID_BY: Mapping[Role, Origin] = {
    "system": "external",
    "assistant": "agent",
    "user": "user",
    "tool": "external",
}
"""Where a client's messages come from, by their role."""


@dataclass(frozen=True, slots=True)
class History:
    messages: Sequence[Message]
    """Ascending; those that wait in the inbox come last, without a place."""
    next_cursor: int | None
    running: Mapping[str, Any] | None
    """The turn so far, where one is under way."""


@dataclass(frozen=True, slots=True)
class Said:
    """Something that was said before a session began, as a client tells it."""

    role: Role
    text: str
    images: tuple[ImagePart, ...] = ()


class Sessions:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        brains: Brains,
        turns: Turns,
        stopping: Stopping,
        events: Events,
        check_model: Callable[[str], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._brains = brains
        self._turns = turns
        self._stopping = stopping
        self._events = events
        self._check_model = check_model
        """Raises where no model could be behind a name."""
        self.made = 0
        """Sessions made by this process so far."""

    # Finding

    async def get(self, ref: str) -> Session:
        return await self._store.look(lambda tx: self.find(tx, ref))

    def find(self, tx: Transaction, ref: str) -> Session:
        found = tx.sessions.find(self.canonical(ref))
        if found is None:
            raise NotFound(f"there is no session {ref[:200]!r}")
        return found

    def find_or_make(self, tx: Transaction, ref: str) -> Session:
        """A key of an agent's own conversation makes it on first use."""
        ref = self.canonical(ref)
        found = tx.sessions.find(ref)
        if found is not None:
            return found
        if not ref.startswith("agent:"):
            raise NotFound(f"there is no session {ref[:200]!r}")
        agent_id, kind, key = parse_key(ref)
        if kind in MADE:
            raise NotFound(f"there is no session {ref[:200]!r}")
        return self.add(tx, agent_id, kind, key)

    def agent_id(self, session: Session) -> str:
        return self._brains.agent_of(session)

    def latest(
        self, tx: Transaction, agent_id: str, audience: str, *, idle: bool = False, internal: bool = False
    ) -> Session | None:
        """An agent's most recently updated conversation with an audience; sessions that name nobody are the default's."""
        agents = [agent_id, None] if agent_id == self._brains.named(DEFAULT_ALIAS) else [agent_id]
        return tx.sessions.latest(agents, audience, idle=idle, internal=internal)

    async def list(
        self,
        *,
        agent_id: str | None = None,
        kinds: Sequence[str] | None = None,
        limit: int = PAGE,
        after: str | None = None,
    ) -> tuple[Sequence[Session], str | None]:
        """One page, and where the next begins."""
        agents: list[str | None] | None = None
        if agent_id is not None:
            agent = self._registry.get(agent_id)
            agents = [agent.id, None] if agent.is_default else [agent.id]
        place = None if after is None else ListPlace.read(after)
        found = await self._store.look(
            lambda tx: tx.sessions.select(agents=agents, kinds=kinds, limit=limit, after=place)
        )
        return found, str(ListPlace.of(found[-1])) if len(found) == limit else None

    def running(self, session: Session) -> bool:
        return self._turns.under_way.is_running(session.id)

    async def history(
        self, ref: str, *, limit: int = PAGE, before: int | None = None, after: int | None = None
    ) -> tuple[Session, History]:
        def look(tx: Transaction) -> tuple[Session, Sequence[Message], list[InboxEntry], list[TurnJob]]:
            session = self.find(tx, ref)
            page = tx.sessions.page(session.id, limit=limit, before=before, after=after)
            return session, page, tx.turns.waiting(session.id), tx.turns.unfinished(session.id)

        session, page, waiting, jobs = await self._store.look(look)
        messages = list(page)
        if before is None and not (after is not None and len(page) == limit):
            heard = heard_by(session.audience)
            messages += [entry.message(heard_by=heard) for entry in waiting]
        more = len(page) == limit and (page[0].seq or 0) > 1
        active = next((job for job in jobs if job.state in ACTIVE), None)
        live = self._turns.live.get(active.run_id) if active is not None else None
        cursor = None
        if after is not None:
            cursor = page[-1].seq if len(page) == limit else None
        elif more:
            cursor = page[0].seq
        return session, History(messages, cursor, live.snapshot() if live is not None else None)

    async def search(
        self, query: str, *, agent_id: str | None, limit: int
    ) -> Sequence[tuple[Session, Message]]:
        """Messages that contain the text, newest first."""
        if not query.strip():
            raise InvalidRequest("a search needs some text", details={"field": "query"})
        sessions = (await self.list(agent_id=agent_id, limit=10_000))[0] if agent_id is not None else None

        def look(tx: Transaction) -> list[tuple[Session, Message]]:
            only = None if sessions is None else [s.id for s in sessions]
            found = []
            for session_id, message in tx.sessions.search(query, session_ids=only, limit=limit):
                session = tx.sessions.find(session_id)
                if session is not None:
                    found.append((session, message))
            return found

        return await self._store.look(look)

    # Making

    async def create(
        self, *, agent_id: str | None = None, from_session: str | None = None, name: str | None = None
    ) -> Session:
        """A new conversation, with the agent of the one that was being viewed."""

        def make(tx: Transaction) -> Session:
            chosen = agent_id
            if chosen is None and from_session is not None:
                chosen = self._brains.agent_of(self.find(tx, from_session))
            if chosen is None:
                chosen = self._registry.default().id
            session_id = str(uuid.uuid4())
            owner = self._active(chosen)
            return self.add(
                tx, owner, "web", web_key(owner, session_id), name=_checked_name(name), session_id=session_id
            )

        return self.changed(await self._store.transact(make))

    async def renew(self, ref: str) -> Session:
        """`/new`: the key goes to a fresh session with the same agent; the old one stays under another key."""
        old = _lasting(await self.get(ref))
        if self.running(old):
            raise Conflict("a turn is running in this session; stop it first, or wait")

        def make(tx: Transaction) -> Session:
            session = _lasting(self.find(tx, ref))
            if ":old:" in session.key:
                raise Conflict(
                    "this session was put aside before; begin anew in the one that has its key now"
                )
            number = 1
            while tx.sessions.key_is_taken(f"{session.key}:old:{number}"):
                number += 1
            tx.sessions.save(replace(session, key=f"{session.key}:old:{number}"))
            return self.add(
                tx,
                self._brains.agent_of(session),
                session.kind,
                session.key,
                deliver=session.deliver,
                route=session.route,
                audience=session.audience,
            )

        fresh = await self._store.transact(make)
        self.changed(await self.get(old.id))
        return self.changed(fresh)

    async def fork(self, ref: str, *, at_seq: int | None = None, name: str | None = None) -> Session:
        """A copy up to a message, with the same agent and overrides."""

        def make(tx: Transaction) -> Session:
            source = _lasting(self.find(tx, ref))
            transcript = tx.sessions.transcript(source.id)
            kept = [m for m in transcript if at_seq is None or (m.seq or 0) <= at_seq]
            session_id = str(uuid.uuid4())
            agent_id = self._brains.agent_of(source)
            session = self.add(
                tx,
                agent_id,
                "web",
                web_key(agent_id, session_id),
                name=_checked_name(name) or source.name,
                session_id=session_id,
                parent_id=source.id,
                model=source.model,
                attributes=source.attributes,
                last_snippet=snippet(kept),
                audience=source.audience,
            )
            copies = [replace(m, id=uuid.uuid4().hex, seq=i, wire={}) for i, m in enumerate(kept, 1)]
            tx.sessions.append(session.id, copies)
            tx.sessions.copy_results(source.id, session.id)
            return session

        return self.changed(await self._store.transact(make))

    async def one_off(self, agent_id: str, earlier: Sequence[Said]) -> Session:
        """A session for a single request that brings its own history: nobody's but its own, and gone after a day."""

        def make(tx: Transaction) -> Session:
            session_id = str(uuid.uuid4())
            owner = self._active(agent_id)
            session = self.add(tx, owner, "once", once_key(owner, session_id), session_id=session_id)
            at = now_iso()
            messages = [
                with_mark(
                    Message(
                        id=uuid.uuid4().hex,
                        role=said.role,
                        origin=SAID_BY[said.role],
                        text=said.text,
                        parts=said.images,
                        agent_id=owner,
                        seq=number,
                        created_at=at,
                        heard_by=heard_by(session.audience),
                    )
                )
                for number, said in enumerate(earlier, 1)
            ]
            tx.sessions.append(session.id, messages)
            return session

        return await self._store.transact(make)

    # Changing

    async def patch(
        self,
        ref: str,
        *,
        name: str | None = None,
        pinned: bool | None = None,
        attributes: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> Session:
        """Rename, pin, attributes, model. An empty name or model takes it back; a null attribute is removed."""
        if model:
            try:
                check_model(model)
            except ValueError as error:
                raise InvalidRequest(str(error), details={"field": "model"}) from None
            self._check_model(model)
        if attributes is not None and len(json.dumps(attributes)) > MAX_ATTRIBUTES:
            raise InvalidRequest(
                f"attributes have at most {MAX_ATTRIBUTES} bytes", details={"field": "attributes"}
            )
        checked = _checked_name(name)

        def change(tx: Transaction) -> Session:
            session = self.find_or_make(tx, ref)
            at = now_iso()
            merged = {**session.attributes, **(attributes or {})}
            after = replace(
                session,
                name=session.name if name is None else checked,
                model=session.model if model is None else model or None,
                pinned_at=session.pinned_at if pinned is None else (at if pinned else None),
                attributes={k: v for k, v in merged.items() if v is not None},
                updated_at=at,
            )
            tx.sessions.save(after)
            return after

        return self.changed(await self._store.transact(change))

    async def set_agent(self, ref: str, agent_id: str) -> Session:
        """Hand the conversation over. A turn that runs finishes as it began; the marker comes behind it."""
        found = await self._store.transact(lambda tx: self.find_or_make(tx, ref))

        def change(change: TurnChange) -> Session:
            tx = change.tx
            session = self.find(tx, found.id)
            former, target = self._brains.agent_of(session), self._active(agent_id)
            if session.agent_id == target:
                return session
            after = replace(session, agent_id=target, updated_at=now_iso())
            tx.sessions.save(after)
            if former == target:
                return after
            entry = InboxEntry(
                session_id=session.id,
                message_id=uuid.uuid4().hex,
                run_id=None,
                agent_id=target,
                role="system",
                origin="system",
                text=f"{self._registry.get(target).label} took over this conversation.",
                meta={"switch": {"from": former, "to": target}},
                created_at=after.updated_at,
            )
            if tx.turns.unfinished(session.id) or tx.turns.waiting(session.id):
                tx.turns.post(entry)
            else:
                change.append(session, [entry.message()])
            return after

        session = await self._turns.transact(change, self._turns.transcripts.get(found.id))
        self._turns.under_way.changed(session)
        return self.changed(session)

    async def clear(self, ref: str) -> Session:
        """Stop what runs, forget what was said, keep the session."""
        session = await self.get(ref)
        reason = "the session that asked was cleared"

        def wipe(change: TurnChange) -> Session:
            now = self.find(change.tx, session.id)
            change.forget_all(now, reason, "the session was cleared")
            change.tx.sessions.clear(now.id)
            after = replace(now, last_snippet=None, updated_at=now_iso())
            change.tx.sessions.save(after)
            return after

        async with self._stopping.session(session.id, reason):
            after = await self._turns.transact(wipe)
        return self.changed(after)

    async def delete(self, ref: str) -> None:
        session = await self.get(ref)
        reason = "the session that asked was deleted"

        def remove(change: TurnChange) -> None:
            change.forget_all(session, reason, "the session was deleted")
            change.tx.sessions.remove(session.id)
            if is_once(session.audience):
                # Nobody comes back to it: what was asked of others there, and what came of it, goes too.
                change.tx.runs.remove_all(session.id)
                change.tx.announcements.remove_all(session.id)

        async with self._stopping.session(session.id, reason):
            await self._turns.transact(remove)
        self._events.session_changed(session, "deleted", deleted=True)

    async def sweep(self) -> int:
        """Delete the single requests of the day before, whatever still waits in them. Says how many."""
        limit = now_iso(offset_us=-ONCE_SECONDS * 1_000_000)
        gone = 0
        for session in await self._store.look(lambda tx: tx.sessions.once_before(limit)):
            with suppress(NotFound):
                await self.delete(session.id)
                gone += 1
        return gone

    async def export(self, ref: str, form: Literal["markdown", "jsonl"]) -> str:
        def look(tx: Transaction) -> tuple[Session, Sequence[Message]]:
            session = self.find(tx, ref)
            return session, tx.sessions.transcript(session.id)

        session, messages = await self._store.look(look)
        if form == "jsonl":
            lines = (
                json.dumps(message_payload(m, session, with_data=True), ensure_ascii=False) for m in messages
            )
            return "".join(line + "\n" for line in lines)
        return _markdown(session, messages)

    # Small parts

    def canonical(self, ref: str) -> str:
        """An id as it is; a key in its stored spelling, with the real id where it says `default`."""
        if not ref or len(ref) > 1000 or "\x00" in ref:
            raise InvalidRequest("a session is named by its id or its key", details={"field": "session"})
        if not ref.startswith("agent:"):
            return ref
        agent_id, _, key = parse_key(ref)
        if agent_id != DEFAULT_ALIAS:
            return key
        return f"agent:{self._registry.default().id}{key.removeprefix(f'agent:{DEFAULT_ALIAS}')}"

    def _active(self, agent_id: str) -> str:
        agent = self._registry.get(agent_id)
        if agent.state is not AgentState.ACTIVE:
            way = "restore" if agent.state is AgentState.ARCHIVED else "add"
            raise Conflict(
                f"the agent {agent.id!r} is {agent.state.value}, not active; `coterie agent {way} {agent.id}` changes that"
            )
        return agent.id

    def add(
        self,
        tx: Transaction,
        agent_id: str,
        kind: Any,
        key: str,
        *,
        session_id: str | None = None,
        **more: Any,
    ) -> Session:
        owner = self._active(agent_id)
        at = now_iso()
        session = Session(
            id=session_id or str(uuid.uuid4()),
            key=key,
            agent_id=owner,
            kind=kind,
            created_at=at,
            updated_at=at,
            **{"audience": audience_of(key), **more},
        )
        tx.sessions.add(session)
        self.made += 1
        return session

    def changed(self, session: Session) -> Session:
        self._events.session_changed(session, "edited")
        return session


def _lasting(session: Session) -> Session:
    if session.kind == "once":
        raise Conflict("this is a single request, which is gone after a day; nothing can begin from it")
    return session


def message_payload(message: Message, session: Session, *, with_data: bool = False) -> dict[str, Any]:
    """A message as every door shows it, in snake_case; the bytes of its images only where they are asked for."""
    payload: dict[str, Any] = {
        "id": message.id,
        "seq": message.seq,
        "role": message.role,
        "origin": message.origin,
        "speaker": speaker(message, session.audience if is_outside(session.audience) else None),
        "text": message.text,
        "agent_id": message.agent_id or None,
        "created_at": message.created_at,
    }
    if message.run_id is not None:
        payload["run_id"] = message.run_id
    if message.meta is not None:
        payload["meta"] = dict(message.meta)
    if message.call_id is not None:
        payload["call_id"] = message.call_id
        payload["tool_name"] = message.tool_name
    if message.tool_calls:
        payload["tool_calls"] = [
            {"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls
        ]
    parts = [_part_payload(part, with_data=with_data) for part in message.parts if isinstance(part, SHOWN)]
    return {**payload, "parts": parts} if parts else payload


SHOWN = (ImagePart, FilePart, DataPart)


def _part_payload(part: ImagePart | FilePart | DataPart, *, with_data: bool) -> dict[str, Any]:
    if isinstance(part, DataPart):
        return {"type": "data", "data": part.data}
    payload: dict[str, Any] = {
        "type": "image" if isinstance(part, ImagePart) else "file",
        "media_type": part.media_type,
        "size": len(part.data),
        "name": part.name,
    }
    return {**payload, "data": base64.b64encode(part.data).decode()} if with_data else payload


def _checked_name(name: str | None) -> str | None:
    if name is None:
        return None
    cleaned = " ".join(name.split())
    if len(cleaned) > MAX_NAME:
        raise InvalidRequest(f"a name has at most {MAX_NAME} characters", details={"field": "name"})
    return cleaned or None


def _markdown(session: Session, messages: Sequence[Message]) -> str:
    """For people. A heading has the mark of its message: what looks like one in a text has none."""
    lines = [f"# {plain(session.name or session.key)}", "", f"Audience: {plain(session.audience)}", ""]
    for message in messages:
        lines += [f"## {_who(message, session)}, {message.created_at} {OPEN}{mark_of(message)}{CLOSE}", ""]
        for call in message.tool_calls:
            called = plain(f"{call.name}({call.arguments})")
            is_short = "`" not in called and "\n" not in called
            lines += [f"`{called}`" if is_short else _fenced_off(called), ""]
        for part in message.parts:
            if isinstance(part, ImagePart | FilePart):
                name = plain(" ".join((part.name or "Image").split()))
                lines += [f"*{name}: {part.media_type}, {len(part.data)} bytes*", ""]
        if message.text:
            text = plain(message.text) if message.role == "assistant" else shown(message)
            lines += [_fenced_off(text) if message.role == "tool" else text, ""]
    return "\n".join(lines)


def _who(message: Message, session: Session) -> str:
    match speaker(message, session.audience if is_outside(session.audience) else None):
        case "assistant":
            return message.agent_id or "A purged agent"
        case "user":
            return "User"
        case "system":
            return "Note"
        case who:
            return plain(who[0].upper() + who[1:])


def _fenced_off(text: str) -> str:
    """As code, whatever is in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
