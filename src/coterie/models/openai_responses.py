"""Models behind any endpoint that speaks OpenAI's responses protocol."""

from __future__ import annotations

from collections.abc import Iterable

import httpx2
from openai import AsyncOpenAI, Timeout
from openai.types.responses import ResponseStreamEvent
from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from coterie.core.message import ThinkingPart
from coterie.core.ports import ModelRequest
from coterie.core.text import well_formed
from coterie.models.connections import CONNECT_TIMEOUT, IDLE_TIMEOUT
from coterie.models.openai_profile import takes_temperature
from coterie.models.pydantic_model import Address, PydanticModel
from coterie.models.responses_wire import request_body
from coterie.models.warming import prepare_events

_PARAMETERS = ModelRequestParameters()
OPENAI = "https://api.openai.com/"


class OpenAIResponses(PydanticModel):
    """One model over the responses protocol. Implements the Model port."""

    protocol = "the OpenAI responses protocol"
    argument_objects = False

    def __init__(
        self,
        name: str,
        address: Address,
        connections: httpx2.AsyncClient,
        *,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        client = AsyncOpenAI(
            base_url=address.base_url,
            api_key=address.api_key,
            http_client=connections,
            max_retries=0,
            timeout=Timeout(idle_timeout, connect=CONNECT_TIMEOUT),
        )
        if not address.base_url.startswith(OPENAI):
            # The SDK takes them from the environment, to whatever host this is.
            client.organization = None
            client.project = None
        prepare_events("openai", ResponseStreamEvent)
        model = OpenAIResponsesModel(name.partition("/")[2], provider=OpenAIProvider(openai_client=client))
        super().__init__(name, model, address)
        self._profile = model.profile
        self._takes_thoughts = model.profile.get("openai_supports_encrypted_reasoning_content", False)

    def settings(
        self, request: ModelRequest, messages: list[pai.ModelMessage]
    ) -> OpenAIResponsesModelSettings:
        # The transcript is ours: nothing of it is to be found again at the provider.
        settings = OpenAIResponsesModelSettings(openai_store=False)
        if request.temperature is not None and takes_temperature(self._profile, request.thinking):
            settings["temperature"] = request.temperature
        if request.max_tokens is not None:
            settings["max_tokens"] = request.max_tokens
        if request.thinking is not None:
            settings["thinking"] = request.thinking
            if request.thinking and self._profile.get("openai_supports_reasoning", False):
                settings["openai_reasoning_summary"] = "auto"
        return settings

    def prepared(
        self, request: ModelRequest
    ) -> tuple[list[pai.ModelMessage], ModelSettings, ModelRequestParameters]:
        settings = self.settings(request, [])
        # The SDK would spend nearly 1 ms on each message.
        settings["extra_body"] = request_body(request, self._form)
        return [], settings, _PARAMETERS

    def thoughts(self, part: pai.ModelResponsePart) -> Iterable[ThinkingPart]:
        """A thought is an item with an id; id and encrypted content are kept together as its signature."""
        if isinstance(part, pai.ThinkingPart) and (part.content or part.signature):
            signature = f"{part.id}:{part.signature or ''}" if part.id else None
            yield ThinkingPart(well_formed(part.content), signature, self.name)

    def recalled(self, part: ThinkingPart) -> pai.ThinkingPart | None:
        item_id, colon, encrypted = (part.signature or "").partition(":")
        if not colon or not item_id or not self._takes_thoughts:
            return None
        return pai.ThinkingPart(part.text, id=item_id, signature=encrypted or None, provider_name="openai")
