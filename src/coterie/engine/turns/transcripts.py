"""Transcripts in memory: read once, then kept in step with every commit."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from coterie.core.transcript import Transcript

if TYPE_CHECKING:
    from coterie.store.transaction import Store

KEPT_MESSAGES = 200_000


class Transcripts:
    """The newest sessions' transcripts. Only the process that runs turns writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, Transcript] = OrderedDict()
        self._known: WeakValueDictionary[str, Transcript] = WeakValueDictionary()
        """Those that somebody works on, too: nobody else may read a second copy."""

    def get(self, session_id: str) -> Transcript:
        found = self._known.get(session_id)
        if found is None:
            with self._store.read() as tx:
                found = self._known[session_id] = Transcript(tx.sessions.transcript(session_id))
        self._kept[session_id] = found
        self._kept.move_to_end(session_id)
        self._make_room()
        return found

    def drop(self, session_id: str) -> None:
        """Read it again when it is next needed."""
        self._known.pop(session_id, None)
        self._kept.pop(session_id, None)

    def _make_room(self) -> None:
        total = sum(transcript.last_seq for transcript in self._kept.values())
        while total > KEPT_MESSAGES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            total -= oldest.last_seq
