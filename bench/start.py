"""How long a person waits: for `--help`, and for the first answer of a gateway that was just started.

    python -m bench start [--peer nanobot] [--markdown]

With `--peer`, the other gateway is installed below `.build/` if it is not there yet, and measured in the same run.
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

from bench import first_turn
from bench.house import free_port, home_folder, mock_process
from bench.row import Row, at_most
from tests.support.gateway import environment

RUNS = 15
STARTS = 7
PROMPT = "›".encode()
WHERE_IS_THE_CURSOR = b"\x1b[6n"
COTERIE = str(Path(sys.executable).with_name("coterie"))


def run(peer: str | None = None) -> list[Row]:
    return [*beside_bare_imports(), *beside_peers(peer)]


def beside_bare_imports() -> list[Row]:
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


def beside_peers(asked_for: str | None) -> list[Row]:
    """The first answered turn of a fresh process, in alternation with the gateways that are here."""
    if asked_for is not None and not first_turn.PEERS[asked_for].is_here:
        first_turn.PEERS[asked_for].install()
    here = [peer for peer in first_turn.PEERS.values() if peer.is_here]
    missing = [peer for peer in first_turn.PEERS.values() if not peer.is_here]
    with mock_process() as mock, home_folder() as home:
        places = {"ours": home, **{peer.name: home.with_name(peer.name) for peer in here}}
        starts: dict[str, list[first_turn.Started]] = {name: [] for name in places}
        for _ in range(1 + STARTS):
            for name, place in places.items():
                make = first_turn.coterie if name == "ours" else first_turn.PEERS[name].command
                command = make(place, mock.url, free_port())
                starts[name].append(first_turn.start(command, place.with_name(f"{name}.log")))
    # The first round writes the bytecode and the homes.
    took = {name: first_turn.medians(found[1:]) for name, found in starts.items()}
    ours = took["ours"]
    if not here:
        rows = [
            Row("start to listening", ms(ours.listening)),
            Row("start to first answered turn", ms(ours.answered)),
            Row("CPU until then", ms(ours.cpu)),
        ]
    else:
        rows = [row for peer in here for row in _beside(peer.title, ours, took[peer.name])]
    return [
        *rows,
        *(Row(f"beside {peer.title}", f"not installed: add --peer {peer.name}") for peer in missing),
        Row("the machine meanwhile", first_turn.load()),
    ]


def _beside(title: str, ours: first_turn.Started, theirs: first_turn.Started) -> list[Row]:
    def both(ours: float, theirs: float) -> str:
        return f"{ms(ours)} / {ms(theirs)}"

    answered = ours.answered / theirs.answered
    listening = ours.listening / theirs.listening
    return [
        Row(f"start to listening / {title}", both(ours.listening, theirs.listening), f"{listening:.2f}"),
        at_most(f"start to first answered turn / {title}", both(ours.answered, theirs.answered), answered, 1),
        Row(f"CPU until then / {title}", both(ours.cpu, theirs.cpu), f"{ours.cpu / theirs.cpu:.2f}"),
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
