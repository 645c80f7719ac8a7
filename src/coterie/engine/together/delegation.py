"""agents_message: one agent asks another, and waits for the answer or is told of it later."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from coterie.core.announce import Asker, SubagentRun, milliseconds
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError
from coterie.core.message import ThinkingPart, check_text
from coterie.core.session import Session, delegated_key
from coterie.core.tool import ToolError
from coterie.engine.together.subagents import Subagents
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.sessions import Sessions
from coterie.engine.turns.turns import Turns
from coterie.engine.turns.waiting import Waiting

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

LONGEST_WAIT = 86_400
LONGEST_RESPONSE = 20_000
"""Characters of an answer that a call returns; `results_read` has the rest."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A message that is on its way to an answer."""

    run: SubagentRun
    session: Session
    created: bool
    """The session was made for it."""


class Target(Protocol):
    """Whoever can be asked. What comes of it is a run, whoever does the work."""

    @property
    def agent_id(self) -> str: ...

    def begin(self, change: TurnChange, asker: Asker, content: str, session: str, *, announce: bool) -> Begun:
        """Put the message where it will be answered."""


class Delegation:
    def __init__(self, store: Store, turns: Turns, sessions: Sessions, subagents: Subagents) -> None:
        self._store = store
        self._turns = turns
        self._sessions = sessions
        self._subagents = subagents

    async def message(
        self,
        waiting: Waiting,
        asker: Asker,
        agent_id: str,
        content: str,
        *,
        session: str,
        mode: str,
        seconds: float,
    ) -> dict[str, Any]:
        try:
            check_text(content)
        except CoterieError as error:
            raise ToolError("invalid_arguments", error.message) from None
        if not 0 < seconds <= LONGEST_WAIT:
            raise ToolError("invalid_arguments", f"timeout is more than 0 and at most {LONGEST_WAIT} seconds")

        def begin(change: TurnChange) -> Begun:
            found = self._subagents.begun_before(change.tx, asker)
            if found is not None:
                return _begun_before(change.tx, found)
            target = self._target(asker, agent_id)
            self._subagents.check_limits(change.tx, asker, target.agent_id)
            return target.begin(change, asker, content, session, announce=mode == "async")

        if mode == "async":
            begun = await self._turns.transact(begin)
            return {"mode": "async", "status": "started", **_place(begun), "responseId": begun.run.run_id}

        async def wait(begun: Begun) -> Begun:
            left = seconds - milliseconds(begun.run.created_at, now_iso()) / 1000
            try:
                await asyncio.wait_for(self._turns.runs.end_of(begun.run.run_id), max(0.0, left))
            except TimeoutError:
                pass
            return begun

        begun = await waiting.begin_and_wait("agent", begin, wait)
        run_id = begun.run.run_id
        answer = await self._store.look(lambda tx: _answer(tx, begun))
        if answer is not None:
            return answer
        # Whichever comes first: the announcement is asked for, or the answer is there after all.
        answer = await self._store.transact(
            lambda tx: None if tx.runs.announce_later(run_id) else _answer(tx, begun)
        )
        if answer is not None:
            return answer
        message = "no answer yet; it goes on, and its result will be announced under this responseId"
        return {**_head(begun), "status": "timeout", "timeoutSeconds": seconds, "message": message}

    def _target(self, asker: Asker, name: str) -> Target:
        """Agents of this household, for now; what else can be asked gets a class of its own here."""
        return Housemate(self._subagents.reachable(asker, name), self._sessions, self._subagents)


