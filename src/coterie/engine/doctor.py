"""Looks for what is wrong in a home folder, and mends what can be mended without asking."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from coterie.core.agent import AgentState
from coterie.engine.gateway import Gateway
from coterie.engine.household.folder import TEMPORARY
from coterie.engine.household.home import Home


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
