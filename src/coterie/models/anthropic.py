"""Claude, over Anthropic's own protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import httpx2
from anthropic import AsyncAnthropic, Timeout
from anthropic.types.beta import BetaRawMessageStreamEvent, BetaThinkingConfigAdaptiveParam
from pydantic_ai import messages as pai
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider

from coterie.core.message import ThinkingPart
from coterie.core.ports import ModelRequest
from coterie.core.text import well_formed
from coterie.models.connections import CONNECT_TIMEOUT, IDLE_TIMEOUT
from coterie.models.pydantic_messages import Form
from coterie.models.pydantic_model import Address, PydanticModel
from coterie.models.warming import prepare_events

_REDACTED = "redacted:"
"""Before the signature of a thought that Anthropic keeps hidden; a signature itself holds no colon."""
_REDACTED_ID = "redacted_thinking"
_BUDGETS = {True: 8192, "low": 2048, "medium": 8192, "high": 16384}
"""Tokens of thinking for models that want to be told a number."""


class AnthropicMessages(PydanticModel):
    """One Claude model. Implements the Model port."""

    protocol = "the Anthropic messages protocol"
    argument_objects = True

    def __init__(
        self,
        name: str,
        address: Address,
        connections: httpx2.AsyncClient,
        *,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        client = AsyncAnthropic(
            api_key=address.api_key,
            # The SDK adds the version itself; people write it all the same.
            base_url=address.base_url.rstrip("/").removesuffix("/v1"),
            http_client=connections,
            max_retries=0,
            timeout=Timeout(idle_timeout, connect=CONNECT_TIMEOUT),
        )
        prepare_events("anthropic", BetaRawMessageStreamEvent)
        model = AnthropicModel(name.partition("/")[2], provider=AnthropicProvider(anthropic_client=client))
        super().__init__(name, model, address)
        self._profile = model.profile
        self._thoughtless = replace(self._form, key=f"{self._form.key} without thinking", recall=_forget)

    def form(self, request: ModelRequest) -> Form:
        # Thinking that is bound to the prompt it came from is refused once the prompt's end has changed, and
        # Anthropic drops it by itself only while thinking is on.
        return self._thoughtless if request.thinking is False else self._form

    def settings(self, request: ModelRequest, messages: list[pai.ModelMessage]) -> AnthropicModelSettings:
        settings = AnthropicModelSettings()
        if request.max_tokens is not None:
            settings["max_tokens"] = request.max_tokens
        thinks = self._set_thinking(settings, request, messages)
        free = not thinks and not self._profile.get("anthropic_disallows_sampling_settings", False)
        if request.temperature is not None and free:
            settings["temperature"] = min(request.temperature, 1.0)
        return settings

    def _set_thinking(
        self, settings: AnthropicModelSettings, request: ModelRequest, messages: list[pai.ModelMessage]
    ) -> bool:
        profile = self._profile
        bound = profile.get("anthropic_binds_thinking_blocks", False)
        if request.thinking is False:
            settings["thinking"] = False
            return False
        if request.thinking is None and not bound:
            return False
        if not profile.get("supports_thinking", False):
            return False
        if profile.get("anthropic_supports_adaptive_thinking", False):
            config = BetaThinkingConfigAdaptiveParam(type="adaptive")
            if request.thinking:
                config["display"] = "summarized"
            if bound:
                # The trailing context of one request is not in the next, so the thought does not fit any more.
                config["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
            settings["anthropic_thinking"] = config
            if isinstance(request.thinking, str) and profile.get("anthropic_supports_effort", False):
                settings["anthropic_effort"] = request.thinking
            return True
        if _in_unthinking_round(messages):
            return False
        budget = _BUDGETS[request.thinking or True]
        settings["anthropic_thinking"] = {"type": "enabled", "budget_tokens": budget}
        if request.max_tokens is not None:
            # What was asked for is room for the answer; the budget counts towards the whole.
            settings["max_tokens"] = request.max_tokens + budget
        return True

    def thoughts(self, part: pai.ModelResponsePart) -> Iterable[ThinkingPart]:
        if isinstance(part, pai.ThinkingPart) and (part.content or part.signature):
            signature = part.signature or None
            if signature and part.id == _REDACTED_ID:
                signature = _REDACTED + signature
            yield ThinkingPart(well_formed(part.content), signature, self.name)

    def recalled(self, part: ThinkingPart) -> pai.ThinkingPart | None:
        if not part.signature:
            return None
        if part.signature.startswith(_REDACTED):
            data = part.signature.removeprefix(_REDACTED)
            return pai.ThinkingPart("", id=_REDACTED_ID, signature=data, provider_name="anthropic")
        return pai.ThinkingPart(well_formed(part.text), signature=part.signature, provider_name="anthropic")


def _forget(part: ThinkingPart) -> None:
    return None


def _in_unthinking_round(messages: list[pai.ModelMessage]) -> bool:
    """Whether the newest calls were made without thinking of this model: it cannot begin to think in mid-round."""
    reply = next((message for message in reversed(messages) if isinstance(message, pai.ModelResponse)), None)
    if reply is None or not any(isinstance(part, pai.ToolCallPart) for part in reply.parts):
        return False
    return not isinstance(reply.parts[0], pai.ThinkingPart)
