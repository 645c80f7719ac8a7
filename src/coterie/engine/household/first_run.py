"""The first start on a folder: a single-agent install becomes the agent main, by copies."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from coterie.core.agent import MAIN
from coterie.engine.household.config_file import ConfigFile
from coterie.engine.household.folder import TEMPORARY
from coterie.engine.household.home import Home
from coterie.engine.household.roster_file import FRESH
from coterie.engine.household.workspace import Workspace

COPIED = ("IDENTITY.md", "SOUL.md", "MEMORY.md")


def settle_in(home: Home, first_model: Callable[[], str | None]) -> None:
    """Copy the root's files to main, never move, never overwrite. Cut short, it can be run again."""
    main = home.agents / MAIN
    main.mkdir(parents=True, exist_ok=True, mode=0o700)
    for leftover in (*home.path.glob(f"{TEMPORARY}*"), *main.rglob(f"{TEMPORARY}*")):
        leftover.unlink()
    for name in COPIED:
        _copy_new(home.path / name, main / name)
    logs = home.path / "memory"
    if logs.is_dir() and not logs.is_symlink():
        for source in sorted(logs.rglob("*")):
            _copy_new(source, main / "memory" / source.relative_to(logs))
    Workspace(home, MAIN).scaffold()
    if not home.config.exists():
        model = first_model()
        ConfigFile(home.config).write(f"{FRESH}default_model: {model}\n" if model else FRESH)


def _copy_new(source: Path, target: Path) -> None:
    """A whole copy under the final name, or nothing."""
    if source.is_symlink() or not source.is_file() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    shutil.copy2(source, temporary)
    temporary.rename(target)
