"""Whether the file that SQLite has open is still the one that its name leads to."""

from __future__ import annotations

import time
from pathlib import Path

from coterie.core.errors import Damaged
from coterie.store.trouble import WAY_OUT

LOOK_SECONDS = 1.0


class WatchedFile:
    """What is written to a file that was removed or replaced is gone with the process: nobody may be told otherwise."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity = self._look()
        self._next = 0.0

    def check(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._next and not at_once:
            return
        found = self._look()
        if found is None or found[:2] != (self._identity or found)[:2]:
            what = "removed" if found is None else "replaced by another"
            raise Damaged(f"the database {self._file} was {what} while it was in use; {WAY_OUT}")
        if found[2] == 0 and self._identity is not None and self._identity[2]:
            raise Damaged(f"the database {self._file} was emptied while it was in use; {WAY_OUT}")
        self._identity = found
        self._next = now + LOOK_SECONDS

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size
