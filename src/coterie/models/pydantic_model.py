"""What the providers have in common that are reached through pydantic-ai's own messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx2
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from coterie.core.message import TextPart, ThinkingPart
from coterie.core.ports import ModelEvent, ModelRequest, Reply, TextDelta, ToolSchema
from coterie.core.text import well_formed
from coterie.models.connections import body_of, noting
from coterie.models.failure import broken_off, model_error
from coterie.models.pydantic_failure import trouble_of
from coterie.models.pydantic_messages import Form, parameters, sent_messages
from coterie.models.pydantic_reply import Prices, delta_of, reply_finish, reply_parts


@dataclass(frozen=True, slots=True)
class Address:
    """Where a provider is reached, and with which key."""

    base_url: str
    api_key: str
    api_key_env: str | None = None


class PydanticModel(ABC):
    """One model of one provider. Implements the Model port."""

    protocol: ClassVar[str]
    argument_objects: ClassVar[bool]
    signs_next: ClassVar[bool] = False

    def __init__(self, name: str, model: Model[Any], address: Address) -> None:
        self._name = name
        self._model = model
        self._address = address
        self._form = Form(name, f"pydantic:{name}", self.argument_objects, self.recalled, self.signs_next)
        self._prices = Prices()
        self._stable: tuple[str, tuple[ToolSchema, ...], ModelRequestParameters] | None = None

    @property
    def name(self) -> str:
        return self._name

    @abstractmethod
    def settings(self, request: ModelRequest, messages: list[pai.ModelMessage]) -> ModelSettings:
        """The provider's own words for temperature, length and thinking."""

    @abstractmethod
    def thoughts(self, part: pai.ModelResponsePart) -> Iterable[ThinkingPart]:
        """What is to be stored of the thinking in this part of a reply."""

    @abstractmethod
    def recalled(self, part: ThinkingPart) -> pai.ThinkingPart | None:
        """A thought of this very model in the form in which it takes it back; None where it would not."""

    def form(self, request: ModelRequest) -> Form:
        """How the transcript is told in this request."""
        return self._form

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas as they come, then one Reply. Raises ModelError and nothing else."""
        begun = False
        try:
            async with AsyncExitStack() as stack:
                stream = await self._open(request, stack)
                begun = True
                async for event in stream:
                    delta = delta_of(event)
                    if delta is not None:
                        yield delta
                response = stream.get()
        except Exception as error:
            # The cause may quote the response, and with it the key.
            raise model_error(
                trouble_of(error, begun=begun),
                self._name,
                address=self._address.base_url,
                key=self._address.api_key,
                key_env=self._address.api_key_env,
                protocol=self.protocol,
            ) from None
        details = response.provider_details or {}
        parts = reply_parts(response, request, self.thoughts)
        # Half an answer must not pass for a whole one.
        if not details.get("finish_reason") and not response.finish_reason:
            raise broken_off(self._name, self.protocol)
        if response.finish_reason == "error" and not parts:
            raise broken_off(self._name, self.protocol)
        refusal = details.get("refusal") or details.get("block_reason_message")
        if refusal and not parts:
            yield TextDelta(well_formed(refusal))
            parts = (TextPart(well_formed(refusal)),)
        yield Reply(parts, self._prices.usage(response), reply_finish(response, parts))

    async def body(self, request: ModelRequest) -> bytes:
        """What would be sent, to the last byte."""
        return await body_of(self.stream(request))

    def prepared(
        self, request: ModelRequest
    ) -> tuple[list[pai.ModelMessage], ModelSettings, ModelRequestParameters]:
        """What the library is handed for this request."""
        messages = sent_messages(request, self.form(request))
        return messages, self.settings(request, messages), self._parameters(request)

    async def _open(self, request: ModelRequest, stack: AsyncExitStack) -> StreamedResponse:
        messages, settings, parameters = self.prepared(request)
        opening = model_request_stream(
            self._model,
            messages,
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=False,
        )
        responses: list[httpx2.Response] = []
        with noting(responses):
            stream = await stack.enter_async_context(opening)
        # Google's SDK leaves the connection of a reply that nobody reads to its end to the garbage collector.
        for response in responses:
            stack.push_async_callback(response.aclose)
        return stream

    def _parameters(self, request: ModelRequest) -> ModelRequestParameters:
        stable = self._stable
        # Agents keep their prompt and tools from turn to turn; comparing is cheaper than converting.
        if stable is None or stable[0] != request.system or stable[1] != request.tools:
            made = parameters(request.system, request.tools)
            stable = self._stable = (request.system, request.tools, made)
        return stable[2]
