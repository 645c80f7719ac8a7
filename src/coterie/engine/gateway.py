"""The one door behind every surface."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from coterie.core.ports import Store
from coterie.engine.access import Access
from coterie.engine.events import Events
from coterie.engine.home import Home
from coterie.engine.household import Change
from coterie.engine.registry import Registry


@dataclass(frozen=True, slots=True)
class EngineClaim:
    """This process runs the home's engine, as the n-th to do so."""

    epoch: int


class Gateway:
    """A household, opened: its agents, its tokens, its events."""

    def __init__(self, home: Home, store: Store, claim: EngineClaim | None = None) -> None:
        self.home = home
        self.store = store
        self.claim = claim
        self.events = Events()
        self.registry = Registry(home, store)
        self.access = Access(home, store)
        self.started = time.time()
        self.pid = os.getpid()
        self.registry.sync.listen(self._agents_changed)

    def _agents_changed(self, change: Change) -> None:
        what, agent_id = change
        self.events.publish("agents.changed", {"agent_id": agent_id, "change": what})
