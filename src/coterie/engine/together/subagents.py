"""Runs that one agent does for another: begun, held to their limits, watched, stopped, and announced again by hand."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coterie.core.agent import DEFAULT_ALIAS, check_model, check_pattern
from coterie.core.announce import (
    Announcement,
    Asker,
    RunKind,
    RunStatus,
    SubagentRun,
    TraceBudget,
    depth_problem,
)
from coterie.core.audience import OWNER
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound
from coterie.core.message import check_text
from coterie.core.names import LONGEST, hint
from coterie.core.policy import Place
from coterie.core.session import Session, subagent_key
from coterie.core.tool import ToolError
from coterie.engine.household.brain import Brain, Brains
from coterie.engine.household.household import Change
from coterie.engine.household.registry import Registry
from coterie.engine.turns.announcing import note, wake_job
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.sessions import Sessions
from coterie.engine.turns.slots import Gate
from coterie.engine.turns.stopping import Stopping
from coterie.engine.turns.turns import Turns

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

log = logging.getLogger("coterie.subagents")

LONGEST_TIMEOUT = 86_400
LONGEST_LABEL = 200


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a child got, all of it resolved from its own agent."""

    run: SubagentRun
    workspace: str
    tools: Sequence[str]


@dataclass(frozen=True, slots=True)
class Told:
    """A run, and how its result got back."""

    run: SubagentRun
    announcement: Announcement | None
    route: Mapping[str, Any] | None = None
    """How its requester's person is reached."""
    heard_by: str | None = None
    """For whom it was done; None where that is not known any more, or not yet."""


