"""Commands and gateways as processes of their own, without each of them reading a thousand modules first.

A start spends nearly all its time on imports. So one process per test process, the forge, imports everything once,
and forks for each command: the fork gets the words, the environment and the files that a fresh start would get, and
runs the same `python -m coterie` to the same end. What a fresh interpreter imports and how it reads its environment is
tested with fresh ones: the terminal, the first five minutes, a smoke test. Benches, evals and `make chaos` start fresh ones
always, and so does everything elsewhere than on Linux.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Protocol

ROOT = Path(__file__).parents[2]
ALSO = (
    "alembic.command",
    "requests",
    "rich.console",
    "rich.progress",
    "rich.table",
    "yaml",
    "tokenizers",
    "uvicorn",
    "uvloop",
    "websockets.asyncio.client",
    "websockets.exceptions",
)
"""What Coterie's modules import only inside functions, and most processes need."""
SELDOM = (
    "migrations",
    "__main__",
    "coterie.models.google",
    "coterie.models.anthropic",
    "coterie.models.openai_resp",
)
READ_BY_PYTHON = ("PYTHON", "LANG", "LC_")
"""Variables that an interpreter reads once, at its start."""


class Process(Protocol):
    """What a test does with a process: the part of `subprocess.Popen` that a fork can have, too."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(
    words: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
    fresh: bool = False,
) -> Process:
    """`coterie` with these words. `fresh`: in an interpreter of its own."""
    odd = any(
        name.startswith(READ_BY_PYTHON) and os.environ.get(name) != value for name, value in env.items()
    )
    # Only tests: what is measured, or killed for hours, starts as it does for people.
    if fresh or odd or sys.platform != "linux" or "PYTEST_VERSION" not in os.environ:
        command = [sys.executable, "-m", "coterie", *words]
        return subprocess.Popen(command, env=dict(env), stdin=stdin, stdout=stdout, stderr=stderr)
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        files = [nothing if file == subprocess.DEVNULL else file for file in (stdin, stdout, stderr)]
        with _FIRST:
            forge = _forge()
        return forge.fork(words, env, [file if isinstance(file, int) else file.fileno() for file in files])


class Fork:
    """A process that the forge made. The forge tells how it ended, as it is its parent."""

    def __init__(self, pid: int, ending: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(["coterie"], timeout)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ending, selectors.EVENT_READ)
                if selector.select(timeout):
                    status = os.read(self._ending, 16)
                    os.close(self._ending)
                    self.returncode = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forge:
    """The other side of the line to the process that forks."""

    def __init__(self) -> None:
        self._one = threading.Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forge", str(theirs.fileno())],
                cwd=ROOT,
                # Threads of a library for arithmetic would be lost in a fork.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, words: Sequence[str], env: Mapping[str, str], files: Sequence[int]) -> Fork:
        order = json.dumps({"words": words, "env": dict(env), "folder": str(Path.cwd())}).encode()
        ending, told = os.pipe()
        # An answer names no order: threads of a test that order at once would get each other's process.
        with self._one:
            socket.send_fds(self._line, [order], [*files, told])
            os.close(told)
            pid = self._line.recv(16)
        assert pid, "the forge is gone"
        return Fork(int(pid), ending)

    def close(self) -> None:
        self._line.close()
        self._process.wait(30)


_FIRST = threading.Lock()


@cache
def _forge() -> Forge:
    forge = Forge()
    atexit.register(forge.close)
    return forge


# In the forge


def main(line: socket.socket) -> None:
    """Forks for every order. Each fork comes out of the orders, becomes a `coterie`, and ends as one."""
    words = _orders(line)
    if words is not None:
        sys.argv = ["coterie", *words]
        code = _run()
        # As an interpreter ends, but without taking apart a thousand modules.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def _run() -> int:
    try:
        runpy.run_module("coterie", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _orders(line: socket.socket) -> list[str] | None:
    """The words of a fork, in that fork; None in the forge, once nobody orders any more."""
    endings: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 1024)
                _tell(endings)
            if line not in ready:
                continue
            order, files, _, _ = socket.recv_fds(line, 1 << 20, 4)
            if not order:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for kept in (woken, wake, line.detach(), files[3], *endings.values()):
                    os.close(kept)
                return _become(json.loads(order), files[:3])
            line.send(str(pid).encode())
            endings[pid] = files[3]
            for file in files[:3]:
                os.close(file)


def _tell(endings: dict[int, int]) -> None:
    """How forks ended, to whoever ordered them."""
    while endings:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = endings.pop(pid)
        try:
            os.write(told, str(status).encode())
        except BrokenPipeError:
            pass
        os.close(told)


def _become(order: dict[str, object], files: Sequence[int]) -> list[str]:
    words, env, folder = order["words"], order["env"], order["folder"]
    assert isinstance(words, list) and isinstance(env, dict) and isinstance(folder, str)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(folder)
    return words


def _import_everything() -> None:
    import coterie

    for module in pkgutil.walk_packages(coterie.__path__, "coterie."):
        if not any(part in module.name for part in SELDOM):
            import_module(module.name)
    for name in ALSO:
        import_module(name)
    gc.freeze()


if __name__ == "__main__":
    _import_everything()
    main(socket.socket(fileno=int(sys.argv[1])))
