"""One turn under way: what the loop works on, and how each of its steps reaches the disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from coterie.core import compaction
from coterie.core.message import TextPart, ToolCall, Usage
from coterie.core.policy import Decision, after_asking
from coterie.core.ports import ModelEvent, Reply
from coterie.core.steering import ABORTED, STOPPED_UNDER_WAY, UNKNOWN_OUTCOME
from coterie.core.turn import TurnState
from coterie.engine.household.brain import Brain
from coterie.engine.turns.answering import Answerers, reply_text
from coterie.engine.turns.drafts import draft, error_note, result, stop_note
from coterie.engine.turns.limits import Failures
from coterie.engine.turns.loop import CallStarted, Step, ToolResult
from coterie.engine.turns.slots import Slot
from coterie.engine.turns.tool_calls import ToolCalls, log_refusal, refused
from coterie.engine.turns.turns import Claimed, Turns
from coterie.engine.turns.waiting import Waiting

CALLS_PER_REPLY = 64
CUT_SHORT = ("length", "refused")
"""Ends of a reply that people are to know of."""

Approver = Callable[["ActiveTurn", ToolCall, Decision], Awaitable[Decision]]
"""Asks a person about one call, and says what they said."""


async def nobody_to_ask(turn: ActiveTurn, call: ToolCall, decision: Decision) -> Decision:
    return after_asking(
        decision,
        allowed=False,
        reason=f"{decision.reason}: a person must allow it, and none can be asked here",
    )


@dataclass(frozen=True, slots=True)
class Means:
    """What every turn of this process works with."""

    turns: Turns
    answerers: Answerers
    tools: ToolCalls
    approve: Approver = nobody_to_ask


class ActiveTurn:
    def __init__(self, means: Means, claimed: Claimed, brain: Brain, slot: Slot) -> None:
        self._means = means
        self._turns = means.turns
        self.session = claimed.session
        self.job = claimed.job
        self.brain = brain
        self.announced = claimed.announced
        """Results of other agents that this turn is shown."""
        self.transcript = self._turns.transcripts.get(self.session.id)
        self.live = self._turns.live.open(self.job.run_id, self.session.key)
        self.slot = slot
        self.waiting = Waiting(self._turns, self.job, slot)
        self.usage = self.job.usage
        self.rounds = self.job.rounds
        self.fresh = not claimed.cut_short or (self.rounds == 0 and not self.open_calls)
        self.successor: Claimed | None = None
        """The turn that took over, once this one was steered."""
        self._answerer = means.answerers.for_turn(self)
        self._failures = Failures()
        self._under_way: str | None = None
        """The call that was begun and has no stored result."""
        if claimed.cut_short:
            self.live.attempt = max(self.live.attempt, self.job.attempts)
            self.live.start_over()

    def used(self, usage: Usage) -> None:
        self.usage += usage

    # What the loop sees

    @property
    def open_calls(self) -> Sequence[ToolCall]:
        return self.transcript.open_calls

    async def ask(self) -> AsyncGenerator[ModelEvent, None]:
        """One reply to the transcript as it stands."""
        self._failures.check()
        async with aclosing(self._answerer.answer()) as events:
            async for event in events:
                self.fresh = False
                yield event

    async def refusal(self, call: ToolCall) -> ToolResult | None:
        """From the one resolver; where it says so, from a person, before the call counts as begun."""
        decision = self.brain.may_call(call.name)
        if decision.verdict == "ask":
            ask = decision
            decision = await self.waiting.begin_and_wait(
                "approval", lambda change: None, lambda _: self._means.approve(self, call, ask)
            )
        if decision.allowed:
            return None
        log_refusal(self, call.name, decision.reason)
        return refused(call, decision)

    async def run(self, call: ToolCall) -> ToolResult:
        self._under_way = call.id
        return await self._means.tools.run(self, call)

    async def steering(self, unstarted: Sequence[ToolCall]) -> bool:
        """If a message waits, hand over to it."""
        self.successor = await self._turns.hand_over(self.session, self.job, self.transcript, unstarted)
        return self.successor is not None

    async def commit(self, step: Step) -> None:
        match step:
            case CallStarted(call):
                if not self.brain.tools[call.name].safe_to_repeat:  # after a crash those are simply run again
                    await self._turns.step(self, open_call=call.id)
            case ToolResult():
                await self._commit_result(step)
            case Reply():
                await self._commit_reply(step)

    async def _commit_result(self, done: ToolResult) -> None:
        """A result that would take too much of the window is stored whole and shown shortened, once and for all."""
        meta: dict[str, Any] = {"duration_ms": done.duration_ms, "ok": done.ok}
        text, call = done.text, done.call
        limit = int(self._answerer.window * compaction.RESULT * compaction.CHARACTERS_PER_TOKEN)
        whole = (call.id, text) if len(text) > limit else None
        if whole is not None:
            meta["full_characters"] = len(text)
            text = compaction.shortened(text, limit, call.id, done.marks)
        mark = " ".join(done.marks) or None
        message = result(self.job, call, text, meta=meta, parts=done.parts, mark=mark)
        await self._turns.step(self, [message], whole_result=whole)
        self._under_way = None
        self._failures.count(call, done.ok, done.text)

    async def _commit_reply(self, reply: Reply) -> None:
        text = reply_text(reply)
        message = self.transcript.distinct(
            draft(self.job, "assistant", "agent", text, parts=reply.parts, meta=self._remarks(reply))
        )
        too_many = message.tool_calls[CALLS_PER_REPLY:]
        if too_many:
            names = ", ".join(dict.fromkeys(call.name for call in too_many))
            log_refusal(self, names, f"{len(message.tool_calls)} calls in one reply")
        refusal = f"error: not run: a reply may hold {CALLS_PER_REPLY} calls at most"
        self.usage += reply.usage
        self.rounds += 1
        await self._turns.step(
            self,
            [message, *(result(self.job, call, refusal) for call in too_many)],
            replies=1,
            usage=reply.usage,
            model=self._answerer.name,
            final=None if message.tool_calls else message,
        )
        self.live.reply_committed()

    def _remarks(self, reply: Reply) -> Mapping[str, Any] | None:
        """What is said of the reply beside it: also that it ended before its end."""
        said = dict(self._answerer.remarks or {})
        if reply.finish in CUT_SHORT:
            said["finish"] = reply.finish
        return said or None

    # Other ways to go on or to end

    async def recover(self) -> None:
        """After a crash: a call that was under way and must not be repeated gets an unknown outcome."""
        call = next((c for c in self.open_calls if c.id == self.job.open_call), None)
        if call is not None:
            await self._commit_result(ToolResult(call, UNKNOWN_OUTCOME, ok=False))

    async def end(self, state: TurnState, reason: str | None = None) -> None:
        """Without an answer: stopped by a person, or by something that went wrong. The person sees which."""
        # A commit may have been under way: what is on disk counts.
        self._turns.transcripts.drop(self.session.id)
        self.transcript = self._turns.transcripts.get(self.session.id)
        messages = [
            result(self.job, call, STOPPED_UNDER_WAY if call.id == self._under_way else ABORTED)
            for call in self.open_calls
        ]
        said = self.live.text
        if state is TurnState.ABORTED:
            if said:
                parts = (TextPart(said),)
                messages.append(
                    draft(self.job, "assistant", "agent", said, parts=parts, meta={"aborted": True})
                )
            messages.append(stop_note(self.job))
        else:
            messages.append(error_note(self.job, reason))
        await self._turns.end(self, state, reason, messages)
