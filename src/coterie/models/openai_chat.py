"""Models behind any endpoint that speaks the OpenAI chat protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

import httpx2
from openai import AsyncOpenAI, Timeout
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDeltaToolCall
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from coterie.core.message import TextPart, ThinkingPart
from coterie.core.ports import ModelEvent, ModelRequest, Reply, TextDelta
from coterie.models.connections import CONNECT_TIMEOUT, IDLE_TIMEOUT, body_of, open_connections
from coterie.models.failure import model_error
from coterie.models.openai_profile import takes_temperature
from coterie.models.openai_wire import request_body
from coterie.models.pydantic_reply import Prices, delta_of, reply_finish, reply_parts
from coterie.models.text import well_formed

__all__ = ["Endpoint", "OpenAIChat", "open_connections"]

_PARAMETERS = ModelRequestParameters()


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
        self._prices = Prices(known=endpoint.service in ("openai", "openrouter"))

    @property
    def name(self) -> str:
        return self._name

    async def body(self, request: ModelRequest) -> bytes:
        """What would be sent, to the last byte."""
        return await body_of(self.stream(request))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas as they come, then one Reply. Raises ModelError and nothing else."""
        settings = self._settings(request)
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
                    delta = delta_of(event)
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
        parts = reply_parts(response, request, self._thoughts)
        refusal = (response.provider_details or {}).get("refusal")
        if refusal and not parts:
            yield TextDelta(well_formed(refusal))
            parts = (TextPart(well_formed(refusal)),)
        yield Reply(parts, self._prices.usage(response), reply_finish(response, parts))

    def _thoughts(self, part: pai.ModelResponsePart) -> Iterable[ThinkingPart]:
        if isinstance(part, pai.ThinkingPart) and part.content:
            yield ThinkingPart(well_formed(part.content), part.signature, self._name)

    def _settings(self, request: ModelRequest) -> OpenAIChatModelSettings:
        settings = OpenAIChatModelSettings(extra_body=request_body(request))
        if request.temperature is not None and takes_temperature(self._model.profile, request.thinking):
            settings["temperature"] = request.temperature
        if request.max_tokens is not None:
            settings["max_tokens"] = request.max_tokens
        if request.thinking is not None:
            settings["thinking"] = request.thinking
        return settings


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
