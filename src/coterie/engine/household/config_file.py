"""agent.yaml on disk: read when nobody is in the middle of writing it, replaced whole or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from coterie.config import ConfigError, Problem
from coterie.core.errors import Conflict

SETTLED_AFTER = 0.3
"""Seconds without a write after which a file that somebody else saved is read."""
STABLE_AFTER = 2.0
"""Seconds without a write after which entries that vanished from the file are archived."""


class ConfigFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str | None:
        """The text; None where there is no file."""
        try:
            return _decode(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError([Problem(f"the file cannot be read: {error.strerror}")]) from error

    def read_settled(self, ours: str) -> tuple[str | None, float]:
        """The text and its age in seconds, once nobody is writing. `ours` is the hash of the text we wrote last."""
        give_up = time.monotonic() + STABLE_AFTER
        while True:
            text = self.read()
            try:
                age = time.time() - self.path.stat().st_mtime
            except FileNotFoundError:
                return None, STABLE_AFTER
            known = text is not None and text_sha(text) == ours
            if known or not -SETTLED_AFTER < age < SETTLED_AFTER or time.monotonic() > give_up:
                return text, age
            time.sleep(0.02)

    def replace(self, old: str | None, new: str) -> bool:
        """Put a new text in place of the old one. False if somebody saved another meanwhile; theirs is kept."""
        watched = None
        with suppress(FileNotFoundError):
            watched = self.path.open("rb")
        try:
            if not self._put(new, lambda: self.read() == old):
                return False
            if watched is not None and (late := _decode(watched.read())) != old:
                # An editor wrote into the file that we just replaced; a still newer save goes before it.
                self._put(late, lambda: self.read() == new)
                return False
        finally:
            if watched is not None:
                watched.close()
        return True

    def write(self, text: str) -> None:
        """Keeps the permissions, and the target where the file is a link."""
        self._put(text, lambda: True)

    def _put(self, text: str, still_wanted: Callable[[], bool]) -> bool:
        """Everything slow comes before the question, so that little can happen between it and the rename."""
        path = self.path.resolve()
        temporary = path.with_name(f".coterie-tmp-{uuid.uuid4().hex}")
        try:
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
            with temporary.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            if not still_wanted():
                temporary.unlink()
                return False
            temporary.rename(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise Conflict(f"{path.name} cannot be written: {error.strerror}") from error
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True


def text_sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _decode(data: bytes) -> str:
    return data.decode("utf-8-sig", "replace")
