"""One turn under way: what it asks, what it runs, and how each step reaches the disk."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coterie.core.agent import MAIN
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError
from coterie.core.message import Message, TextPart, ToolCall, Usage
from coterie.core.ports import (
    InboxEntry,
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    Store,
    StoreTransaction,
)
from coterie.core.prompt import context_message
from coterie.core.session import Session
from coterie.core.steering import ABORTED, SKIPPED, UNKNOWN_OUTCOME, backlog_text
from coterie.core.tool import ToolContext, ToolInputError
from coterie.core.transcript import Transcript
from coterie.core.turn import TurnJob, TurnState
from coterie.engine.brain import Brain
from coterie.engine.live import LiveTurn
from coterie.engine.loop import CallStarted, Step, ToolResult
from coterie.engine.slots import Slot

log = logging.getLogger("coterie.turn")

T = TypeVar("T")
ROUNDS = 50
CALLS_PER_REPLY = 64
EQUAL_FAILURES = 5
MODEL_TRIES = 5
LONGEST_WAIT = 120.0
TOOL_SECONDS = 600
RESULT_CHARACTERS = 400_000
SNIPPET = 200

ContextProvider = Callable[[Session, Brain], Mapping[str, str]]
"""Lines for the trailing context message."""


class TurnStopped(CoterieError):
    """A limit was reached. The person sees why."""

    code = "UNAVAILABLE"
    http_status = 503


@dataclass(slots=True)
class Surroundings:
    """What every turn of this process shares."""

    store: Store
    epoch: int
    resolve_model: Callable[[str], Awaitable[Model]]
    context: Sequence[ContextProvider]


class ActiveTurn:
    """Implements what the loop works on, and the two callables it is given."""

    def __init__(
        self,
        around: Surroundings,
        session: Session,
        brain: Brain,
        job: TurnJob,
        transcript: Transcript,
        live: LiveTurn,
        slot: Slot,
    ) -> None:
        self._around = around
        self.session = session
        self.brain = brain
        self.job = job
        self.transcript = transcript
        self.live = live
        self._slot = slot
        self.fresh = True
        self.successor: TurnJob | None = None
        """The turn that took over, once this one was steered."""
        self._failures: dict[tuple[str, str], int] = {}
        self._usage = job.usage
        self._rounds = job.rounds

    # What the loop sees

    @property
    def open_calls(self) -> Sequence[ToolCall]:
        return self.transcript.open_calls

    async def ask(self) -> AsyncGenerator[ModelEvent, None]:
        """One request, tried again when the provider says that may help."""
        await self._check_limits()
        self.fresh = False
        spec = self.brain.spec
        request = ModelRequest(
            system=self.brain.system,
            tools=self.brain.schemas,
            messages=self.transcript.sendable(),
            context=self._context(),
            temperature=spec.temperature,
            max_tokens=spec.max_tokens,
            thinking=spec.thinking,
        )
        model = await self._around.resolve_model(self.session.model or self.brain.model)
        for attempt in range(1, MODEL_TRIES + 1):
            try:
                async with aclosing(model.stream(request)) as stream:
                    async for event in stream:
                        yield event
                return
            except ModelError as error:
                wait = (
                    error.retry_after if error.retry_after is not None else min(0.5 * 2 ** (attempt - 1), 8)
                )
                if not error.can_retry or attempt == MODEL_TRIES or wait > LONGEST_WAIT:
                    raise
                log.warning("run %s: %s; trying again in %.1f s", self.job.run_id, error.message, wait)
                self.live.start_over()
                await asyncio.sleep(wait)

    async def run(self, call: ToolCall) -> ToolResult:
        """A refusal, a wrong argument and a failure are results: the model sees them and the loop goes on."""
        started = time.monotonic()
        text, ok = await self._outcome(call)
        if len(text) > RESULT_CHARACTERS:
            text = f"{text[:RESULT_CHARACTERS]}\n[cut: {len(text) - RESULT_CHARACTERS} more characters]"
        self._count_failures(call, ok, text)
        return ToolResult(call, text, ok, int((time.monotonic() - started) * 1000))

    async def _outcome(self, call: ToolCall) -> tuple[str, bool]:
        decision = self.brain.may_call(call.name)
        if not decision.allowed:
            return f"error: tool_not_allowed: {call.name} cannot be called here ({decision.reason})", False
        tool = self.brain.tools[call.name]
        context = ToolContext(
            agent_id=self.brain.agent_id,
            session_key=self.session.key,
            run_id=self.job.run_id,
            call_id=call.id,
            workspace=self.brain.workspace,
        )
        try:
            async with asyncio.timeout(TOOL_SECONDS):
                return await tool.call(context, call.arguments), True
        except ToolInputError as error:
            return f"error: invalid_arguments: {error.message}", False
        except CoterieError as error:
            return f"error: {error.message}", False
        except TimeoutError:
            return f"error: the tool did not end within {TOOL_SECONDS} seconds", False
        except Exception as error:
            log.exception("tool %s failed in run %s", call.name, self.job.run_id)
            return f"error: {type(error).__name__}: {str(error)[:500]}", False

    # Boundaries

    async def steering(self, unstarted: Sequence[ToolCall]) -> bool:
        """If a message waits, hand over to it in one transaction."""
        taken: list[Message] = []

        def hand_over(tx: StoreTransaction) -> TurnJob | None:
            taken.clear()
            found = tx.turns.next_work(self.session.id)
            if found is None or any(entry.agent_id != self.job.agent_id for entry in found[1]):
                return None  # nothing waits, or it came after the session went to another agent
            entries = found[1]
            run_id = entries[-1].run_id
            assert run_id is not None
            at = now_iso()
            for call in unstarted:
                taken.append(self._result_message(call, SKIPPED, at, len(taken)))
            tx.turns.move(self.job.run_id, TurnState.INTERRUPTED, epoch=self._around.epoch)
            token = {"skipped": [{"id": c.id, "name": c.name} for c in unstarted]}
            tx.turns.put_back(self.session.id, self.job.run_id, token, at)
            job = tx.turns.get(run_id)
            assert job is not None
            tx.turns.claim(job.run_id, epoch=self._around.epoch, agent_id=self.brain.agent_id, at=at)
            for one in entries:
                tx.turns.take(one)
                taken.append(self.consumed(one, len(taken)))
            tx.sessions.append(self.session.id, taken)
            return replace(
                job, state=TurnState.RUNNING, agent_id=self.brain.agent_id, epoch=self._around.epoch
            )

        self.successor = await self._around.store.transact(hand_over)
        self._remember(taken)
        if self.successor is not None:
            log.info(
                "steer: run %s gives way to run %s, trace %s",
                self.job.run_id,
                self.successor.run_id,
                self.job.trace_id,
            )
        return self.successor is not None

    async def commit(self, step: Step) -> None:
        if isinstance(step, CallStarted):
            await self._commit_start(step.call)
        elif isinstance(step, ToolResult):
            await self._commit_result(step)
        else:
            await self._commit_reply(step)

    async def _commit_start(self, call: ToolCall) -> None:
        tool = self.brain.tools.get(call.name)
        if tool is None or tool.safe_to_repeat:
            return  # after a crash it is simply run again
        await self._transact(lambda tx: self._step(tx, open_call=call.id))

    async def _commit_result(self, result: ToolResult) -> None:
        meta = {"duration_ms": result.duration_ms, "ok": result.ok}
        message = self._result_message(result.call, result.text, now_iso(), 0, meta)

        def save(tx: StoreTransaction) -> None:
            self._step(tx)
            tx.sessions.append(self.session.id, [message])

        await self._transact(save)
        self._remember([message])

    async def _commit_reply(self, reply: Reply) -> None:
        at = now_iso()
        text = "\n\n".join(part.text for part in reply.parts if isinstance(part, TextPart))
        message = self._message("assistant", "agent", text, at, 0, parts=reply.parts)
        messages = [message]
        for call in message.tool_calls[CALLS_PER_REPLY:]:
            refusal = f"error: not run: a reply may hold {CALLS_PER_REPLY} calls at most"
            messages.append(self._result_message(call, refusal, at, len(messages)))
        self._usage += reply.usage
        self._rounds += 1
        final = not message.tool_calls

        def save(tx: StoreTransaction) -> None:
            self._step(
                tx,
                replies=1,
                usage=reply.usage,
                model=self.session.model or self.brain.model,
                state=TurnState.DONE if final else TurnState.RUNNING,
                final=message.id if final else None,
                at=at if final else None,
            )
            tx.sessions.append(self.session.id, messages)
            if final:
                tx.sessions.touch(self.session.id, at, text[:SNIPPET])
                if self.session.deliver and self.session.route:
                    tx.turns.send(self.session.id, self.job.run_id, message, self.session.route)

        await self._transact(save)
        self._remember(messages)
        self.live.reply_committed()
        if final:
            self.final = message

    final: Message | None = None
    """The answer, once there is one."""

    # Other ways to go on or to end

    async def recover(self) -> None:
        """After a crash: a call that was under way and must not be repeated gets an unknown outcome."""
        self.fresh = self._rounds == 0 and not self.transcript.open_calls
        call = next((c for c in self.transcript.open_calls if c.id == self.job.open_call), None)
        if call is not None:
            await self._commit_result(ToolResult(call, UNKNOWN_OUTCOME, ok=False))

    async def end(self, state: TurnState, reason: str | None) -> None:
        """Without an answer: stopped by a person, or by something that went wrong. The person sees which."""
        at = now_iso()
        messages: list[Message] = []
        for call in self.transcript.open_calls:
            messages.append(self._result_message(call, ABORTED, at, len(messages)))
        if state is TurnState.ABORTED and self.live.text:
            parts = (TextPart(self.live.text),)
            messages.append(
                self._message(
                    "assistant",
                    "agent",
                    self.live.text,
                    at,
                    len(messages),
                    parts=parts,
                    meta={"aborted": True},
                )
            )
        elif state is TurnState.ERROR:
            note = f"This turn ended without an answer: {reason}"
            messages.append(
                self._message("system", "system", note, at, len(messages), meta={"error": reason})
            )

        def save(tx: StoreTransaction) -> bool:
            if not tx.turns.end(self.job.run_id, state, at, error=reason):
                return False
            tx.sessions.append(self.session.id, messages)
            tx.sessions.touch(self.session.id, at, (messages[-1].text if messages else "")[:SNIPPET])
            return True

        if await self._around.store.transact(save):
            self._remember(messages)

    async def while_waiting(self, work: Awaitable[T]) -> T:
        """Hold the session but no slot while somebody else works."""
        epoch = self._around.epoch
        await self._around.store.transact(
            lambda tx: tx.turns.move(self.job.run_id, TurnState.WAITING, epoch=epoch)
        )
        self._slot.give_back()
        try:
            return await work
        finally:
            await self._slot.take()
            await self._around.store.transact(
                lambda tx: tx.turns.move(self.job.run_id, TurnState.RUNNING, epoch=epoch)
            )

    def followed_by(self, job: TurnJob, live: LiveTurn) -> ActiveTurn:
        """The turn of the message that steered this one: same session, same agent, same slot."""
        return ActiveTurn(self._around, self.session, self.brain, job, self.transcript, live, self._slot)

    # Small parts

    def consumed(self, entry: InboxEntry, offset: int) -> Message:
        """An inbox entry as it stands in the transcript."""
        return Message(
            id=entry.message_id,
            role=entry.role,
            origin=entry.origin,
            text=entry.text,
            meta=entry.meta,
            agent_id=self.brain.agent_id,
            run_id=entry.run_id,
            seq=self.transcript.last_seq + 1 + offset,
            created_at=entry.created_at,
        )

    def backlog_message(self, token: Mapping[str, Any], task: str) -> Message:
        skipped = [ToolCall(c["id"], c["name"], "") for c in token.get("skipped", [])]
        return self._message("user", "system", backlog_text(task, skipped), now_iso(), 0)

    def _message(self, role: Any, origin: Any, text: str, at: str, offset: int, **more: Any) -> Message:
        return Message(
            id=uuid.uuid4().hex,
            role=role,
            origin=origin,
            text=text,
            agent_id=self.brain.agent_id,
            run_id=self.job.run_id,
            seq=self.transcript.last_seq + 1 + offset,
            created_at=at,
            **more,
        )

    def _result_message(
        self, call: ToolCall, text: str, at: str, offset: int, meta: Mapping[str, Any] | None = None
    ) -> Message:
        return self._message(
            "tool", "agent", text, at, offset, call_id=call.id, tool_name=call.name, meta=meta
        )

    def _step(self, tx: StoreTransaction, **changes: Any) -> None:
        tx.turns.step(
            self.job.run_id,
            epoch=self._around.epoch,
            agent_id=self.brain.agent_id,
            cost=self._usage.cost,
            **changes,
        )

    async def _transact(self, work: Callable[[StoreTransaction], None]) -> None:
        await self._around.store.transact(work)

    def _remember(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.transcript.append(message)

    def _context(self) -> str:
        lines: dict[str, str] = {}
        for provider in self._around.context:
            lines.update(provider(self.session, self.brain))
        return context_message(lines)

    async def _check_limits(self) -> None:
        if self.stop_because is not None:
            raise TurnStopped(self.stop_because)
        limits = self.brain.spec.limits
        most = limits.rounds_per_turn or ROUNDS
        if self._rounds >= most:
            raise TurnStopped(f"it took {most} rounds, the most that one turn may take")
        used = self._usage.input_tokens + self._usage.output_tokens
        if limits.tokens_per_turn is not None and used >= limits.tokens_per_turn:
            raise TurnStopped(f"it used {used} tokens, the most that one turn may use")
        if limits.cost_per_turn is not None and (self._usage.cost or 0) >= limits.cost_per_turn:
            raise TurnStopped(f"it cost ${self._usage.cost:.2f}, the most that one turn may cost")
        if limits.tokens_per_day is None and limits.cost_per_day is None:
            return
        today = now_iso()[:10]
        spent: Usage = await self._around.store.transact(
            lambda tx: tx.turns.spent_since(self.brain.agent_id, today)
        )
        if limits.cost_per_day is not None and (spent.cost or 0) >= limits.cost_per_day:
            raise TurnStopped(f"{self.brain.label} spent ${spent.cost or 0:.2f} today, the most it may spend")
        if (
            limits.tokens_per_day is not None
            and spent.input_tokens + spent.output_tokens >= limits.tokens_per_day
        ):
            raise TurnStopped(f"{self.brain.label} used all the tokens it may use in a day")

    def _count_failures(self, call: ToolCall, ok: bool, text: str) -> None:
        key = (call.name, call.arguments)
        if ok:
            self._failures.pop(key, None)
            return
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] >= EQUAL_FAILURES:
            self.stop_because = f"{call.name} failed {EQUAL_FAILURES} times in the same way: {text[:200]}"

    stop_because: str | None = None
    """Set when the same call keeps failing; the turn ends once its result is stored."""


def error_note(job: TurnJob, reason: str, at: str, last_seq: int) -> Message:
    """What stands in the transcript where an answer would have stood."""
    return Message(
        id=uuid.uuid4().hex,
        role="system",
        origin="system",
        text=f"This turn ended without an answer: {reason}",
        meta={"error": reason},
        agent_id=job.agent_id or MAIN,
        run_id=job.run_id,
        seq=last_seq + 1,
        created_at=at,
    )
