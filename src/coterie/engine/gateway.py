"""The one door behind every surface: agents, sessions, messages in, events out."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from coterie.config import Embeddings
from coterie.core.announce import TraceBudget
from coterie.core.clock import now_iso
from coterie.core.compaction import DEFAULT_WINDOW
from coterie.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from coterie.core.events import ChatEvent, final_fields
from coterie.core.message import ImagePart, Message, Origin, check_text
from coterie.core.ports import Embedder, InboxEntry, Model, ProviderState
from coterie.core.session import Session
from coterie.core.tool import Tool
from coterie.core.turn import ACTIVE, ENDED, TurnJob, TurnState
from coterie.engine.access import Access
from coterie.engine.events import Events
from coterie.engine.household.brain import Brain, Brains
from coterie.engine.household.home import Home
from coterie.engine.household.household import Change
from coterie.engine.household.registry import Registry
from coterie.engine.memory.memories import Memories
from coterie.engine.memory.recall import Recall
from coterie.engine.together.colleagues import BoundColleagues
from coterie.engine.together.delegation import Delegation
from coterie.engine.together.subagents import Subagents
from coterie.engine.together.switching import Switching
from coterie.engine.turns.active_turn import ContextProvider, Surroundings
from coterie.engine.turns.announcing import turn_ended
from coterie.engine.turns.dispatcher import Dispatcher
from coterie.engine.turns.live import Live
from coterie.engine.turns.sessions import Sessions
from coterie.engine.turns.slots import Slots
from coterie.engine.turns.transcripts import Transcripts

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

RETRY_SECONDS = 600
"""How long a client's repeated request is taken for the same one."""
RETRY = "[Retry] The last turn ended without an answer. Answer the message before it now; repeat nothing that was done."
MAX_IMAGES = 20
"""Pictures of one message."""


@dataclass(frozen=True, slots=True)
class EngineClaim:
    """This process runs the home's engine, as the n-th to do so."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """The acknowledgement: the message is on disk."""

    message_id: str
    run_id: str
    status: Literal["started", "steering", "queued"]
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
    """A household, opened."""

    def __init__(
        self,
        home: Home,
        store: Store,
        claim: EngineClaim | None = None,
        load_tools: Callable[[], Mapping[str, Tool]] = dict,
        providers: Callable[[bool], Sequence[ProviderState]] = lambda all_models: (),
        make_embedder: Callable[[Embeddings], Embedder | None] = lambda _: None,
    ) -> None:
        self.home = home
        self.store = store
        self.claim = claim
        self.events = Events()
        self.registry = Registry(home, store)
        self.access = Access(home, store)
        self.memories = Memories(store, self.registry, self.events, make_embedder)
        self.started = time.time()
        self.pid = os.getpid()
        self._engine: Engine | None = None
        self._load_tools = load_tools
        self.providers = providers
        """Where models come from, with the models of all of them or only of those that can be used."""
        self.registry.sync.listen(self._agents_changed)

    @property
    def engine(self) -> Engine:
        """What runs turns; only the process that holds the home's engine lock has it."""
        if self._engine is None:
            raise Unavailable("turns run in the gateway; start it with `coterie serve`")
        return self._engine

    @cached_property
    def brains(self) -> Brains:
        """What each agent is at this moment."""
        return Brains(self.registry, self.home.path, self._load_tools())

    async def start(
        self,
        resolve_model: Callable[[str], Awaitable[Model]],
        context: Sequence[ContextProvider] = (),
        *,
        run: bool = True,
    ) -> None:
        """Begin to run turns, first of all those that a former process left. Without `run`, only look and take in."""
        assert self.claim is not None or not run
        epoch = self.claim.epoch if self.claim is not None else 0
        self._engine = Engine(self, epoch, resolve_model, context, run=run)
        await self._engine.recover()

    async def stop(self) -> None:
        if self._engine is not None:
            await self._engine.dispatcher.stop()

    def _agents_changed(self, change: Change) -> None:
        what, agent_id = change
        self.events.publish("agents.changed", {"agent_id": agent_id, "change": what})


