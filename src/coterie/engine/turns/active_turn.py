"""One turn under way: what it asks, what it runs, and how each step reaches the disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.core import compaction
from coterie.core.agent import MAIN
from coterie.core.announce import Announcement, Asker, TraceBudget, results_text
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError
from coterie.core.message import Message, TextPart, ToolCall, Usage
from coterie.core.ports import InboxEntry, Model, ModelError, ModelEvent, ModelRequest, Reply
from coterie.core.prompt import context_message
from coterie.core.session import Session
from coterie.core.steering import ABORTED, SKIPPED, STOPPED_UNDER_WAY, UNKNOWN_OUTCOME, backlog_text
from coterie.core.tool import Colleagues, ToolContext, ToolError, ToolInputError
from coterie.core.transcript import Transcript
from coterie.core.turn import TurnJob, TurnState
from coterie.engine.household.brain import Brain
from coterie.engine.memory.memories import Memories
from coterie.engine.memory.recall import Recall, TurnMemory
from coterie.engine.turns.announcing import results_for, turn_ended
from coterie.engine.turns.asking import Asking
from coterie.engine.turns.live import LiveTurn
from coterie.engine.turns.loop import CallStarted, Step, ToolResult
from coterie.engine.turns.slots import Slot

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

log = logging.getLogger("coterie.turn")

B = TypeVar("B")
T = TypeVar("T")
ROUNDS = 50
CALLS_PER_REPLY = 64
EQUAL_FAILURES = 5
TOOL_SECONDS = 600
SNIPPET = 200
INTERNAL = "agent"
"""The channel that leads nowhere outside."""
RESULTS = 0.2
"""Share of the model's window that other agents' results may take."""

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
    window: Callable[[str], int]
    """Tokens that a model takes."""
    context: Sequence[ContextProvider]
    budget: Callable[[], TraceBudget]
    """What one message may lead to."""
    memories: Memories
    recall: Recall
    colleagues: Callable[[ActiveTurn, Asker], Colleagues] | None = None
    """The way of a turn's tools to other agents."""


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
        announced: Sequence[Announcement] = (),
    ) -> None:
        self._around = around
        self.session = session
        self.brain = brain
        self.job = job
        self.transcript = transcript
        self.live = live
        self._slot = slot
        self.announced = announced
        """Results of other agents that this turn is shown."""
        self.fresh = True
        self.successor: TurnJob | None = None
        """The turn that took over, once this one was steered."""
        self._failures: dict[tuple[str, str], int] = {}
        self._under_way: str | None = None
        """The call that was begun and has no stored result."""
        self._recalled: list[str | None] = []
        """What memory gave for this turn's message, once it was asked."""
        self._usage = job.usage
        self._rounds = job.rounds
        self._models = (session.model,) if session.model else (brain.model, *brain.fallbacks)
        self._asking = Asking(around.resolve_model, self._models, live.start_over)
        self._waits = 0
        self._changing_state = asyncio.Lock()
        self._clock: _ToolClock | None = None

    @property
    def usage(self) -> Usage:
        """What the turn used so far."""
        return self._usage

    # What the loop sees

    @property
    def open_calls(self) -> Sequence[ToolCall]:
        return self.transcript.open_calls

    async def ask(self) -> AsyncGenerator[ModelEvent, None]:
        """One request, with whatever fits of the transcript."""
        await self._check_limits()
        await self._make_room()
        self.fresh = False
        async with aclosing(self._asking.stream(await self._request())) as events:
            async for event in events:
                yield event

    async def _request(self) -> ModelRequest:
        messages = self.transcript.sendable()
        if not self._recalled:
            # Once per message: what a turn finds out later, it finds out by its tools.
            self._recalled = [await self._around.recall.for_turn(self.session, self.brain, messages)]
        context = context_text(
            self._around,
            self.session,
            self.brain,
            self._recalled[0],
            self.announced,
            self._asking.model,
        )
        return model_request(self.brain, messages, context)

    def _window(self) -> int:
        return self._around.window(self._asking.model)

    async def _make_room(self) -> None:
        """Between rounds: what no longer fits the model's window gives way to a summary, and stays stored."""
        window = self._window()
        size = self.transcript.size + self.brain.overhead
        size += sum(len(one.meta["announce"]["result"]["summary"]) for one in self.announced)
        if compaction.tokens(size) <= window * compaction.FULL:
            return
        messages = self.transcript.sendable()
        cut = compaction.cut_point(messages, window)
        kept = self.brain.overhead + sum(map(compaction.message_size, messages[cut:]))
        if compaction.tokens(kept) > window:
            raise TurnStopped(f"the message is too long for the model's window of {window} tokens")
        if cut < 2:
            return
        through = max(message.seq or 0 for message in messages[:cut])
        text, usage = await self._summary(messages[:cut], window, through)
        self._usage += usage
        meta = {"compaction": {"through": through, "messages": cut}}
        summary = self._message("system", "system", text, now_iso(), 0, meta=meta)

        def save(tx: Transaction) -> None:
            self._step(tx, usage=usage)
            tx.sessions.append(self.session.id, [summary])

        await self._transact(save)
        self._remember([summary])
        log.info("compaction: run %s, messages 1 to %d of %s", self.job.run_id, through, self.session.key)

    async def _summary(self, messages: Sequence[Message], window: int, through: int) -> tuple[str, Usage]:
        """In the model's own words; where it cannot, a plain note."""
        request = ModelRequest(
            system=compaction.SYSTEM,
            tools=(),
            messages=compaction.summarisable(messages, window),
            context=compaction.ASK.format(words=max(50, window // 40)),
            max_tokens=max(200, window // 10),
        )
        reply: Reply | None = None
        try:
            asking = Asking(self._around.resolve_model, self._models, lambda: None)
            async with aclosing(asking.stream(request)) as events:
                async for event in events:
                    if isinstance(event, Reply):
                        reply = event
        except ModelError as error:
            log.warning("run %s: no summary could be made: %s", self.job.run_id, error.message)
        text = _reply_text(reply)[: int(window * compaction.RESULT * compaction.CHARACTERS_PER_TOKEN)]
        if reply is None or not text.strip():
            return compaction.without_summary(1, through), reply.usage if reply else Usage()
        return compaction.summary_text(text, 1, through), reply.usage

    async def run(self, call: ToolCall) -> ToolResult:
        """A refusal, a wrong argument and a failure are results: the model sees them and the loop goes on."""
        started = time.monotonic()
        self._under_way = call.id
        text, ok = await self._outcome(call)
        await self._go_on()  # the tool may have failed while it waited
        text = text.encode("utf-8", "replace").decode()  # half a character has no place in any store
        self._count_failures(call, ok, text)
        return ToolResult(call, text, ok, int((time.monotonic() - started) * 1000))

    async def _outcome(self, call: ToolCall) -> tuple[str, bool]:
        decision = self.brain.may_call(call.name)
        if not decision.allowed:
            return f"error: {decision.code}: {call.name} cannot be called here ({decision.reason})", False
        tool = self.brain.tools[call.name]
        colleagues = self._around.colleagues
        context = ToolContext(
            agent_id=self.brain.agent_id,
            session_key=self.session.key,
            run_id=self.job.run_id,
            call_id=call.id,
            workspace=self.brain.workspace,
            memory=TurnMemory(self._around.memories, self.brain, self.session, self.job.run_id, call.id),
            while_waiting=self.while_waiting,
            read_result=self._read_result,
            colleagues=None if colleagues is None else colleagues(self, self._asker(call.id)),
        )
        try:
            async with asyncio.timeout(TOOL_SECONDS) as limit:
                self._clock = _ToolClock(limit)
                return await tool.call(context, call.arguments), True
        except ToolInputError as error:
            return f"error: invalid_arguments: {error.message}", False
        except ToolError as error:
            return f"error: {error.reason}: {error.message}", False
        except CoterieError as error:
            return f"error: {error.message}", False
        except TimeoutError:
            return f"error: the tool did not end within {TOOL_SECONDS} seconds", False
        except Exception as error:
            log.exception("tool %s failed in run %s", call.name, self.job.run_id)
            return f"error: {type(error).__name__}: {str(error)[:500]}", False

    def _asker(self, call_id: str) -> Asker:
        return Asker(
            agent_id=self.brain.agent_id,
            session_id=self.session.id,
            session_key=self.session.key,
            run_id=self.job.run_id,
            call_id=call_id,
            trace_id=self.job.trace_id,
            hop=self.job.hop,
            chain=self.job.chain,
            is_subagent=self.session.kind == "subagent",
        )

    async def _read_result(self, result_id: str) -> str | None:
        """Bound to this session: no other session's results can be read, nor runs that others asked for."""

        def look(tx: Transaction) -> str | None:
            kept = tx.sessions.kept_result(self.session.id, result_id)
            if kept is not None:
                return kept
            run = tx.runs.get(result_id)
            return run.result if run is not None and run.requester_session_id == self.session.id else None

        return await self._around.store.look(look)

    # Boundaries

    async def steering(self, unstarted: Sequence[ToolCall]) -> bool:
        """If a message waits, hand over to it in one transaction."""
        taken: list[Message] = []

        def hand_over(tx: Transaction) -> tuple[TurnJob, Sequence[Announcement]] | None:
            taken.clear()
            found = tx.turns.next_work(self.session.id)
            if found is None or any(self._is_for_another(entry) for entry in found.entries):
                return None  # nothing waits, or it came after the session went to another agent
            job = found.job
            at = now_iso()
            for call in unstarted:
                taken.append(self._result_message(call, SKIPPED, at, len(taken)))
            tx.turns.move(self.job.run_id, TurnState.INTERRUPTED, epoch=self._around.epoch)
            token = {"skipped": [{"id": c.id, "name": c.name} for c in unstarted]}
            tx.turns.put_back(self.session.id, self.job.run_id, token, at)
            tx.turns.claim(job.run_id, epoch=self._around.epoch, agent_id=self.brain.agent_id, at=at)
            if job.kind == "request":
                tx.runs.start(job.run_id, at)
            for one in found.entries:
                tx.turns.take(one)
                taken.append(self.consumed(one, len(taken)))
            tx.sessions.append(self.session.id, taken)
            successor = replace(
                job, state=TurnState.RUNNING, agent_id=self.brain.agent_id, epoch=self._around.epoch
            )
            return successor, results_for(tx, job) if found.announced else ()

        handed = await self._around.store.transact(hand_over)
        self._remember(taken)
        if handed is not None:
            self.successor, self._successor_is_shown = handed
            log.info(
                "steer: run %s gives way to run %s, trace %s",
                self.job.run_id,
                self.successor.run_id,
                self.job.trace_id,
            )
        return self.successor is not None

    _successor_is_shown: Sequence[Announcement] = ()

    def _is_for_another(self, entry: InboxEntry) -> bool:
        """A result that came in is for whoever has the session; anything else for whom it was sent to."""
        is_result = entry.run_id is None and entry.origin == "agent"
        return entry.agent_id != self.job.agent_id and not is_result

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
        """A result that would take too much of the window is stored whole and shown shortened, once and for all."""
        meta: dict[str, Any] = {"duration_ms": result.duration_ms, "ok": result.ok}
        text = result.text
        limit = int(self._window() * compaction.RESULT * compaction.CHARACTERS_PER_TOKEN)
        long = len(text) > limit
        if long:
            meta["full_characters"] = len(text)
            text = compaction.shortened(text, limit, result.call.id)
        message = self._result_message(result.call, text, now_iso(), 0, meta)

        def save(tx: Transaction) -> None:
            self._step(tx)
            tx.sessions.append(self.session.id, [message])
            if long:
                tx.sessions.keep_result(self.session.id, result.call.id, result.text, message.created_at)

        await self._transact(save)
        self._under_way = None
        self._remember([message])

    async def _commit_reply(self, reply: Reply) -> None:
        at = now_iso()
        text = _reply_text(reply)
        message = self.transcript.distinct(
            self._message("assistant", "agent", text, at, 0, parts=reply.parts, meta=self._told_of_fallback())
        )
        messages = [message]
        for call in message.tool_calls[CALLS_PER_REPLY:]:
            refusal = f"error: not run: a reply may hold {CALLS_PER_REPLY} calls at most"
            messages.append(self._result_message(call, refusal, at, len(messages)))
        self._usage += reply.usage
        self._rounds += 1
        final = not message.tool_calls

        def save(tx: Transaction) -> None:
            self._step(
                tx,
                replies=1,
                usage=reply.usage,
                model=self._asking.model,
                state=TurnState.DONE if final else TurnState.RUNNING,
                final=message.id if final else None,
                at=at if final else None,
            )
            tx.sessions.append(self.session.id, messages)
            if final:
                tx.sessions.touch(self.session.id, at, text[:SNIPPET])
                if self._is_delivered:
                    assert self.session.route is not None
                    tx.turns.send(self.session.id, self.job.run_id, message, self.session.route)
                turn_ended(tx, self.job, TurnState.DONE, at, text=text, announced=bool(self.announced))

        await self._transact(save)
        self._remember(messages)
        self.live.reply_committed()
        if final:
            self.final = message

    def _told_of_fallback(self) -> Mapping[str, Any] | None:
        fallback = self._asking.fallback
        return None if fallback is None else {"fallback": fallback}

    final: Message | None = None
    """The answer, once there is one."""

    @property
    def _is_delivered(self) -> bool:
        """What one agent says to another never leaves the house."""
        route = self.session.route
        return (
            self.session.deliver
            and route is not None
            and route.get("channel") != INTERNAL
            and self.job.kind != "request"
        )

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
            result = STOPPED_UNDER_WAY if call.id == self._under_way else ABORTED
            messages.append(self._result_message(call, result, at, len(messages)))
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

        def save(tx: Transaction) -> bool:
            if not tx.turns.end(self.job.run_id, state, at, error=reason, epoch=self._around.epoch):
                return False
            tx.sessions.append(self.session.id, messages)
            tx.sessions.touch(self.session.id, at, (messages[-1].text if messages else "")[:SNIPPET])
            turn_ended(tx, self.job, state, at, error=reason)
            return True

        if await self._around.store.transact(save):
            self._remember(messages)

    async def while_waiting(self, work: Awaitable[T]) -> T:
        """Hold the session but no slot while somebody else works."""
        return await self.begin_and_wait(lambda tx: None, lambda _: work)

    async def begin_and_wait(self, begin: Callable[[Transaction], B], wait: Callable[[B], Awaitable[T]]) -> T:
        """As `while_waiting`; what is waited for begins in the transaction that makes this turn wait.

        Nobody can see one without the other: agents that ask each other at the same moment would lock up.
        """
        async with self._changing_state:

            def both(tx: Transaction) -> B:
                begun = begin(tx)
                if not self._marked:
                    tx.turns.move(self.job.run_id, TurnState.WAITING, epoch=self._around.epoch)
                return begun

            begun = await self._around.store.transact(both)
            self._waits += 1
            self._marked = True
            if not self._waiting:
                self._waiting = True
                self._slot.give_back()
                if self._clock is not None:
                    self._clock.stop()
        try:
            result = await wait(begun)
        finally:
            self._waits -= 1
        # Not in the finally: a turn that is stopped while it waits must not queue for a slot first.
        await self._go_on()
        return result

    _waiting = False
    _marked = False
    """The store says that it waits; the next step says that it runs."""

    async def _go_on(self) -> None:
        """Back to work, once nothing is waited for any more."""
        if not self._waiting:
            return
        async with self._changing_state:
            if self._waits or not self._waiting:
                return
            await self._slot.take()
            self._waiting = False
            if self._clock is not None:
                self._clock.go_on()

    def followed_by(self, job: TurnJob, brain: Brain, live: LiveTurn) -> ActiveTurn:
        """The turn of the message that steered this one: same session, same agent, same slot."""
        return ActiveTurn(
            self._around,
            self.session,
            brain,
            job,
            self.transcript,
            live,
            self._slot,
            self._successor_is_shown,
        )

    # Small parts

    def consumed(self, entry: InboxEntry, offset: int) -> Message:
        """An inbox entry as it stands in the transcript."""
        return Message(
            id=entry.message_id,
            role=entry.role,
            origin=entry.origin,
            text=entry.text,
            parts=entry.parts,
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

    def _step(self, tx: Transaction, **changes: Any) -> None:
        self._marked = False
        tx.turns.step(
            self.job.run_id,
            epoch=self._around.epoch,
            agent_id=self.brain.agent_id,
            cost=self._usage.cost,
            **changes,
        )

    async def _transact(self, work: Callable[[Transaction], None]) -> None:
        await self._around.store.transact(work)

    def _remember(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.transcript.append(message)

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
        await self._check_trace()
        if limits.tokens_per_day is None and limits.cost_per_day is None:
            return
        today = now_iso()[:10]
        spent: Usage = await self._around.store.look(
            lambda tx: tx.turns.spent_since(self.brain.agent_id, today)
        )
        if limits.cost_per_day is not None and (spent.cost or 0) >= limits.cost_per_day:
            raise TurnStopped(f"{self.brain.label} spent ${spent.cost or 0:.2f} today, the most it may spend")
        if (
            limits.tokens_per_day is not None
            and spent.input_tokens + spent.output_tokens >= limits.tokens_per_day
        ):
            raise TurnStopped(f"{self.brain.label} used all the tokens it may use in a day")

    async def _check_trace(self) -> None:
        """What one message led to, over all agents; a plain turn is asked only where tokens or cost are limited."""
        budget = self._around.budget()
        alone = self.job.kind == "message" and self.job.hop == 0
        if alone and budget.tokens is None and budget.cost is None:
            return
        used = await self._around.store.look(lambda tx: tx.turns.used_by_trace(self.job.trace_id))
        problem = budget.problem(used, now_iso())
        if problem is not None:
            raise TurnStopped(problem)

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


class _ToolClock:
    """How long a tool may take, not counting what it waits for."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._left = 0.0

    def stop(self) -> None:
        when = self._limit.when()
        if when is not None and not self._limit.expired():
            self._left = when - asyncio.get_running_loop().time()
            self._limit.reschedule(None)

    def go_on(self) -> None:
        if self._limit.when() is None and not self._limit.expired():
            with contextlib.suppress(RuntimeError):  # the tool has ended
                self._limit.reschedule(asyncio.get_running_loop().time() + self._left)


def model_request(brain: Brain, messages: Sequence[Message], context: str) -> ModelRequest:
    """Tools, the stable system prompt, the transcript, and one trailing context message."""
    spec = brain.spec
    return ModelRequest(
        system=brain.system,
        tools=brain.schemas,
        messages=messages,
        context=context,
        temperature=spec.temperature,
        max_tokens=spec.max_tokens,
        thinking=spec.thinking,
    )


def context_text(
    around: Surroundings,
    session: Session,
    brain: Brain,
    recalled: str | None = None,
    announced: Sequence[Announcement] = (),
    model: str | None = None,
) -> str:
    """Made for one request and never stored. Results of other agents get a share of the model's window."""
    lines: dict[str, str] = {}
    for provider in around.context:
        lines.update(provider(session, brain))
    if recalled is not None:
        lines["memory"] = recalled
    if announced:
        window = around.window(model or brain.model)
        lines["results"] = results_text(announced, int(window * RESULTS * compaction.CHARACTERS_PER_TOKEN))
    return context_message(lines)


def _reply_text(reply: Reply | None) -> str:
    """What a person sees of a reply."""
    return "\n\n".join(part.text for part in reply.parts if isinstance(part, TextPart)) if reply else ""


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
