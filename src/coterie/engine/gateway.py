"""The one door behind every surface: agents, sessions, messages in, events out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from coterie.config import Embeddings
from coterie.core.announce import TraceBudget
from coterie.core.clock import now_iso
from coterie.core.compaction import DEFAULT_WINDOW
from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound
from coterie.core.events import ChatEvent, final_fields
from coterie.core.message import ImagePart, Message, Origin, check_text
from coterie.core.ports import Embedder, Model, ProviderState
from coterie.core.session import Session
from coterie.core.tool import ToolSource
from coterie.core.turn import ACTIVE, ENDED, Claim, InboxEntry, Reception, Stop, TurnJob, TurnState
from coterie.engine.access import Access
from coterie.engine.backups import Backups
from coterie.engine.condition import Condition
from coterie.engine.events import Events
from coterie.engine.household.brain import Brains
from coterie.engine.household.home import Home
from coterie.engine.household.household import Change
from coterie.engine.household.registry import Registry
from coterie.engine.household.toolbox import Toolbox
from coterie.engine.memory.memories import Memories
from coterie.engine.memory.recall import Recall
from coterie.engine.together.colleagues import BoundColleagues
from coterie.engine.together.delegation import Delegation
from coterie.engine.together.subagents import Subagents
from coterie.engine.together.switching import Switching
from coterie.engine.turns.active_turn import Approver, Means, nobody_to_ask
from coterie.engine.turns.answering import Answerers
from coterie.engine.turns.change import Asked, TurnChange
from coterie.engine.turns.context import ContextProvider, time_line
from coterie.engine.turns.deliveries import Deliveries
from coterie.engine.turns.dispatcher import Dispatcher
from coterie.engine.turns.limits import Limits
from coterie.engine.turns.prefixes import Prefixes
from coterie.engine.turns.purging import Purging
from coterie.engine.turns.sessions import Sessions
from coterie.engine.turns.slots import Slots
from coterie.engine.turns.stopping import Stopping
from coterie.engine.turns.tool_calls import ToolCalls
from coterie.engine.turns.transcripts import Transcripts
from coterie.engine.turns.turns import Turns
from coterie.engine.turns.waking import LocalWaker

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

log = logging.getLogger("coterie.gateway")

RETRY_SECONDS = 600
"""How long a client's repeated request is taken for the same one."""
RETRY = "[Retry] The last turn ended without an answer. Answer the message before it now; repeat nothing that was done."
KEY_US = 86_400_000_000
"""How long an idempotency key stands for what was asked under it first."""
SWEEP_SECONDS = 3_600
MAX_IMAGES = 20
"""Pictures of one message."""


class Models(Protocol):
    """Where models come from."""

    async def resolve(self, name: str) -> Model:
        """By `<provider>/<model>`. Raises ModelError."""

    def describe(self, *, only_usable: bool) -> Sequence[ProviderState]: ...

    def check(self, name: str) -> None:
        """Raises InvalidRequest where no model could be behind a name; which ones there are, its provider knows."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a house is put together from, besides its home and its store."""

    models: Models
    tools: Sequence[ToolSource]
    make_embedder: Callable[[Embeddings], Embedder | None] = lambda _: None
    context: Sequence[ContextProvider] = ()
    """Lines for the trailing context of every request."""
    approve: Approver = nobody_to_ask


