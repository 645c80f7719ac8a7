"""Follows edits made with any editor: agent.yaml, and the files of each agent."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from coterie.core.agent import check_id
from coterie.core.errors import CoterieError
from coterie.core.threads import on_thread
from coterie.engine.events import Events
from coterie.engine.household.brain import Brains
from coterie.engine.household.config_file import SETTLED_AFTER, STABLE_AFTER
from coterie.engine.household.home import Home
from coterie.engine.household.registry import Registry
from coterie.engine.household.workspace import INHERITED, NAMED, SHARED_ONLY

log = logging.getLogger("coterie.watcher")

POLL_SECONDS = 0.25
DEBOUNCE_MS = 100
FOLDERS = 20
"""That are made between two looks at whether to stop."""


class Watcher:
    """Runs beside the gateway until it is cancelled."""

    def __init__(self, home: Home, registry: Registry, brains: Brains, events: Events) -> None:
        self._brains = brains
        self._home = home
        self._registry = registry
        self._events = events
        self._warned: set[str] = set()
        """What the log has said of the file as it is."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_root())
            tasks.create_task(self._follow_agents())
            tasks.create_task(self._make_folders())

    async def _follow_root(self) -> None:
        """The home folder itself is polled: its database changes all the time and would wake us for nothing."""
        shared = [self._home.path / name for name in (*INHERITED, *SHARED_ONLY)]
        config = _signature(self._home.config)
        files = {path: _signature(path) for path in shared}
        look_again = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = _signature(self._home.config)
            if now != config or (look_again and loop.time() >= look_again):
                config = now
                look_again = 0.0
                # What we write ourselves is looked at once more: somebody may have saved just after it.
                if await self._apply_config():
                    look_again = loop.time() + STABLE_AFTER + SETTLED_AFTER
            changed = [path for path in shared if _signature(path) != files[path]]
            if changed:
                files = {path: _signature(path) for path in shared}
                self._events.publish("agents.changed", {"agent_id": None, "change": "shared_files"})

    async def _apply_config(self) -> bool:
        """True if the file has to be looked at again soon."""
        registry = self._registry
        before = registry.sync.state
        try:
            sync = await on_thread("files", registry.sync.refresh)
        except CoterieError as error:
            log.warning("agent.yaml could not be applied: %s", error.message)
            return True
        except Exception:
            log.exception("agent.yaml could not be applied")
            return True
        rules = await on_thread("files", self._brains.unmatched)
        warnings = [*(str(w) for w in sync.warnings), *rules]
        for warning in warnings:
            if warning not in self._warned:
                log.warning("agent.yaml: %s", warning.removeprefix("agent.yaml "))
        self._warned = set(warnings)
        self._events.publish(
            "config.changed",
            {
                "problems": [str(p) for p in sync.problems],
                "warnings": warnings,
                "held": list(sync.held),
            },
        )
        if any(change == "created" for change, _ in sync.changes):
            await self._make_folders()
        for reason in sync.held:
            if reason not in before.held:
                log.warning("held: %s", reason)
        return sync.settling

    async def _make_folders(self) -> None:
        """A few at a time: thousands of small files keep a disk busy for a while."""
        left = await on_thread("files", self._registry.without_folder)
        for first in range(0, len(left), FOLDERS):
            await on_thread("files", self._registry.scaffold, left[first : first + FOLDERS])

    async def _follow_agents(self) -> None:
        from watchfiles import awatch

        while True:
            self._home.agents.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                async for changes in awatch(
                    self._home.agents,
                    debounce=DEBOUNCE_MS * 4,
                    step=DEBOUNCE_MS,
                    ignore_permission_denied=True,
                ):
                    touched = {self._owner(Path(path)) for _, path in changes}
                    for agent_id in sorted(touched - {None}, key=str):
                        self._events.publish("agents.changed", {"agent_id": agent_id, "change": "files"})
            await asyncio.sleep(1)

    def _owner(self, path: Path) -> str | None:
        """The agent whose prompt a file may change."""
        try:
            agent_id, *inside = path.relative_to(self._home.agents).parts
            check_id(agent_id)
        except (ValueError, CoterieError):
            return None
        name = "/".join(inside)
        return agent_id if not inside or name in NAMED or inside[0] == "memory" else None


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
