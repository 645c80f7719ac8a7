"""What each session's last request began with: a request that begins with other bytes misses the provider's cache, and
is logged with the reason."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.message import Message
from coterie.core.session import Session
from coterie.core.turn import TurnJob
from coterie.engine.household.brain import Brain

log = logging.getLogger("coterie.turn")

KEPT = 10_000
"""Sessions that are remembered; a provider's cache forgets far sooner."""


@dataclass(frozen=True, slots=True)
class Prefix:
    agent_id: str
    model: str
    tools: str
    system: int
    first: str
    """The oldest message that is sent."""

    def changes(self, former: Prefix) -> list[str]:
        """Why the bytes are others, each reason once: another agent has other tools and another prompt anyway."""
        found = []
        if self.model != former.model:
            found.append(f"model {former.model} → {self.model}")
        if self.agent_id != former.agent_id:
            found.append(f"agent {former.agent_id} → {self.agent_id}")
        elif self.tools != former.tools:
            found.append("policy or plug-ins: its tools are others")
        elif self.system != former.system:
            found.append("an identity file or a setting: its system prompt is another")
        if self.first != former.first:
            found.append("older messages are no longer sent")
        return found


class Prefixes:
    def __init__(self) -> None:
        self._last: OrderedDict[str, Prefix] = OrderedDict()
        """By session; those used longest ago first."""

    def answered(
        self, session: Session, job: TurnJob, brain: Brain, messages: Sequence[Message], model: str
    ) -> None:
        """A model has taken this request."""
        first = messages[0].id if messages else ""
        now = Prefix(brain.agent_id, model, brain.tools_digest, hash(brain.system), first)
        former = self._last.pop(session.id, None)
        self._last[session.id] = now
        if len(self._last) > KEPT:
            self._last.popitem(last=False)
        if former is not None and (changes := now.changes(former)):
            log.info(
                "prefix: run %s of %s, trace %s: %s",
                job.run_id,
                session.key,
                job.trace_id,
                "; ".join(changes),
            )
