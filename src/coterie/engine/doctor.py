"""Looks for what is wrong in a home folder, and mends what can be mended without asking."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from coterie.core.agent import AgentState
from coterie.core.errors import CoterieError
from coterie.engine.backups import report
from coterie.engine.condition import probe_folder
from coterie.engine.gateway import Gateway
from coterie.engine.household.folder import TEMPORARY
from coterie.engine.household.home import Home
from coterie.engine.household.life import accept, behind

RESTORE = "stop the gateway, then: coterie restore FILE"
LITTLE_SPACE = 100_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    level: Literal["ok", "fixed", "warning", "problem"]
    message: str
    advice: str = ""

    def payload(self) -> dict[str, Any]:
        return {"level": self.level, "message": self.message, "advice": self.advice}


def check_home(home: Home, *, fix: bool) -> Iterator[Finding]:
    """What can be seen without opening the store."""
    if not home.path.is_dir():
        yield Finding("ok", f"{home.path} does not exist yet; the first command makes it")
        return
    if not os.access(home.path, os.R_OK | os.W_OK | os.X_OK):
        if os.statvfs(home.path).f_flag & os.ST_RDONLY:
            yield Finding("problem", f"the disk that {home.path} is on is read-only", "mount it for writing")
        else:
            yield Finding("problem", f"{home.path} cannot be written", "change its owner or its permissions")
        return
    yield Finding("ok", f"home folder {home.path}")
    if home.token.exists() and stat.S_IMODE(home.token.stat().st_mode) & 0o077:
        if fix:
            home.token.chmod(0o600)
            yield Finding("fixed", "the token file was readable by others")
        else:
            yield Finding("problem", "the token file can be read by others", "coterie doctor --fix")
    if home.gateway.exists() and home.running_gateway() is None:
        if fix:
            home.gateway.unlink(missing_ok=True)
            yield Finding("fixed", "run/gateway.json named a gateway that no longer runs")
        else:
            yield Finding(
                "warning",
                "run/gateway.json names a gateway that no longer runs",
                "harmless; --fix removes it",
            )
    yield from _check_restore(home, fix=fix)
    leftovers = [
        p for p in (home.path, *home.agents.glob("*")) if p.is_dir() for p in p.glob(f"{TEMPORARY}*")
    ]
    if leftovers:
        if fix:
            for path in leftovers:
                path.unlink(missing_ok=True)
            yield Finding("fixed", f"{len(leftovers)} temporary files that a crash left behind")
        else:
            yield Finding(
                "warning", f"{len(leftovers)} temporary files were left by a crash", "coterie doctor --fix"
            )


def _check_restore(home: Home, *, fix: bool) -> Iterator[Finding]:
    from coterie.engine.household.restoring import leftovers

    found = [] if home.engine_is_held() else leftovers(home)
    if found and fix:
        for folder in found:
            shutil.rmtree(folder, ignore_errors=True)
        yield Finding(
            "fixed", "a restore was cut off before it had changed anything; what it unpacked is gone"
        )
    elif found:
        yield Finding(
            "warning", "a restore was cut off before it had changed anything", "coterie doctor --fix"
        )


def check_disk(home: Home) -> Iterator[Finding]:
    """That it takes writes, and has room for more."""
    home.prepare()
    try:
        probe_folder(home)
    except CoterieError as error:
        yield Finding("problem", error.message, "make room, or make it writable")
        return
    free = shutil.disk_usage(home.path).free
    if free < LITTLE_SPACE:
        yield Finding("warning", f"the disk has only {free // 1_000_000} MB left", "make room")
    else:
        yield Finding("ok", "the disk takes writes")


def check_backups(home: Home) -> Iterator[Finding]:
    """How the backups by the clock went."""
    known = report(home)
    if known.get("last_failure"):
        yield Finding("warning", f"the last backup failed at {known['last_failure']}: {known.get('reason')}")
    if known.get("last_success"):
        yield Finding("ok", f"the newest backup is of {known['last_success']}: {known.get('file')}")


def check_life(gateway: Gateway, *, fix: bool) -> Iterator[Finding]:
    """That the database is as new as the home."""
    with gateway.store.read() as tx:
        epoch = int(tx.meta.get("epoch") or 0)
    less = behind(gateway.home, epoch)
    if less is None:
        return
    if fix:
        accept(gateway.home, epoch)
        yield Finding("fixed", f"{less}; the household goes on with what is there")
    else:
        yield Finding("problem", less, f"{RESTORE}, or go on with what is there: coterie doctor --fix")


def check_household(gateway: Gateway, *, fix: bool) -> Iterator[Finding]:
    """What the opened household tells."""
    registry = gateway.registry
    sync = registry.sync.state
    for problem in sync.problems:
        yield Finding(
            "problem", str(problem), "the last good configuration is in force until the file is mended"
        )
    if not sync.problems:
        yield Finding("ok", "agent.yaml is in force")
    for warning in sync.warnings:
        yield Finding("warning", str(warning))
    for rule in gateway.brains.unmatched():
        yield Finding("warning", rule, "a rule that matches nothing has no effect")
    for skipped in gateway.brains.tool_problems:
        yield Finding("problem", f"plug-in skipped: {skipped}", "mend it, or name it under plugins.disabled")
    for reason in sync.held:
        yield Finding("warning", f"held: {reason}")
    missing = []
    for agent in registry.agents():
        folder = gateway.home.agents / agent.id
        if folder.is_symlink():
            yield Finding(
                "problem", f"agents/{agent.id} is a link; links are not followed", "move the folder there"
            )
        elif agent.state is AgentState.ACTIVE and not folder.is_dir():
            missing.append(agent)
        elif agent.state is AgentState.DISCOVERED:
            yield Finding("warning", f"agents/{agent.id} is in no roster", f"coterie agent add {agent.id}")
    for agent in missing:
        if fix:
            registry.workspace(agent).scaffold()
            yield Finding("fixed", f"{agent.id} had no folder")
        else:
            yield Finding("warning", f"{agent.id} has no folder", "coterie doctor --fix")
    active = sum(1 for agent in registry.agents() if agent.state is AgentState.ACTIVE)
    yield Finding(
        "ok", f"{active} active agent{'s' if active != 1 else ''}; {registry.default().id} is the default"
    )