class Engine:
    """Messages in, turns, events out."""

    def __init__(
        self,
        gateway: Gateway,
        epoch: int,
        resolve_model: Callable[[str], Awaitable[Model]],
        context: Sequence[ContextProvider],
        *,
        run: bool = True,
    ) -> None:
        self._store = gateway.store
        self.brains = gateway.brains
        self.live = Live(gateway.events)
        self.transcripts = Transcripts(self._store)
        self.around = around = Surroundings(
            self._store,
            epoch,
            resolve_model,
            partial(_window, gateway.registry),
            (_time_line, *context),
            partial(_trace_budget, gateway.registry),
            gateway.memories,
            Recall(gateway.memories, lambda: self.sessions.made),
        )
        slots = Slots(lambda: gateway.registry.sync.config.turns.concurrency)
        self.dispatcher = Dispatcher(around, self.brains, self.transcripts, self.live, slots, run=run)
        self.sessions = Sessions(
            self._store,
            gateway.registry,
            self.brains,
            self.dispatcher,
            self.transcripts,
            self.live,
            gateway.events,
        )
        self.subagents = Subagents(
            self._store,
            gateway.registry,
            self.brains,
            self.sessions,
            self.dispatcher,
            self.live,
            gateway.events,
            around.budget,
            self.abort,
        )
        self.delegation = Delegation(self._store, self.sessions, self.subagents)
        self.switching = Switching(
            self._store,
            self.brains,
            self.sessions,
            self.subagents,
            self.dispatcher,
            self.live,
            gateway.events,
        )
        around.colleagues = partial(
            BoundColleagues, self.brains, self.delegation, self.subagents, self.switching
        )
        if run:
            gateway.registry.sync.listen(self.subagents.agent_changed)

    async def recover(self) -> None:
        """Take up what a former process left."""
        await self.subagents.recover()
        await self.dispatcher.recover()

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
        """Accept a message: it and its turn are on disk when this returns."""
        check_message(text, images)
        if key is not None:
            body_hash = _body_hash(text, meta, images)
        run_id, message_id, at = uuid.uuid4().hex, uuid.uuid4().hex, now_iso()

        def accept(tx: Transaction) -> tuple[Session, TurnJob | None]:
            session = self.sessions.find_or_make(tx, ref)
            if key is not None and (first := tx.turns.repeated(session.id, key)) is not None:
                if first[1] != body_hash:
                    raise Conflict("this idempotency key was used with another message")
                return session, first[0]
            job = TurnJob(run_id, session.id, message_id, TurnState.QUEUED, trace_id=run_id, created_at=at)
            entry = InboxEntry(
                session.id,
                message_id,
                run_id,
                self.brains.agent_of(session),
                "user",
                origin,
                text,
                meta,
                at,
                parts=tuple(images),
            )
            tx.turns.submit(job, entry, key=key, body_hash=body_hash)
            return session, None

        session, first = await self._store.transact(accept)
        if first is not None:
            begun = first.state is not TurnState.QUEUED
            return Receipt(first.message_id, first.run_id, "started" if begun else "queued", session)
        status = self._status(session)
        live = self.live.open(run_id, session.key)
        if status != "started":
            live.emit("queued", status=status)
        self.dispatcher.wake(session)
        return Receipt(message_id, run_id, status, session)

    async def retry(self, ref: str) -> Receipt:
        """Have the last message answered after all, once its turn ended without an answer. It is not said twice."""

        def look(tx: Transaction) -> tuple[Session, str | None]:
            session = self.sessions.find(tx, ref)
            last = tx.sessions.page(session.id, limit=1)
            failed = last[-1].run_id if last and "error" in (last[-1].meta or {}) else None
            return session, None if tx.turns.unfinished(session.id) else failed

        session, failed = await self._store.look(look)
        if failed is None:
            raise Conflict("there is nothing to try again: the last turn did not end with an error")
        return await self.submit(session.id, RETRY, origin="system", meta={"retry": failed})

    def _status(self, session: Session) -> Literal["started", "steering", "queued"]:
        worker = self.dispatcher.worker(session.id)
        if worker is None:
            return "started"
        same_agent = worker.turn is not None and worker.turn.brain.agent_id == self.brains.agent_of(session)
        return "steering" if same_agent and worker.pending == 0 else "queued"

    async def attach(self, session: Session, body_hash: str) -> TurnJob | None:
        """The turn that an equal request began a moment ago, for a client that sends it again."""
        job = await self._store.look(lambda tx: tx.turns.newest_with_body(session.id, body_hash))
        return job if job is not None and _age(job) < RETRY_SECONDS else None

    async def attach_anywhere(self, body_hash: str) -> TurnJob | None:
        """As `attach`, for requests that name no session."""
        job = await self._store.look(lambda tx: tx.turns.newest_with_body(None, body_hash))
        return job if job is not None and _age(job) < RETRY_SECONDS else None

    async def follow(self, run_id: str) -> AsyncIterator[ChatEvent]:
        """A turn's events to the last one, from wherever it stands now."""
        live = self.live.get(run_id)
        if live is None:
            outcome = await self.outcome(run_id)
            if outcome.state not in ENDED:
                # It waits for its place since a former process accepted it.
                live = self.live.open(run_id, (await self.sessions.get(outcome.job.session_id)).key)
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

        job, final = await self._store.look(look)
        if job is None:
            raise NotFound(f"there is no run {run_id[:100]!r}")
        return Outcome(
            run_id, job.state, final.text if final else "", job.final_message_id, job.error, job, final
        )

    async def abort(self, run_id: str, reason: str | None = None) -> str:
        """Stop a turn and what others do for it, or take a waiting message back. Says which.

        With a reason it ends as an error that says so, else as stopped by a person.
        """
        job = (await self.outcome(run_id)).job
        if await self.dispatcher.abort(job.session_id, run_id, reason):
            state = "aborted"
        else:
            state = await self._take_back(job, reason)
        await self.subagents.stop_children_of(run_id)
        return state

    async def stop_session(self, ref: str) -> tuple[str, str | None]:
        """Stop whatever runs in a session and for it."""
        session, jobs, _ = await self.queue(ref)
        run_id = next((job.run_id for job in jobs if job.state in ACTIVE), None)
        state = "idle" if run_id is None else await self.abort(run_id)
        if await self.subagents.stop_children(session.id) and run_id is None:
            state = "aborted"
        return state, run_id

    async def cancel_queued(self, run_id: str) -> str:
        """Take a message back that no model has seen."""
        job = (await self.outcome(run_id)).job
        if job.state is not TurnState.QUEUED:
            raise Conflict(f"the run {run_id} is {job.state.value}, not queued")
        return await self._take_back(job)

    async def _take_back(self, job: TurnJob, reason: str | None = None) -> str:
        worker = self.dispatcher.worker(job.session_id)
        # The one that a turn works on may no longer be among those that are kept.
        running = worker.turn if worker is not None else None
        transcript = running.transcript if running is not None else self.transcripts.get(job.session_id)

        def take(tx: Transaction) -> tuple[str, Message | None]:
            at = now_iso()
            entry = tx.turns.cancel_queued(job.run_id, at)
            if entry is not None:
                turn_ended(tx, job, TurnState.CANCELLED, at, error=reason)
                message = Message(
                    id=entry.message_id,
                    role=entry.role,
                    origin=entry.origin,
                    text=entry.text,
                    parts=entry.parts,
                    meta={**(entry.meta or {}), "cancelled": True},
                    agent_id=entry.agent_id,
                    run_id=entry.run_id,
                    seq=transcript.last_seq + 1,
                    created_at=entry.created_at,
                )
                tx.sessions.append(job.session_id, [message])
                return "cancelled", message
            if job.kind == "wake" and tx.turns.end(job.run_id, TurnState.CANCELLED, at):
                tx.announcements.block_all(job.session_id, "its wake was taken back", forget_lines=False)
                return "cancelled", None
            if tx.turns.end(job.run_id, TurnState.ABORTED, at):
                turn_ended(tx, job, TurnState.ABORTED, at, error=reason)
                return "aborted", None
            return "ended", None

        state, message = await self._store.transact(take)
        if message is not None:
            transcript.append(message)
        if state != "ended":
            self.live.close(job.run_id, "aborted", reason=state)
        return state

    async def queue(self, ref: str) -> tuple[Session, list[TurnJob], list[InboxEntry]]:
        """The session's unfinished turns and what waits in its inbox."""

        def look(tx: Transaction) -> tuple[Session, list[TurnJob], list[InboxEntry]]:
            session = self.sessions.find(tx, ref)
            return session, tx.turns.unfinished(session.id), tx.turns.waiting(session.id)

        return await self._store.look(look)


