"""What a model can be told beside its messages, by the library's list of models."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import httpx2

from coterie.core.threads import on_thread
from coterie.models.connections import holding_back

if TYPE_CHECKING:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile

Thinking = bool | Literal["low", "medium", "high"] | None

LISTED = re.compile(r".*/|(gpt|chatgpt|o\d|codex|computer|ft:)")
"""Names that the library may have an opinion on: OpenAI's own, and those under a maker's name."""


def takes_temperature(profile: OpenAIModelProfile, thinking: Thinking) -> bool:
    """Whether the model accepts a temperature in a request with this much thinking."""
    if not profile.get("openai_supports_reasoning", False):
        return True
    if not profile.get("openai_supports_reasoning_effort_none", False):
        return False
    return not (profile.get("thinking_enabled_by_default", False) if thinking is None else thinking)


class Settings:
    """Everything in a request to one chat model except its messages and tools.

    A temperature and an amount of thinking mean something else to every family of models. The library knows
    them, but takes a second and 50 MiB to load: it is asked only for a request that has one of the two, and
    only about models that it may know.
    """

    def __init__(self, service: str, model: str, connections: httpx2.AsyncClient) -> None:
        self._service = service
        self._name = model
        self._connections = connections
        # Only OpenAI itself has replaced max_tokens.
        self._length = "max_completion_tokens" if service == "openai" else "max_tokens"
        self._asked: dict[tuple[bool, bool, Thinking], dict[str, Any]] = {}

    async def fields(
        self, temperature: float | None, max_tokens: int | None, thinking: Thinking
    ) -> dict[str, Any]:
        """The fields in the order in which they are sent, with an empty list of messages."""
        values = {"temperature": temperature, self._length: max_tokens}
        if (temperature is None and thinking is None) or not LISTED.match(self._name):
            return self._own(values)
        key = (temperature is not None, max_tokens is not None, thinking)
        if key not in self._asked:
            self._asked[key] = await self._ask(temperature, max_tokens, thinking)
        return {name: values.get(name, value) for name, value in self._asked[key].items()}

    def _own(self, values: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self._name, "stream": True, "messages": []}
        if values[self._length] is not None:
            fields[self._length] = values[self._length]
        fields["stream_options"] = {"include_usage": True}
        if values["temperature"] is not None:
            fields["temperature"] = values["temperature"]
        return fields

    async def _ask(
        self, temperature: float | None, max_tokens: int | None, thinking: Thinking
    ) -> dict[str, Any]:
        """What the library would send, taken at the door."""
        model = await on_thread("files", lambda: self._library)  # the import must not hold up the loop

        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.models.openai import OpenAIChatModelSettings

        from coterie.models.pydantic_failure import trouble_of

        settings = OpenAIChatModelSettings(extra_body={"messages": []})
        if temperature is not None and takes_temperature(model.profile, thinking):
            settings["temperature"] = temperature
        if max_tokens is not None:
            settings["max_tokens"] = max_tokens
        if thinking is not None:
            settings["thinking"] = thinking
        with holding_back() as held:
            try:
                async with model_request_stream(model, [], model_settings=settings, instrument=False):
                    pass
            except Exception as error:
                if not held:
                    raise trouble_of(error, begun=False) from None
        fields: dict[str, Any] = json.loads(held[0])
        return fields

    @cached_property
    def _library(self) -> OpenAIChatModel:
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.profiles.openai import OpenAIModelProfile
        from pydantic_ai.providers.openai import OpenAIProvider
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        # Nothing is ever sent with it.
        client = AsyncOpenAI(
            base_url="http://localhost/v1", api_key="none", http_client=self._connections, max_retries=0
        )
        if self._service == "openai":
            return OpenAIChatModel(self._name, provider=OpenAIProvider(openai_client=client))
        return OpenAIChatModel(
            self._name,
            provider=OpenAICompatibleProvider(self._service, openai_client=client),
            profile=OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False),
        )
