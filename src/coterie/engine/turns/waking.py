"""The Waker of one process: whoever runs turns here is told at once."""

from __future__ import annotations

from collections.abc import Callable

from coterie.core.session import Session


class LocalWaker:
    """Implements Waker. Where nobody listens, the next process to run turns finds the work in the store."""

    def __init__(self) -> None:
        self._listener: Callable[[Session], None] | None = None

    def listen(self, listener: Callable[[Session], None]) -> None:
        self._listener = listener

    def wake(self, session: Session) -> None:
        if self._listener is not None:
            self._listener(session)
