"""Asking a model: tried again when the provider says that may help, then the next one in line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from coterie.core.ports import Model, ModelError, ModelEvent, ModelRequest
from coterie.core.reply import problem_in

log = logging.getLogger("coterie.model")

TRIES = 5
LONGEST_WAIT = 120.0
FALL_BACK_AFTER = 2
"""Tries with one model while another stands in line."""


class Asking:
    """One request to the first of these models that answers it."""

    def __init__(
        self,
        resolve: Callable[[str], Awaitable[Model]],
        models: Sequence[str],
        start_over: Callable[[], None],
    ) -> None:
        self._resolve = resolve
        self._models = models
        self._start_over = start_over
        """Called when what was streamed so far is void."""
        self.model = models[0]
        """Who is being asked."""
        self.fallback: dict[str, str] | None = None
        """Who is asked instead of whom, and why: people are to see it."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas, then one reply. Raises the last model's ModelError."""
        self.fallback = None
        for place, name in enumerate(self._models, 1):
            self.model = name
            last_in_line = place == len(self._models)
            try:
                async with aclosing(
                    self._one(name, request, TRIES if last_in_line else FALL_BACK_AFTER)
                ) as events:
                    async for event in events:
                        yield event
                return
            except ModelError as error:
                if last_in_line:
                    raise
                log.warning("%s: %s; falling back to %s", name, error.message, self._models[place])
                self.fallback = {
                    "model": self._models[place],
                    "instead_of": self._models[0],
                    "reason": error.message,
                }
                self._start_over()

    async def _one(self, name: str, request: ModelRequest, tries: int) -> AsyncGenerator[ModelEvent, None]:
        model = await self._resolve(name)
        for attempt in range(1, tries + 1):
            try:
                async with aclosing(model.stream(request)) as stream:
                    async for event in stream:
                        if (problem := problem_in(event)) is not None:
                            raise ModelError(
                                f"{name} sent something that is not a whole reply: {problem}.",
                                kind="garbage",
                                can_retry=True,
                            )
                        yield event
                return
            except ModelError as error:
                wait = (
                    error.retry_after if error.retry_after is not None else min(0.5 * 2 ** (attempt - 1), 8)
                )
                if not error.can_retry or attempt == tries or wait > LONGEST_WAIT:
                    raise
                log.warning("%s: %s; trying again in %.1f s", name, error.message, wait)
                self._start_over()
                await asyncio.sleep(wait)
