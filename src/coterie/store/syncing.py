"""What was committed reaches the disk: many commits share one sync, and the event loop waits for none.

SQLite commits into its log without a sync (`synchronous=NORMAL`), which takes microseconds. Before anybody is told, the log
is synced: on a thread for the event loop, once for all that committed meanwhile; right there for any other thread.
The log goes into the file from time to time, on a thread as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from coterie.core.errors import Unavailable

log = logging.getLogger("coterie.store")

QUIET_SECONDS = 5.0
"""Without a commit, after which the log goes into the file."""
MANY = 500
"""Commits that go into the file even while more are coming."""
LARGE = 64 << 20
"""Bytes of log that are too many, however few commits they are."""
PAUSE = 1.0
"""Seconds between one time and the next."""

_to_disk: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Syncing:
    """One for all connections of this process to one file."""

    def __init__(
        self, file: Path, checkpoint: Callable[[], None], to_disk: Callable[[int], None] = _to_disk
    ) -> None:
        self._log = file.with_name(file.name + "-wal")
        self._checkpoint = checkpoint
        self._to_disk = to_disk
        self._news = threading.Condition()
        self._commits = 0
        self._synced = 0
        """Of these commits. Never more than `_commits`."""
        self._doubtful = False
        """A sync failed: what it was to write may be missing in the midst of the log, whatever the next one says."""
        self._waiting: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        self._thread: threading.Thread | None = None
        self._moving: threading.Thread | None = None
        self._moved = 0
        """How many of the commits are in the file."""
        self._moved_at = 0.0
        self._closed = False

    def committed(self) -> None:
        """Something is in the log that a sync has not seen."""
        with self._news:
            self._commits += 1

    async def settle(self) -> None:
        """Once everything that is committed now is on disk."""
        with self._news:
            if self._synced >= self._commits:
                return
            loop = asyncio.get_running_loop()
            future = self._waiting.get(loop)
            if future is None:
                future = self._waiting[loop] = loop.create_future()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="coterie-sync", daemon=True)
                    self._thread.start()
                self._news.notify()
        await asyncio.shield(future)

    def now(self) -> None:
        """As `settle`, for a thread that may wait."""
        with self._news:
            commits = self._commits
            if self._synced >= commits:
                return
        self._sync(commits)
        self._move_if_grown()

    def log_size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify()
        for thread in (self._thread, self._moving):
            if thread is not None:
                thread.join()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._waiting and not self._closed:
                    if not self._news.wait(QUIET_SECONDS if self._moved < self._commits else None):
                        self._move()
                if not self._waiting:
                    return
                waiting, self._waiting = self._waiting, {}
                commits = self._commits
            problem: Exception | None = None
            try:
                self._sync(commits)
            except Exception as error:
                problem = error
            for loop, future in waiting.items():
                with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody waiting
                    loop.call_soon_threadsafe(_resolve, future, problem)
            self._move_if_grown()

    def _sync(self, commits: int) -> None:
        try:
            if self._doubtful:
                # Whole pages go from memory into the file, past the log.
                self._checkpoint()
                self._doubtful = False
            log_file = os.open(self._log, os.O_RDONLY)
        except FileNotFoundError:
            pass  # the last connection closed, and took the log into the file
        except OSError as error:
            raise _not_taken(error) from error
        else:
            try:
                self._to_disk(log_file)
            except OSError as error:
                self._doubtful = True
                raise _not_taken(error) from error
            finally:
                os.close(log_file)
        with self._news:
            self._synced = max(self._synced, commits)

    def _move_if_grown(self) -> None:
        if self._commits - self._moved >= MANY or self.log_size() > LARGE:
            with self._news:
                self._move()

    def _move(self) -> None:
        """The log into the file, on a thread of its own: syncs must not wait for it."""
        idle = self._moving is None or not self._moving.is_alive()
        if idle and not self._closed and time.monotonic() - self._moved_at > PAUSE:
            self._moving = threading.Thread(target=self._move_now, name="coterie-checkpoint", daemon=True)
            self._moving.start()

    def _move_now(self) -> None:
        commits = self._commits
        try:
            self._checkpoint()
        except Exception as error:
            log.warning("the database's log could not be taken into its file: %s", error)
        else:
            self._moved = commits
        self._moved_at = time.monotonic()


def _resolve(future: asyncio.Future[None], problem: Exception | None) -> None:
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(problem)
        future.exception()  # whoever waited may have been cancelled


def _not_taken(error: OSError) -> Unavailable:
    return Unavailable(f"the disk did not take what was written: {error.strerror or error}")
