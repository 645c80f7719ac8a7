"""/v1: any OpenAI client can talk to the household; each agent is a model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.api.method import invalid
from coterie.core.agent import AgentState
from coterie.core.errors import InvalidRequest, NotFound
from coterie.core.events import ChatEvent
from coterie.core.images import image_at
from coterie.core.message import ImagePart, Role
from coterie.core.session import api_key
from coterie.engine.access import Caller
from coterie.engine.gateway import Engine, Gateway, check_message
from coterie.engine.turns.sessions import Said

PING_SECONDS = 15
PREFIX = "coterie/"


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")

    include_usage: bool = False


class ChatRequest(BaseModel):
    """What of the OpenAI request counts here; the rest is accepted and left to the agent's own settings."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=500)] | None = None


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["coterie"] = "coterie"


class ModelEntries(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


def router(gateway: Gateway, needs: Any) -> APIRouter:
    """`needs(scope)` is the dependency that checks a token's scope."""
    routes = APIRouter(tags=["openai"])

    @routes.get("/v1/models")
    async def list_models(caller: Caller = needs("read")) -> ModelEntries:
        """Each visible agent as a model."""
        created = int(gateway.started)
        agents = await asyncio.to_thread(gateway.registry.agents)
        shown = [a for a in agents if a.state is AgentState.ACTIVE and a.spec.get("ui_visible") is not False]
        return ModelEntries(data=[ModelEntry(id=f"{PREFIX}{agent.id}", created=created) for agent in shown])

    body = {"content": {"application/json": {"schema": ChatRequest.model_json_schema()}}, "required": True}
    answer = {
        "200": {
            "description": "The reply, whole or as server-sent events.",
            "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
        }
    }

    @routes.post(
        "/v1/chat/completions",
        openapi_extra={"requestBody": body, "responses": answer},
        response_class=JSONResponse,
    )
    async def chat_completions(request: Request, caller: Caller = needs("write")) -> Response:
        """One turn. With `user`, in that user's lasting session; without, over the messages given."""
        return await _complete(gateway, request)

    return routes


async def _complete(gateway: Gateway, request: Request) -> Response:
    raw = await request.body()
    asked = _parse(raw)
    engine = gateway.engine
    agent_id = named_agent(gateway, asked.model)
    said = _last_of_user(asked)
    body_hash = hashlib.sha256(raw).hexdigest()
    run_id = await _begin(engine, request, asked, agent_id, said, body_hash)
    model = f"{PREFIX}{agent_id}"
    if asked.stream:
        usage = asked.stream_options is not None and asked.stream_options.include_usage
        return StreamingResponse(_events(engine, run_id, model, usage), media_type="text/event-stream")
    last = None
    async for event in engine.follow(run_id):
        last = event
    if last is None or last.state != "final":
        return failure(last)
    return JSONResponse(
        {
            "id": f"chatcmpl-{run_id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": last.fields["text"]},
                    "finish_reason": "stop",
                }
            ],
            "usage": _usage(last.fields["usage"]),
        }
    )


async def _begin(
    engine: Engine, request: Request, asked: ChatRequest, agent_id: str, said: Said, body_hash: str
) -> str:
    """The run that answers this request: a new one, or the one that the same request began before."""
    named = request.headers.get("x-coterie-session")
    key = request.headers.get("idempotency-key")
    again = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
    if named is None and asked.user is None:
        session = None
        if again:
            job = await engine.attach_anywhere(body_hash)
            if job is not None:
                return job.run_id
        session = await engine.sessions.one_off(agent_id, _earlier(asked))
        ref = session.id
    else:
        ref = named or api_key(agent_id, asked.user or "")
        if again:
            try:
                job = await engine.attach(await engine.sessions.get(ref), body_hash)
            except NotFound:
                job = None
            if job is not None:
                return job.run_id
    receipt = await engine.submit(ref, said.text, images=said.images, key=key, body_hash=body_hash)
    return receipt.run_id


