"""agents_switch: the person moves to another agent's session, with something to begin with, and back with a summary."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coterie.core.announce import Asker
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError
from coterie.core.message import check_text
from coterie.core.session import Session, web_key
from coterie.core.tool import ToolError
from coterie.core.turn import TurnJob, TurnState
from coterie.engine.events import Events
from coterie.engine.household.brain import Brains
from coterie.engine.together.subagents import Subagents, message_of
from coterie.engine.turns.dispatcher import Dispatcher
from coterie.engine.turns.live import Live
from coterie.engine.turns.sessions import Sessions

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

CAME_FROM = "came_from"
"""The attribute of a session that says where its person was before."""


class Switching:
    def __init__(
        self,
        store: Store,
        brains: Brains,
        sessions: Sessions,
        subagents: Subagents,
        dispatcher: Dispatcher,
        live: Live,
        events: Events,
    ) -> None:
        self._store = store
        self._brains = brains
        self._sessions = sessions
        self._subagents = subagents
        self._dispatcher = dispatcher
        self._live = live
        self._events = events

    async def switch(
        self, asker: Asker, agent_id: str, message: str | None, summary: str | bool
    ) -> dict[str, Any]:
        """Where the person goes. With a summary, back to where they came from, if that is this agent's."""
        going_back = summary is not False and summary != ""
        text = summary if isinstance(summary, str) and summary else message
        if text is not None:
            try:
                check_text(text)
            except CoterieError as error:
                raise ToolError("invalid_arguments", error.message) from None
        key = f"switch:{asker.run_id}:{asker.call_id}"

        def move(tx: Transaction) -> tuple[dict[str, Any], Session | None, TurnJob | None]:
            if (kept := tx.answers.get(key)) is not None:
                answer: dict[str, Any] = json.loads(kept[1])
                return answer, None, None
            target = self._subagents.reachable(asker, agent_id)
            self._subagents.check_limits(tx, asker, target)
            here = self._sessions.find(tx, asker.session_id)
            place, created = self._place(tx, here, target, going_back)
            said = text
            if going_back and said is None:
                said = _last_words(tx, here)
            if not going_back:
                attributes = {**place.attributes, CAME_FROM: here.id}
                place = replace(place, attributes=attributes, updated_at=now_iso())
                tx.sessions.save(place)
            job = None
            if said is not None:
                job = self._say(tx, asker, place, target, said)
            answer = {
                "status": "switched",
                "agentId": target,
                "sessionId": place.id,
                "sessionKey": place.key,
                "created": created,
            }
            digest = hashlib.sha256(key.encode()).hexdigest()
            tx.answers.add(key, digest, json.dumps(answer), now_iso())
            return answer, place, job

        answer, place, job = await self._store.transact(move)
        if place is not None:
            self._events.publish("session.switched", {"from": asker.session_key, "to": place.key})
            if job is not None:
                self._live.open(job.run_id, place.key)
                self._dispatcher.wake(place)
        return answer

    def _place(self, tx: Transaction, here: Session, target: str, going_back: bool) -> tuple[Session, bool]:
        before = here.attributes.get(CAME_FROM)
        if going_back and isinstance(before, str):
            found = tx.sessions.find(before)
            if found is not None and self._brains.agent_of(found) == target:
                return found, False
        # A session that a channel leads to has a person of its own.
        found = self._sessions.latest(tx, target, idle=True, internal=True)
        if found is not None:
            return found, False
        session_id = str(uuid.uuid4())
        made = self._sessions.add(tx, target, "web", web_key(target, session_id), session_id=session_id)
        return made, True

    def _say(self, tx: Transaction, asker: Asker, place: Session, target: str, text: str) -> TurnJob:
        """An agent's words in the person's name: marked as such, and bounded like everything handed on."""
        run_id = uuid.uuid4().hex
        job = TurnJob(
            run_id,
            place.id,
            uuid.uuid4().hex,
            TurnState.QUEUED,
            trace_id=asker.trace_id or run_id,
            hop=asker.hop + 1,
            chain=(*asker.chain, asker.agent_id),
            created_at=now_iso(),
        )
        entry = message_of(asker, place, target, job, text)
        tx.turns.submit(job, replace(entry, meta={**(entry.meta or {}), "switched": True}))
        return job


def _last_words(tx: Transaction, session: Session) -> str:
    """Where no summary was written: the last thing that was said before."""
    page = tx.sessions.page(session.id, limit=50)
    texts = [m.text for m in reversed(page) if m.role == "assistant" and m.text.strip()]
    return texts[0] if texts else "The conversation came to no conclusion."
