"""Transcripts in memory: read once, then kept in step with every commit."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from coterie.core.transcript import Transcript

if TYPE_CHECKING:
    from coterie.store.transaction import Store

KEPT_BYTES = 64 * 1024 * 1024
MESSAGE_BYTES = 1_000
"""What a message takes beside its text: its fields, its parts and the form in which it was sent."""
IDLE_SECONDS = 120.0
"""After which a session is forgotten. A person who comes back later waits some milliseconds for the rows."""


@dataclass(slots=True)
class _Kept:
    transcript: Transcript
    used: float

    @property
    def size(self) -> int:
        return self.transcript.size + MESSAGE_BYTES * len(self.transcript.sendable())


class Transcripts:
    """The transcripts of sessions that were used lately. Only the process that runs turns writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """Those used longest ago first."""
        self._alive: WeakValueDictionary[str, Transcript] = WeakValueDictionary()
        """Also those that only a turn still holds: two copies of one session would fall out of step."""
        self._sweep: asyncio.TimerHandle | None = None

    def get(self, session_id: str) -> Transcript:
        found = self._alive.get(session_id)
        if found is None:
            with self._store.read() as tx:
                found = self._alive[session_id] = Transcript(tx.sessions.transcript(session_id))
        is_new = session_id not in self._kept
        self._kept[session_id] = _Kept(found, time.monotonic())
        self._kept.move_to_end(session_id)
        if is_new:
            self._make_room()
            self._sweep_later()
        return found

    def drop(self, session_id: str) -> None:
        """Read it again when it is next needed."""
        self._kept.pop(session_id, None)
        self._alive.pop(session_id, None)

    def forget(self, idle: float = IDLE_SECONDS) -> None:
        """Keep nothing that was not used for so many seconds, except for a turn that works on it."""
        limit = time.monotonic() - idle
        while self._kept and next(iter(self._kept.values())).used <= limit:
            self._kept.popitem(last=False)

    def _make_room(self) -> None:
        total = sum(kept.size for kept in self._kept.values())
        while total > KEPT_BYTES and len(self._kept) > 1:
            total -= self._kept.popitem(last=False)[1].size

    def _sweep_later(self) -> None:
        """One timer for all of them, and none in a house that sleeps."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS / 2, self._swept)

    def _swept(self) -> None:
        self._sweep = None
        self.forget()
        if self._kept:
            self._sweep_later()
