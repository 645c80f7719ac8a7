"""/v1/responses: the newer OpenAI protocol over the same turns."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from coterie.api.operation import Post, Repeat, Streamed, Whole, operation
from coterie.api.operations.openai import (
    PREFIX,
    ChatMessage,
    OpenAI,
    OpenAIReply,
    OpenAIRequest,
    begin,
    named_agent,
    said,
    spoken,
)
from coterie.api.streaming import PING, Sent, reason, reply, sse, with_pings
from coterie.core.audience import api_audience
from coterie.core.errors import InvalidRequest, NotFound
from coterie.core.events import ChatEvent
from coterie.core.session import Session, api_key, encode_peer
from coterie.engine.gateway import Gateway
from coterie.engine.turns.sessions import Said

RESPONSE = "resp_"


class InputItem(OpenAI):
    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None


class ResponsesRequest(OpenAIRequest):
    """What of the OpenAI request counts here."""

    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=200)] | None = None


@operation("openai.responses", "write", http=Post("/v1/responses"), rpc=False, own_keys=True)
async def create_response(
    gateway: Gateway, params: ResponsesRequest, repeat: Repeat
) -> OpenAIReply | Whole | Streamed:
    """One turn. `previous_response_id` goes on in the session of that response."""
    agent_id = named_agent(gateway, params.model)
    earlier, now = _conversation(params)
    run_id = await begin(gateway, params, repeat, now, partial(_session, gateway, params, agent_id, earlier))
    model = f"{PREFIX}{agent_id}"
    if params.stream:
        return Streamed(_events(gateway, run_id, model), run_id)
    last = await reply(gateway, run_id)
    return Whole(OpenAIReply(_ended(run_id, model, last)), run_id)


async def _session(gateway: Gateway, asked: ResponsesRequest, agent_id: str, earlier: list[Said]) -> str:
    named = asked.x_coterie_session
    if named is None and asked.previous_response_id is not None:
        named = (await _answered_before(gateway, asked)).id
    if named is None and asked.user is not None:
        named = api_key(agent_id, asked.user)
    if named is None:
        return (await gateway.sessions.one_off(agent_id, earlier)).id
    if (found := await _agent_of(gateway, named)) not in (None, agent_id):
        raise InvalidRequest(
            f"that session belongs to {found!r}, not to {agent_id!r}", details={"field": "model"}
        )
    return named


async def _answered_before(gateway: Gateway, asked: ResponsesRequest) -> Session:
    """The session that a former response stands in: one of this API's, and of the same user where one is named."""
    before = asked.previous_response_id or ""
    outcome = await gateway.outcome(before.removeprefix(RESPONSE))
    found = await gateway.sessions.get(outcome.job.session_id)
    user = None if asked.user is None else api_audience(encode_peer(asked.user))
    if found.kind not in ("api", "once") or user not in (None, found.audience):
        raise NotFound(f"there is no response {before[:100]!r} here")
    return found


async def _agent_of(gateway: Gateway, ref: str) -> str | None:
    try:
        return gateway.sessions.agent_id(await gateway.sessions.get(ref))
    except NotFound:
        return None


def _conversation(asked: ResponsesRequest) -> tuple[list[Said], Said]:
    """What came before, and what is said now."""
    earlier = [Said("system", asked.instructions)] if asked.instructions else []
    if isinstance(asked.input, str):
        return earlier, Said("user", asked.input)
    messages = [
        ChatMessage(role=item.role, content=item.content)
        for item in asked.input
        if item.role is not None and item.type in (None, "message")
    ]
    if not messages or messages[-1].role != "user":
        raise InvalidRequest("the last item must be the user's message", details={"field": "input"})
    earlier += [said(message) for message in messages[:-1]]
    return spoken(earlier), said(messages[-1])


async def _events(gateway: Gateway, run_id: str, model: str) -> AsyncIterator[bytes]:
    """The response as OpenAI streams it."""
    number = 0

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return sse({"type": kind, "sequence_number": number - 1, **fields}, kind)

    item_id = f"msg_{run_id}"
    item = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    started = _response(run_id, model, "in_progress", None, None)
    yield event("response.created", response=started)
    yield event("response.in_progress", response=started)
    yield event("response.output_item.added", output_index=0, item=item)
    yield event("response.content_part.added", **place, part=_text_part(""))
    sent = Sent()
    async for one in with_pings(gateway.follow(run_id)):
        if one is None:
            yield PING
        elif one.state == "delta":
            if fresh := sent.fresh(one.attempt, one.fields["text"]):
                yield event("response.output_text.delta", **place, delta=fresh)
        elif one.state == "tool_start":
            sent.reply_ended()
        elif one.state == "final":
            text = one.fields["text"]
            if rest := sent.rest(text):
                yield event("response.output_text.delta", **place, delta=rest)
            done = _ended(run_id, model, one)
            yield event("response.output_text.done", **place, text=text)
            yield event("response.content_part.done", **place, part=_text_part(text))
            yield event("response.output_item.done", output_index=0, item=done["output"][0])
            yield event(f"response.{done['status']}", response=done)
        elif one.state in ("error", "aborted"):
            failed = _response(run_id, model, "failed", None, None)
            failed["error"] = {"code": "server_error", "message": reason(one)}
            yield event("response.failed", response=failed)


def _ended(run_id: str, model: str, last: ChatEvent) -> dict[str, Any]:
    """A response whose turn was answered: whole, or as far as its model came."""
    reasons = {"length": "max_output_tokens", "refused": "content_filter"}
    reason = reasons.get(last.fields.get("finish", ""))
    status = "completed" if reason is None else "incomplete"
    done = _response(run_id, model, status, last.fields["text"], last.fields["usage"])
    if reason is not None:
        done["incomplete_details"] = {"reason": reason}
        done["output"][0]["status"] = status
    return done


def _response(run_id: str, model: str, status: str, text: str | None, usage: Any) -> dict[str, Any]:
    output = []
    if text is not None:
        output = [
            {
                "id": f"msg_{run_id}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [_text_part(text)],
            }
        ]
    return {
        "id": f"{RESPONSE}{run_id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None
        if usage is None
        else {
            "input_tokens": usage["input_tokens"],
            "input_tokens_details": {"cached_tokens": usage["cached_tokens"]},
            "output_tokens": usage["output_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        },
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}
