"""run_turn: model, tool round, safe boundary, again. It knows no database, no socket and no queue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from coterie.core.message import ResultPart, ToolCall
from coterie.core.ports import ModelEvent, Reply, TextDelta, ThinkingDelta


@dataclass(frozen=True, slots=True)
class ToolResult:
    call: ToolCall
    text: str
    ok: bool = True
    duration_ms: int = 0
    parts: tuple[ResultPart, ...] = ()
    """What it holds besides the text."""
    marks: tuple[str, ...] = ()
    """Of the fences in the text."""


@dataclass(frozen=True, slots=True)
class CallStarted:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Steered:
    """A waiting message has taken over; this turn goes on later."""


Step = Reply | CallStarted | ToolResult
"""What is committed as it happens."""
TurnEvent = TextDelta | ThinkingDelta | Step | Steered


class Turn(Protocol):
    """What the loop works on."""

    @property
    def fresh(self) -> bool:
        """No model was asked yet since its message was consumed."""

    @property
    def open_calls(self) -> Sequence[ToolCall]:
        """Calls of the newest reply without a result: all of them, or what a crash left over."""

    def ask(self) -> AsyncGenerator[ModelEvent, None]:
        """Send the request that the transcript amounts to."""

    async def refusal(self, call: ToolCall) -> ToolResult | None:
        """Why a call is not made; None where it may be. A person may be asked first: nothing has begun yet."""

    async def run(self, call: ToolCall) -> ToolResult:
        """Make a call that may be made. A failure is a result too."""


async def run_turn(
    turn: Turn,
    *,
    steering: Callable[[Sequence[ToolCall]], Awaitable[bool]],
    commit: Callable[[Step], Awaitable[None]],
) -> AsyncGenerator[TurnEvent, None]:
    """One turn, from wherever it stands to its last reply or until it is steered.

    `steering` is asked at every boundary: before each tool call, and before each model request but the
    first, with no call under way. It is told which calls would be left unstarted; True means that a
    waiting message has taken over. `commit` puts a step on disk before the next one begins.
    """
    while True:
        calls = list(turn.open_calls)
        while calls:
            if await steering(calls):
                yield Steered()
                return
            call = calls.pop(0)
            refused = await turn.refusal(call)
            started = CallStarted(call)
            if refused is None:
                await commit(started)
            yield started
            result = refused or await turn.run(call)
            await commit(result)
            yield result
        if not turn.fresh and await steering(()):
            yield Steered()
            return
        async with aclosing(turn.ask()) as events:
            async for event in events:
                if isinstance(event, Reply):
                    await commit(event)
                yield event
        if not turn.open_calls:
            return
