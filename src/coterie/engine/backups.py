"""Backups by the clock: made beside everything else, read back, and only so many kept."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.config import Backup
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError
from coterie.engine.household.folder import TEMPORARY
from coterie.engine.household.home import Home

log = logging.getLogger("coterie.backups")

NAME = re.compile(r"household-(\d{8}T\d{6}Z)\.zip")
STAMP = "%Y%m%dT%H%M%SZ"
FIRST_PAUSE = 60.0
"""After a start: first of all, the house is there for its people."""
LOOK_SECONDS = 30.0
"""How soon a change of the settings counts."""
RETRY_SECONDS = 900.0


class Backups:
    def __init__(self, home: Home, settings: Callable[[], Backup]) -> None:
        self._home = home
        self._settings = settings
        self._stopped = threading.Event()

    async def keep(self) -> None:
        """Until cancelled. One thread of its own, so that a slow disk takes none from anybody."""
        loop = asyncio.get_running_loop()
        tried = time.time() - RETRY_SECONDS + FIRST_PAUSE
        with ThreadPoolExecutor(1, "coterie-backup") as thread:
            try:
                while True:
                    if self.is_due(tried):
                        tried = time.time()
                        await loop.run_in_executor(thread, self.make)
                    await asyncio.sleep(min(LOOK_SECONDS, self._settings().seconds or LOOK_SECONDS))
            finally:
                self._stopped.set()

    def is_due(self, tried: float) -> bool:
        every = self._settings().seconds
        if every is None or time.time() < tried + min(every, RETRY_SECONDS):
            return False
        made = self._made()
        newest = _time_of(made[-1]) if made else 0.0
        return not newest <= time.time() < newest + every  # a clock that was set back does not stop them

    def make(self) -> bool:
        """One backup now. What comes of it stands in `run/backups.json`."""
        from coterie.engine.household.backup import make_backup

        known = report(self._home)
        try:
            folder = self._folder()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._tidy(folder)
            target = folder / f"household-{time.strftime(STAMP, time.gmtime())}.zip"
            made = make_backup(self._home, target, self._stopped.is_set)
        except (CoterieError, OSError) as error:
            if self._stopped.is_set():
                return False
            reason = error.message if isinstance(error, CoterieError) else str(error)
            if reason != known.get("reason"):
                log.error("the household could not be backed up: %s", reason)
            self._note(**{**known, "last_failure": now_iso(), "reason": reason})
            return False
        log.info("the household was backed up to %s", made.file)
        self._note(last_success=made.created_at, file=str(made.file), last_failure=None, reason=None)
        for old in self._made()[: -self._settings().keep]:
            with suppress(OSError):
                old.unlink()
        return True

    def _folder(self) -> Path:
        return self._home.path / self._settings().folder

    def _made(self) -> list[Path]:
        """Ours, the oldest first."""
        with suppress(OSError):
            return sorted(p for p in self._folder().iterdir() if NAME.fullmatch(p.name))
        return []

    def _tidy(self, folder: Path) -> None:
        """What a crash left of a backup. Nobody else writes here under that name for an hour."""
        for leftover in folder.glob(f"{TEMPORARY}*"):
            with suppress(OSError):
                if leftover.is_file() and leftover.stat().st_mtime < time.time() - 3_600:
                    leftover.unlink()

    def _note(self, **facts: Any) -> None:
        with suppress(OSError):
            temporary = _state(self._home).with_suffix(".tmp")
            temporary.write_text(json.dumps(facts) + "\n")
            temporary.replace(_state(self._home))


def report(home: Home) -> dict[str, Any]:
    """How the last backups went; empty where none was tried yet."""
    try:
        found = json.loads(_state(home).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _state(home: Home) -> Path:
    return home.run / "backups.json"


def _time_of(file: Path) -> float:
    stamp = NAME.fullmatch(file.name)
    assert stamp is not None
    with suppress(ValueError):
        return datetime.strptime(stamp[1], STAMP).replace(tzinfo=UTC).timestamp()
    return 0.0
