"""Runs that agents do for others, while they live: who waits for them, and who is told how they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from coterie.core.announce import RunStatus, SubagentRun
from coterie.engine.events import Events


class Runs:
    """What this process knows of live runs. The store has them all; here they are found without asking it."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._live: dict[str, SubagentRun] = {}
        self._by_session: dict[str, SubagentRun] = {}
        """Of these, children by their session."""
        self._ends: dict[str, asyncio.Event] = {}

    def know(self, runs: Iterable[SubagentRun]) -> None:
        for run in runs:
            self._live[run.run_id] = run
            if run.kind == "subagent":
                self._by_session[run.session_id] = run

    def begun(self, run: SubagentRun) -> None:
        self.know([run])
        self._tell(run)

    def started(self, run_id: str) -> None:
        run = self._live.get(run_id)
        if run is not None and run.status == "queued":
            self.begun(replace(run, status="running"))

    def ended(self, run_id: str, status: RunStatus) -> None:
        run = self._live.pop(run_id, None)
        if run is None:
            return
        self._by_session.pop(run.session_id, None)
        if (over := self._ends.pop(run_id, None)) is not None:
            over.set()
        self._tell(replace(run, status=status))

    async def end_of(self, run_id: str) -> None:
        """Until a run has ended."""
        if run_id in self._live:
            await self._ends.setdefault(run_id, asyncio.Event()).wait()

    def in_session(self, session_id: str) -> SubagentRun | None:
        return self._by_session.get(session_id)

    def of_agent(self, agent_id: str) -> list[SubagentRun]:
        return [run for run in self._live.values() if run.agent_id == agent_id]

    def _tell(self, run: SubagentRun) -> None:
        self._events.publish(
            "subagent.changed",
            {
                "run_id": run.run_id,
                "kind": run.kind,
                "status": run.status,
                "agent_id": run.agent_id,
                "label": run.label,
                "child_session_key": run.session_key,
                "requester_session_key": run.requester_session_key,
            },
        )
