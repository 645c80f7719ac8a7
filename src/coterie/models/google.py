"""Gemini, over Google's own protocol."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import httpx2
from google.genai.client import Client
from google.genai.types import GenerateContentConfig, GenerateContentResponse, HttpOptions, HttpRetryOptions
from pydantic_ai import messages as pai
from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
from pydantic_ai.providers.google import GoogleProvider

from coterie.core.message import ThinkingPart
from coterie.core.ports import ModelRequest
from coterie.core.text import well_formed
from coterie.models.connections import IDLE_TIMEOUT
from coterie.models.pydantic_model import Address, PydanticModel
from coterie.models.warming import prepare_models

_SIGNATURE = "thought_signature"


class GoogleGemini(PydanticModel):
    """One Gemini model. Implements the Model port."""

    protocol = "the Gemini protocol"
    argument_objects = True
    signs_next = True

    def __init__(
        self,
        name: str,
        address: Address,
        connections: httpx2.AsyncClient,
        *,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        host, version = _split_version(address.base_url.rstrip("/"))
        client = Client(
            vertexai=False,
            api_key=address.api_key,
            http_options=HttpOptions(
                base_url=host,
                api_version=version,
                httpx_async_client=connections,
                timeout=int(idle_timeout * 1000),
                # Left open, the SDK tries again by itself.
                retry_options=HttpRetryOptions(attempts=1),
            ),
        )
        prepare_models(GenerateContentConfig, GenerateContentResponse)
        model = GoogleModel(name.partition("/")[2], provider=GoogleProvider(client=client))
        super().__init__(name, model, address)

    def settings(self, request: ModelRequest, messages: list[pai.ModelMessage]) -> GoogleModelSettings:
        settings = GoogleModelSettings()
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        if request.max_tokens is not None:
            settings["max_tokens"] = request.max_tokens
        if request.thinking is not None:
            settings["thinking"] = request.thinking
        return settings

    def thoughts(self, part: pai.ModelResponsePart) -> Iterable[ThinkingPart]:
        """Gemini signs any part; a signature is kept as a thought without text in front of what it signs."""
        signature: str | None = (part.provider_details or {}).get(_SIGNATURE)
        text = part.content if isinstance(part, pai.ThinkingPart) else ""
        if text or signature:
            yield ThinkingPart(well_formed(text), signature, self.name)

    def recalled(self, part: ThinkingPart) -> pai.ThinkingPart | None:
        if not part.signature or not _is_base64(part.signature):
            return None
        if part.text:
            return pai.ThinkingPart(
                well_formed(part.text), provider_name="google", provider_details={_SIGNATURE: part.signature}
            )
        return pai.ThinkingPart("", signature=part.signature, provider_name="google")


def _split_version(base_url: str) -> tuple[str, str]:
    """The SDK adds the version itself; people write it all the same, and every server knows v1beta."""
    for version in ("v1beta", "v1"):
        if base_url.endswith(f"/{version}"):
            return base_url.removesuffix(f"/{version}"), version
    return base_url, "v1beta"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
