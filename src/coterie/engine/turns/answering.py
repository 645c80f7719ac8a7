"""Who answers a turn: chosen here, and nowhere else. For now the model with its tools."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from coterie.core import compaction
from coterie.core.announce import Announcement
from coterie.core.message import Message, TextPart, Usage
from coterie.core.ports import Model, ModelError, ModelEvent, ModelRequest, Reply
from coterie.core.session import Session
from coterie.engine.household.brain import Brain
from coterie.engine.memory.recall import Recall
from coterie.engine.turns.asking import Asking
from coterie.engine.turns.context import ContextProvider, context_text, model_request
from coterie.engine.turns.drafts import draft
from coterie.engine.turns.limits import Limits, TurnStopped, Using
from coterie.engine.turns.live import LiveTurn
from coterie.engine.turns.prefixes import Prefixes
from coterie.engine.turns.turns import Running, Turns

log = logging.getLogger("coterie.turn")


class Answerable(Running, Using, Protocol):
    """A turn under way, as whoever answers it sees it."""

    @property
    def live(self) -> LiveTurn: ...

    def used(self, usage: Usage) -> None:
        """Count something that was used besides the replies."""


class Answerer(Protocol):
    """Gives one turn its replies."""

    @property
    def name(self) -> str:
        """Who is being asked, as usage and costs are booked: `<provider>/<model>`."""

    @property
    def window(self) -> int:
        """Tokens that it takes."""

    @property
    def remarks(self) -> Mapping[str, Any] | None:
        """What people should know about the last reply, for its message's meta."""

    def answer(self) -> AsyncGenerator[ModelEvent, None]:
        """Deltas, then one reply to the transcript as it stands."""


@dataclass(frozen=True, slots=True)
class Answerers:
    """What every answerer of this process shares, and the choice of one."""

    turns: Turns
    limits: Limits
    recall: Recall
    resolve_model: Callable[[str], Awaitable[Model]]
    window_of: Callable[[str], int]
    """Tokens that a model takes."""
    context: Sequence[ContextProvider]
    prefixes: Prefixes

    def for_turn(self, turn: Answerable) -> Answerer:
        return Elsewhere(turn.brain) if turn.brain.spec.type == "external" else ModelWithTools(self, turn)

    def request(
        self,
        session: Session,
        brain: Brain,
        messages: Sequence[Message],
        announced: Sequence[Announcement],
        recalled: str | None,
        model: str,
    ) -> ModelRequest:
        context = context_text(self.context, session, brain, recalled, announced, self.window_of(model))
        return model_request(brain, messages, context)


class Elsewhere:
    """An agent that lives elsewhere. Nobody here speaks in its name."""

    window = compaction.DEFAULT_WINDOW
    remarks = None

    def __init__(self, brain: Brain) -> None:
        self._label = brain.label
        self.name = f"external/{brain.agent_id}"

    async def answer(self) -> AsyncGenerator[ModelEvent, None]:
        raise TurnStopped(f"{self._label} lives elsewhere, and cannot be reached from here yet")
        yield  # makes this a generator


class ModelWithTools:
    """The agent's model, or the next in line; what no longer fits its window gives way to a summary."""

    def __init__(self, around: Answerers, turn: Answerable) -> None:
        self._around = around
        self._turn = turn
        brain, session = turn.brain, turn.session
        self._models = (session.model,) if session.model else (brain.model, *brain.fallbacks)
        self._asking = Asking(around.resolve_model, self._models, turn.live.start_over)
        self._recalled: list[str | None] = []
        """What memory gave for this turn's message, once it was asked."""

    @property
    def name(self) -> str:
        return self._asking.model

    @property
    def window(self) -> int:
        return self._around.window_of(self.name)

    @property
    def remarks(self) -> Mapping[str, Any] | None:
        fallback = self._asking.fallback
        return None if fallback is None else {"fallback": fallback}

    async def answer(self) -> AsyncGenerator[ModelEvent, None]:
        await self._around.limits.check(self._turn)
        await self._make_room()
        request, turn = await self._request(), self._turn
        async with aclosing(self._asking.stream(request)) as events:
            async for event in events:
                if isinstance(event, Reply):
                    self._around.prefixes.answered(
                        turn.session, turn.job, turn.brain, request.messages, self.name
                    )
                yield event

    async def _request(self) -> ModelRequest:
        turn = self._turn
        messages = turn.transcript.sendable()
        audience = turn.job.audience or turn.session.audience
        if not self._recalled:
            # Once per message: what a turn finds out later, it finds out by its tools.
            self._recalled = [
                await self._around.recall.for_turn(turn.session, turn.brain, messages, audience)
            ]
        return self._around.request(
            turn.session, turn.brain, messages, turn.announced, self._recalled[0], self.name
        )

    async def _make_room(self) -> None:
        """Between rounds. What is summarised stays stored."""
        turn, window = self._turn, self.window
        size = turn.transcript.size + turn.brain.overhead
        size += sum(len(one.meta["announce"]["result"]["summary"]) for one in turn.announced)
        if compaction.tokens(size) <= window * compaction.FULL:
            return
        messages = turn.transcript.sendable()
        cut = compaction.cut_point(messages, window)
        kept = turn.brain.overhead + sum(map(compaction.message_size, messages[cut:]))
        if compaction.tokens(kept) > window:
            raise TurnStopped(f"the message is too long for the model's window of {window} tokens")
        if cut < 2:
            return
        through = max(message.seq or 0 for message in messages[:cut])
        text, usage = await self._summary(messages[:cut], window, through)
        turn.used(usage)
        meta = {"compaction": {"through": through, "messages": cut}}
        await self._around.turns.step(
            turn, [draft(turn.job, "system", "system", text, meta=meta)], usage=usage
        )
        log.info(
            "compaction: run %s of %s, trace %s, messages 1 to %d",
            turn.job.run_id,
            turn.session.key,
            turn.job.trace_id,
            through,
        )

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
            log.warning("run %s: no summary could be made: %s", self._turn.job.run_id, error.message)
        if reply is None:
            return compaction.without_summary(1, through), Usage()
        text = reply_text(reply)[: int(window * compaction.RESULT * compaction.CHARACTERS_PER_TOKEN)]
        if not text.strip():
            return compaction.without_summary(1, through), reply.usage
        return compaction.summary_text(text, 1, through), reply.usage


def reply_text(reply: Reply) -> str:
    """What a person sees of a reply."""
    return "\n\n".join(part.text for part in reply.parts if isinstance(part, TextPart))
