"""What the providers have in common that are reached through pydantic-ai's own messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from coterie.core.message import TextPart, ThinkingPart
from coterie.core.ports import ModelEvent, ModelRequest, Reply, TextDelta, ToolSchema
from coterie.models.failure import broken_off, model_error
from coterie.models.pydantic_messages import Form, parameters, sent_messages
from coterie.models.pydantic_reply import Prices, delta_of, reply_finish, reply_parts
from coterie.models.text import well_formed


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
        self._form = Form(f"pydantic:{name}", self.argument_objects, self.recalled, self.signs_next)
        self._prices = Prices(known=True)
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
        return self._form

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas as they come, then one Reply. Raises ModelError and nothing else."""
        begun = False
        try:
            messages = sent_messages(request, self.form(request))
            async with model_request_stream(
                self._model,
                messages,
                model_settings=self.settings(request, messages),
                model_request_parameters=self._parameters(request),
                instrument=False,
            ) as stream:
                begun = True
                async for event in stream:
                    delta = delta_of(event)
                    if delta is not None:
                        yield delta
                response = stream.get()
        except Exception as error:
            # The cause may quote the response, and with it the key.
            raise model_error(
                error,
                self._name,
                address=self._address.base_url,
                key=self._address.api_key,
                key_env=self._address.api_key_env,
                begun=begun,
                protocol=self.protocol,
            ) from None
        details = response.provider_details or {}
        # Half an answer must not pass for a whole one.
        if not self._ended(response, details):
            raise broken_off(self._name, self.protocol)
        parts = reply_parts(response, request, self.thoughts)
        refusal = details.get("refusal") or details.get("block_reason_message")
        if refusal and not parts:
            yield TextDelta(well_formed(refusal))
            parts = (TextPart(well_formed(refusal)),)
        yield Reply(parts, self._prices.usage(response), reply_finish(response, parts))

    def _ended(self, response: pai.ModelResponse, details: dict[str, Any]) -> bool:
        return bool(response.finish_reason or details.get("finish_reason"))

    def _parameters(self, request: ModelRequest) -> ModelRequestParameters:
        stable = self._stable
        # Agents keep their prompt and tools from turn to turn; comparing is cheaper than converting.
        if stable is None or stable[0] != request.system or stable[1] != request.tools:
            made = parameters(request.system, request.tools)
            stable = self._stable = (request.system, request.tools, made)
        return stable[2]
