"""Models behind any endpoint that speaks the OpenAI chat protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpx2Client, Timeout
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDeltaToolCall
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from coterie.core.message import Part, TextPart, ThinkingPart, ToolCall, Usage
from coterie.core.ports import ModelEvent, ModelRequest, Reply, TextDelta, ThinkingDelta
from coterie.models.failure import model_error
from coterie.models.openai_wire import request_body, well_formed

CONNECT_TIMEOUT = 10.0
IDLE_TIMEOUT = 300.0
"""Seconds without a byte from the endpoint after which a request counts as lost."""

_PARAMETERS = ModelRequestParameters()


def open_connections() -> httpx2.AsyncClient:
    """A pool of connections that any number of endpoints can share."""
    # People pause between messages: a connection outlives the pause, so that the next turn needs no handshake.
    limits = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=60)
    return DefaultAsyncHttpx2Client(limits=limits)


class Endpoint:
    """One address and the key that is sent to it."""

    def __init__(
        self,
        base_url: str,
        connections: httpx2.AsyncClient,
        *,
        api_key: str | None = None,
        api_key_env: str | None = None,
        service: str = "openai-compatible",
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.api_key_env = api_key_env
        self.service = service
        """`openai`, or the service that is merely compatible with it: decides on dialect and prices."""
        self._client = AsyncOpenAI(
            base_url=base_url,
            # The SDK insists on a key, and would take OPENAI_API_KEY to whatever host this is.
            api_key=api_key or "none",
            http_client=connections,
            max_retries=0,
            timeout=Timeout(idle_timeout, connect=CONNECT_TIMEOUT),
        )
        if service != "openai":
            self._client.organization = None
            self._client.project = None

    def model(self, model: str) -> OpenAIChatModel:
        # A reply without a finish reason was cut off: half an answer must not pass for a whole one.
        if self.service == "openai":
            return _ChatModel(
                model,
                provider=OpenAIProvider(openai_client=self._client),
                profile=OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True),
            )
        return _ChatModel(
            model,
            provider=OpenAICompatibleProvider(self.service, openai_client=self._client),
            profile=OpenAIModelProfile(
                openai_chat_streaming_requires_finish_reason=True,
                # Only OpenAI itself has replaced max_tokens.
                openai_chat_supports_max_completion_tokens=False,
            ),
        )


class OpenAIChat:
    """One model of one endpoint. Implements the Model port."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self._name = name
        self._endpoint = endpoint
        self._model = endpoint.model(name.partition("/")[2])
        self._priced = endpoint.service in ("openai", "openrouter")

    @property
    def name(self) -> str:
        return self._name

    def body(self, request: ModelRequest) -> Mapping[str, Any]:
        """Tools and messages as they are sent."""
        return request_body(request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas as they come, then one Reply. Raises ModelError and nothing else."""
        settings = _settings(request)
        begun = False
        try:
            # The messages travel in extra_body: the SDK would spend 0.16 ms on each of them.
            async with model_request_stream(
                self._model,
                [],
                model_settings=settings,
                model_request_parameters=_PARAMETERS,
                instrument=False,
            ) as stream:
                begun = True
                async for event in stream:
                    delta = _delta(event)
                    if delta is not None:
                        yield delta
                response = stream.get()
        except Exception as error:
            endpoint = self._endpoint
            # The cause may quote the response, and with it the key.
            raise model_error(
                error,
                self._name,
                address=endpoint.base_url,
                key=endpoint.api_key,
                key_env=endpoint.api_key_env,
                begun=begun,
            ) from None
        parts = self._parts(response, request)
        refusal = (response.provider_details or {}).get("refusal")
        if refusal and not parts:
            yield TextDelta(well_formed(refusal))
            parts = (TextPart(well_formed(refusal)),)
        yield Reply(parts, self._usage(response), _finish(response, parts))

    def _parts(self, response: pai.ModelResponse, request: ModelRequest) -> tuple[Part, ...]:
        parts: list[Part] = []
        taken: set[str] | None = None
        for part in response.parts:
            if isinstance(part, pai.TextPart) and part.content:
                parts.append(TextPart(well_formed(part.content)))
            elif isinstance(part, pai.ThinkingPart) and part.content:
                parts.append(ThinkingPart(well_formed(part.content), part.signature, self._name))
            elif isinstance(part, pai.ToolCallPart):
                if taken is None:
                    taken = {call.id for message in request.messages for call in message.tool_calls}
                # Some endpoints leave ids empty or count from call_0 in every reply.
                call_id = part.tool_call_id
                if not call_id or call_id in taken:
                    call_id = f"call_{uuid.uuid4().hex[:24]}"
                taken.add(call_id)
                parts.append(ToolCall(call_id, part.tool_name, _arguments(part)))
        return tuple(parts)

    def _usage(self, response: pai.ModelResponse) -> Usage:
        usage = response.usage
        cost: float | None = None
        if self._priced and not usage.unmeasured_requests:
            try:
                cost = float(response.cost().total_price)
            except (LookupError, ValueError):
                # No price is known for this model; it will not be looked up again.
                self._priced = False
        return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, cost)


def _settings(request: ModelRequest) -> OpenAIChatModelSettings:
    settings = OpenAIChatModelSettings(extra_body=request_body(request))
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.max_tokens is not None:
        settings["max_tokens"] = request.max_tokens
    if request.thinking is not None:
        settings["thinking"] = request.thinking
    return settings


def _delta(event: pai.ModelResponseStreamEvent) -> TextDelta | ThinkingDelta | None:
    if isinstance(event, pai.PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, pai.TextPartDelta) and delta.content_delta:
            return TextDelta(well_formed(delta.content_delta))
        if isinstance(delta, pai.ThinkingPartDelta) and delta.content_delta:
            return ThinkingDelta(well_formed(delta.content_delta))
    elif isinstance(event, pai.PartStartEvent):
        part = event.part
        if isinstance(part, pai.TextPart) and part.content:
            return TextDelta(well_formed(part.content))
        if isinstance(part, pai.ThinkingPart) and part.content:
            return ThinkingDelta(well_formed(part.content))
    return None


def _arguments(part: pai.ToolCallPart) -> str:
    if part.args is None:
        return ""
    if isinstance(part.args, str):
        return well_formed(part.args)
    return json.dumps(part.args, ensure_ascii=False, separators=(",", ":"))


def _finish(
    response: pai.ModelResponse, parts: tuple[Part, ...]
) -> Literal["stop", "tool_calls", "length", "refused", "other"]:
    match response.finish_reason:
        case "length":
            return "length"
        case "content_filter":
            return "refused"
        case "tool_call" | "stop":
            # Some endpoints say "stop" beside their calls.
            return "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
        case _:
            return "other"


@dataclass
class _ChatStream(OpenAIStreamedResponse):
    """Tells the calls of a reply apart where an endpoint gives all of them the same index."""

    _calls: dict[int, _OpenCall] = field(default_factory=dict, init=False)
    _places: int = field(default=0, init=False)

    def _map_tool_call_delta(self, choice: Choice) -> Iterable[pai.ModelResponseStreamEvent]:
        for delta in choice.delta.tool_calls or []:
            self._place(delta)
        return super()._map_tool_call_delta(choice)

    def _place(self, delta: ChoiceDeltaToolCall) -> None:
        name = delta.function.name if delta.function else None
        call = self._calls.get(delta.index)
        if (
            call is None
            or (delta.id and call.id and delta.id != call.id)
            or (name and call.name and not delta.id)
        ):
            call = self._calls[delta.index] = _OpenCall(self._places)
            self._places += 1
        elif name and call.name and delta.function:
            # Repeated in every piece by some endpoints; names are otherwise joined like arguments.
            delta.function.name = None
        call.id = call.id or delta.id or ""
        call.name = call.name or name or ""
        delta.index = call.place


@dataclass
class _OpenCall:
    """A tool call whose pieces are still arriving."""

    place: int
    id: str = ""
    name: str = ""


class _ChatModel(OpenAIChatModel):
    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _ChatStream
