"""The home folder: where everything lies, and the locks in it."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import Unavailable
from coterie.engine.household.folder import TEMPORARY

ENVIRONMENT = "COTERIE_HOME"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home folder."""

    path: Path

    @classmethod
    def locate(cls, given: Path | None = None) -> Home:
        """`--home`, else COTERIE_HOME, else ~/.coterie."""
        chosen = given or Path(os.environ.get(ENVIRONMENT) or "~/.coterie")
        return cls(chosen.expanduser().absolute())

    @property
    def shown(self) -> str:
        """The folder as people write it."""
        user = Path.home()
        return f"~/{self.path.relative_to(user)}" if self.path.is_relative_to(user) else str(self.path)

    @property
    def config(self) -> Path:
        return self.path / "agent.yaml"

    @property
    def agents(self) -> Path:
        return self.path / "agents"

    @property
    def skills(self) -> Path:
        return self.path / "skills"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def backups(self) -> Path:
        return self.path / "backups"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def gateway(self) -> Path:
        return self.run / "gateway.json"

    @property
    def restoring(self) -> Path:
        """The plan of a restore that is under way, or was cut short: see `restoring.py`."""
        return self.run / "restore.json"

    @property
    def in_use(self) -> Path:
        """There while an engine has the database open, and after one that was cut off."""
        return self.run / "in-use"

    @property
    def life(self) -> Path:
        """Says that a household lives here, and how often it was started: see `life.py`."""
        return self.run / "household.json"

    def prepare(self) -> None:
        """Make the folders that everything else relies on."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.agents, self.run):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"the home folder {self.path} cannot be used: {error.strerror}") from error

    def skill_names(self) -> list[str]:
        """Skills of the shared pool."""
        return sorted(p.parent.name for p in self.skills.glob("*/SKILL.md"))

    @contextmanager
    def registry_lock(self) -> Iterator[None]:
        """Held while the registry and agent.yaml change together."""
        with _locked(
            self.run / "registry.lock", wait=60, busy=lambda: "another process is changing the household"
        ):
            yield

    @contextmanager
    def engine_lock(
        self, wait: float = 5, *, waiting: Callable[[str], None] = lambda _: None
    ) -> Iterator[None]:
        """Held by the one process that runs turns here; the kernel frees it when that process dies.

        A gateway that answers is not waited for. `waiting` is told for whom else we wait.
        """
        said = time.monotonic() + 0.3  # what is free again in a moment needs no word

        def held() -> str | None:
            nonlocal said
            if self.running_gateway() is not None:
                return self.holder()
            if time.monotonic() > said:
                said = math.inf
                waiting(self.holder())
            return None

        with _locked(self.run / "engine.lock", wait=wait, busy=self.holder, held=held) as descriptor:
            # For people: who holds it. What counts is the lock.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield

    @contextmanager
    def database_lock(self, file: Path) -> Iterator[None]:
        """For a database outside the home, which another home may name as well."""
        if file.is_relative_to(self.path):
            yield
            return
        with _locked(
            Path(f"{file}-engine"), wait=5, busy=lambda: f"another home's Coterie uses the database {file}"
        ):
            yield

    def holder(self) -> str:
        """Who holds the engine, in words."""
        gateway = self.running_gateway()
        if gateway is not None:
            return (
                f"another Coterie runs on {self.shown}: a gateway, process {gateway.get('pid')}, "
                f"at {gateway['url']}; stop it first, or use it"
            )
        try:
            pid = (self.run / "engine.lock").read_text().strip()
        except (OSError, ValueError):
            pid = ""
        who = f"process {pid}" if pid.isdigit() else "another process"
        return f"another Coterie ({who}) runs on {self.shown}; stop it first, or use it"

    def engine_is_held(self) -> bool:
        """Whether some process runs the engine now."""
        try:
            descriptor = os.open(self.run / "engine.lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def temporary(self) -> Path:
        """A new name in run/, which says whose it is."""
        return self.run / f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}"

    def sweep(self) -> None:
        """Remove what processes left in run/ that were killed; others may be writing theirs now."""
        for path in self.run.glob(f"{TEMPORARY}*"):
            pid = path.name.removeprefix(TEMPORARY).partition("-")[0]
            if pid.isdecimal() and not _is_alive(int(pid)):
                path.unlink(missing_ok=True)

    def running_gateway(self) -> dict[str, Any] | None:
        """What run/gateway.json says, if the process that wrote it still holds the engine."""
        try:
            found = json.loads(self.gateway.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "url" in found and self.engine_is_held() else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


@contextmanager
def _locked(
    path: Path, *, wait: float, busy: Callable[[], str], held: Callable[[], str | None] = lambda: None
) -> Iterator[int]:
    """`held` is asked at every attempt that fails: a reason to give up at once, or None."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"{path} cannot be used: {error.strerror}") from error
    try:
        give_up = time.monotonic() + wait
        pause = 0.002
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                reason = held()
                if reason is None and time.monotonic() >= give_up:
                    reason = busy()
                if reason is not None:
                    raise Unavailable(reason) from None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)
        yield descriptor
    finally:
        os.close(descriptor)
