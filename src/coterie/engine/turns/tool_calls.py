"""Running one tool call: what it is given, how long it may take, and what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from coterie.core.announce import Asker
from coterie.core.audience import is_outside
from coterie.core.errors import CoterieError, of_the_disk
from coterie.core.fence import OPEN, Fences
from coterie.core.message import ResultPart, TextPart, ToolCall
from coterie.core.policy import Decision
from coterie.core.tool import (
    Colleagues,
    KeptResult,
    ToolContext,
    ToolError,
    ToolInputError,
    bounded,
    result_text,
)
from coterie.core.turn import TurnJob
from coterie.engine.memory.memories import Memories
from coterie.engine.memory.recall import TurnMemory
from coterie.engine.turns.announcing import may_hear
from coterie.engine.turns.limits import Using
from coterie.engine.turns.loop import ToolResult
from coterie.engine.turns.turns import Running
from coterie.engine.turns.waiting import ToolClock, Waiting

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

log = logging.getLogger("coterie.turn")

TOOL_SECONDS = 600


class Calling(Running, Using, Protocol):
    """A turn under way, as its tools see it."""

    @property
    def waiting(self) -> Waiting: ...


class ToolCalls:
    """One for all turns of this process."""

    def __init__(
        self,
        store: Store,
        memories: Memories,
        colleagues: Callable[[Waiting, Asker, Fences], Colleagues],
    ) -> None:
        self._store = store
        self._memories = memories
        self._colleagues = colleagues
        """The way of a call to other agents."""

    async def run(self, turn: Calling, call: ToolCall) -> ToolResult:
        """A wrong argument and a failure are results: the model sees them and the loop goes on."""
        started = time.monotonic()
        fences = Fences()
        parts, ok = await self._outcome(turn, call, fences)
        await turn.waiting.go_on()  # the tool may have failed while it waited
        text = result_text(parts)
        more = tuple(part for part in parts if not isinstance(part, TextPart))
        took = int((time.monotonic() - started) * 1000)
        return ToolResult(call, text, ok, took, more, tuple(fences.marks))

    async def _outcome(
        self, turn: Calling, call: ToolCall, fences: Fences
    ) -> tuple[Sequence[ResultPart], bool]:
        tool = turn.brain.tools[call.name]
        try:
            async with asyncio.timeout(TOOL_SECONDS) as limit:
                turn.waiting.clock = ToolClock(limit)
                return bounded(await tool.call(self._context(turn, call.id, fences), call.arguments)), True
        except ToolInputError as error:
            problem = f"invalid_arguments: {error.message}"
        except ToolError as error:
            log_refusal(turn, call.name, f"{error.reason}: {error.message}")
            problem = f"{error.reason}: {error.message}"
        except CoterieError as error:
            problem = error.message
        except TimeoutError:
            problem = f"the tool did not end within {TOOL_SECONDS} seconds"
        except Exception as error:
            disk = of_the_disk(error) if isinstance(error, OSError) else None
            if disk is None:
                log.exception("tool %s failed in run %s", call.name, turn.job.run_id)
            problem = f"{type(error).__name__}: {str(error)[:500]}" if disk is None else disk.message
        finally:
            turn.waiting.clock = None
        return bounded([TextPart(f"error: {problem}")]), False

    def _context(self, turn: Calling, call_id: str, fences: Fences) -> ToolContext:
        brain, session, job = turn.brain, turn.session, turn.job
        asker = Asker(
            agent_id=brain.agent_id,
            session_id=session.id,
            session_key=session.key,
            run_id=job.run_id,
            call_id=call_id,
            trace_id=job.trace_id,
            hop=job.hop,
            chain=job.chain,
            is_subagent=session.kind == "subagent",
            audience=session.audience,
            heard_by=job.audience,
        )
        return ToolContext(
            agent_id=brain.agent_id,
            session_key=session.key,
            run_id=job.run_id,
            call_id=call_id,
            workspace=brain.workspace,
            memory=TurnMemory(self._memories, brain, session, job, call_id, fences),
            while_waiting=lambda work: turn.waiting.wait("outside", work),
            read_result=lambda result_id: self._read_result(job, result_id),
            colleagues=self._colleagues(turn.waiting, asker, fences),
            fences=fences,
        )

    async def _read_result(self, job: TurnJob, result_id: str) -> KeptResult | None:
        """Bound to one session and who hears it: no other session's results can be read, nor runs that others asked
        for, nor what was found for the owner."""
        session_id, outside = job.session_id, job.audience is not None and is_outside(job.audience)

        def look(tx: Transaction) -> KeptResult | None:
            kept = tx.sessions.kept_result(session_id, result_id)
            if kept is not None:
                if outside and tx.sessions.result_heard_by(session_id, result_id) is None:
                    return None
                return KeptResult(kept, "a tool's result" if OPEN in kept else None)
            run = tx.runs.get(result_id)
            if run is None or run.requester_session_id != session_id or run.result is None:
                return None
            if not may_hear(tx, job, run.run_id):
                return None
            return KeptResult(run.result, f"agent {run.agent_id}")

        return await self._store.look(look)


def log_refusal(turn: Calling, name: str, reason: str) -> None:
    """A call that came to nothing because it may not be made. Names and reasons may hold a model's own words."""
    job = turn.job
    log.info(
        "refuse: run %s of %s, trace %s: %s may not call %r: %r",
        job.run_id,
        turn.session.key,
        job.trace_id,
        turn.brain.agent_id,
        name[:200],
        reason[:500],
    )


def refused(call: ToolCall, decision: Decision) -> ToolResult:
    """What a model is told of a call that was not begun."""
    return ToolResult(
        call, f"error: {decision.code}: {call.name} cannot be called here ({decision.reason})", ok=False
    )
