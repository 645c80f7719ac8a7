"""The household while it is being changed, and what file and registry last agreed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from coterie.config import Config, Parsed
from coterie.core.agent import MAIN, Agent, AgentState
from coterie.core.roster import Roster
from coterie.engine.household.config_file import text_sha

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction

Change = tuple[str, str]
"""What happened to which agent, as in ("created", "dot")."""


@dataclass(slots=True)
class Household:
    """Rows being edited inside one transaction."""

    rows: dict[str, Agent]
    changes: list[Change] = field(default_factory=list)

    def put(self, change: str, agent: Agent) -> None:
        self.rows[agent.id] = agent
        self.changes.append((change, agent.id))

    @property
    def default(self) -> str:
        return next(agent.id for agent in self.rows.values() if agent.is_default)

    def make_default(self, agent_id: str) -> None:
        if self.default == agent_id:
            return
        self.rows[self.default] = replace(self.rows[self.default], is_default=False)
        self.put("default", replace(self.rows[agent_id], is_default=True))

    def roster(self, mentioned: Mapping[str, Any]) -> Roster:
        """The active agents as a file would list them. Main is listed only if there is something to say."""
        entries = {a.id: dict(a.entry) for a in self.rows.values() if a.state is AgentState.ACTIVE}
        for entry in entries.values():
            del entry["name"]
        if not entries[MAIN] and MAIN not in mentioned:
            del entries[MAIN]
        return Roster(entries, self.default)


def without_roster(config: Config) -> dict[str, Any]:
    """A configuration as it is kept: what was said, agents aside."""
    return config.model_dump(mode="json", exclude_unset=True, exclude={"agents": {"roster"}})


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the file and the registry last had in common, and the last good text."""

    text: str = ""
    sha: str = ""
    """Of `text`; empty before the first agreement."""
    entries: Mapping[str, Any] = field(default_factory=dict)
    """Of the roster; agents that the file dropped and that are still held are in it."""
    default: str = MAIN
    waiting: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[dict[str, Any], ...] = ()
    revision: int = 0
    settled: bool = False
    """False while the file still has to be written, or while something waits."""

    @classmethod
    def load(cls, tx: Transaction) -> Agreed:
        stored = tx.meta.get("agreed")
        return cls() if stored is None else cls(**json.loads(stored))

    @property
    def roster(self) -> Roster:
        return Roster(self.entries, self.default)

    def after(
        self, text: str, roster: Roster, parsed: Parsed, waiting: tuple[str, ...], revision: int
    ) -> Agreed:
        return Agreed(
            text=text,
            sha=text_sha(text),
            entries=roster.entries,
            default=roster.default,
            waiting=waiting,
            config=without_roster(parsed.config),
            warnings=tuple(warning.payload() for warning in parsed.warnings),
            revision=revision,
        )

    def save(self, tx: Transaction, *, settled: bool) -> None:
        final = replace(self, settled=settled and not self.waiting)
        said = {one.name: getattr(final, one.name) for one in fields(final)}
        tx.meta.set("agreed", json.dumps(said, ensure_ascii=False))
