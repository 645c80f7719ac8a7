"""Copies of a database: taken while others write, checked before anybody relies on them, and put back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, make_url

from coterie.core.errors import Conflict, Damaged, Unavailable
from coterie.store import schema
from coterie.store.trouble import damaged, postgresql_errors, typed_errors

PAGES = 512
"""Of a step: 2 MB."""
PAUSE = 0.002
SYNCED_PAGES = 4_096
"""A disk that has little left to sync keeps nobody waiting for long."""
FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What is in a copy, to be compared with what was to be copied."""

    kind: Literal["sqlite", "postgresql"]
    revision: str | None
    counts: dict[str, int]
    """Rows by table; indexes for search are left out, as they are derived."""

    def payload(self) -> dict[str, Any]:
        return asdict(self)


def check_revision(revision: str | None, what: str) -> None:
    """Refuse what this program cannot read, or what holds no household."""
    if revision is None:
        raise Conflict(f"{what} holds no household")
    if revision > schema.HEAD:
        raise Conflict(
            f"{what} was written by a newer Coterie (schema {revision}, this one knows {schema.HEAD}); "
            "update Coterie first"
        )


# SQLite


def never() -> bool:
    return False


def copy_sqlite(file: Path, target: Path, stopped: Callable[[], bool] = never) -> Facts:
    """A whole copy of one moment in one file, on disk and checked. `stopped` is asked now and then.

    Writers go on: in WAL mode a reader that stays at one moment holds nobody up, and as this one stays, what they
    write does not make the copy begin again.
    """
    target.touch(mode=0o600)
    with (
        typed_errors(),
        _opened(file) as source,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
        target.open("rb+") as written,
    ):
        source.execute("BEGIN")
        facts = _facts(source)
        copy.execute("PRAGMA synchronous=OFF")
        unsynced = 0

        def step(_: int, __: int, ___: int) -> None:
            nonlocal unsynced
            if stopped():
                raise Unavailable("the copy was stopped")
            unsynced += PAGES
            if unsynced >= SYNCED_PAGES:
                os.fsync(written.fileno())
                unsynced = 0

        source.backup(copy, pages=PAGES, progress=step, sleep=PAUSE)
        source.execute("ROLLBACK")
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, with nothing beside it
        os.fsync(written.fileno())
    found = check_sqlite(target, stopped)
    if found != facts:
        raise Damaged(f"the copy {target} differs from {file}: {found} instead of {facts}")
    return facts


def check_sqlite(file: Path, stopped: Callable[[], bool] = never) -> Facts:
    """What is in a database file that nobody uses. Raises Damaged where its pages are."""
    with typed_errors(), _opened(file) as connection:
        connection.set_progress_handler(stopped, 100_000)
        found = _trouble_in_pages(connection)
        if found:
            raise damaged("; ".join(found[:3]))
        return _facts(connection)


def trouble_in(file: Path, *, search: bool) -> list[str]:
    """What SQLite finds wrong: in pages, in links between rows, in indexes for search (which keeps writers out)."""
    with typed_errors(), _opened(file) as connection:
        found = _trouble_in_pages(connection)
        if not found:
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchmany(FINDINGS):
                found.append(f"{table} row {row} refers to something in {parent} that is not there")
            if search:
                found += _trouble_in_search(connection)
        return found


def _trouble_in_pages(connection: sqlite3.Connection) -> list[str]:
    found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({FINDINGS})")]
    # Newer versions look into indexes for search, too, which are derived and no reason to have no copy.
    return [line for line in found if line != "ok" and "fts5" not in line.lower()]


def _trouble_in_search(connection: sqlite3.Connection) -> Iterator[str]:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for name in schema.SEARCH_TABLES:
        if name not in tables:
            continue
        connection.execute("SAVEPOINT looking")  # the check is spelled as an insertion
        try:
            connection.execute(f"INSERT INTO {name} ({name}) VALUES ('integrity-check')")  # noqa: S608
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            yield f"the index {name} does not fit its rows"
        finally:
            connection.execute("ROLLBACK TO looking")
            connection.execute("RELEASE looking")


def _facts(connection: sqlite3.Connection) -> Facts:
    tables = [
        row[0]
        for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        if not row[0].startswith("sqlite_") and "_fts" not in row[0]
    ]
    counts = {t: connection.execute(f'SELECT count(*) FROM "{t}"').fetchone()[0] for t in tables}  # noqa: S608
    revision = None
    if "alembic_version" in tables:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        revision = None if row is None else str(row[0])
    return Facts("sqlite", revision, counts)


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Never makes a file where none is."""
    address = f"{file.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=30)) as connection:
        yield connection


# PostgreSQL


def copy_postgresql(url: str, target: Path) -> Facts:
    """By pg_dump, at the moment whose rows are counted."""
    import psycopg

    _program("pg_restore")
    with postgresql_errors(), psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        facts = _postgresql_facts(connection)
        snapshot = connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert snapshot is not None
        pg_dump(url, target, "--format=custom", f"--snapshot={snapshot[0]}")
    check_dump(target)
    return facts


def check_dump(dump: Path) -> None:
    """That PostgreSQL can read what it wrote."""
    _run("pg_restore", [f"--file={os.devnull}", str(dump)], None)


def load_postgresql(url: str, dump: Path, facts: Facts) -> None:
    """Put a dump into the place of what is there: all of it or nothing."""
    import psycopg

    what = ["--clean", "--if-exists", "--no-owner", "--no-privileges", "--single-transaction"]
    _run("pg_restore", [*what, "--exit-on-error", str(dump)], url)
    with postgresql_errors(), psycopg.connect(url) as connection:
        found = _postgresql_facts(connection)
    if found != facts:
        raise Damaged(f"the restored database differs from its backup: {found} instead of {facts}")


def _postgresql_facts(connection: Any) -> Facts:
    names = connection.execute(
        "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' ORDER BY 1"
    ).fetchall()
    counts = {}
    for (name,) in names:
        if "_fts" not in name:
            counts[name] = connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608
    revision = None
    if "alembic_version" in counts:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        revision = None if row is None else str(row[0])
    return Facts("postgresql", revision, counts)


def pg_dump(url: str, target: Path, *options: str) -> None:
    target.touch(mode=0o600)
    _run("pg_dump", [*options, "--file", str(target)], url)


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise Conflict(
            f"PostgreSQL is backed up by its own programs, but {name} was not found; install them first"
        )
    return program


def _run(name: str, arguments: list[str], url: str | None) -> None:
    environment = dict(os.environ)
    if url is not None:
        address: URL = make_url(url).set(drivername="postgresql")
        environment["PGPASSWORD"] = address.password or environment.get("PGPASSWORD", "")
        shown = address.set(password=None).render_as_string(hide_password=False)
        arguments = ["--dbname", shown, *arguments]
    try:
        done = subprocess.run([_program(name), *arguments], env=environment, capture_output=True, text=True)
    except OSError as error:
        raise Unavailable(f"{name} could not be started: {error.strerror}") from error
    if done.returncode != 0:
        raise Conflict(f"{name} failed: {done.stderr.strip()[:500]}")
