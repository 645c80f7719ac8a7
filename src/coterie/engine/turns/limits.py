"""What a turn may use, looked at before each request. Who runs into a limit sees which one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from coterie.core.announce import TraceBudget
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError
from coterie.core.message import ToolCall, Usage
from coterie.core.turn import TurnJob
from coterie.engine.household.brain import Brain

if TYPE_CHECKING:
    from coterie.store.transaction import Store

ROUNDS = 50
EQUAL_FAILURES = 5


class TurnStopped(CoterieError):
    """A limit was reached. The person sees why."""

    code = "UNAVAILABLE"
    http_status = 503


class Using(Protocol):
    """As much of a turn as its limits look at."""

    @property
    def job(self) -> TurnJob: ...

    @property
    def brain(self) -> Brain: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def rounds(self) -> int: ...


class Limits:
    def __init__(self, store: Store, budget: Callable[[], TraceBudget]) -> None:
        self._store = store
        self.budget = budget
        """What one message may lead to, as the configuration says now."""

    async def check(self, turn: Using) -> None:
        limits, usage = turn.brain.spec.limits, turn.usage
        most = limits.rounds_per_turn or ROUNDS
        if turn.rounds >= most:
            raise TurnStopped(f"it took {most} rounds, the most that one turn may take")
        used = usage.input_tokens + usage.output_tokens
        if limits.tokens_per_turn is not None and used >= limits.tokens_per_turn:
            raise TurnStopped(f"it used {used} tokens, the most that one turn may use")
        if limits.cost_per_turn is not None and (usage.cost or 0) >= limits.cost_per_turn:
            raise TurnStopped(f"it cost ${usage.cost:.2f}, the most that one turn may cost")
        await self._check_trace(turn.job)
        if limits.tokens_per_day is not None or limits.cost_per_day is not None:
            await self._check_day(turn.brain)

    async def _check_trace(self, job: TurnJob) -> None:
        """What one message led to, over all agents; a plain turn is asked only where tokens or cost are limited."""
        budget = self.budget()
        alone = job.kind == "message" and job.hop == 0
        if alone and budget.tokens is None and budget.cost is None:
            return
        used = await self._store.look(lambda tx: tx.turns.used_by_trace(job.trace_id))
        problem = budget.problem(used, now_iso())
        if problem is not None:
            raise TurnStopped(problem)

    async def _check_day(self, brain: Brain) -> None:
        limits, today = brain.spec.limits, now_iso()[:10]
        spent = await self._store.look(lambda tx: tx.usage.spent_since(brain.agent_id, today))
        if limits.cost_per_day is not None and (spent.cost or 0) >= limits.cost_per_day:
            raise TurnStopped(f"{brain.label} spent ${spent.cost or 0:.2f} today, the most it may spend")
        tokens = spent.input_tokens + spent.output_tokens
        if limits.tokens_per_day is not None and tokens >= limits.tokens_per_day:
            raise TurnStopped(f"{brain.label} used all the tokens it may use in a day")


class Failures:
    """A circuit breaker: the same call that keeps failing ends the turn, once its result is stored."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._stop_because: str | None = None

    def count(self, call: ToolCall, ok: bool, text: str) -> None:
        key = (call.name, call.arguments)
        if ok:
            self._counts.pop(key, None)
            return
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] >= EQUAL_FAILURES:
            self._stop_because = f"{call.name} failed {EQUAL_FAILURES} times in the same way: {text[:200]}"

    def check(self) -> None:
        if self._stop_because is not None:
            raise TurnStopped(self._stop_because)
