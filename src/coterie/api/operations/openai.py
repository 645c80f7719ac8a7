"""/v1: any OpenAI client can talk to the household; each agent is a model."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from coterie.api.operation import Get, Post, Repeat, Streamed, Whole, operation
from coterie.api.repeats import under_way
from coterie.api.shapes import Change, Flag, Nothing
from coterie.api.streaming import PING, Sent, content_of, reason, reply, sse, with_pings
from coterie.core.agent import AgentSpec, AgentState
from coterie.core.errors import InvalidRequest, NotFound
from coterie.core.events import ChatEvent
from coterie.core.message import Role
from coterie.core.names import LONGEST, nearest
from coterie.core.session import api_key
from coterie.engine.gateway import Gateway, check_message
from coterie.engine.turns.sessions import Said

PREFIX = "coterie/"
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class OpenAI(BaseModel):
    """A value of OpenAI's protocol; keys that mean nothing here are left alone."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class OpenAIRequest(Change):
    """What an OpenAI request says beside its body."""

    model_config = ConfigDict(extra="allow", alias_generator=None)

    HEADERS = {
        **Change.HEADERS,
        "X-Coterie-Session": "x_coterie_session",
        "X-Stainless-Retry-Count": "x_stainless_retry_count",
    }

    model: Annotated[str, Field(max_length=200, description="coterie/<agent>")]
    stream: Flag | None = False
    user: Annotated[str, Field(max_length=500)] | None = None
    x_coterie_session: str | None = Field(None, description="The session outright, by id or key.")
    x_stainless_retry_count: str | None = Field(
        None,
        description="As the SDKs count: a repeat of a request whose answer did not arrive goes on with its run.",
    )

    @property
    def is_repeat(self) -> bool:
        return self.x_stainless_retry_count not in (None, "", "0")


class ChatMessage(OpenAI):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(OpenAI):
    include_usage: Flag = False


class ChatRequest(OpenAIRequest):
    """What of the OpenAI request counts here; the rest is accepted and left to the agent's own settings."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream_options: StreamOptions | None = None


class OpenAIReply(RootModel[dict[str, Any]]):
    """As OpenAI's documentation tells it."""


class ModelEntry(OpenAI):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["coterie"] = "coterie"


class ModelEntries(OpenAI):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


@operation("openai.models", "read", http=Get("/v1/models"), rpc=False)
def list_models(gateway: Gateway, params: Nothing) -> ModelEntries:
    """Each visible agent as a model."""
    agents = gateway.registry.agents()
    shown = [a for a in agents if a.state is AgentState.ACTIVE and a.visible]
    created = int(gateway.started)
    return ModelEntries(data=[ModelEntry(id=f"{PREFIX}{agent.id}", created=created) for agent in shown])


@operation("openai.chat", "write", http=Post("/v1/chat/completions"), rpc=False, own_keys=True)
async def chat_completions(
    gateway: Gateway, params: ChatRequest, repeat: Repeat
) -> OpenAIReply | Whole | Streamed:
    """One turn. With `user`, in that user's lasting session; without, over the messages given."""
    agent_id = named_agent(gateway, params.model)
    if params.messages[-1].role != "user":
        raise InvalidRequest("the last message must be the user's", details={"field": "messages"})
    run_id = await begin(
        gateway, params, repeat, said(params.messages[-1]), partial(_session, gateway, params, agent_id)
    )
    model = f"{PREFIX}{agent_id}"
    if params.stream:
        usage = params.stream_options is not None and params.stream_options.include_usage
        return Streamed(_events(gateway, run_id, model, usage), run_id)
    last = await reply(gateway, run_id)
    message = {"role": "assistant", "content": last.fields["text"]}
    completion = {
        "id": f"chatcmpl-{run_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(last)}],
        "usage": _usage(last.fields["usage"]),
    }
    return Whole(OpenAIReply(completion), run_id)


async def begin(
    gateway: Gateway, asked: OpenAIRequest, repeat: Repeat, now: Said, session: Callable[[], Awaitable[str]]
) -> str:
    """The run that answers this request: a new one, or the one that the same request began before."""
    check_message(now.text, now.images)
    if repeat.key is None:
        job = await gateway.attach(repeat.body_hash) if asked.is_repeat else None
        return job.run_id if job is not None else await _begin(gateway, repeat, now, session)
    async with under_way(gateway, repeat):
        # Before a session is made that a repeat does not need.
        first = await gateway.repeated(repeat.key, repeat.body_hash)
        return first.run_id if first is not None else await _begin(gateway, repeat, now, session)


async def _begin(gateway: Gateway, repeat: Repeat, now: Said, session: Callable[[], Awaitable[str]]) -> str:
    receipt = await gateway.submit(
        await session(), now.text, images=now.images, key=repeat.key, body_hash=repeat.body_hash
    )
    return receipt.run_id


async def _session(gateway: Gateway, asked: ChatRequest, agent_id: str) -> str:
    if asked.x_coterie_session is not None:
        return asked.x_coterie_session
    if asked.user is not None:
        return api_key(agent_id, asked.user)
    earlier = [said(message) for message in asked.messages[:-1] if message.role in _ROLES]
    return (await gateway.sessions.one_off(agent_id, spoken(earlier))).id


async def _events(gateway: Gateway, run_id: str, model: str, with_usage: bool) -> AsyncIterator[bytes]:
    """The reply as OpenAI streams it. Leaving early stops nothing."""
    base = {
        "id": f"chatcmpl-{run_id}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    sent = Sent()
    usage: dict[str, Any] = {}
    finish = "stop"
    async for event in with_pings(gateway.follow(run_id)):
        if event is None:
            yield PING
        elif event.state == "delta":
            if fresh := sent.fresh(event.attempt, event.fields["text"]):
                yield chunk({"content": fresh})
        elif event.state == "thinking":
            yield chunk({"reasoning_content": event.fields["text"]})
        elif event.state == "tool_start":
            sent.reply_ended()
        elif event.state == "final":
            usage, finish = _usage(event.fields["usage"]), finish_reason(event)
            if rest := sent.rest(event.fields.get("text", "")):
                yield chunk({"content": rest})
        elif event.state in ("error", "aborted"):
            yield sse({"error": {"code": "UNAVAILABLE", "message": reason(event), "type": "server_error"}})
            yield b"data: [DONE]\n\n"
            return
    yield chunk({}, finish)
    if with_usage:
        yield sse({**base, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def named_agent(gateway: Gateway, model: str) -> str:
    agent_id = gateway.brains.named(model.removeprefix(PREFIX))
    if agent_id is None:
        near = nearest(
            model.removeprefix(PREFIX), [peer.id for peer in gateway.brains.peers("", AgentSpec())]
        )
        meant = f"; did you mean {PREFIX + near!r}?" if near else "; /v1/models lists those that do"
        raise NotFound(f"the model {model[:LONGEST]!r} does not exist{meant}")
    return agent_id


def said(message: ChatMessage) -> Said:
    text, images = content_of(message.content)
    return Said(_ROLES[message.role], text, images if message.role == "user" else ())


def spoken(messages: Iterable[Said]) -> list[Said]:
    """Without those that only hold calls to tools that are the client's own."""
    return [one for one in messages if one.text.strip() or one.images]


def finish_reason(event: ChatEvent) -> str:
    """The model's own reason in OpenAI's word."""
    return {"length": "length", "refused": "content_filter"}.get(event.fields.get("finish", ""), "stop")


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
    }
