"""A whole household in one file: the database as of one moment, agent.yaml, and every file of the agents.

The file is a ZIP in which nothing is compressed: what comes out is never larger than what went in, whoever made it.
The owner's token is not in it; whoever gets hold of a backup can read everything, but comes in at no door.
"""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie import __version__
from coterie.config import ConfigError, values
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound, Unavailable, of_the_disk
from coterie.engine.household import life
from coterie.engine.household.folder import TEMPORARY, check_path
from coterie.engine.household.home import Home
from coterie.engine.household.place import database_file, database_url
from coterie.store.copies import Facts, check_revision, copy_postgresql, copy_sqlite, never

FORMAT = 1
MANIFEST = "manifest.json"
DATABASE = "database"
FILES = "home/"
FOLDERS = ("agents", "skills", "plugins", "memory")
NEVER = ("run", "backups", "token")
"""What is this machine's, or would be a backup of backups."""
MAX_ENTRIES = 500_000
MAX_MANIFEST = 4 * 1024 * 1024
CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Made:
    """A backup that was written and read back."""

    file: Path
    size: int
    facts: Facts
    files: int
    left_out: tuple[str, ...]
    """Links and other things that are no files."""
    created_at: str

    def payload(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "size": self.size,
            "created_at": self.created_at,
            "database": self.facts.payload(),
            "files": self.files,
            "left_out": list(self.left_out),
        }


# Making one


def make_backup(home: Home, target: Path, stopped: Callable[[], bool] = never) -> Made:
    """Write a backup, read it back, and only then give it its name. A gateway may run and write all the while.

    `stopped` is asked now and then whether to give it up.
    """
    if target.is_dir():
        raise InvalidRequest(f"{target} is a folder; name a file in it")
    if target.exists():
        raise Conflict(f"{target} exists already; name another file")
    if not target.parent.is_dir():
        raise NotFound(f"the folder {target.parent} does not exist")
    if not home.path.is_dir():
        raise NotFound(f"there is no household in {home.path}")
    try:
        with _temporary(target) as archive, _temporary(target) as copy:
            facts = _copy_database(home, copy, stopped)
            check_revision(facts.revision, "the database")
            made = _write(home, archive, copy, facts)
            with opened(archive) as written:
                written.read_back()
            archive.rename(target)
            sync_folder(target.parent)
    except OSError as error:
        raise in_words(error) from error
    return Made(target, target.stat().st_size, facts, *made)


def _copy_database(home: Home, copy: Path, stopped: Callable[[], bool]) -> Facts:
    url = database_url(home)
    file = database_file(home, url)
    if file is None:
        return copy_postgresql(url, copy)
    life.check_file(home, file)
    if not file.exists():
        raise NotFound(f"there is no household in {home.path} yet")
    if home.in_use.exists() and not home.engine_is_held():
        life.after_a_crash(home, file)
    try:
        return copy_sqlite(file, copy, stopped)
    finally:
        life.taken_up(home)


