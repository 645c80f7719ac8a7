"""Whose `chat` events a socket gets."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import NotFound
from coterie.engine.gateway import Gateway

MOST = 10_000
"""Sessions that one socket watches by name; beyond, the one named first is dropped."""


class Watching:
    """A key stands for whatever session has it; an id for that one session, also after it lost its key to another."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.all = False
        self._keys: dict[str, None] = {}
        self._ids: dict[str, str] = {}
        """Sessions by id, with the keys that they have now."""
        self._ids_by_key: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return [*self._keys, *self._ids]

    def wants(self, key: str) -> bool:
        return self.all or key in self._keys or key in self._ids_by_key

    async def add(self, ref: str) -> None:
        """Before anything is done with the session, so that nothing of it is missed."""
        if ref.startswith("agent:"):
            # There may be no such session yet: the first message makes it.
            self._keys[self._gateway.sessions.canonical(ref)] = None
            if len(self._keys) > MOST:
                del self._keys[next(iter(self._keys))]
        elif ref not in self._ids:
            session = await self._gateway.sessions.get(ref)
            self._place(session.id, session.key)
            if len(self._ids) > MOST:
                self._place(next(iter(self._ids)), None)

    async def remove(self, ref: str) -> None:
        """Under whichever name it was added."""
        key = await self._key_of(ref)
        if key is not None:
            self._keys.pop(key, None)
        self._place(self._ids_by_key.get(key or "", ref), None)

    def clear(self) -> None:
        self.all = False
        for known in (self._keys, self._ids, self._ids_by_key):
            known.clear()

    def session_changed(self, payload: dict[str, Any]) -> None:
        """A renewed session gives its key to its successor and gets another."""
        if payload["id"] in self._ids:
            self._place(payload["id"], None if payload.get("deleted") else payload["key"])

    def _place(self, session_id: str, key: str | None) -> None:
        """A session's key now; None: it is no longer watched."""
        self._ids_by_key.pop(self._ids.pop(session_id, ""), None)
        if key is not None:
            self._ids[session_id] = key
            self._ids_by_key[key] = session_id

    async def _key_of(self, ref: str) -> str | None:
        if ref.startswith("agent:"):
            return self._gateway.sessions.canonical(ref)
        try:
            return self._ids.get(ref) or (await self._gateway.sessions.get(ref)).key
        except NotFound:
            return None
