"""A folder that cannot be left: every path is walked from its descriptor, and no link is followed."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.core.errors import CoterieError, InvalidRequest, NotFound, TooLarge, Unavailable

MAX_FILE = 16 * 1024 * 1024
TEMPORARY = ".coterie-tmp-"


def check_path(name: str) -> list[str]:
    """The parts of a relative path, or an error that says what is wrong with it."""
    if not name:
        raise InvalidRequest("a file name must not be empty", details={"field": "name"})
    if len(name) > 1000:
        raise InvalidRequest("a file name has at most 1000 characters", details={"field": "name"})
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise InvalidRequest("a file name must not contain control characters", details={"field": "name"})
    if "\\" in name:
        raise InvalidRequest("a file name must not contain '\\'", details={"field": "name"})
    if name.startswith("/"):
        raise InvalidRequest(
            f"{name!r} is absolute; paths are relative to the folder", details={"field": "name"}
        )
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest(f"{name!r} leaves the folder or has empty parts", details={"field": "name"})
    if any(len(part.encode()) > 255 for part in parts):
        raise InvalidRequest("a part of a file name has at most 255 bytes", details={"field": "name"})
    return parts


class Folder:
    """Reads and writes below one folder, and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_text(self, name: str, limit: int = MAX_FILE) -> str:
        """Raises UnicodeDecodeError where it is no text: reading it as if it were would damage it when written back."""
        return self.read_bytes(name, limit).decode("utf-8")

    def read_bytes(self, name: str, limit: int = MAX_FILE) -> bytes:
        parts = check_path(name)
        with self._parent(parts, name) as parent, self._opened(parent, parts[-1], name) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise TooLarge(f"{name} has {size} bytes, more than the {limit} that can be read")
            with os.fdopen(os.dup(descriptor), "rb") as file:
                # No more room than it needs, and a little for what is being appended.
                return file.read(min(size + 4096, limit))

    def stat(self, name: str) -> os.stat_result | None:
        """Of a regular file; None where there is none."""
        try:
            parts = check_path(name)
            with self._parent(parts, name) as parent:
                found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
        except (OSError, CoterieError):
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def write_text(self, name: str, content: str) -> None:
        """Whole or not at all: a temporary file, synced, then renamed."""
        try:
            data = content.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequest("the content is not valid Unicode", details={"field": "content"}) from None
        if len(data) > MAX_FILE:
            raise TooLarge(f"the content has {len(data)} bytes, more than the {MAX_FILE} that can be written")
        parts = check_path(name)
        with self._parent(parts, name, create=True) as parent:
            self._refuse_special(parent, parts[-1], name)
            temporary = f"{TEMPORARY}{uuid.uuid4().hex}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with _typed(name):
                descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
                try:
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(temporary, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
                except OSError:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=parent)
                    raise
                os.fsync(parent)

    def write_new(self, name: str, content: str) -> None:
        """A file that can be made again, such as a template: not synced, and left alone where there is one."""
        parts = check_path(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._parent(parts, name) as parent, _typed(name), suppress(FileExistsError):
            descriptor = os.open(parts[-1], flags, 0o600, dir_fd=parent)
            try:
                os.write(descriptor, content.encode())
            finally:
                os.close(descriptor)

    def entries(self, name: str = "") -> list[tuple[str, int | None]]:
        """Names below a folder with their sizes, None for folders. Links and special files are left out."""
        parts = check_path(name) if name else []
        with self._walk(parts, name or ".") as descriptor:
            found: list[tuple[str, int | None]] = []
            with os.scandir(descriptor) as scan:
                for entry in scan:
                    if entry.name.startswith(TEMPORARY):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        found.append((entry.name, None))
                    elif entry.is_file(follow_symlinks=False):
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
            return sorted(found)

    def make(self, name: str = "") -> None:
        """The folder itself, or one below it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except FileExistsError:
            raise InvalidRequest(f"{self.path.name} is not a folder") from None
        if name:
            with self._walk(check_path(name), name, create=True):
                pass

    @contextmanager
    def _parent(self, parts: list[str], name: str, *, create: bool = False) -> Iterator[int]:
        with self._walk(parts[:-1], name, create=create) as descriptor:
            yield descriptor

    @contextmanager
    def _walk(self, parts: list[str], name: str, *, create: bool = False) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with _typed(name):
            descriptor = os.open(self.path, flags)
        try:
            for part in parts:
                with _typed(name):
                    if create:
                        with suppress(FileExistsError):
                            os.mkdir(part, 0o700, dir_fd=descriptor)
                    below = os.open(part, flags, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _opened(self, parent: int, last: str, name: str) -> Iterator[int]:
        with _typed(name):
            # Without O_NONBLOCK, opening a pipe would wait for a writer for ever.
            descriptor = os.open(
                last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent
            )
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"{name} is not a file")
            yield descriptor
        finally:
            os.close(descriptor)

    def _refuse_special(self, parent: int, last: str, name: str) -> None:
        try:
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(found.st_mode):
            raise InvalidRequest(f"{name} is a link, and links are not followed")
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequest(f"{name} is not a file")


@contextmanager
def _typed(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"{name} does not exist") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise InvalidRequest(f"{name} leads through a link, and links are not followed") from None
        if error.errno == errno.ENOTDIR:
            raise InvalidRequest(f"{name} leads through a link or a file, not a folder") from None
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidRequest("the file name is too long", details={"field": "name"}) from None
        raise Unavailable(f"{name} cannot be used: {error.strerror}") from error