def _write(home: Home, archive: Path, database: Path, facts: Facts) -> tuple[int, tuple[str, ...], str]:
    left_out: list[str] = []
    created_at = now_iso()
    files = 0
    descriptor = os.open(archive, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w+b") as raw:
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as written:
            _put(written, DATABASE, database, 0o600)
            for path in _belongings(home, left_out):
                name = FILES + path.relative_to(home.path).as_posix()
                if path.is_dir():
                    written.writestr(_entry(f"{name}/", stat.S_IFDIR | 0o700), b"")
                elif _put(written, name, path, None):
                    files += 1
                else:
                    left_out.append(str(path.relative_to(home.path)))
            about = {
                "format": FORMAT,
                "version": __version__,
                "created_at": created_at,
                "database": facts.payload(),
                "files": files,
            }
            written.writestr(_entry(MANIFEST, stat.S_IFREG | 0o600), json.dumps(about, indent=2))
        raw.flush()
        os.fsync(raw.fileno())
    return files, tuple(left_out), created_at


def _put(archive: zipfile.ZipFile, name: str, path: Path, mode: int | None) -> bool:
    """One file as it is now. False where it is gone by now, or no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "rb") as source:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return False
        entry = _entry(name, stat.S_IFREG | (found.st_mode & 0o700 if mode is None else mode))
        with archive.open(entry, "w", force_zip64=True) as target:
            while chunk := source.read(CHUNK):
                target.write(chunk)
    return True


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, time.gmtime()[:6])
    entry.external_attr = mode << 16
    return entry


def _belongings(home: Home, left_out: list[str]) -> Iterator[Path]:
    """Every file and folder of the household, from the outside in."""
    for path in sorted(home.path.iterdir()):
        if path.name == "agent.yaml" or (path.suffix == ".md" and path.is_file()):
            yield from _below(home, path, left_out)
    for name in sorted({*FOLDERS, *_personalities(home)}):
        if os.path.lexists(home.path / name):
            yield from _below(home, home.path / name, left_out)


def _below(home: Home, path: Path, left_out: list[str]) -> Iterator[Path]:
    if path.name.startswith(TEMPORARY) or path.name == "__pycache__":
        return
    mode = path.lstat().st_mode
    if _unspeakable(path.name) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        left_out.append(os.fsencode(path.relative_to(home.path)).decode("utf-8", "replace"))
        return
    yield path
    if stat.S_ISDIR(mode):
        for inner in sorted(path.iterdir()):
            yield from _below(home, inner, left_out)


def _unspeakable(name: str) -> bool:
    """A name that our own paths could not have."""
    try:
        check_path(name)
    except InvalidRequest:
        return True
    return False


def _personalities(home: Home) -> set[str]:
    """Folders of the home that the roster takes personalities from."""
    try:
        agents = values(home.config.read_text(encoding="utf-8-sig", errors="replace")).get("agents")
    except (OSError, ConfigError):
        return set()
    roster = agents.get("roster") if isinstance(agents, dict) else None
    named = (entry.get("personality") for entry in roster or () if isinstance(entry, dict))
    firsts = {str(path).partition("/")[0] for path in named if path and "/" in str(path)}
    return {name for name in firsts if name not in NEVER and not name.startswith(".")}


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    path = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        yield path
    finally:
        for leftover in (path, *(path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm"))):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)


# Reading one


class Backup:
    """A backup file whose every entry is one that `make_backup` could have written."""

    def __init__(self, file: Path, archive: zipfile.ZipFile, manifest: dict[str, Any], facts: Facts) -> None:
        self.file = file
        self._archive = archive
        self.facts = facts
        self.created_at = str(manifest.get("created_at", ""))
        entries = [e for e in archive.infolist() if e.filename.startswith(FILES)]
        self.entries = {e.filename.removeprefix(FILES).rstrip("/"): e for e in entries}
        """Files and folders by their path in the home."""
        self.size = sum(entry.file_size for entry in archive.infolist())

    @property
    def config(self) -> str:
        entry = self.entries.get("agent.yaml")
        return "" if entry is None else self._archive.read(entry).decode("utf-8-sig", "replace")

    def read_back(self) -> None:
        """Every byte, against its check sum."""
        for entry in self._archive.infolist():
            with self._archive.open(entry) as source:
                while source.read(CHUNK):
                    pass

    def database_to(self, target: Path) -> None:
        self._unpack(self._archive.getinfo(DATABASE), target, 0o600)

    def files_to(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        for name, entry in sorted(self.entries.items()):
            target = folder / name
            if entry.is_dir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._unpack(entry, target, 0o600 | (entry.external_attr >> 16) & 0o700)
        for path in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
            sync_folder(path)

    def _unpack(self, entry: zipfile.ZipInfo, target: Path, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            self._archive.open(entry) as source,
            os.fdopen(os.open(target, flags, mode), "wb") as written,
        ):
            while chunk := source.read(CHUNK):
                written.write(chunk)
            written.flush()
            os.fsync(written.fileno())


@contextmanager
def opened(file: Path) -> Iterator[Backup]:
    """A backup, once its list of contents has been found harmless. Raises a sentence for anything else."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check_entries(file, archive)
            manifest, facts = _manifest(file, archive)
            check_revision(facts.revision, str(file))
            yield Backup(file, archive, manifest, facts)
    except FileNotFoundError as error:
        if error.filename is not None and Path(error.filename) == file:
            raise NotFound(f"there is no file {file}") from None
        raise
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError, ValueError) as error:
        raise Conflict(f"{file} is damaged, or no backup: {str(error)[:200]}") from error
    except OSError as error:
        raise in_words(error) from error


def _check_entries(file: Path, archive: zipfile.ZipFile) -> None:
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise Conflict(f"{file} is refused: it has more than {MAX_ENTRIES:,} entries")
    if sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise Conflict(f"{file} is refused: it says that it holds more than there is in it")
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        name = entry.filename
        if (reason := _refusal(entry)) is not None:
            raise Conflict(f"{file} is refused: {name[:200]!r} {reason}")
        path = name.rstrip("/")
        if path in files or (path in folders and not entry.is_dir()):
            raise Conflict(f"{file} is refused: {name[:200]!r} is in it twice")
        (folders if entry.is_dir() else files).add(path)
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    if clash := files & folders:
        raise Conflict(f"{file} is refused: {min(clash)[:200]!r} is a file and a folder")


def _refusal(entry: zipfile.ZipInfo) -> str | None:
    """Why an entry is none of ours."""
    name = entry.filename
    if entry.flag_bits & 1:
        return "is encrypted"
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        return "is compressed, which backups are not"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) != entry.is_dir():
        return "is neither a file nor a folder"
    if name in (MANIFEST, DATABASE):
        return None
    if not name.startswith(FILES):
        return "does not belong into a backup"
    try:
        first, *_ = check_path(name.removeprefix(FILES).removesuffix("/"))
    except InvalidRequest as error:
        return f"has no fitting name: {error.message}"
    if first in NEVER or first.startswith((".", BEFORE, STAGING)):
        return "does not belong into a backup"
    return None


BEFORE = "before-restore-"
"""Begins the name of the folder that keeps what a restore replaced."""
STAGING = "restoring-"
"""Begins the name of the folder where a restore unpacks."""


def _manifest(file: Path, archive: zipfile.ZipFile) -> tuple[dict[str, Any], Facts]:
    names = set(archive.namelist())
    if MANIFEST not in names or DATABASE not in names:
        raise Conflict(f"{file} is no backup of a household")
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST:
        raise Conflict(f"{file} is refused: its list of contents is too long")
    try:
        manifest = json.loads(archive.read(MANIFEST))
        known = manifest["format"]
        facts = manifest["database"]
        kind, revision, counts = facts["kind"], facts["revision"], facts["counts"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Conflict(f"{file} is damaged: its list of contents cannot be read") from None
    if known != FORMAT:
        raise Conflict(f"{file} was written by a newer Coterie; update Coterie first")
    fine = (
        kind in ("sqlite", "postgresql")
        and isinstance(revision, str)
        and isinstance(counts, dict)
        and all(isinstance(n, int) for n in counts.values())
    )
    if not fine:
        raise Conflict(f"{file} is damaged: its list of contents cannot be read")
    return manifest, Facts(kind, revision, counts)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def in_words(error: OSError) -> CoterieError:
    return of_the_disk(error) or Unavailable(f"{error.filename or 'a file'}: {error.strerror or error}")
