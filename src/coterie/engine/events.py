"""Live events: what happens is told to everyone who listens, as it happens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from coterie.core.events import SessionChange
from coterie.core.session import Session

BACKLOG = 2_000


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    payload: dict[str, Any]


class Subscription:
    """One listener's queue. A listener that falls too far behind is cut off and has to start over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(BACKLOG)

    async def next(self) -> Event | None:
        """The next event; None once this listener was cut off."""
        return await self._queue.get()

    def offer(self, event: Event) -> None:
        if threading.get_ident() == self._thread:
            self._put(event)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event) -> None:
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(None)


class Events:
    """The hub. Publishing never waits and never fails."""

    def __init__(self) -> None:
        self._listeners: set[Subscription] = set()

    def publish(self, name: str, payload: dict[str, Any]) -> None:
        event = Event(name, payload)
        for listener in list(self._listeners):
            listener.offer(event)

    def session_changed(self, session: Session, change: SessionChange, **more: Any) -> None:
        """Small, and for everybody: a list of sessions stays right without asking again and again."""
        self.publish("session.changed", {"id": session.id, "key": session.key, "change": change, **more})

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        listener = Subscription(asyncio.get_running_loop())
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
