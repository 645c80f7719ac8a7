"""Whether a model answers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from coterie.core.message import Message
from coterie.core.ports import Model, ModelError, ModelRequest

SHORTEST = 16
"""The fewest tokens that every provider can be asked for."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """What came of asking a model for a word."""

    name: str
    latency_ms: float | None
    """How long the answer took; None where none came."""
    error: ModelError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


async def check(resolve: Callable[[str], Awaitable[Model]], name: str) -> ModelCheck:
    """Ask the model of this name for the smallest answer there is."""
    request = ModelRequest("", (), (Message("check", "user", "system", "Say OK."),), max_tokens=SHORTEST)
    try:
        model = await resolve(name)
        # The provider's module may have loaded just now; that is not the model's time.
        started = time.monotonic()
        async with aclosing(model.stream(request)) as stream:
            async for _ in stream:
                pass
    except ModelError as error:
        return ModelCheck(name, None, error)
    return ModelCheck(name, (time.monotonic() - started) * 1000)
