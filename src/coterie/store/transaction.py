"""What a transaction can do, by noun, and where transactions come from. State changes say which state they expect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from coterie.store.conversation_rows import ConversationRows
from coterie.store.household_rows import AgentRows, AnswerRows, MetaRows, TokenRows
from coterie.store.memory_rows import MemoryRows
from coterie.store.run_rows import AnnouncementRows, RunRows
from coterie.store.session_rows import SessionRows
from coterie.store.turn_rows import TurnRows
from coterie.store.usage_rows import UsageRows
from coterie.store.vectors import VectorCache

T = TypeVar("T")


class Transaction:
    """Handles to the tables, bound to one connection."""

    def __init__(self, connection: Connection, vectors: VectorCache) -> None:
        self.connection = connection
        self.agents = AgentRows(connection)
        self.meta = MetaRows(connection)
        self.tokens = TokenRows(connection)
        self.answers = AnswerRows(connection)
        self.sessions = SessionRows(connection)
        self.turns = TurnRows(connection)
        self.usage = UsageRows(connection)
        self.runs = RunRows(connection)
        self.announcements = AnnouncementRows(connection)
        self.memories = MemoryRows(connection, vectors)
        self.conversations = ConversationRows(connection)


class Store(Protocol):
    """Where everything is kept."""

    def read(self) -> AbstractContextManager[Transaction]:
        """One consistent view."""

    def write(self) -> AbstractContextManager[Transaction]:
        """All or nothing, on disk when the block ends."""

    async def look(self, work: Callable[[Transaction], T]) -> T:
        """As `read`, from the event loop, for what is quickly read."""

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """As `write`, from the event loop, which never waits for another process's lock."""

    async def settle(self) -> None:
        """Once everything that is committed now is on disk; NotSynced where the disk does not take it."""

    def scrub(self) -> bool:
        """After a deletion for good: leave no trace of it in the files. False where that has to be tried again later."""

    def trouble(self) -> str | None:
        """What was found damaged since it was opened."""
