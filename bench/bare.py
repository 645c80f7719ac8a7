"""What a model call costs with pydantic-ai alone: it sends again what the gateway just sent.

    python bench/bare.py http://127.0.0.1:8901

For every line on its input it fetches the bodies that the mock model kept, sends each of them once in
the same order, and prints what each took as one JSON list of [seconds, seconds of CPU].
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from urllib.request import urlopen

import uvloop
from openai import AsyncOpenAI, DefaultAsyncHttpx2Client
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

PARAMETERS = ModelRequestParameters()


class Bare:
    """One client, one connection that stays open."""

    def __init__(self, mock_url: str) -> None:
        self._bodies_url = f"{mock_url}/_bodies"
        client = AsyncOpenAI(
            base_url=f"{mock_url}/v1", api_key="none", http_client=DefaultAsyncHttpx2Client(), max_retries=0
        )
        self._provider = OpenAIProvider(openai_client=client)
        self._models: dict[str, OpenAIChatModel] = {}

    def kept(self) -> list[dict[str, Any]]:
        with urlopen(self._bodies_url, timeout=60) as answer:
            bodies: list[dict[str, Any]] = json.load(answer)
        return bodies

    async def send(self, body: dict[str, Any]) -> tuple[float, float]:
        """One streaming request with the same messages and tools, from the call to the last event."""
        model = self._model(body["model"])
        extra = {name: body[name] for name in ("messages", "tools") if name in body}
        started, cpu = time.perf_counter(), time.process_time()
        async with model_request_stream(
            model,
            [],
            model_settings=OpenAIChatModelSettings(extra_body=extra),
            model_request_parameters=PARAMETERS,
            instrument=False,
        ) as stream:
            async for _ in stream:
                pass
            stream.get()
        return time.perf_counter() - started, time.process_time() - cpu

    def _model(self, name: str) -> OpenAIChatModel:
        if name not in self._models:
            self._models[name] = OpenAIChatModel(name, provider=self._provider, profile=OpenAIModelProfile())
        return self._models[name]


async def main() -> None:
    bare = Bare(sys.argv[1])
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        bodies = await asyncio.to_thread(bare.kept)
        print(json.dumps([await bare.send(body) for body in bodies]), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
