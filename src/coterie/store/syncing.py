"""What was committed reaches the disk: many commits share one sync, and the event loop waits for no slow one.

SQLite commits into its log without a sync (`synchronous=NORMAL`), which takes microseconds. Before anybody is told, the log
is synced: for the event loop on a thread, once for all that committed meanwhile; on the loop itself while the disk is
quicker than a thread, once for all that committed in one round; right there for any other thread.
The log goes into the file from time to time, on a thread as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from coterie.core.errors import Unavailable
from coterie.store.trouble import NotSynced

log = logging.getLogger("coterie.store")

QUIET_SECONDS = 5.0
"""Without a commit, after which the log goes into the file."""
MANY = 60
"""Commits that go into the file even while more are coming."""
LARGE = 64 << 20
"""Bytes of log that are too many, however few commits they are."""
PAUSE = 0.25
"""Seconds between one time and the next."""
QUICK, LONGEST = 0.001, 0.02
"""Seconds that the last syncs took on average, and each of them at most, where the event loop makes them itself."""
LOOKED_AT = 50
FEW = 2
"""Of those who waited for one sync go on in one round of the loop."""
ALONE = 15
"""Syncs until the event loop looks again whether others would share one."""

_to_disk: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Syncing:
    """One for all connections of this process to one file."""

    def __init__(
        self, file: Path, checkpoint: Callable[[], None], to_disk: Callable[[int], None] = _to_disk
    ) -> None:
        self._log = file.with_name(file.name + "-wal")
        self._checkpoint = checkpoint
        self._to_disk = to_disk
        self._counting = threading.Lock()
        self._commits = 0
        self._synced = 0
        """Of these commits. Never more than `_commits`."""
        self._took: deque[float] = deque(maxlen=LOOKED_AT)
        self._quick = False
        """The disk was, the last times."""
        self._this_round: list[asyncio.Future[None]] = []
        """Who waits for the sync that the event loop makes next."""
        self._alone = 0
        """How many more syncs are made at once, because a round had nobody to share one with."""
        self._doubtful = False
        """A sync failed: what it was to write may be missing in the midst of the log, whatever the next one says."""
        self._asked: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._moving: threading.Thread | None = None
        self._moved = 0
        """How many of the commits are in the file."""
        self._moved_at = 0.0
        self._closed = False

    def committed(self) -> None:
        """Something is in the log that a sync has not seen."""
        with self._counting:
            self._commits += 1

    async def settle(self) -> None:
        """Once everything that is committed now is on disk."""
        if self._synced >= self._commits:
            return
        if self._quick and self._alone:
            self._alone -= 1
            self.now()
            return
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        if self._quick:
            # Asking a thread would take longer. Should the disk begin to hang, it holds up the loop this once.
            if not self._this_round:
                loop.call_soon(self._sync_round)
            self._this_round.append(waiting)
        else:
            self._ask(waiting)
        await waiting

    def now(self) -> None:
        """As `settle`, for a thread that may wait."""
        commits = self._commits
        if self._synced < commits:
            self._sync(commits)
            self._move_if_grown()

    def log_size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def close(self) -> None:
        self._closed = True
        self._asked.put(None)
        for thread in (self._thread, self._moving):
            if thread is not None:
                thread.join()

    def _sync_round(self) -> None:
        together, self._this_round = self._this_round, []
        if len(together) == 1:
            self._alone = ALONE
        problem: Exception | None = None
        try:
            self.now()
        except Exception as error:
            problem = error
        _resolve(together, problem)

    def _ask(self, waiting: asyncio.Future[None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="coterie-sync", daemon=True)
            self._thread.start()
        self._asked.put(waiting)

    def _work(self) -> None:
        while True:
            try:
                first = self._asked.get(timeout=QUIET_SECONDS)
            except Empty:
                if self._moved < self._commits:
                    self._move()
                continue
            together = [first]
            while not self._asked.empty():
                together.append(self._asked.get())
            problem: Exception | None = None
            try:
                self._sync(self._commits)
            except Exception as error:
                problem = error
            self._tell([one for one in together if one is not None], problem)
            if None in together:
                return
            self._move_if_grown()

    def _tell(self, together: Sequence[asyncio.Future[None]], problem: Exception | None) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for waiting in together:
            loops.setdefault(waiting.get_loop(), []).append(waiting)
        for loop, of_loop in loops.items():
            with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody waiting
                loop.call_soon_threadsafe(_resolve, of_loop, problem)

    def _sync(self, commits: int) -> None:
        try:
            if self._doubtful:
                # Whole pages go from memory into the file, past the log.
                self._checkpoint()
                self._doubtful = False
            log_file = os.open(self._log, os.O_RDONLY)
        except FileNotFoundError:
            pass  # the last connection closed, and took the log into the file
        except (OSError, Unavailable) as error:
            raise _not_taken(error) from error
        else:
            began = time.perf_counter()
            try:
                self._to_disk(log_file)
            except OSError as error:
                self._doubtful = True
                raise _not_taken(error) from error
            finally:
                os.close(log_file)
            with self._counting:
                self._took.append(time.perf_counter() - began)
                self._quick = (
                    len(self._took) == LOOKED_AT
                    and sum(self._took) < QUICK * LOOKED_AT
                    and max(self._took) < LONGEST
                )
        with self._counting:
            self._synced = max(self._synced, commits)

    def _move_if_grown(self) -> None:
        if self._commits - self._moved >= MANY or self.log_size() > LARGE:
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


def _resolve(futures: Sequence[asyncio.Future[None]], problem: Exception | None) -> None:
    """A few in each round of the loop: what else waits for it must not wait until all of them have gone on."""
    if len(futures) > FEW:
        asyncio.get_running_loop().call_soon(_resolve, futures[FEW:], problem)
    for future in futures[:FEW]:
        if future.done():  # whoever waited was cancelled
            continue
        if problem is None:
            future.set_result(None)
        else:
            future.set_exception(problem)


def _not_taken(error: OSError | Unavailable) -> NotSynced:
    reason = error.message if isinstance(error, Unavailable) else error.strerror or error
    return NotSynced(f"the disk did not take what was written: {reason}")
