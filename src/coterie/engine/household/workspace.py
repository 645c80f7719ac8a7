"""An agent's files: its own, those it inherits from the household, and what nobody wrote yet."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound, TooLarge
from coterie.core.identity import is_placeholder, read_fields, write_fields
from coterie.engine.household.folder import Folder, check_path
from coterie.engine.household.home import Home

FileState = Literal["own", "inherited", "missing"]

INHERITED = ("IDENTITY.md", "SOUL.md", "AGENTS.md", "TOOLS.md")
"""The agent's own, else the household's."""
OWN_ONLY = ("MEMORY.md",)
SHARED_ONLY = ("USER.md",)
"""The human's: only ever the household's."""
NAMED = ("IDENTITY.md", "SOUL.md", "MEMORY.md", "AGENTS.md", "TOOLS.md", "USER.md")
MAX_CONTENT = 1024 * 1024
_DAILY = re.compile(r"memory/[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.md")

TEMPLATES = {
    "IDENTITY.md": """\
# Identity

- **Emoji:** _(one emoji)_
- **Creature:** _(what kind of being is it?)_
- **Vibe:** _(how does it come across?)_
""",
    "SOUL.md": """\
# Soul

_Who this agent is, what it cares about and how it speaks. Replace this line._
""",
    "MEMORY.md": """\
# Memory

_What this agent should always remember. Replace this line._
""",
}


Stamp = tuple[int, int, int]
"""Of a file: changes when it does."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    name: str
    state: FileState
    size: int
    """Bytes of the text that counts; 0 where it is missing."""


@dataclass(frozen=True, slots=True)
class FileContent:
    name: str
    state: FileState
    content: str
    size: int
    hash: str | None
    """Of the file that can be written, the agent's own, for `expected_hash`; None where it has none."""


def untouched(name: str, text: str) -> bool:
    """A template of which nobody has filled in a line, and an empty file, count as missing."""
    left = {line.strip() for line in answered(name, text).splitlines()} - {""}
    return left <= {line.strip() for line in TEMPLATES.get(name, "").splitlines()}


def answered(name: str, text: str) -> str:
    """A text without the lines of its template that nobody has filled in."""
    hints = {line.strip() for line in TEMPLATES.get(name, "").splitlines() if line.strip().endswith("_")}
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if line.strip() not in hints and not is_placeholder(line)
    )


def text_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stamp(path: str) -> Stamp | None:
    # Asked a dozen times in every turn: joining and looking up a Path would take six times as long.
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


MemorySignature = tuple[tuple[str, Stamp | None], ...]


