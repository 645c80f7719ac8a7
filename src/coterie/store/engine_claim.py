"""On PostgreSQL: at most one process runs the turns of a database, wherever it runs.

The lock belongs to a connection of its own. The server frees it when that connection ends, however it ends. Whoever
loses it may not know it yet: then the epoch of whoever came after refuses what they commit.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from coterie.core.errors import Conflict
from coterie.store.trouble import postgresql_errors

if TYPE_CHECKING:
    import psycopg

KEY = 0x636F7465_72696531
PATIENCE = 5.0
"""How long a process that has just ended may take to be noticed by the server."""
PING_SECONDS = 2.0
NAME = "coterie engine "


class EngineClaim:
    """The lock, and a watch over it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] = _locked(url, PATIENCE)
        self._stopped = threading.Event()
        self._watch: threading.Thread | None = None

    def watch(self, still_ours: Callable[[], bool], lost: Callable[[str], None]) -> None:
        """Notice when the connection is gone: take the lock again where nobody else ran meanwhile, else say so."""

        def keep() -> None:
            while not self._stopped.wait(PING_SECONDS):
                if self._is_alive():
                    continue
                try:
                    self._connection = _locked(self._url, 0)
                    if still_ours():
                        continue
                    reason = "another gateway ran on this database meanwhile"
                except Conflict as error:
                    reason = error.message
                except Exception:  # noqa: S112 - the server is away, and with it everything that a turn could commit
                    continue
                lost(reason)
                return

        self._watch = threading.Thread(target=keep, name="coterie-claim", daemon=True)
        self._watch.start()

    def close(self) -> None:
        self._stopped.set()
        if self._watch is not None:
            self._watch.join(PING_SECONDS * 5)
        with suppress(Exception):
            self._connection.close()

    def _is_alive(self) -> bool:
        try:
            self._connection.execute("SELECT 1")
        except Exception:
            with suppress(Exception):
                self._connection.close()
            return False
        return True


@contextmanager
def engine_claim(url: str) -> Iterator[EngineClaim]:
    """Held until the block ends. Raises Conflict with who holds it."""
    claim = EngineClaim(url)
    try:
        yield claim
    finally:
        claim.close()


def _locked(url: str, patience: float) -> psycopg.Connection[Any]:
    import psycopg

    who = f"{NAME}{socket.gethostname()}/{os.getpid()}"[:63]
    with postgresql_errors():
        connection = psycopg.connect(url, autocommit=True, application_name=who, connect_timeout=10)
    try:
        # A machine that lost its power says no farewell; the server finds out within a minute.
        for name, value in (("idle", 20), ("interval", 10), ("count", 3)):
            connection.execute(f"SET tcp_keepalives_{name} = {value}".encode())
        give_up = time.monotonic() + patience
        while not _try(connection):
            if time.monotonic() >= give_up:
                raise Conflict(
                    f"another gateway runs on this PostgreSQL database ({_holder(connection)}); "
                    "stop it first: one database has one gateway"
                )
            time.sleep(0.1)
    except BaseException:
        connection.close()
        raise
    return connection


def _try(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", [KEY]).fetchone()
    return row is not None and bool(row[0])


def _holder(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute(
        "SELECT a.application_name, a.client_addr::text FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND (l.classid::bigint << 32 | l.objid::bigint) = %s",
        [KEY],
    ).fetchone()
    if row is None:
        return "it has just ended; try again"
    name = str(row[0] or "").removeprefix(NAME) or "somebody"
    return f"{name} from {row[1]}" if row[1] else name
