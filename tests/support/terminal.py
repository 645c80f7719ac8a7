"""A real terminal: tmux, driven with keys and read as a person sees it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.forge import start
from tests.support.gateway import environment


class Pane:
    """A tmux pane with a program in it, driven with keys and read as a person sees it."""

    def __init__(self, columns: int, rows: int, command: list[str], env: dict[str, str]) -> None:
        self._name = f"coterie-{uuid.uuid4().hex[:12]}"
        setting = shlex.join(f"{name}={value}" for name, value in env.items())
        shell = f"env -i {setting} {shlex.join(command)}; echo [exit $?]; exec sleep 1000"
        size = ("-x", str(columns), "-y", str(rows))
        self._tmux("-f", os.devnull, "new-session", "-d", *size, shell)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, M-Enter, C-c."""
        self._tmux("send-keys", *keys)

    def say(self, text: str) -> None:
        self.type(text)
        self.press("Enter")

    def paste(self, text: str) -> None:
        """As a terminal does when somebody pastes."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    def record(self, file: Path) -> None:
        """Every byte that the program writes from now on."""
        self._tmux("pipe-pane", f"cat > {shlex.quote(str(file))}")

    def text(self, *, escapes: bool = False) -> str:
        """Everything so far, on the screen and above it."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-", *(["-e"] if escapes else []))

    def wait(self, what: str | Callable[[str], bool], seconds: float = 60) -> str:
        """Until it is there, however the lines are broken; then everything."""
        deadline = time.monotonic() + seconds
        seen = ""
        pause = 0.03
        while time.monotonic() < deadline:
            seen = self.text()
            flat = " ".join(seen.split())
            if what in flat if isinstance(what, str) else what(flat):
                return seen
            time.sleep(pause)
            pause = min(
                pause * 1.3, 0.2
            )  # each look is a process, which takes time from the one that is looked at
        raise AssertionError(f"{what!r} did not appear:\n{seen}")

    def ended(self) -> int:
        """The program's exit code, once it has ended."""
        seen = self.wait(lambda seen: "[exit " in seen)
        return int(seen.rpartition("[exit ")[2].partition("]")[0])

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TMUX")}
        command = ["tmux", "-u", "-L", self._name, *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        if done.returncode != 0 and arguments[0] != "kill-server":
            raise AssertionError(f"{shlex.join(command)}: {done.stderr}")
        return done.stdout


def chatting(
    home: Path, *arguments: str, columns: int = 80, rows: int = 40, **env: str
) -> AbstractContextManager[Pane]:
    """`coterie chat` in a terminal of its own."""
    return in_terminal(home, "chat", *arguments, columns=columns, rows=rows, **env)


@contextmanager
def in_terminal(home: Path, *arguments: str, columns: int = 80, rows: int = 40, **env: str) -> Iterator[Pane]:
    """A command of Coterie's in a terminal of its own."""
    if shutil.which("tmux") is None:
        assert os.environ.get("CI") != "true", "tmux is missing"
        pytest.skip("tmux is missing: the terminal chat is not tested")
    unset = ("LC_", "LANG", "NO_COLOR", "TMUX", "COLUMNS", "LINES")
    kept = {k: v for k, v in environment(home).items() if not k.startswith(unset)}
    settings = {**kept, "TERM": "screen-256color", "LANG": "C.UTF-8", **env}
    pane = Pane(columns, rows, [sys.executable, "-m", "coterie", *arguments], settings)
    try:
        yield pane
    finally:
        pane.close()


def on_terminal(home: Path, *words: str, typed: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """One command to its end, with a pseudo terminal for its input and all its output; what it wrote, to the byte."""
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (50, 120))
    settings = environment(home, **{"TERM": "xterm-256color", **env})
    process = start(words, settings, stdin=its, stdout=its, stderr=its)
    os.close(its)
    os.write(ours, typed.encode())
    written = bytearray()
    # The end of a terminal that nobody holds any more is an error on Linux, and the end of a file elsewhere.
    with suppress(OSError):
        while piece := os.read(ours, 65_536):
            written += piece
    os.close(ours)
    return subprocess.CompletedProcess(words, process.wait(120), written.decode().replace("\r\n", "\n"), "")
