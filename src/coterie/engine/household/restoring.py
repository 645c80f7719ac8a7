"""Puts a backup into the place of what is in a home, which is kept beside it.

Everything is unpacked and checked first, beside where it belongs. Then a plan is written, and from there on every step
is a rename that can be repeated: whoever comes upon a plan carries it out to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coterie.config import Config, ConfigError
from coterie.core.errors import Conflict, Damaged, Unavailable
from coterie.engine.household import life
from coterie.engine.household.backup import BEFORE, STAGING, Backup, in_words, opened, sync_folder
from coterie.engine.household.home import Home
from coterie.engine.household.place import database_file, database_url, url_in
from coterie.store.copies import Facts, check_dump, check_sqlite, load_postgresql
from coterie.store.engine_claim import engine_claim

BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite's files are called besides the database's own name."""
SPARE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Restored:
    created_at: str
    facts: Facts
    kept: Path | None
    """Where what was there before is now; None where there was nothing."""

    def payload(self) -> dict[str, Any]:
        return {
            "created_at": self.created_at,
            "database": self.facts.payload(),
            "kept": str(self.kept) if self.kept is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Move:
    new: str | None
    """What comes here; None where only what is here goes."""
    place: str
    aside: str


@dataclass(frozen=True, slots=True)
class Plan:
    moves: list[Move]
    staging: list[str]
    """Folders that are empty of anything useful when all is done."""
    epoch: int
    dump: str | None = None
    url: str | None = None
    facts: dict[str, Any] | None = None
    """PostgreSQL only: what is to be loaded, where to, and what it must give."""


def restore(home: Home, file: Path) -> Restored:
    """Refuses over a running gateway, and anything that is no whole backup, before it touches anything."""
    with opened(file) as backup:
        home.prepare()
        with home.engine_lock(wait=1), home.registry_lock():
            _finish(home)
            url = _target(home, backup)
            held = engine_claim(url) if database_file(home, url) is None else contextlib.nullcontext()
            with held:
                try:
                    return _restore(home, backup, url)
                except OSError as error:
                    raise in_words(error) from error


def finish_restore(home: Home, *, locked: bool) -> None:
    """Carry out what a crash cut short. `locked`: the caller holds the engine's lock."""
    if not home.restoring.exists():
        return
    with contextlib.nullcontext() if locked else home.engine_lock(wait=30), home.registry_lock():
        _finish(home)


def leftovers(home: Home) -> list[Path]:
    """What a restore unpacked that was cut off before it had a plan."""
    return [] if home.restoring.exists() else sorted(home.path.glob(f"{STAGING}*"))


def begin_anew(home: Home) -> Path | None:
    """Put what is left of the database aside, and let the next start make an empty one."""
    home.prepare()
    with home.engine_lock(wait=1), home.registry_lock():
        _finish(home)
        file = database_file(home, database_url(home))
        aside = None
        if file is not None:
            aside = file.parent / f"{BEFORE}{_stamp()}"
            moves = [_move(None, Path(f"{file}{end}"), aside) for end in BESIDE]
            if not any(os.path.lexists(move.place) for move in moves):
                aside = None
            else:
                _carry_out(home, Plan(moves, [], 0))
        life.write(home, begin_anew=True, epoch=0)
        return aside


def _restore(home: Home, backup: Backup, url: str) -> Restored:
    file = database_file(home, url)
    with contextlib.suppress(OSError):
        home.agents.rmdir()  # made a moment ago, or as good as that
    for leftover in leftovers(home):
        shutil.rmtree(leftover, ignore_errors=True)
    stamp = _stamp()
    aside = home.path / f"{BEFORE}{stamp}"
    _check_space(home, backup)
    staging = home.path / f"{STAGING}{stamp}"
    beside = staging if file is None else file.parent / f"{STAGING}{stamp}-database"
    with _removed_unless_planned(home, staging, beside):
        staging.mkdir(mode=0o700)
        backup.files_to(staging / "home")
        beside.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = beside / "database"
        backup.database_to(database)
        moves = [
            _move(staging / "home" / name, home.path / name, aside)
            for name in sorted({name.partition("/")[0] for name in backup.entries})
        ]
        moves += [_move(None, place, aside) for place in _only_here(home, backup)]
        if file is not None:
            check = check_sqlite(database)
            if check != backup.facts:
                raise Damaged(f"{backup.file} is damaged: its database does not hold what it should")
            kept = aside if file.parent == home.path else file.parent / f"{BEFORE}{stamp}"
            moves += [_move(None, Path(f"{file}{end}"), kept) for end in BESIDE[1:]]
            moves.append(_move(database, file, kept))
            plan = Plan(moves, [str(staging), str(beside)], _epoch(database))
        else:
            check_dump(database)
            plan = Plan(moves, [str(staging)], 0, str(database), url, backup.facts.payload())
            _keep_postgresql(url, aside)
        there = aside.exists() or any(os.path.lexists(move.place) for move in moves)
        _write_plan(home, plan)
    _finish(home)
    return Restored(backup.created_at, backup.facts, aside if there else None)


def _target(home: Home, backup: Backup) -> str:
    """Where the database belongs: where the restored agent.yaml will say it is, unless that is a surprise."""
    try:
        url = url_in(backup.config)
    except (ConfigError, ValidationError):
        url = Config().database.url
    here = database_url(home) if home.config.exists() else None
    file = database_file(home, url)
    if (file is None) != (backup.facts.kind == "postgresql"):
        raise Conflict(f"{backup.file} is damaged: its agent.yaml does not fit its database")
    if url == here:
        return url
    if file is None:
        raise Conflict(
            f"{backup.file} belongs into a PostgreSQL database, which agent.yaml in {home.path} does not name; "
            f"write the same database.url there first, if what is in that database may be replaced"
        )
    if not file.resolve().is_relative_to(home.path.resolve()) or ".." in file.parts:
        raise Conflict(
            f"{backup.file} keeps its database in {file}, outside the home folder; write the same "
            f"database.url into agent.yaml of {home.path} first, if that is where it belongs"
        )
    first = file.relative_to(home.path).parts[0]
    if first in (".", "run", "token", "agents", "agent.yaml"):
        raise Conflict(f"{backup.file} is refused: it keeps its database in {first}")
    return url


def _only_here(home: Home, backup: Backup) -> Iterator[Path]:
    """What a household has here and did not have then."""
    then = {name.partition("/")[0] for name in backup.entries}
    for name in ("agent.yaml", "agents", "skills", "plugins", "memory"):
        if name not in then:
            yield home.path / name
    for path in home.path.glob("*.md"):
        if path.name not in then:
            yield path


def _move(new: Path | None, place: Path, aside: Path) -> Move:
    return Move(str(new) if new is not None else None, str(place), str(aside / place.name))


def _check_space(home: Home, backup: Backup) -> None:
    free = shutil.disk_usage(home.path).free
    if backup.size + SPARE > free:
        raise Unavailable(
            f"the disk has {free // 1_000_000:,} MB left, and the backup needs {backup.size // 1_000_000 + 17:,}"
        )


def _epoch(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        row = connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    return 0 if row is None else int(row[0])


def _keep_postgresql(url: str, aside: Path) -> None:
    from coterie.store.copies import copy_postgresql

    aside.mkdir(mode=0o700)
    facts = copy_postgresql(url, aside / "database.dump")
    if not facts.counts:
        (aside / "database.dump").unlink()
        aside.rmdir()


# Carrying it out


def _write_plan(home: Home, plan: Plan) -> None:
    temporary = home.temporary()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(plan), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(home.restoring)
    sync_folder(home.run)


def _finish(home: Home) -> None:
    try:
        found = json.loads(home.restoring.read_text())
    except FileNotFoundError:
        return
    try:
        _carry_out(home, Plan(**{**found, "moves": [Move(**move) for move in found["moves"]]}))
    except OSError as error:
        raise in_words(error) from error


def _carry_out(home: Home, plan: Plan) -> None:
    if plan.dump is not None and Path(plan.dump).exists():
        assert plan.url is not None
        assert plan.facts is not None
        try:
            load_postgresql(plan.url, Path(plan.dump), Facts(**plan.facts))
        except Conflict:
            # In one transaction, so nothing has changed; what cannot be loaded now is not loaded later either.
            _forget(home, plan)
            raise
        Path(plan.dump).unlink()
    for move in plan.moves:
        _carry_out_move(move)
    for about_the_former in (home.run / "database", home.in_use):
        about_the_former.unlink(missing_ok=True)
    life.write(home, begin_anew=False, epoch=plan.epoch)
    _forget(home, plan)


def _carry_out_move(move: Move) -> None:
    new, place, aside = move.new, Path(move.place), Path(move.aside)
    waits = new is None or os.path.lexists(new)
    if waits and os.path.lexists(place) and not os.path.lexists(aside):
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        place.rename(aside)
        sync_folder(aside.parent)
    if new is not None and waits:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(new).rename(place)
    if place.parent.is_dir():
        sync_folder(place.parent)


def _forget(home: Home, plan: Plan) -> None:
    home.restoring.unlink(missing_ok=True)
    for folder in plan.staging:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _removed_unless_planned(home: Home, *folders: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if not home.restoring.exists():
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        raise


def _stamp() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:4]}"
