"""What a turn would send, from the code that sends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.message import Message
from coterie.core.ports import ModelError, ModelRequest, Previews
from coterie.core.prompt import Section
from coterie.core.session import Session
from coterie.engine.gateway import Gateway
from coterie.engine.household.brain import Brain


@dataclass(frozen=True, slots=True)
class Preview:
    agent_id: str
    model: str
    sections: Sequence[Section]
    request: ModelRequest
    body: bytes | None
    """The request as its provider would get it, where one can be reached."""


async def preview(
    gateway: Gateway, *, agent_id: str | None, session: str | None, message: str | None
) -> Preview:
    """Of an agent's first request, or of the next one in a session, as if this was said in it."""
    messages: Sequence[Message] = ()
    if session is not None:
        found = await gateway.sessions.get(session)
        brain = gateway.brains.for_session(found)
        messages = gateway.turns.transcripts.get(found.id).sendable()
    else:
        brain = gateway.brains.of(gateway.registry.get(agent_id or "default").id)
        found = Session("", f"agent:{brain.agent_id}:main", brain.agent_id, "main")
    if message is not None:
        messages = [*messages, Message("", "user", "user", message)]
    return await _of(gateway, brain, found, messages)


async def _of(gateway: Gateway, brain: Brain, session: Session, messages: Sequence[Message]) -> Preview:
    around = gateway.answerers
    recalled = await around.recall.for_turn(session, brain, messages, gateway.turns.hears(session))
    name = session.model or brain.model
    announced = await gateway.store.look(lambda tx: tx.announcements.shown(session.id))
    request = around.request(session, brain, messages, announced, recalled, name)
    body = None
    try:
        model = await around.resolve_model(name)
        if isinstance(model, Previews):
            body = await model.body(request)
    except ModelError:
        pass  # a missing key does not keep anybody from looking at the prompt
    return Preview(brain.agent_id, name, brain.prompt.sections, request, body)