class Workspace:
    """The files of one agent. Bound to it when made: there is no parameter to forget."""

    def __init__(self, home: Home, agent_id: str, *, soul: str | None = None) -> None:
        self.agent_id = agent_id
        self.path: Path = home.agents / agent_id
        self._own = Folder(self.path)
        self._shared = Folder(home.path)
        self._soul = soul
        """Another file of the home folder that serves as SOUL.md."""

    def scaffold(self) -> None:
        """Folders and template files, where there are none yet."""
        self._own.make()
        for name in ("memory", "workspace"):
            self._own.make(name)
        for name, template in TEMPLATES.items():
            self._own.write_new(name, template)

    def files(self) -> list[FileInfo]:
        """Every file that can have a say in a prompt, and the daily logs."""
        found = [self._info(name) for name in NAMED]
        try:
            logs = self._own.entries("memory")
        except CoterieError:
            logs = []
        return found + [
            FileInfo(f"memory/{name}", "own", size)
            for name, size in logs
            if size is not None and _DAILY.fullmatch(f"memory/{name}")
        ]

    def effective(self, name: str) -> tuple[FileState, str]:
        """The text that counts for this agent, and whose it is."""
        if name not in SHARED_ONLY:
            own = self._read_own(name)
            if own is not None and not untouched(name, own):
                return "own", own
        if name in INHERITED or name in SHARED_ONLY:
            shared = _read(self._shared, name)
            if shared is not None and not untouched(name, shared):
                return "inherited", shared
        return "missing", ""

    def get(self, name: str) -> FileContent:
        self._check_name(name)
        state, text = self.effective(name)
        own = self._own_bytes(name)
        if state == "missing":
            if name not in NAMED and own is None:
                raise NotFound(f"{self.agent_id} has no file {name}")
            # What is there to edit: the template, if it was scaffolded.
            text = "" if own is None else own.decode("utf-8", "replace")
        size = 0 if state == "missing" else len(text.encode())
        return FileContent(name, state, text, size, None if own is None else text_hash(own))

    def set(self, name: str, content: str, expected_hash: str | None = None) -> FileContent:
        """Write the agent's own file; USER.md is the household's, through whomever it is written. With `expected_hash`, only if nobody else changed it meanwhile."""
        self.check_content(name, content)
        if expected_hash is not None:
            now = self._own_bytes(name)
            if (text_hash(now) if now is not None else "") != expected_hash:
                raise Conflict(f"{name} was changed by someone else; read it again")
        folder, path = self._place(name)
        folder.write_text(path, content)
        return self.get(name)

    def check_content(self, name: str, content: str) -> None:
        """Refuse what could not be written, before anything is."""
        self._check_name(name)
        if len(content) > MAX_CONTENT or len(content.encode("utf-8", "surrogatepass")) > MAX_CONTENT:
            raise TooLarge(f"{name} has at most {MAX_CONTENT} bytes")
        if "\x00" in content or any("\ud800" <= c <= "\udfff" for c in content):
            raise InvalidRequest("the content must be Unicode text without NUL", details={"field": "content"})

    def memory_files(self) -> list[str]:
        """MEMORY.md and the logs, as far as they are there."""
        return [f.name for f in self.files() if f.state == "own" and f.name.startswith(("MEMORY", "memory/"))]

    def memory_signature(self) -> MemorySignature:
        """Changes whenever one of these files may have changed."""
        # In every turn, as `stamp`.
        found = [("MEMORY.md", stamp(f"{self.path}/MEMORY.md"))]
        try:
            with os.scandir(f"{self.path}/memory") as scan:
                found += sorted((entry.name, stamp(entry.path)) for entry in scan)
        except OSError:
            pass
        return tuple(found)

    def identity_fields(self) -> dict[str, str]:
        return read_fields(self.effective("IDENTITY.md")[1])

    def set_identity_fields(self, changes: dict[str, str]) -> None:
        """An agent that only inherited its identity gets its own copy first."""
        state, text = self.effective("IDENTITY.md")
        if state == "missing":
            text = self._read_own("IDENTITY.md") or TEMPLATES["IDENTITY.md"]
        changed = write_fields(text, changes)
        if changed != text or state != "own":
            self._own.make()
            self._own.write_text("IDENTITY.md", changed)

    def signature(self, name: str) -> tuple[object, ...]:
        """Changes whenever the effective text of a file may have changed."""
        return tuple(stamp(f"{folder.path}/{name}") for folder in (self._own, self._shared))

    def _info(self, name: str) -> FileInfo:
        state, text = self.effective(name)
        return FileInfo(name, state, len(text.encode()))

    def _check_name(self, name: str) -> None:
        check_path(name)
        if name not in NAMED and not _DAILY.fullmatch(name):
            raise InvalidRequest(
                f"{name!r} is not one of an agent's files: {', '.join(NAMED)} or memory/<name>.md",
                details={"field": "name"},
            )

    def _place(self, name: str) -> tuple[Folder, str]:
        if name in SHARED_ONLY:
            return self._shared, name
        if name == "SOUL.md" and self._soul is not None:
            return self._shared, self._soul
        self._own.make()
        return self._own, name

    def _own_bytes(self, name: str) -> bytes | None:
        """Of the file that `set` writes."""
        folder, path = (self._shared, self._soul) if name == "SOUL.md" and self._soul else (self._own, name)
        if name in SHARED_ONLY:
            folder = self._shared
        try:
            return folder.read_bytes(path)
        except CoterieError:
            return None

    def _read_own(self, name: str) -> str | None:
        data = self._own_bytes(name)
        return None if data is None else data.decode("utf-8", "replace")


def _read(folder: Folder, name: str) -> str | None:
    try:
        return folder.read_bytes(name).decode("utf-8", "replace")
    except CoterieError:
        return None
