"""Notices an event loop that stands still, says where, and ends the process if somebody is there to start it again.

A thread says it, as long as threads get to run. What holds the interpreter itself, as a C function can, stops them too: then
`faulthandler`, which needs no interpreter, writes where every thread is.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

log = logging.getLogger("coterie.watchdog")

SOON = 5.0
"""Seconds after which it is said, if it is not yet time to end."""


class Watchdog:
    """Watches the loop that it is started on."""

    def __init__(self, seconds: float, *, supervised: bool) -> None:
        self._seconds = seconds
        self._supervised = supervised
        self._said_after = min(SOON, seconds / 2)
        self._every = self._said_after / 5
        self._beat = time.monotonic()
        self._ended = threading.Event()
        self._watched = threading.get_ident()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        heart = asyncio.create_task(self._beating())
        thread = threading.Thread(target=self._watch, name="coterie-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            heart.cancel()
            self._ended.set()
            faulthandler.cancel_dump_traceback_later()

    async def _beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            if sys.stderr is not None:
                faulthandler.dump_traceback_later(self._seconds, exit=self._supervised)
            await asyncio.sleep(self._every)

    def _watch(self) -> None:
        still = False
        looked = time.monotonic()
        while not self._ended.wait(self._every):
            since, looked = looked, time.monotonic()
            silent = looked - self._beat
            if still and silent < self._said_after:
                still = False
                log.warning("the event loop moves again")
            elif not still and silent > self._said_after and looked - since < 2 * self._every:
                # A thread that itself slept for too long saw a machine that was stopped, not a loop.
                still = True
                then = " Coterie ends, to be started again, if that lasts." if self._supervised else ""
                log.error("the event loop stands still, here:%s\n%s", then, self._where())

    def _where(self) -> str:
        frame = sys._current_frames().get(self._watched)
        return "".join(traceback.format_stack(frame)[-12:]) if frame else "(no stack)"
