"""Models behind any endpoint that speaks the OpenAI chat protocol."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx2

from coterie import __version__
from coterie.core.message import TextPart, Usage
from coterie.core.ports import ModelError, ModelEvent, ModelRequest, Reply, TextDelta
from coterie.core.redaction import at_path
from coterie.core.text import well_formed
from coterie.models.connections import CONNECT_TIMEOUT, IDLE_TIMEOUT, open_connections
from coterie.models.failure import Trouble, model_error
from coterie.models.openai_failure import refusal, trouble_of
from coterie.models.openai_profile import Settings
from coterie.models.openai_stream import Pieces, chunks
from coterie.models.openai_wire import request_bytes

__all__ = ["Endpoint", "OpenAIChat", "open_connections"]

_BEGIN_BLANK = ("qwen/", "moonshotai/", "deepseek/deepseek-r1")
"""Makers whose models send an empty line before they think or call, which is no text."""


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
        self.connections = connections
        self.url = httpx2.URL(at_path(base_url, "chat/completions"))
        self.timeout = httpx2.Timeout(idle_timeout, connect=CONNECT_TIMEOUT)
        self.headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"coterie/{__version__}",
            # Some servers want to see a key, whatever it is.
            "Authorization": f"Bearer {api_key or 'none'}",
        }
        if service == "openai":
            # Which of a person's accounts pays is OpenAI's business and nobody else's.
            for header, variable in (
                ("OpenAI-Organization", "OPENAI_ORG_ID"),
                ("OpenAI-Project", "OPENAI_PROJECT_ID"),
            ):
                if value := os.environ.get(variable):
                    self.headers[header] = value


class OpenAIChat:
    """One model of one endpoint. Implements the Model port."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self._name = name
        self._endpoint = endpoint
        model = name.partition("/")[2]
        self._settings = Settings(endpoint.service, model, endpoint.connections)
        self._skip_blank = endpoint.service != "openai" and model.startswith(_BEGIN_BLANK)
        self._prices = None
        if endpoint.service in ("openai", "openrouter"):
            from coterie.models.prices import Prices

            self._prices = Prices(endpoint.service, endpoint.base_url)

    @property
    def name(self) -> str:
        return self._name

    async def body(self, request: ModelRequest) -> bytes:
        """What would be sent, to the last byte."""
        try:
            return await self._body(request)
        except Exception as error:
            raise self._error(trouble_of(error, begun=False)) from None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas as they come, then one Reply. Raises ModelError and nothing else."""
        endpoint = self._endpoint
        pieces = Pieces(skip_blank=self._skip_blank)
        begun = False
        try:
            async with endpoint.connections.stream(
                "POST",
                endpoint.url,
                content=await self._body(request),
                headers=endpoint.headers,
                timeout=endpoint.timeout,
            ) as response:
                if not response.is_success:
                    raise await refusal(response)
                begun = True
                async with aclosing(chunks(response)) as stream:
                    async for chunk in stream:
                        for delta in pieces.add(chunk):
                            yield delta
            if not pieces.finish_reason:
                # Half an answer must not pass for a whole one.
                raise Trouble("broken_off")
            parts, usage = pieces.parts(self._name, request), self._usage(pieces)
        except Exception as error:
            # The cause may quote the response, and with it the key.
            raise self._error(trouble_of(error, begun=begun)) from None
        if pieces.refusal and not parts:
            said = well_formed(pieces.refusal)
            yield TextDelta(said)
            parts = (TextPart(said),)
        yield Reply(parts, usage, pieces.finish(parts))

    async def _body(self, request: ModelRequest) -> bytes:
        fields = await self._settings.fields(request.temperature, request.max_tokens, request.thinking)
        return request_bytes(fields, request)

    def _usage(self, pieces: Pieces) -> Usage:
        counted = pieces.usage
        if counted is None:
            return Usage()
        details = counted.get("prompt_tokens_details")
        details = details if isinstance(details, dict) else {}
        usage = Usage(
            _count(counted.get("prompt_tokens")),
            _count(counted.get("completion_tokens")),
            _count(details.get("cached_tokens") or counted.get("prompt_cache_hit_tokens")),
        )
        if self._prices is None:
            return usage
        cost = self._prices.cost(
            usage,
            pieces.model or self._name.partition("/")[2],
            cache_writes=_count(details.get("cache_write_tokens")),
            service_tier=pieces.service_tier,
        )
        return Usage(usage.input_tokens, usage.output_tokens, usage.cached_tokens, cost)

    def _error(self, trouble: Trouble) -> ModelError:
        endpoint = self._endpoint
        return model_error(
            trouble,
            self._name,
            address=endpoint.base_url,
            key=endpoint.api_key,
            key_env=endpoint.api_key_env,
        )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
