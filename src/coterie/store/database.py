"""One database: connections, transactions, and bringing an older schema forward."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from coterie.core.errors import Conflict, Unavailable
from coterie.store import full_text, schema
from coterie.store.transaction import Transaction
from coterie.store.vectors import VectorCache

SCRUB_ATTEMPTS = 20
BUSY_TIMEOUT_MS = 5_000
LOOP_BUSY_TIMEOUT_MS = 5
T = TypeVar("T")
_MIGRATION_LOCK = 0x636F7465  # any number will do, as long as every process uses the same


class Busy(Unavailable):
    """Another process holds the database's lock."""


class Database:
    """Every read and write goes through `read()` and `write()`."""

    def __init__(self, engine: Engine, file: Path | None) -> None:
        self.engine = engine
        self.file = file
        """The SQLite file; None on PostgreSQL."""
        # Writers of one process queue here, where waking up is prompt, and not in SQLite's busy handler.
        self._loop_connection: Connection | None = None
        self._vectors = VectorCache()
        self._writer: AbstractContextManager[Any] = threading.RLock() if file is not None else nullcontext()

    @classmethod
    def connect(cls, url: str, home: Path) -> Database:
        if url.startswith("sqlite:///"):
            file = home / url.removeprefix("sqlite:///")
            return cls(_sqlite(file), file)
        return cls(_postgresql(url), None)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """One consistent view."""
        with _typed_errors(), self.engine.connect() as connection:
            if self.file is None:
                # PostgreSQL would otherwise show each statement what others committed a moment ago.
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield Transaction(connection, self._vectors)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """All or nothing, on disk when the block ends."""
        with _typed_errors(), self._writer, self.engine.connect() as connection:
            connection = connection.execution_options(coterie_write=True)
            with connection.begin():
                yield Transaction(connection, self._vectors)

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """As `write`, from the event loop.

        SQLite: right here, because a short transaction costs less than handing it to a thread; a lock held
        by another process is waited for without holding up the loop. PostgreSQL: on a thread.
        """
        if self.file is None:
            return await asyncio.to_thread(self._write_once, work)
        give_up = time.monotonic() + BUSY_TIMEOUT_MS / 1000
        pause = 0.002
        while True:
            try:
                with _typed_errors():
                    return self._write_here(work)
            except Busy:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)

    async def look(self, work: Callable[[Transaction], T]) -> T:
        """As `read`, from the event loop, for what is quickly read."""
        if self.file is None:
            return await asyncio.to_thread(self._read_once, work)
        return self._read_once(work)

    def _read_once(self, work: Callable[[Transaction], T]) -> T:
        with self.read() as tx:
            return work(tx)

    def _write_once(self, work: Callable[[Transaction], T]) -> T:
        with self.write() as tx:
            return work(tx)

    def _write_here(self, work: Callable[[Transaction], T]) -> T:
        if self._loop_connection is None or self._loop_connection.closed:
            connection = self.engine.connect().execution_options(coterie_write=True)
            connection.exec_driver_sql(f"PRAGMA busy_timeout={LOOP_BUSY_TIMEOUT_MS}")
            connection.rollback()
            self._loop_connection = connection
        with self._loop_connection.begin():
            return work(Transaction(self._loop_connection, self._vectors))

    def revision(self) -> str | None:
        """Which migration the schema is at; None where there is no schema yet."""
        with _typed_errors(), self.engine.connect() as connection:
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
            backup = self._backup(backups, found) if found is not None else None
            self._upgrade()
            return backup

    def check(self) -> list[str]:
        """What SQLite itself finds damaged; nothing on PostgreSQL, which checks as it reads."""
        if self.file is None:
            return []
        with _typed_errors(), self.engine.connect() as connection, connection.begin():
            found = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
        return [] if found == ["ok"] else [str(line) for line in found]

    def scrub(self) -> bool:
        """After a deletion for good: write the file anew, since pages that were rearranged keep old bytes.

        False where somebody reads an older state and will not let the log be emptied yet.
        """
        if self.file is None:
            return True
        with _typed_errors(), _closing(sqlite3.connect(self.file, timeout=60)) as connection:
            with self._writer:
                connection.execute("VACUUM")
            # While it waits for readers, a checkpoint keeps out all who write: it must not wait for long.
            connection.execute("PRAGMA busy_timeout = 200")
            for attempt in range(SCRUB_ATTEMPTS):
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not busy:
                    return True
                time.sleep(min(0.05 * 2**attempt, 1.0))
        return False

    def close(self) -> None:
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

    def _backup(self, folder: Path, found: str) -> str:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        if self.file is not None:
            target = folder / f"coterie-{found}-{stamp}.db"
            with (
                _closing(sqlite3.connect(self.file)) as source,
                _closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
            target.chmod(0o600)
            return str(target)
        return _pg_dump(self.engine, folder / f"coterie-{found}-{stamp}.sql")

    def _upgrade(self) -> None:
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with _typed_errors(), self._writer, self.engine.connect() as connection:
            connection = connection.execution_options(coterie_write=True)
            with connection.begin():
                if self.file is None:
                    connection.execute(text("SET LOCAL lock_timeout = '60s'"))
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
                    if self._is_current(_revision(connection)):
                        return
                config.attributes["connection"] = connection
                command.upgrade(config, schema.HEAD)


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
    engine = create_engine(
        f"sqlite:///{file}", connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000}
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, see below
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
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
        url.replace("postgresql://", "postgresql+psycopg://", 1), pool_size=8, pool_pre_ping=True
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: psycopg.Connection[Any], _: ConnectionPoolEntry) -> None:
        # As on SQLite: whoever meets a lock waits for a while, not for ever.
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = {BUSY_TIMEOUT_MS}".encode())
        connection.autocommit = False

    return engine


@contextmanager
def _typed_errors() -> Iterator[None]:
    """A database that cannot be reached or is held by another process is a typed, retryable error."""
    try:
        yield
    except (OperationalError, sqlite3.OperationalError) as error:
        cause = error.orig if isinstance(error, OperationalError) else error
        reason = str(cause or error).strip().splitlines()[0]
        kind = Busy if "locked" in reason or "busy" in reason else Unavailable
        raise kind(f"the database cannot be used now: {reason}") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Unavailable("the connection to the database was lost") from error
        if type(error.orig) is sqlite3.DatabaseError:  # its subclasses are mistakes in statements
            raise Conflict(f"the database is damaged: {error.orig}; restore a backup") from error
        raise
    except PoolTimeout as error:
        raise Unavailable("the database is too busy now") from error


def _pg_dump(engine: Engine, target: Path) -> str:
    import shutil
    import subprocess

    program = shutil.which("pg_dump")
    if program is None:
        raise Conflict(
            "the schema is behind and must be backed up first, but pg_dump was not found; "
            "install PostgreSQL's client programs"
        )
    url = engine.url.set(drivername="postgresql")
    environment = {**os.environ, "PGPASSWORD": url.password or ""}
    address = url.set(password=None).render_as_string(hide_password=False)
    done = subprocess.run(
        [program, "--file", str(target), "--dbname", address], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise Conflict(f"the backup before the migration failed: {done.stderr.strip()[:300]}")
    target.chmod(0o600)
    return str(target)


@contextmanager
def _closing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield connection
    finally:
        connection.close()
