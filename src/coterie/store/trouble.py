"""What a database says when something is wrong, as errors that say what that means and what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from coterie.core.errors import CoterieError, Damaged, Unavailable, of_the_disk

WAY_OUT = "stop the gateway, and `coterie restore FILE` brings a backup back; `coterie doctor` says more"

DISK_FULL = "53100"
READ_ONLY = "25006"
PG_DAMAGE = ("XX001", "XX002")
"""PostgreSQL's names for a full disk, a database that takes no changes, damaged data and a damaged index."""


PG_HELD = ("55P03", "40P01", "40001")
"""A lock that was waited for too long, two who waited for each other, and two who changed the same."""


class Busy(Unavailable):
    """Others hold what is needed. Nothing has happened yet, so it can be tried again."""


class NotSynced(Unavailable):
    """It is committed, and others see it; but the disk did not take it yet, and it would not outlive a loss of power."""


@contextmanager
def typed_errors() -> Iterator[None]:
    """A database that cannot be reached, is full, held by another or damaged is a typed error."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, PoolTimeout, OSError) as error:
        typed = _typed(error)
        if typed is None:
            raise
        raise typed from error


@contextmanager
def postgresql_errors() -> Iterator[None]:
    """The same for a connection of PostgreSQL's driver alone."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        known = _of_postgresql(error, error)
        raise known or Unavailable(f"the database cannot be used now: {_first_line(error)}") from error


def _typed(error: Exception) -> CoterieError | None:
    if isinstance(error, PoolTimeout):
        return Unavailable("the database is too busy now")
    if isinstance(error, OSError):
        return of_the_disk(error)
    cause: BaseException | None = error
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return Unavailable("the connection to the database was lost")
        cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause)
    return _of_postgresql(error, cause)


def _of_sqlite(error: sqlite3.Error) -> CoterieError | None:
    reason = _first_line(error)
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(reason)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Busy(f"the database cannot be used now: {reason}")
        case sqlite3.SQLITE_FULL:
            return Unavailable("the disk is full: nothing can be stored until there is space again")
        case sqlite3.SQLITE_READONLY:
            return Unavailable("the database cannot be written: its file or its disk is read-only")
        case sqlite3.SQLITE_IOERR:
            return Unavailable(f"the disk fails under the database: {reason} ({error.sqlite_errorname})")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return Unavailable(f"the database cannot be used: {reason}; is it there, and may it be read?")
    if isinstance(error, sqlite3.OperationalError):
        if reason.startswith(("no such table", "no such column", "Could not decode")):
            return damaged(reason)
        return Unavailable(f"the database cannot be used now: {reason}")
    # Its other subclasses are mistakes in statements.
    return damaged(reason) if type(error) is sqlite3.DatabaseError else None


def _of_postgresql(error: Exception, cause: BaseException | None) -> CoterieError | None:
    reason = _first_line(cause or error)
    match getattr(cause, "sqlstate", None):
        case code if code in PG_DAMAGE:
            return damaged(reason)
        case code if code == DISK_FULL:
            return Unavailable(f"the database's disk is full: {reason}")
        case code if code == READ_ONLY:
            return Unavailable(f"the database is read-only: {reason}")
        case code if code in PG_HELD:
            return Busy(f"the database cannot be used now: {reason}")
    if type(error).__name__ != "OperationalError":
        return None
    return Unavailable(f"the database cannot be used now: {reason}")


def damaged(reason: str) -> Damaged:
    return Damaged(f"the database is damaged: {reason}; {WAY_OUT}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
