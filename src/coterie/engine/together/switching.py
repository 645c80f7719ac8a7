"""agents_switch: the person moves to another agent's session, with something to begin with, and back with a summary."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coterie.core.announce import Asker
from coterie.core.audience import is_outside
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError
from coterie.core.message import check_text
from coterie.core.session import Session, audience_of, key_for, web_key
from coterie.core.tool import ToolError
from coterie.engine.events import Events
from coterie.engine.household.brain import Brains
from coterie.engine.together.subagents import Subagents
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.sessions import Sessions
from coterie.engine.turns.turns import Turns

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction

CAME_FROM = "came_from"
"""The attribute of a session that says where its person was before."""


class Switching:
    def __init__(
        self,
        brains: Brains,
        sessions: Sessions,
        subagents: Subagents,
        turns: Turns,
        events: Events,
    ) -> None:
        self._brains = brains
        self._sessions = sessions
        self._subagents = subagents
        self._turns = turns
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

        def move(change: TurnChange) -> tuple[dict[str, Any], Session | None]:
            tx = change.tx
            if (kept := tx.answers.get(key)) is not None:
                answer: dict[str, Any] = json.loads(kept[1])
                return answer, None
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
            if said is not None:
                # An agent's words in the person's name: marked as such, and bounded like everything handed on.
                change.ask(place, target, said, asker=asker, meta={"switched": True})
            answer = {
                "status": "switched",
                "agentId": target,
                "sessionId": place.id,
                "sessionKey": place.key,
                "created": created,
            }
            digest = hashlib.sha256(key.encode()).hexdigest()
            tx.answers.add(key, digest, json.dumps(answer), now_iso())
            return answer, place

        answer, place = await self._turns.transact(move)
        if place is not None:
            self._events.publish("session.switched", {"from": asker.session_key, "to": place.key})
        return answer

    def _place(self, tx: Transaction, here: Session, target: str, going_back: bool) -> tuple[Session, bool]:
        before = here.attributes.get(CAME_FROM)
        if going_back and isinstance(before, str):
            found = tx.sessions.find(before)
            if (
                found is not None
                and self._brains.agent_of(found) == target
                and found.audience == here.audience
            ):
                return found, False
        # A session that a channel leads to has a person of its own; so has one of another audience.
        found = self._sessions.latest(tx, target, here.audience, idle=True, internal=True)
        if found is not None:
            return found, False
        return self._make(tx, here, target), True

    def _make(self, tx: Transaction, here: Session, target: str) -> Session:
        """A new one for the same audience: with people outside, the one that their own key leads to."""
        key = key_for(target, here.key)
        theirs = is_outside(here.audience) and audience_of(key) == here.audience and here.kind != "once"
        if theirs and not tx.sessions.key_is_taken(key):
            return self._sessions.add(tx, target, here.kind, key)
        session_id = str(uuid.uuid4())
        return self._sessions.add(
            tx,
            target,
            "web",
            web_key(target, session_id),
            session_id=session_id,
            audience=here.audience,
        )


def _last_words(tx: Transaction, session: Session) -> str:
    """Where no summary was written: the last thing that was said before."""
    page = tx.sessions.page(session.id, limit=50)
    texts = [m.text for m in reversed(page) if m.role == "assistant" and m.text.strip()]
    return texts[0] if texts else "The conversation came to no conclusion."