def _age(job: TurnJob) -> float:
    return (datetime.fromisoformat(now_iso()) - datetime.fromisoformat(job.created_at)).total_seconds()


def _window(registry: Registry, model: str) -> int:
    """Tokens that a model takes, as its provider's configuration says."""
    provider = registry.sync.config.models.providers.get(model.partition("/")[0])
    return (provider.context_window if provider else None) or DEFAULT_WINDOW


def _trace_budget(registry: Registry) -> TraceBudget:
    limits = registry.sync.config.delegation
    return TraceBudget(limits.trace_turns, limits.trace_ttl_s, limits.trace_tokens, limits.trace_cost)


def _time_line(session: Session, brain: Brain) -> Mapping[str, str]:
    return {"time": datetime.now().astimezone().isoformat(timespec="seconds")}


def _body_hash(text: str, meta: Mapping[str, Any] | None, images: Sequence[ImagePart]) -> str:
    """What tells one message under an idempotency key from another."""
    pictures = [hashlib.sha256(image.data).hexdigest() for image in images]
    return hashlib.sha256(json.dumps([text, meta, *pictures], sort_keys=True).encode()).hexdigest()


def check_message(text: str, images: Sequence[ImagePart]) -> None:
    """Refuse what cannot be said. A picture needs no words."""
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(f"a message has at most {MAX_IMAGES} images", details={"field": "attachments"})
    check_text(text, needed=not images)
