"""What was sent, what was acknowledged, and when the gateway lived: everything the ledger is checked against."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Said:
    """One message that somebody sent, perhaps several times under the same key."""

    label: str
    """The session, as the tags name it."""
    tag: str
    text: str
    rounds: int = 0
    """Tool rounds that its task takes."""
    sent: float = 0.0
    acknowledged: float | None = None
    run_id: str | None = None
    abandoned: bool = False
    """Its sender lost the connection and gave up: it may be in the store or not, but only once."""
    wrong_answer: str | None = None
    """What a client of /v1 got instead of the answer."""


@dataclass(slots=True)
class Life:
    """One process of the gateway."""

    number: int
    started: float
    ready: float | None = None
    """When it first answered; None if it was killed before."""
    ended: float | None = None
    moment: str = ""
    """What the kill waited for."""


@dataclass(slots=True)
class World:
    said: list[Said] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    sessions: dict[str, str] = field(default_factory=dict)
    """Label to session id or key, of every session whose messages count."""
    switched: set[str] = field(default_factory=set)
    """Sessions that went to another agent at least once."""
    forks: int = 0
    clears: int = 0
    repeats: int = 0
    """Messages sent again because no acknowledgement came."""
    postponed: int = 0
    """Kills put off because one more would have used up a turn's budget of attempts."""
    surprises: list[str] = field(default_factory=list)
    """Errors that no sender should see."""
    ended: set[str] = field(default_factory=set)
    """Runs that are known to have ended."""
    acknowledged: asyncio.Condition = field(default_factory=asyncio.Condition)

    def say(self, label: str, number: int, directives: str, rounds: int = 0) -> Said:
        tag = f"{label}-{number}"
        said = Said(label, tag, f"[t:{tag}] {directives}".strip(), rounds)
        self.said.append(said)
        return said

    async def acknowledge(self, said: Said, run_id: str, at: float) -> None:
        said.run_id, said.acknowledged = run_id, at
        async with self.acknowledged:
            self.acknowledged.notify_all()
