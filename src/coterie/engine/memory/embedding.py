"""An embedder that may hang, made safe to ask: nobody waits for it for long, and while it does not answer nobody asks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet

from coterie.core.errors import Unavailable
from coterie.core.ports import Embedder

log = logging.getLogger("coterie.memory")

SECONDS = 2.0
SECONDS_A_TEXT = 0.05
"""More, for many at once."""
FAILURES = 2
"""In a row, after which it is left alone."""
REST = 30.0
"""Seconds until it is tried again, by one."""
AT_ONCE = 4
"""Calls under way, the ones included that nobody waits for any more."""


class GuardedEmbedder:
    """Implements Embedder, around another. Never loads or waits on the caller's thread."""

    waits = True

    def __init__(self, inner: Embedder) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._under_way = 0
        self._failures = 0
        self._closed_until = 0.0
        self.problem: str | None = None
        """Why searches go by words alone now."""

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def averages(self) -> bool:
        return self.inner.averages

    @property
    def ready(self) -> bool:
        return self.inner.ready and not self._resting()

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Raises Unavailable, at once where it failed a moment ago."""
        self._enter()
        seconds = SECONDS + SECONDS_A_TEXT * len(texts)
        call: Future[list[bytes]] = Future()
        # Not of a pool, whose threads the end of the process would wait for.
        threading.Thread(
            target=self._call, args=(call, texts), name="coterie-embeddings", daemon=True
        ).start()
        try:
            vectors = call.result(seconds)
        except NotYet:
            self._failed(f"{self.name} did not answer within {seconds:.0f} s")
            raise Unavailable(self.problem or "") from None
        except Unavailable as error:
            self._failed(error.message)
            raise
        with self._lock:
            if self.problem is not None:
                log.info("%s answers again", self.name)
            self._failures, self._closed_until, self.problem = 0, 0.0, None
        return vectors

    def _call(self, call: Future[list[bytes]], texts: Sequence[str]) -> None:
        try:
            call.set_result(self.inner.embed(texts))
        except BaseException as error:
            call.set_exception(error)
        finally:
            with self._lock:
                self._under_way -= 1

    def _enter(self) -> None:
        with self._lock:
            if self._resting():
                raise Unavailable(f"{self.problem}; tried again in a moment")
            if self._under_way >= AT_ONCE:
                raise Unavailable(f"{self.name} has {AT_ONCE} requests to answer first")
            self._under_way += 1
            if self._failures >= FAILURES:
                # The rest is over, and this is the one who tries: others wait for what comes of it.
                self._closed_until = time.monotonic() + REST

    def _failed(self, problem: str) -> None:
        with self._lock:
            self._failures += 1
            self.problem = problem
            if self._failures >= FAILURES:
                self._closed_until = time.monotonic() + REST
                if self._failures == FAILURES:
                    log.warning("searching by words alone for now: %s", problem)

    def _resting(self) -> bool:
        return time.monotonic() < self._closed_until


def guarded(embedder: Embedder | None) -> Embedder | None:
    """What computes here and now needs no guard."""
    return GuardedEmbedder(embedder) if embedder is not None and embedder.waits else embedder
