"""One database: connections, transactions, and bringing an older schema forward."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.pool import ConnectionPoolEntry

from coterie.core.errors import Conflict, Damaged, Unavailable
from coterie.core.threads import SIZES, on_thread
from coterie.store import full_text, schema
from coterie.store.columns import mend_parameters
from coterie.store.copies import copy_sqlite, pg_dump, trouble_in
from coterie.store.syncing import LARGE, Syncing
from coterie.store.transaction import Transaction
from coterie.store.trouble import Busy, typed_errors
from coterie.store.vectors import VectorCache
from coterie.store.watched_file import WatchedFile

SCRUB_ATTEMPTS = 20
BUSY_TIMEOUT_MS = 5_000
LOOP_BUSY_TIMEOUT_MS = 5
LONGEST_WRITE = 60
"""Seconds that one thread waits for others of this process that write."""
T = TypeVar("T")
_MIGRATION_LOCK = 0x636F7465  # any number will do, as long as every process uses the same


class Database:
    """Every read and write goes through `read()` and `write()`."""

    def __init__(self, engine: Engine, file: Path | None) -> None:
        mend_parameters(engine)
        self.engine = engine
        self.file = file
        """The SQLite file; None on PostgreSQL."""
        self._loop_connection: Connection | None = None
        """The one with which the event loop writes."""
        self._vectors = VectorCache()
        # Writers of one process queue here, where waking up is prompt, and not in SQLite's busy handler.
        self._writer = threading.Lock()
        self._syncing = None if file is None else Syncing(file, self.checkpoint)
        self._damage: str | None = None
        self._watched = WatchedFile(file) if file is not None else None

    @classmethod
    def connect(cls, url: str, home: Path) -> Database:
        if url.startswith("sqlite:///"):
            file = home / url.removeprefix("sqlite:///")
            return cls(_sqlite(file), file)
        return cls(_postgresql(url), None)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """One consistent view."""
        with self._typed_errors(), self.engine.connect() as connection:
            if self.file is None:
                # PostgreSQL would otherwise show each statement what others committed a moment ago.
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield Transaction(connection, self._vectors)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """All or nothing, on disk when the block ends."""
        with self._one_writer(), self._typed_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(coterie_write=True)
            with self._counted(connection), connection.begin():
                yield Transaction(connection, self._vectors)
        if self._syncing is not None:
            self._syncing.now()

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """As `write`, from the event loop.

        SQLite: right here, because a short transaction costs less than handing it to a thread; the sync is waited
        for, and a lock that another thread or process holds, without holding up the loop. PostgreSQL: on a thread.
        """
        if self._syncing is None:
            return await on_thread("store", self._write_once, work)
        give_up = time.monotonic() + BUSY_TIMEOUT_MS / 1000
        pause = 0.002
        while True:
            try:
                with self._typed_errors():
                    done = self._write_here(work)
                break
            except Busy:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        await self._syncing.settle()
        return done

    async def settle(self) -> None:
        """Once everything that is committed now is on disk."""
        if self._syncing is not None:
            await self._syncing.settle()

    async def look(self, work: Callable[[Transaction], T]) -> T:
        """As `read`, from the event loop, for what is quickly read."""
        if self.file is None:
            return await on_thread("store", self._read_once, work)
        return self._read_once(work)

    def _read_once(self, work: Callable[[Transaction], T]) -> T:
        with self.read() as tx:
            return work(tx)

    def _write_once(self, work: Callable[[Transaction], T]) -> T:
        with self.write() as tx:
            return work(tx)

    def _write_here(self, work: Callable[[Transaction], T]) -> T:
        if not self._writer.acquire(blocking=False):
            raise Busy("another thread writes to the database")
        try:
            return self._write_on_loop(work)
        finally:
            self._writer.release()

    @contextmanager
    def _one_writer(self) -> Iterator[None]:
        if self._syncing is None:
            yield
            return
        if not self._writer.acquire(timeout=LONGEST_WRITE):
            raise Busy("the database is written to by others all the time")
        try:
            yield
        finally:
            self._writer.release()

    def _write_on_loop(self, work: Callable[[Transaction], T]) -> T:
        if self._loop_connection is None or self._loop_connection.closed:
            connection = self.engine.connect().execution_options(coterie_write=True)
            connection.exec_driver_sql(f"PRAGMA busy_timeout={LOOP_BUSY_TIMEOUT_MS}")
            connection.rollback()
            self._loop_connection = connection
        with self._counted(self._loop_connection), self._loop_connection.begin():
            return work(Transaction(self._loop_connection, self._vectors))

    @contextmanager
    def _counted(self, connection: Connection) -> Iterator[None]:
        """Something is to be synced where a row changed, and was committed."""
        if self._syncing is None:
            yield
            return
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
        before = driver.total_changes
        yield
        if driver.total_changes != before:
            self._syncing.committed()

    def revision(self) -> str | None:
        """Which migration the schema is at; None where there is no schema yet."""
        with self._typed_errors(), self.engine.connect() as connection:
            return _revision(connection)

    def bring_forward(
        self, backups: Path, lock: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> str | None:
        """Migrate if the schema is behind: under the lock, after a backup, in one transaction.

        Returns the path of the backup, if one was made.
        """
        if self._is_current(self.revision()):
            return None
        with lock():
            found = self.revision()
            if self._is_current(found):
                return None
            # Also what has no version: whose tables these are is not for us to guess.
            backup = self._backup(backups, found) if self._has_tables() else None
            self._upgrade()
            return backup

    def _has_tables(self) -> bool:
        with self._typed_errors(), self.engine.connect() as connection:
            return bool(inspect(connection).get_table_names())

    def check(self, *, search: bool = False) -> list[str]:
        """What SQLite itself finds damaged; nothing on PostgreSQL, which checks as it reads."""
        return [] if self.file is None else trouble_in(self.file, search=search)

    def scrub(self) -> bool:
        """After a deletion for good: write the file anew, since pages that were rearranged keep old bytes.

        False where somebody reads an older state and will not let the log be emptied yet.
        """
        if self.file is None:
            return True
        with self._typed_errors(), _closing(sqlite3.connect(self.file, timeout=60)) as connection:
            with self._one_writer():
                connection.execute("VACUUM")
            # While it waits for readers, a checkpoint keeps out all who write: it must not wait for long.
            connection.execute("PRAGMA busy_timeout = 200")
            for attempt in range(SCRUB_ATTEMPTS):
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not busy:
                    return True
                time.sleep(min(0.05 * 2**attempt, 1.0))
        return False

    def checkpoint(self) -> None:
        """Take the log into the file, so that it can begin anew. Nobody waits for that, unless it has grown large."""
        assert self.file is not None
        assert self._watched is not None
        self._watched.check(at_once=True)  # the log of one file must not go into another
        with self._typed_errors(), _closing(sqlite3.connect(self.file, timeout=0.2)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if self._syncing is not None and self._syncing.log_size() > LARGE:
                # What is left is little. The first to write after it begins the log anew, with a sync: not the event loop.
                with self._one_writer():
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("PRAGMA user_version=0")
                    connection.execute("COMMIT")

    def trouble(self) -> str | None:
        """What was found damaged since it was opened; that does not mend itself."""
        return self._damage

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            if self._watched is not None:
                self._watched.check()
            try:
                with typed_errors():
                    yield
            except Unavailable as error:
                if self._watched is not None and not isinstance(error, Busy):
                    self._watched.check(at_once=True)  # a file that went away a moment ago cannot be opened
                raise
        except Damaged as error:
            self._damage = error.message
            raise

    def close(self) -> None:
        if self._syncing is not None:
            self._syncing.close()
        if self._loop_connection is not None:
            self._loop_connection.close()
        self.engine.dispose()

    def _is_current(self, found: str | None) -> bool:
        if found is None or found < schema.HEAD:
            return False
        if found > schema.HEAD:
            raise Conflict(
                f"the database was written by a newer Coterie (schema {found}, this one knows {schema.HEAD}); "
                "update Coterie, or restore a backup made with this version"
            )
        return True

    def _backup(self, folder: Path, found: str | None) -> str:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        target = folder / f"coterie-{found or 'unversioned'}-{stamp}.{'sql' if self.file is None else 'db'}"
        if self.file is not None:
            copy_sqlite(self.file, target)
        else:
            pg_dump(self.engine.url.render_as_string(hide_password=False), target)
        return str(target)

    def _upgrade(self) -> None:
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self._one_writer(), self._typed_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(coterie_write=True)
            with connection.begin():
                if self.file is None:
                    connection.execute(text("SET LOCAL lock_timeout = '60s'"))
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
                    if self._is_current(_revision(connection)):
                        return
                config.attributes["connection"] = connection
                command.upgrade(config, schema.HEAD)
        if self._syncing is not None:
            self._syncing.committed()
            self._syncing.now()


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    value = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if value is None else str(value)


def _sqlite(file: Path) -> Engine:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch(mode=0o600)  # SQLite gives the files beside it the same permissions
    except OSError as error:
        raise Unavailable(f"the database {file} cannot be used: {error.strerror}") from error
    # A file that went away while we run must not come back empty with the next connection.
    address = f"{file.absolute().as_uri()}?mode=rw"
    options: dict[str, Any] = {"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000, "uri": True}
    # The connection that was used last knows the pages and statements that are asked for most.
    engine = create_engine(
        f"sqlite:///{file}", creator=lambda: sqlite3.connect(address, **options), pool_use_lifo=True
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, see below
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # the log is synced before anybody is told: Syncing
        connection.execute("PRAGMA wal_autocheckpoint=0")  # as well
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA secure_delete=ON")  # what is deleted is overwritten, not only unlinked
        full_text.prepare(connection)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that turns into a write fails at once when another process wrote meanwhile.
        writes = connection.get_execution_options().get("coterie_write")
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
        driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: str) -> Engine:
    try:
        import psycopg
    except ImportError:
        raise Unavailable("PostgreSQL needs its driver: pip install 'coterie[postgres]'") from None
    engine = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1),
        pool_size=8,
        max_overflow=sum(SIZES.values()),  # no thread waits for another's connection
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: psycopg.Connection[Any], _: ConnectionPoolEntry) -> None:
        # As on SQLite: whoever meets a lock waits for a while, not for ever.
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = {BUSY_TIMEOUT_MS}".encode())
        connection.autocommit = False

    return engine


@contextmanager
def _closing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield connection
    finally:
        connection.close()
