"""Commits share syncs, a sync that fails is told to all who waited for it, and the log goes into the file."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from coterie.core.errors import Unavailable
from coterie.store import syncing
from coterie.store.database import Database
from coterie.store.syncing import Syncing


class Disk:
    """A disk that takes what is synced when it is let, or not at all."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.syncs = 0
        self.broken = False
        self.began = threading.Event()
        self.threads: list[int] = []
        """Who synced, each time."""

    def sync(self, file: int) -> None:
        self.began.set()
        assert self.open.wait(30)
        self.syncs += 1
        self.threads.append(threading.get_ident())
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(file)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def database(tmp_path: Path, disk: Disk) -> Iterator[Database]:
    database = Database.connect("sqlite:///coterie.db", tmp_path)
    database.bring_forward(tmp_path / "backups")
    assert database.file is not None
    database._syncing = Syncing(database.file, database.checkpoint, disk.sync)
    yield database
    database.close()


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


async def put(database: Database, number: int) -> None:
    await database.transact(lambda tx: tx.meta.set(f"n{number}", "x" * 100))


@on_a_loop
async def test_commits_that_come_while_a_sync_is_under_way_share_the_next(
    database: Database, disk: Disk
) -> None:
    disk.open.clear()
    first = asyncio.create_task(put(database, 0))
    await asyncio.to_thread(disk.began.wait, 30)
    others = [asyncio.create_task(put(database, number)) for number in range(1, 101)]
    for _ in range(300):
        await asyncio.sleep(0)
    assert not first.done() and not any(task.done() for task in others)
    disk.open.set()
    await asyncio.gather(first, *others)
    assert disk.syncs == 2


@on_a_loop
async def test_the_loop_syncs_by_itself_once_a_round_while_the_disk_is_quick(
    database: Database, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    here = threading.get_ident()
    while disk.threads[-1:] != [here]:  # it has to be quick for a while, whatever else the machine does
        await put(database, 0)
    assert disk.threads[0] != here
    before = disk.syncs
    await asyncio.gather(*(put(database, number) for number in range(100)))
    assert disk.syncs <= before + syncing.ALONE + 1
    before = disk.syncs
    await asyncio.gather(*(put(database, number) for number in range(100)))
    assert disk.syncs == before + 1
    assert await database.look(lambda tx: tx.meta.get("n99")) == "x" * 100

    disk.broken = True
    told = await asyncio.gather(*(put(database, n) for n in range(5)), return_exceptions=True)
    assert all(isinstance(one, Unavailable) for one in told)
    disk.broken = False
    disk.open.clear()
    opening = threading.Timer(0.05, disk.open.set)
    opening.start()
    await put(database, 1)  # held up once
    opening.join()
    disk.threads.clear()
    await put(database, 2)
    assert disk.threads and here not in disk.threads


@on_a_loop
async def test_what_changed_nothing_waits_for_no_sync_of_its_own(database: Database, disk: Disk) -> None:
    await put(database, 1)
    before = disk.syncs
    await database.transact(lambda tx: tx.meta.get("n1"))
    with database.write() as tx:
        tx.meta.get("n1")
    assert disk.syncs == before


@on_a_loop
async def test_what_was_found_committed_is_not_passed_on_before_it_is_on_disk(
    database: Database, disk: Disk
) -> None:
    disk.open.clear()
    writer = asyncio.create_task(put(database, 1))
    await asyncio.to_thread(disk.began.wait, 30)
    repeat = asyncio.create_task(database.transact(lambda tx: tx.meta.get("n1")))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not repeat.done()
    disk.open.set()
    await writer
    assert await repeat == "x" * 100


@on_a_loop
async def test_a_failed_sync_is_an_error_for_all_who_waited_and_not_the_end(
    database: Database, disk: Disk
) -> None:
    disk.broken = True
    told = await asyncio.gather(*(put(database, n) for n in range(5)), return_exceptions=True)
    assert all(isinstance(one, Unavailable) and "Input/output error" in one.message for one in told)
    with pytest.raises(Unavailable), database.write() as tx:
        tx.meta.set("other", "x")
    disk.broken = False
    assert database.file is not None
    await put(database, 9)
    # Pages of a sync that failed may be missing in the log: the file must have them.
    copy = database.file.with_name("copy.db")
    copy.write_bytes(database.file.read_bytes())
    connection = sqlite3.connect(copy)
    assert connection.execute("SELECT count(*) FROM meta WHERE key LIKE 'n%'").fetchone()[0] >= 5
    connection.close()


@on_a_loop
async def test_the_log_goes_into_the_file_while_commits_go_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "MANY", 20)
    monkeypatch.setattr(syncing, "PAUSE", 0.0)
    assert database.file is not None
    before = database.file.stat().st_mtime_ns
    for number in range(60):
        await put(database, number)
    while database.file.stat().st_mtime_ns == before:
        await asyncio.sleep(0.005)


@on_a_loop
async def test_a_quiet_log_goes_into_the_file(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "QUIET_SECONDS", 0.01)
    assert database.file is not None
    before = database.file.stat().st_mtime_ns
    await put(database, 1)
    while database.file.stat().st_mtime_ns == before:
        await asyncio.sleep(0.005)


@on_a_loop
async def test_a_log_that_grew_large_begins_anew(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.store.database.LARGE", 0)
    assert database.file is not None
    log = database.file.with_name("coterie.db-wal")
    for number in range(50):
        await put(database, number)
    before = log.stat().st_size
    await asyncio.to_thread(database.checkpoint)
    assert log.stat().st_size < before / 4
    await put(database, 51)
    assert await database.look(lambda tx: tx.meta.get("n49")) == "x" * 100
