"""Other agents, bound to one call of one turn: who asks can neither be forgotten nor forged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic.alias_generators import to_camel

from coterie.core.announce import Asker, SubagentRun
from coterie.core.audience import OWNER, is_outside
from coterie.core.errors import InvalidRequest
from coterie.core.fence import Fences
from coterie.core.tool import ToolError
from coterie.engine.household.brain import Brains
from coterie.engine.together.delegation import Delegation
from coterie.engine.together.subagents import Subagents, Told
from coterie.engine.together.switching import Switching
from coterie.engine.turns.waiting import Waiting

SHOWN = 50
RESULT = 4_000
THEIR_WORDS = ("response", "thinkingText", "result", "error")
"""Fields of an answer that hold what another agent said."""


class BoundColleagues:
    """Implements the Colleagues port."""

    def __init__(
        self,
        brains: Brains,
        delegation: Delegation,
        subagents: Subagents,
        switching: Switching,
        waiting: Waiting,
        asker: Asker,
        fences: Fences,
    ) -> None:
        self._brains = brains
        self._delegation = delegation
        self._subagents = subagents
        self._switching = switching
        self._waiting = waiting
        self._asker = asker
        self._fences = fences

    def peers(self) -> list[dict[str, Any]]:
        found = self._brains.peers(self._asker.agent_id, self._brains.of(self._asker.agent_id).spec)
        return [
            {"agentId": peer.id, "label": peer.label, "description": peer.description or ""} for peer in found
        ]

    async def message(
        self, agent_id: str, content: str, *, session: str, mode: str, seconds: float
    ) -> dict[str, Any]:
        answer = await self._delegation.message(
            self._waiting, self._asker, agent_id, content, session=session, mode=mode, seconds=seconds
        )
        return self._marked(answer, answer["agentId"])

    def _marked(self, told: dict[str, Any], agent_id: str) -> dict[str, Any]:
        """What another agent said, as its words."""
        who = f"agent {agent_id}"
        names = (*THEIR_WORDS, "message") if told.get("status") == "error" else THEIR_WORDS
        theirs = {name: told[name] for name in names if told.get(name)}
        return {**told, **{name: self._fences.around(text, who) for name, text in theirs.items()}}

    async def switch(self, agent_id: str, message: str | None, summary: str | bool) -> dict[str, Any]:
        return await self._switching.switch(self._asker, agent_id, message, summary)

    async def spawn(
        self,
        task: str,
        *,
        agent_id: str | None,
        label: str | None,
        model: str | None,
        tools: Sequence[str] | None,
        seconds: float | None,
    ) -> dict[str, Any]:
        try:
            receipt = await self._subagents.spawn(
                self._asker, task, agent_id=agent_id, label=label, model=model, tools=tools, seconds=seconds
            )
        except InvalidRequest as error:
            raise ToolError("invalid_arguments", error.message) from None
        run = receipt.run
        return {
            "status": run.status,
            "runId": run.run_id,
            "childSessionKey": run.session_key,
            "agentId": run.agent_id,
            "model": run.model,
            "workspace": receipt.workspace,
            "tools": list(receipt.tools),
        }

    async def runs(self) -> list[dict[str, Any]]:
        found = await self._subagents.list(requester=self._asker.session_id, limit=SHOWN, heard=True)
        return [self._marked(_brief(told.run), told.run.agent_id) for told in found if self._may_hear(told)]

    def _may_hear(self, told: Told) -> bool:
        """Not what was done for the owner, where somebody else hears this turn."""
        hears = self._asker.heard_by
        return hears is None or not is_outside(hears) or is_outside(told.heard_by or OWNER)

    async def run(self, run_id: str) -> dict[str, Any]:
        told = await self._own(run_id)
        found = _brief(told.run)
        if told.run.result is not None:
            found["result"] = told.run.result[:RESULT]
            if len(told.run.result) > RESULT:
                found["more"] = f'results_read {{"id": "{run_id}", "offset": {RESULT}}} reads on'
        return self._marked(found, told.run.agent_id)

    async def cancel(self, run_id: str) -> dict[str, Any]:
        await self._own(run_id)
        run = (await self._subagents.cancel(run_id)).run
        return self._marked(_brief(run), run.agent_id)

    async def _own(self, run_id: str) -> Told:
        """Only what this session asked for; nothing else exists for it."""
        told = await self._subagents.get(run_id)
        if told.run.requester_session_id != self._asker.session_id or not self._may_hear(told):
            raise ToolError("invalid_arguments", f"this session asked for no run {run_id[:100]!r}")
        return told


def _brief(run: SubagentRun) -> dict[str, Any]:
    fields = ("run_id", "status", "agent_id", "label", "error", "created_at", "ended_at")
    found = {to_camel(name): value for name in fields if (value := getattr(run, name)) is not None}
    return {**found, "task": run.task[:200]}