class Housemate:
    """An agent of this household, asked in a session that is there for nothing but what this caller asks of it, and
    for one audience: it meets neither the agent's own conversations nor anybody else's."""

    def __init__(self, agent_id: str, sessions: Sessions, subagents: Subagents) -> None:
        self.agent_id = agent_id
        self._sessions = sessions
        self._subagents = subagents

    def begin(self, change: TurnChange, asker: Asker, content: str, session: str, *, announce: bool) -> Begun:
        found = self._find(change.tx, asker, session)
        place = found or self._make(change.tx, asker)
        run = self._subagents.add(
            change, asker, place, self.agent_id, content, kind="message", announce=announce
        )
        return Begun(run, place, created=found is None)

    def _find(self, tx: Transaction, asker: Asker, session: str) -> Session | None:
        if session in ("latest", "latest-or-create"):
            idle = session == "latest-or-create"
            found = tx.sessions.latest_delegated(self.agent_id, asker.agent_id, asker.audience, idle=idle)
            if found is None and session == "latest":
                raise ToolError(
                    "agent_session_error", f"you have not asked {self.agent_id} anything here before"
                )
            return found
        return None if session == "create" else self._named(tx, asker, session)

    def _make(self, tx: Transaction, asker: Asker) -> Session:
        session_id = str(uuid.uuid4())
        return self._sessions.add(
            tx,
            self.agent_id,
            "agent",
            delegated_key(self.agent_id, asker.agent_id, session_id),
            session_id=session_id,
            name=f"Asked by {asker.agent_id}",
            parent_id=asker.session_id,
            audience=asker.audience,
        )

    def _named(self, tx: Transaction, asker: Asker, ref: str) -> Session:
        """Whether it is another's or not there at all, an agent is told the same."""
        try:
            found = self._sessions.find(tx, ref)
        except CoterieError:
            found = None
        if (
            found is None
            or not found.key.startswith(delegated_key(self.agent_id, asker.agent_id, ""))
            or self._sessions.agent_id(found) != self.agent_id
            or found.audience != asker.audience
        ):
            raise ToolError(
                "agent_session_error", f"{ref[:200]!r} is no session in which you asked {self.agent_id}"
            )
        return found


def _begun_before(tx: Transaction, run: SubagentRun) -> Begun:
    session = tx.sessions.find(run.session_id)
    gone = Session(run.session_id, run.session_key, run.agent_id, "agent")
    first = tx.sessions.page(run.session_id, limit=1, after=0)
    created = not first or first[0].run_id == run.run_id
    return Begun(run, session or gone, created)


def _place(begun: Begun) -> dict[str, Any]:
    return {
        "agentId": begun.run.agent_id,
        "sessionId": begun.session.id,
        "sessionName": begun.session.name or begun.session.key,
        "created": begun.created,
    }


def _head(begun: Begun) -> dict[str, Any]:
    return {"mode": "sync", **_place(begun), "responseId": begun.run.run_id}


def _answer(tx: Transaction, begun: Begun) -> dict[str, Any] | None:
    """What has come of it; None while nothing has."""
    run = tx.runs.get(begun.run.run_id)
    if run is not None and run.is_live:
        return None
    if run is None or run.status == "error":
        error = run.error if run is not None else "the run was removed"
        return {**_head(begun), "status": "error", "message": error}
    text = run.result or ""
    answer: dict[str, Any] = {**_head(begun), "status": "complete", "response": text[:LONGEST_RESPONSE]}
    if len(text) > LONGEST_RESPONSE:
        answer["truncated"] = True
        answer["message"] = f'results_read {{"id": "{run.run_id}", "offset": {LONGEST_RESPONSE}}} reads on'
    answer["durationMs"] = milliseconds(run.created_at, run.ended_at)
    return {**answer, **_activity(tx, run)}


def _activity(tx: Transaction, run: SubagentRun) -> dict[str, Any]:
    """What the target did on the way."""
    job = tx.turns.get(run.run_id)
    asked = tx.sessions.message(job.message_id) if job is not None else None
    if asked is None or asked.seq is None:
        return {}
    messages = tx.sessions.of_run(run.session_id, run.run_id, asked.seq)
    calls = [
        {"name": m.tool_name, "durationMs": int((m.meta or {}).get("duration_ms", 0))}
        for m in messages
        if m.role == "tool"
    ]
    thoughts = [part.text for m in messages for part in m.parts if isinstance(part, ThinkingPart)]
    found: dict[str, Any] = {"toolCallCount": len(calls)}
    if calls:
        found["toolCalls"] = calls
    if thoughts:
        found["thinkingText"] = "\n\n".join(thoughts)[:LONGEST_RESPONSE]
    return found
