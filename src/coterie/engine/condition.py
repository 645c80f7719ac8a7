"""Whether what is stored now would be kept: the disk takes writes, and the database is whole."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from coterie.core.clock import now_iso
from coterie.core.errors import Damaged, Unavailable, of_the_disk
from coterie.engine.household.home import Home

if TYPE_CHECKING:
    from coterie.store.transaction import Store

FRESH_SECONDS = 2.0
PATIENCE = 5.0
PROBE = b"\0" * 8_192


def probe_folder(home: Home) -> None:
    """A small file, written, synced and gone again. Raises what the disk says, in words."""
    path = home.temporary()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, PROBE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = None
        raise of_the_disk(error) or Unavailable(f"{home.path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            path.unlink()


class Condition:
    """Looks at most every few seconds, on one thread of its own: a disk that hangs takes no other."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._store = store
        self._thread: ThreadPoolExecutor | None = None
        self._looking: Future[None] | None = None
        self._looked = -FRESH_SECONDS

    async def check(self) -> None:
        """Raises what is wrong."""
        if (found := self._store.trouble()) is not None:
            raise Damaged(found)
        if self._looking is None or (
            self._looking.done() and time.monotonic() > self._looked + FRESH_SECONDS
        ):
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "coterie-condition")
            self._looking = self._thread.submit(self._look)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(asyncio.wrap_future(self._looking))
        except TimeoutError:
            raise Unavailable("the disk does not answer") from None

    def _look(self) -> None:
        try:
            probe_folder(self._home)
            # Only what is committed has to be written: a transaction that is taken back proves nothing.
            with self._store.write() as tx:
                tx.meta.set("checked_at", now_iso())
        finally:
            self._looked = time.monotonic()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