class Subagents:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        brains: Brains,
        sessions: Sessions,
        turns: Turns,
        stopping: Stopping,
        budget: Callable[[], TraceBudget],
        check_model: Callable[[str], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._brains = brains
        self._sessions = sessions
        self._turns = turns
        self._stopping = stopping
        self._budget = budget
        self._check_model = check_model
        """Raises where no model could be behind a name."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def recover(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns.runs.know(await self._store.look(lambda tx: tx.runs.select(live=True)))

    # Beginning

    async def spawn(
        self,
        asker: Asker | None,
        task: str,
        *,
        agent_id: str | None = None,
        label: str | None = None,
        model: str | None = None,
        tools: Sequence[str] | None = None,
        seconds: float | None = None,
    ) -> Receipt:
        """A child session with one task. Without an asker nobody is told of the result; it stays in the registry."""
        check_text(task)
        timeout_s = _checked_timeout(seconds)
        narrowed = _checked_tools(tools)
        label = _checked_label(label)
        if model is not None:
            _checked("model", check_model, model)
            self._check_model(model)

        def begin(change: TurnChange) -> SubagentRun:
            tx = change.tx
            found = self.begun_before(tx, asker)
            if found is not None:
                return found
            target = self.reachable(asker, agent_id or (asker.agent_id if asker else DEFAULT_ALIAS))
            if asker is not None:
                self.check_limits(tx, asker, target, own_child=True)
            session_id = str(uuid.uuid4())
            session = self._sessions.add(
                tx,
                target,
                "subagent",
                subagent_key(target, session_id),
                session_id=session_id,
                name=label,
                parent_id=asker.session_id if asker else None,
                model=model,
                tools=narrowed,
                audience=asker.audience if asker else OWNER,
            )
            return self.add(
                change, asker, session, target, task, kind="subagent", label=label, timeout_s=timeout_s
            )

        run = await self._turns.transact(begin)
        await asyncio.sleep(0)  # it sets out while we write the receipt
        brain = self._brain(run, narrowed, asker.audience if asker else OWNER)
        return Receipt(
            run,
            f"agents/{run.agent_id}/workspace",
            [schema.name for schema in brain.schemas] if brain else [],
        )

    def begun_before(self, tx: Transaction, asker: Asker | None) -> SubagentRun | None:
        """A call that is made again after a crash attaches to what it began."""
        if asker is None or asker.run_id is None or asker.call_id is None:
            return None
        return tx.runs.begun_by(asker.run_id, asker.call_id)

    def add(
        self,
        change: TurnChange,
        asker: Asker | None,
        session: Session,
        agent_id: str,
        text: str,
        *,
        kind: RunKind,
        announce: bool = True,
        label: str | None = None,
        timeout_s: int | None = None,
    ) -> SubagentRun:
        """The run, its turn and its message, in one transaction."""
        job = change.ask(session, agent_id, text, asker=asker, kind="request", timeout_s=timeout_s).job
        brain = self._brains.of(agent_id, Place(subagent=kind == "subagent"))
        run = SubagentRun(
            run_id=job.run_id,
            kind=kind,
            agent_id=agent_id,
            session_id=session.id,
            session_key=session.key,
            task=text,
            model=session.model or brain.model,
            trace_id=job.trace_id,
            hop=job.hop - 1,
            chain=job.chain,
            created_at=job.created_at,
            requester_session_id=asker.session_id if asker else None,
            requester_session_key=asker.session_key if asker else None,
            requester_agent_id=asker.agent_id if asker else None,
            requester_run_id=asker.run_id if asker else None,
            call_id=asker.call_id if asker else None,
            label=label,
            announce=announce and asker is not None,
        )
        change.begin_run(run)
        return run

    # Limits

    def reachable(self, asker: Asker | None, name: str) -> str:
        """The id of an active agent that the asker may see; a person may see all of them."""
        target = self._brains.named(name)
        by_person = asker is None or asker.run_id is None
        if target is None:
            if asker is None or by_person:
                raise self._registry.absent(name)
            # Of others than its peers an agent does not learn that they exist.
            peers = self._brains.peers(asker.agent_id, self._brains.of(asker.agent_id).spec)
            meant = hint(name, [peer.id for peer in peers])
            raise ToolError("agent_not_found", f"there is no active agent {name[:LONGEST]!r}{meant}")
        if self._brains.of(target).spec.type != "chat":
            problem = f"the agent {target!r} lives elsewhere and cannot be asked yet"
            raise Conflict(problem) if by_person else ToolError("agent_not_accessible", problem)
        if asker is None or by_person or target == asker.agent_id:
            return target
        peers = self._brains.peers(asker.agent_id, self._brains.of(asker.agent_id).spec)
        if target not in (peer.id for peer in peers):
            raise ToolError("agent_not_accessible", f"{asker.agent_id} may not reach the agent {target!r}")
        return target

    def check_limits(self, tx: Transaction, asker: Asker, target: str, *, own_child: bool = False) -> None:
        """Whether something may be handed on, by depth, by chain and by what its trace has used."""
        if own_child and asker.is_subagent:
            raise ToolError("tool_not_allowed", "a subagent cannot have subagents")
        depth = self._registry.sync.config.delegation.max_depth
        problem = depth_problem(asker.hop, asker.chain, asker.agent_id, target, depth, own_child=own_child)
        if problem is None and asker.trace_id is not None:
            used = tx.turns.used_by_trace(asker.trace_id)
            problem = self._budget().problem(used, now_iso(), more=1)
        if problem is not None:
            raise ToolError("delegation_limit", problem)

    def gates(self, session: Session) -> Sequence[Gate]:
        """A child passes the bounds of its parent and of the household; until then it is queued."""
        run = self._turns.runs.in_session(session.id)
        if run is None:
            return ()
        limits = self._registry.sync.config.subagents
        children, concurrent = limits.max_children, limits.max_concurrent
        gates: list[Gate] = []
        asker = run.requester_agent_id
        if asker is not None and self._brains.named(asker) is not None:
            own = self._brains.of(asker).spec.subagents
            children = min(children, own.max_children or children)
            if own.max_concurrent is not None and own.max_concurrent < concurrent:
                gates.append((f"children of agent {asker}", own.max_concurrent))
        if run.requester_session_id is not None and children < concurrent:
            gates.append((f"children of session {run.requester_session_id}", children))
        return [*gates, ("children", concurrent)]

    # Looking

    async def get(self, run_id: str) -> Told:
        def look(tx: Transaction) -> Told | None:
            run = tx.runs.get(run_id)
            if run is None:
                return None
            return Told(run, tx.announcements.get(run_id), _route(tx, run, {}), _heard_by(tx, run))

        told = await self._store.look(look)
        if told is None:
            raise NotFound(f"there is no run {run_id[:100]!r}")
        return told

    async def list(
        self,
        *,
        requester: str | None = None,
        status: RunStatus | None = None,
        before: str | None = None,
        limit: int = 200,
        heard: bool = False,
    ) -> list[Told]:
        """Newest first; with `heard`, each with whom it was done for."""

        def look(tx: Transaction) -> list[Told]:
            session = self._sessions.find(tx, requester).id if requester is not None else None
            runs = tx.runs.select(requester_session_id=session, status=status, before=before, limit=limit)
            told = tx.announcements.of([run.run_id for run in runs])
            routes: dict[str, Mapping[str, Any] | None] = {}
            return [
                Told(
                    run,
                    told.get(run.run_id),
                    _route(tx, run, routes),
                    _heard_by(tx, run) if heard else None,
                )
                for run in runs
            ]

        return await self._store.look(look)

    # Ending

    async def cancel(self, run_id: str) -> Told:
        """Stop a run; its requester is told. One that has ended stays as it is."""
        told = await self.get(run_id)
        if not told.run.is_live:
            return told
        await self._stopping.abort(run_id)
        return await self.get(run_id)

    async def delete(self, run_id: str) -> Told:
        """Cancel a live run, remove a finished one with its session. An announcement on its way stays."""
        told = await self.get(run_id)
        if told.run.is_live:
            return await self.cancel(run_id)
        await self._store.transact(lambda tx: tx.runs.remove(run_id))
        if told.run.kind == "subagent":
            with suppress(NotFound):
                await self._sessions.delete(told.run.session_id)
        return told

    def agent_changed(self, change: Change) -> None:
        """A removed agent's runs end at once; from whichever thread it was removed."""
        what, agent_id = change
        if what in ("archived", "purged") and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._agent_gone, agent_id)

    def _agent_gone(self, agent_id: str) -> None:
        for run in self._turns.runs.of_agent(agent_id):
            task = asyncio.get_running_loop().create_task(self._end_for_good(run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _end_for_good(self, run: SubagentRun) -> None:
        try:
            await self._stopping.abort(run.run_id, f"the agent {run.agent_id} is no longer active")
        except CoterieError as error:
            log.warning("run %s of a removed agent: %s", run.run_id, error.message)

    # By hand

    async def retry(self, run_id: str) -> Told:
        """Send a blocked announcement on its way again, as the beginning of a trace of its own."""

        def again(change: TurnChange) -> None:
            tx = change.tx
            found = tx.announcements.get(run_id)
            if found is None:
                raise NotFound(f"there is no announcement of the run {run_id[:100]!r}")
            if found.state != "blocked":
                raise Conflict(f"the announcement of {run_id} is {found.state}, not blocked")
            session = tx.sessions.find(found.session_id)
            if session is None:
                raise Conflict("the session that asked was deleted; its result is in the run")
            at = now_iso()
            after = replace(found, message_id=found.message_id or uuid.uuid4().hex)
            assert after.message_id is not None
            tx.announcements.retry(run_id, after.message_id)
            if found.message_id is None:
                note(tx, session, after, at)
            change.ask_for_wake(session, wake_job(after, tx.runs.get(run_id), at, anew=True))

        await self._turns.transact(again)
        return await self.get(run_id)

    def _brain(self, run: SubagentRun, tools: tuple[str, ...] | None, audience: str) -> Brain | None:
        if self._brains.named(run.agent_id) is None:
            return None
        child = Session(
            run.session_id, run.session_key, run.agent_id, "subagent", tools=tools, audience=audience
        )
        return self._brains.for_session(child, run.agent_id, hop=run.hop + 1)


def _heard_by(tx: Transaction, run: SubagentRun) -> str | None:
    """Before it begins, its session says so."""
    job, session = tx.turns.get(run.run_id), tx.sessions.find(run.session_id)
    if job is not None and job.audience is not None:
        return job.audience
    return None if session is None else session.audience


def _route(
    tx: Transaction, run: SubagentRun, known: dict[str, Mapping[str, Any] | None]
) -> Mapping[str, Any] | None:
    """Of the requester's session, while that is there."""
    if (asker := run.requester_session_id) is None:
        return None
    if asker not in known:
        session = tx.sessions.find(asker)
        known[asker] = None if session is None else session.route
    return known[asker]


def _checked(field: str, check: Callable[[str], str], value: str) -> str:
    try:
        return check(value)
    except ValueError as error:
        raise InvalidRequest(str(error), details={"field": field}) from None


def _checked_timeout(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise InvalidRequest(
            f"a timeout is more than 0 and at most {LONGEST_TIMEOUT} seconds",
            details={"field": "timeoutSeconds"},
        )
    return max(1, round(seconds))


def _checked_tools(patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    if patterns is None:
        return None
    return tuple(_checked("toolAllowlist", check_pattern, pattern) for pattern in patterns)


def _checked_label(label: str | None) -> str | None:
    if label is None or not label.strip():
        return None
    cleaned = " ".join(label.split())
    if len(cleaned) > LONGEST_LABEL:
        raise InvalidRequest(f"a label has at most {LONGEST_LABEL} characters", details={"field": "label"})
    return cleaned
