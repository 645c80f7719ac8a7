"""How many connections there may be: in all, and from one address, so that nobody takes up every place."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

log = logging.getLogger("coterie.api")

SAY_AGAIN = 10.0
"""Seconds between two lines in the log: whoever is refused tries again at once."""


class Visitors:
    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        """In all, and from one address, as the configuration says now."""
        self._here: Counter[str] = Counter()
        self._refused = 0
        self._said_at: float | None = None

    def enter(self, address: str) -> bool:
        """Counted in every case; False: it is one too many."""
        self._here[address] += 1
        most, most_of_one = self._limits()
        if self._here.total() <= most and self._here[address] <= most_of_one:
            return True
        self._refused += 1
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= SAY_AGAIN:
            which = "in all" if self._here.total() > most else f"from {address}"
            limit = most if self._here.total() > most else most_of_one
            log.warning("more than %d connections %s: %d refused so far", limit, which, self._refused)
            self._said_at = now
        return False

    def leave(self, address: str) -> None:
        self._here[address] -= 1
        if self._here[address] <= 0:
            del self._here[address]