@dataclass(frozen=True, slots=True)
class Receipt:
    """The acknowledgement: the message is on disk."""

    message_id: str
    run_id: str
    status: Reception
    session: Session


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended."""

    run_id: str
    state: TurnState
    text: str
    message_id: str | None
    error: str | None
    job: TurnJob
    final: Message | None = None
    """The answer, where there is one."""


class Gateway:
    """A household, opened. Only the process with a claim runs turns; any other looks, and puts messages in line."""

    def __init__(
        self, home: Home, store: Store, registry: Registry, parts: Parts, claim: Claim | None = None
    ) -> None:
        self.home = home
        self.store = store
        self.claim = claim
        self.superseded: str | None = None
        """Why another process runs the turns now."""
        self.registry = registry
        self.models = parts.models
        self.started = time.time()
        self.pid = os.getpid()
        self.events = Events()
        self.access = Access(home, store)
        self.condition = Condition(home, store)
        self.backups = Backups(home, lambda: registry.sync.config.backup)
        self.memories = Memories(store, registry, self.events, parts.make_embedder)
        self.brains = Brains(registry, home.path, Toolbox(parts.tools))
        self._put_turns_together(parts)
        registry.sync.listen(self._agents_changed)

    def _put_turns_together(self, parts: Parts) -> None:
        """Each part knows those before it: turns, then who asks for them, then who runs them."""
        store, registry, brains, events = self.store, self.registry, self.brains, self.events
        self._waker = LocalWaker()
        self.turns = Turns(store, self.claim, brains, self._waker, events, Transcripts(store))
        self.deliveries = Deliveries(self.turns)
        self.stopping = Stopping(store, self.turns)
        self.sessions = Sessions(
            store, registry, brains, self.turns, self.stopping, events, parts.models.check
        )
        limits = Limits(store, partial(_trace_budget, registry))
        self.subagents = Subagents(
            store,
            registry,
            brains,
            self.sessions,
            self.turns,
            self.stopping,
            limits.budget,
            parts.models.check,
        )
        delegation = Delegation(store, self.turns, self.sessions, self.subagents)
        switching = Switching(brains, self.sessions, self.subagents, self.turns, events)
        colleagues = partial(BoundColleagues, brains, delegation, self.subagents, switching)
        self.answerers = Answerers(
            self.turns,
            limits,
            Recall(self.memories, lambda: self.sessions.made),
            parts.models.resolve,
            partial(_window, registry),
            (time_line, *parts.context),
            Prefixes(),
        )
        means = Means(self.turns, self.answerers, ToolCalls(store, self.memories, colleagues), parts.approve)
        slots = Slots(lambda: registry.sync.config.turns.concurrency)
        self._dispatcher = Dispatcher(store, self.turns, brains, means, slots, self.subagents.gates)
        self._purging = Purging(self.turns, events)
        registry.empty = self._purging.empty

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run turns until the block ends, first of all those that a former process left."""
        assert self.claim is not None
        self.registry.sync.listen(self.subagents.agent_changed)
        await self.subagents.recover()
        self._purging.listen()
        self._waker.listen(self._dispatcher.wake)
        await self._dispatcher.recover()
        beside = [
            asyncio.create_task(work)
            for work in (
                self.memories.keep_embedding(),
                self._sweep(),
                self.deliveries.keep(),
                self.backups.keep(),
            )
        ]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            self.condition.close()
            await self._dispatcher.stop()
            await self.models.aclose()

    async def _sweep(self) -> None:
        """Now and every hour: single requests are gone after a day."""
        while True:
            try:
                if gone := await self.sessions.sweep():
                    log.info("%d sessions of single requests were a day old and are gone", gone)
            except CoterieError as error:
                log.warning("old single requests could not be deleted: %s", error.message)
            except Exception:
                log.exception("old single requests could not be deleted")
            await asyncio.sleep(SWEEP_SECONDS)

    def _agents_changed(self, change: Change) -> None:
        what, agent_id = change
        self.events.publish("agents.changed", {"agent_id": agent_id, "change": what})

    # Messages in

    async def submit(
        self,
        ref: str,
        text: str,
        *,
        images: Sequence[ImagePart] = (),
        origin: Origin = "user",
        meta: Mapping[str, Any] | None = None,
        key: str | None = None,
        body_hash: str | None = None,
    ) -> Receipt:
        """Accept a message: it and its turn are on disk when this returns.

        Under a `key` that stands for a turn already, that one is meant, if the same was asked: `body_hash` tells.
        """
        check_message(text, images)

        def accept(change: TurnChange) -> Asked | Receipt:
            if key is not None and (first := self._repeated(change.tx, key, body_hash)) is not None:
                return first
            session = self.sessions.find_or_make(change.tx, ref)
            return change.ask(
                session,
                self.brains.agent_of(session),
                text,
                origin=origin,
                images=images,
                meta=meta,
                key=key,
                body_hash=body_hash,
            )

        asked = await self.turns.transact(accept)
        if isinstance(asked, Receipt):
            return asked
        return Receipt(asked.job.message_id, asked.job.run_id, asked.status, asked.session)

    async def retry(self, ref: str) -> Receipt:
        """Have the last message answered after all, once its turn ended without an answer. It is not said twice."""

        def look(tx: Transaction) -> tuple[Session, str | None]:
            session = self.sessions.find(tx, ref)
            last = tx.sessions.page(session.id, limit=1)
            failed = last[-1].run_id if last and "error" in (last[-1].meta or {}) else None
            return session, None if tx.turns.unfinished(session.id) else failed

        session, failed = await self.store.look(look)
        if failed is None:
            raise Conflict("there is nothing to try again: the last turn did not end with an error")
        return await self.submit(session.id, RETRY, origin="system", meta={"retry": failed})

    async def repeated(self, key: str, body_hash: str) -> Receipt | None:
        """What an earlier request under the same key began."""
        return await self.store.look(lambda tx: self._repeated(tx, key, body_hash))

    def _repeated(self, tx: Transaction, key: str, body_hash: str | None) -> Receipt | None:
        first = tx.turns.repeated(key, since=now_iso(offset_us=-KEY_US))
        if first is None:
            return None
        job, asked = first
        if asked != body_hash:
            raise Conflict("this idempotency key was used with another message")
        status: Reception = "queued" if job.state is TurnState.QUEUED else "started"
        return Receipt(job.message_id, job.run_id, status, self.sessions.find(tx, job.session_id))

    async def attach(self, body_hash: str) -> TurnJob | None:
        """The turn that an equal request began a moment ago, for a client that repeats it because no answer came."""
        job = await self.store.look(lambda tx: tx.turns.newest_with_body(body_hash))
        if job is None or _age(job) >= RETRY_SECONDS:
            return None
        return job if self.deliveries.is_open(job) else None

    # Turns seen from outside

    async def follow(self, run_id: str) -> AsyncIterator[ChatEvent]:
        """A turn's events to the last one, from wherever it stands now."""
        live = self.turns.live.get(run_id)
        if live is None:
            outcome = await self.outcome(run_id)
            if outcome.state not in ENDED:
                # It waits for its place since a former process accepted it.
                session = await self.sessions.get(outcome.job.session_id)
                live = self.turns.live.open(run_id, session.key)
        if live is not None:
            async for event in live.follow():
                yield event
            return
        if outcome.final is not None:
            fields = final_fields(outcome.final, outcome.job.usage)
            yield ChatEvent(run_id, outcome.job.session_id, 0, "final", 1, fields)
        elif outcome.state is TurnState.ERROR:
            yield ChatEvent(run_id, outcome.job.session_id, 0, "error", 1, {"message": outcome.error})
        else:
            yield ChatEvent(run_id, outcome.job.session_id, 0, "aborted", 1, {})

    async def outcome(self, run_id: str) -> Outcome:
        def look(tx: Transaction) -> tuple[TurnJob | None, Message | None]:
            job = tx.turns.get(run_id)
            final = tx.sessions.message(job.final_message_id) if job and job.final_message_id else None
            return job, final

        job, final = await self.store.look(look)
        if job is None:
            raise NotFound(f"there is no run {run_id[:100]!r}")
        return Outcome(
            run_id, job.state, final.text if final else "", job.final_message_id, job.error, job, final
        )

    async def queue(self, ref: str) -> tuple[Session, list[TurnJob], list[InboxEntry]]:
        """The session's unfinished turns and what waits in its inbox."""

        def look(tx: Transaction) -> tuple[Session, list[TurnJob], list[InboxEntry]]:
            session = self.sessions.find(tx, ref)
            return session, tx.turns.unfinished(session.id), tx.turns.waiting(session.id)

        return await self.store.look(look)

    async def abort(self, run_id: str) -> Stop:
        return await self.stopping.abort(run_id)

    async def cancel_queued(self, run_id: str) -> Stop:
        return await self.stopping.cancel_queued(run_id)

    async def stop_session(self, ref: str) -> tuple[Stop, str | None]:
        """Stop whatever runs in a session and for it."""
        session, jobs, _ = await self.queue(ref)
        run_id = next((job.run_id for job in jobs if job.state in ACTIVE), None)
        state: Stop = "idle" if run_id is None else await self.abort(run_id)
        if await self.stopping.children_of_session(session.id) and run_id is None:
            state = "aborted"
        return state, run_id


def _age(job: TurnJob) -> float:
    return (datetime.fromisoformat(now_iso()) - datetime.fromisoformat(job.created_at)).total_seconds()


def _window(registry: Registry, model: str) -> int:
    """Tokens that a model takes, as its provider's configuration says."""
    provider = registry.sync.config.models.providers.get(model.partition("/")[0])
    return (provider.context_window if provider else None) or DEFAULT_WINDOW


def _trace_budget(registry: Registry) -> TraceBudget:
    limits = registry.sync.config.delegation
    return TraceBudget(limits.trace_turns, limits.trace_ttl_s, limits.trace_tokens, limits.trace_cost)


def check_message(text: str, images: Sequence[ImagePart]) -> None:
    """Refuse what cannot be said. A picture needs no words."""
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(f"a message has at most {MAX_IMAGES} images", details={"field": "attachments"})
    check_text(text, needed=not images)
