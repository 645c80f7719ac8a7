"""How long a person waits: for `--help`, and for the first answer of a gateway that was just started.

Commands and what they are compared with alternate, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench.row import Row, at_most
from tests.support.gateway import environment

RUNS = 15
STARTS = 7
PROMPT = "›".encode()
WHERE_IS_THE_CURSOR = b"\x1b[6n"
COTERIE = str(Path(sys.executable).with_name("coterie"))


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        helping, bare = alternate(
            RUNS,
            lambda: command(home, COTERIE, "--help"),
            lambda: command(home, sys.executable, "-c", "import typer, rich"),
        )
        first_answer(home)  # makes it an existing home, and the bytecode
        existing, fresh, imports = alternate(
            STARTS,
            lambda: first_answer(home),
            lambda: first_answer_on_a_fresh_home(home.with_name("fresh")),
            lambda: command(home, sys.executable, "-c", "import starlette.applications, uvicorn, sqlalchemy"),
        )
        prompting, bare_prompt = alternate(
            RUNS,
            lambda: prompt(home),
            lambda: command(home, sys.executable, "-c", "import typer, rich, prompt_toolkit"),
        )
    return [
        at_most(
            "coterie chat to its prompt, beside importing typer, rich and prompt_toolkit",
            ms(prompting),
            prompting / bare_prompt,
            1.5,
        ),
        at_most("coterie --help, beside importing typer and rich", ms(helping), helping / bare, 1.5),
        Row("serve to first answer, existing home", ms(existing), f"{existing / imports:.2f}"),
        Row("serve to first answer, fresh home", ms(fresh), f"{fresh / imports:.2f}"),
        Row("beside importing starlette, uvicorn and sqlalchemy", ms(imports), "1"),
    ]


def alternate(runs: int, *measured: Callable[[], float]) -> list[float]:
    """The median of each, measured in turn; the first round only warms up."""
    for one in measured:
        one()
    times = [[one() for one in measured] for _ in range(runs)]
    return [median(column) for column in zip(*times, strict=True)]


def command(home: Path, *words: str) -> float:
    began = time.perf_counter()
    subprocess.run(words, env=with_bytecode(home), check=True, capture_output=True)
    return time.perf_counter() - began


def prompt(home: Path) -> float:
    """From starting the chat in a terminal until a person can type."""
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(COTERIE, [COTERIE, "chat"], {**with_bytecode(home), "TERM": "xterm", "LANG": "C.UTF-8"})
    try:
        seen = b""
        while PROMPT not in seen:
            if not select.select([terminal], [], [], 60)[0]:
                raise RuntimeError(f"no prompt came: {seen!r}")
            read = os.read(terminal, 65536)
            seen += read
            if WHERE_IS_THE_CURSOR in read:
                os.write(terminal, b"\x1b[1;1R")  # as a terminal answers
        return time.perf_counter() - began
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def first_answer(home: Path) -> float:
    """From starting the gateway until it has answered one request."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [COTERIE, "serve", "--port", "0"],
        env=with_bytecode(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not answers(home, process.pid):
            if process.poll() is not None:
                raise RuntimeError(f"the gateway ended with {process.returncode}")
            time.sleep(0.002)
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()


def first_answer_on_a_fresh_home(home: Path) -> float:
    shutil.rmtree(home, ignore_errors=True)
    return first_answer(home)


def answers(home: Path, pid: int) -> bool:
    try:
        facts = json.loads((home / "run" / "gateway.json").read_text())
        if facts["pid"] != pid:
            return False
        connection = HTTPConnection(urlsplit(facts["url"]).netloc, timeout=10)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, ValueError):
        return False


def with_bytecode(home: Path) -> dict[str, str]:
    return environment(home, PYTHONDONTWRITEBYTECODE="")


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
