"""What a model call costs with the HTTP client alone: it sends again what the gateway just sent.

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

import httpx2
import uvloop


class Bare:
    """One client, one connection that stays open. No SDK, no library: encode, send, read the events."""

    def __init__(self, mock_url: str) -> None:
        self._bodies_url = f"{mock_url}/_bodies"
        self._url = f"{mock_url}/v1/chat/completions"
        self._client = httpx2.AsyncClient(timeout=60)

    def kept(self) -> list[dict[str, Any]]:
        with urlopen(self._bodies_url, timeout=60) as answer:
            bodies: list[dict[str, Any]] = json.load(answer)
        return bodies

    async def send(self, body: dict[str, Any]) -> tuple[float, float]:
        """One streaming request with the same content, from its encoding to the last event."""
        started, cpu = time.perf_counter(), time.process_time()
        headers = {"Authorization": "Bearer none", "Content-Type": "application/json"}
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        async with self._client.stream("POST", self._url, content=content, headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    json.loads(line.removeprefix("data: "))
        return time.perf_counter() - started, time.process_time() - cpu


async def main() -> None:
    bare = Bare(sys.argv[1])
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        bodies = await asyncio.to_thread(bare.kept)
        print(json.dumps([await bare.send(body) for body in bodies]), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