async def _events(engine: Engine, run_id: str, model: str, with_usage: bool) -> AsyncIterator[bytes]:
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
    async for event in with_pings(engine.follow(run_id)):
        if event is None:
            yield b": ping\n\n"
        elif event.state == "delta":
            if fresh := sent.fresh(event.attempt, event.fields["text"]):
                yield chunk({"content": fresh})
        elif event.state == "thinking":
            yield chunk({"reasoning_content": event.fields["text"]})
        elif event.state == "tool_start":
            sent.reply_ended()
        elif event.state == "final":
            usage = _usage(event.fields["usage"])
            if rest := sent.rest(event.fields.get("text", "")):
                yield chunk({"content": rest})
        elif event.state in ("error", "aborted"):
            yield sse({"error": {"code": "UNAVAILABLE", "message": reason(event), "type": "server_error"}})
            yield b"data: [DONE]\n\n"
            return
    yield chunk({}, "stop")
    if with_usage:
        yield sse({**base, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


class Sent:
    """What a client has of the present reply: it cannot be taken back, so a repeated beginning is not sent again."""

    def __init__(self) -> None:
        self._sent = ""
        self._now = ""
        self._attempt: int | None = None

    def fresh(self, attempt: int, text: str) -> str:
        if self._attempt is not None and attempt != self._attempt:
            self._now = ""
        self._attempt = attempt
        before = self._now
        self._now += text
        if self._now == self._sent[: len(self._now)]:
            return ""
        new = self._now[len(self._sent) :] if self._now.startswith(self._sent) else text
        if not before and self._sent and not self._now.startswith(self._sent):
            new = "\n\n" + new
        self._sent = self._now
        return new

    def reply_ended(self) -> None:
        """Text before a tool call is a reply of its own."""
        if self._now:
            self._sent = self._now = ""

    def rest(self, final: str) -> str:
        """What the final text has beyond what was streamed, for a client that came late."""
        if not self._sent:
            return final
        return final[len(self._sent) :] if final.startswith(self._sent) else ""


async def with_pings(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The events, and None whenever nothing came for a while."""
    pending: asyncio.Task[Any] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([pending], timeout=PING_SECONDS)
            if not done:
                yield None
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            finally:
                pending = None
            yield event
    finally:
        if pending is not None:
            pending.cancel()


def _parse(raw: bytes) -> ChatRequest:
    try:
        return ChatRequest.model_validate_json(raw)
    except ValidationError as error:
        raise invalid(error) from None


def named_agent(gateway: Gateway, model: str) -> str:
    name = model.removeprefix(PREFIX)
    agent_id = gateway.engine.brains.named(name)
    if agent_id is None:
        raise NotFound(f"the model {model[:100]!r} does not exist; /v1/models lists those that do")
    return agent_id


def _last_of_user(asked: ChatRequest) -> Said:
    last = asked.messages[-1]
    if last.role != "user":
        raise InvalidRequest("the last message must be the user's", details={"field": "messages"})
    return checked(said(last))


def checked(now: Said) -> Said:
    """Before anything is made for it."""
    check_message(now.text, now.images)
    return now


def _earlier(asked: ChatRequest) -> list[Said]:
    """The history that a one-off request brings, without calls to tools that are the client's own."""
    found = [said(m) for m in asked.messages[:-1] if m.role in _ROLES]
    return [one for one in found if one.text.strip() or one.images]


_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


def said(message: ChatMessage) -> Said:
    """The words and pictures of a message in OpenAI's form."""
    text, images = content_of(message.content)
    return Said(_ROLES[message.role], text, images if message.role == "user" else ())


def content_of(content: str | list[dict[str, Any]] | None) -> tuple[str, tuple[ImagePart, ...]]:
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[ImagePart] = []
    for part in content:
        match part.get("type"):
            case "text" | "input_text" | "output_text":
                texts.append(str(part.get("text", "")))
            case "image_url" | "input_image":
                images.append(_image(part.get("image_url")))
            case other:
                raise InvalidRequest(f"content of type {str(other)[:50]!r} cannot be taken")
    return "\n".join(texts), tuple(images)


def _image(address: Any) -> ImagePart:
    """The chat protocol puts the address into an object, the responses protocol does not."""
    url = address.get("url") if isinstance(address, dict) else address
    if not isinstance(url, str):
        raise InvalidRequest("an image needs an image_url", details={"field": "image_url"})
    try:
        return image_at(url)
    except InvalidRequest as error:
        raise type(error)(f"image_url: {error.message}", details={"field": "image_url"}) from None


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
    }


def reason(event: ChatEvent | None) -> str:
    fields = {} if event is None else event.fields
    return str(fields.get("message") or fields.get("reason") or "the turn was stopped")


def failure(event: ChatEvent | None) -> Response:
    status, code = (503, "UNAVAILABLE") if event is not None and event.state == "error" else (409, "CONFLICT")
    error = {"code": code, "message": reason(event), "type": "server_error"}
    # The SDK would send it again, only to be shown the same turn.
    return JSONResponse({"error": error}, status, {"x-should-retry": "false"})


def sse(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"
