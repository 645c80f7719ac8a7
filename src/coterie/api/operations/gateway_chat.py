"""/api/gateway/chat: a message from some other program's conversation, answered whole or as events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from coterie.api.operation import Post, Repeat, Streamed, Whole, operation
from coterie.api.operations.chat import Attachment, attached
from coterie.api.shapes import Answer, Change, Flag, SessionName, Shape
from coterie.api.streaming import PING, content_of, reply, sse, with_pings
from coterie.core.errors import InvalidRequest
from coterie.core.events import LAST
from coterie.core.message import ImagePart
from coterie.core.session import dm_key, group_key, main_key
from coterie.engine.gateway import Gateway, Receipt

Short = Annotated[str, Field(max_length=500)]


class GatewayMessage(Shape):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]] = Field(
        description="Text, or text and image_url parts as in the OpenAI protocol."
    )


class GatewayChat(Change):
    """Where the message comes from: a session, or a peer on a channel; with neither, it is the owner's to the agent."""

    session_key: SessionName | None = None
    channel: Short | None = None
    peer_id: Short | None = None
    chat_id: Short | None = None
    display_name: Short | None = None
    is_group: Flag = False
    text: str | None = None
    messages: list[GatewayMessage] | None = Field(None, description="Only the last one, the user's, is new.")
    attachments: list[Attachment] | None = None
    agent_id: Short | None = None
    stream: Flag = False

    @model_validator(mode="after")
    def _something_is_said(self) -> GatewayChat:
        if (self.text is None) == (self.messages is None):
            raise ValueError("give text or messages")
        if self.messages is not None and (not self.messages or self.messages[-1].role != "user"):
            raise ValueError("the last of messages must be the user's")
        if self.session_key is None and bool(self.channel) != bool(self.peer_id or self.chat_id):
            raise ValueError("give channel and peerId, or neither")
        return self

    @property
    def said(self) -> tuple[str, list[ImagePart]]:
        text, images = content_of(self.messages[-1].content if self.messages else self.text)
        return text, [*images, *attached(self.attachments or ())]


class GatewayReply(Answer):
    text: str
    session_id: str
    session_key: str
    agent_id: str
    run_id: str


@operation("gateway.chat", "write", http=Post("/api/gateway/chat"), rpc=False, own_keys=True)
async def gateway_chat(
    gateway: Gateway, params: GatewayChat, repeat: Repeat
) -> GatewayReply | Whole | Streamed:
    """One message in, its answer out. With `stream`, as server-sent events."""
    text, images = params.said
    receipt = await gateway.submit(
        _session(gateway, params),
        text,
        images=images,
        meta=_sender(params),
        key=repeat.key,
        body_hash=repeat.body_hash if repeat.key else None,
    )
    if params.stream:
        return Streamed(_events(gateway, receipt), receipt.run_id)
    last = await reply(gateway, receipt.run_id)
    return Whole(_reply(gateway, receipt, last.fields["text"]), receipt.run_id)


def _session(gateway: Gateway, body: GatewayChat) -> str:
    """Until bindings decide, everything goes to the agent named, else to the default one."""
    agent_id = gateway.brains.named(body.agent_id or "default")
    if agent_id is None:
        raise gateway.registry.absent(body.agent_id or "default")
    if body.session_key is not None:
        key = gateway.sessions.canonical(body.session_key)
        if body.agent_id is not None and not key.startswith(f"agent:{agent_id}:"):
            raise InvalidRequest("sessionKey and agentId name different agents", details={"field": "agentId"})
        return key
    if not body.channel:
        return main_key(agent_id)
    if body.is_group:
        return group_key(agent_id, body.channel, body.chat_id or body.peer_id or "")
    return dm_key(agent_id, body.peer_id or body.chat_id or "", body.channel)


def _sender(body: GatewayChat) -> dict[str, Any] | None:
    sender = {"channel": body.channel, "peer_id": body.peer_id, "display_name": body.display_name}
    known = {key: value for key, value in sender.items() if value is not None}
    return {"sender": known} if known else None


def _reply(gateway: Gateway, receipt: Receipt, text: str) -> GatewayReply:
    session = receipt.session
    return GatewayReply(
        text=text,
        session_id=session.id,
        session_key=session.key,
        agent_id=gateway.sessions.agent_id(session),
        run_id=receipt.run_id,
    )


def _camel(payload: dict[str, Any]) -> dict[str, Any]:
    """As HTTP spells it. Nothing in an event is anybody's own mapping."""
    return {
        to_camel(key): _camel(value) if isinstance(value, dict) else value for key, value in payload.items()
    }


async def _events(gateway: Gateway, receipt: Receipt) -> AsyncIterator[bytes]:
    """Each chat event under its state; the last one holds the reply."""
    async for event in with_pings(gateway.follow(receipt.run_id)):
        if event is None:
            yield PING
            continue
        payload = _camel(event.payload())
        if event.state in LAST:
            text = event.fields.get("text", "")
            payload |= _reply(gateway, receipt, text).model_dump(by_alias=True)
        yield sse(payload, event.state)
