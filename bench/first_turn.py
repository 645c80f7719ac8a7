"""From the command to the first answered turn: Coterie's gateway, and another one beside it.

Each is started on a port of its own with its bytecode compiled, asked for its health until it answers, and then
for one turn with the same mock model. What other gateways need is installed below `.build/` when they are asked
for by name, and nowhere else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any

from bench.drive import cpu_seconds
from bench.house import COMPLETIONS, furnish, message
from tests.support.gateway import environment

ENVIRONMENTS = Path(__file__).parent.parent / ".build" / "peers"
PATIENCE = 120.0
"""Seconds after which a gateway that has not answered never will."""
TAG = "[t:first]"


@dataclass(frozen=True, slots=True)
class Started:
    """Seconds from the command on."""

    listening: float
    answered: float
    cpu: float
    """That the gateway had used by its first answer."""


@dataclass(frozen=True, slots=True)
class Command:
    """A gateway, ready to be started."""

    words: Sequence[str]
    env: Mapping[str, str]
    port: int
    health: str
    body: Mapping[str, Any]
    token: Path | None = None
    """Where its access token stands once it has started."""


def coterie(home: Path, mock_url: str, port: int) -> Command:
    if not (home / "agent.yaml").exists():
        furnish(home, mock_url, agents=())
    return Command(
        [sys.executable, "-m", "coterie", "serve", "--port", str(port)],
        environment(home),
        port,
        "/healthz",
        message("main", "start", f"hello {TAG}"),
        home / "token",
    )


class Nanobot:
    """`nanobot serve`, which has the same door."""

    name = "nanobot"
    package = "nanobot-ai[api]==0.3.5"
    title = "nanobot-ai 0.3.5"
    _folder = ENVIRONMENTS / "nanobot-ai-0.3.5"

    @property
    def is_here(self) -> bool:
        return (self._folder / "bin" / "nanobot").exists()

    def install(self) -> None:
        python = self._folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(self._folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", self.package], check=True)
        # Some files of its dependencies are meant for other versions of Python, and do not compile.
        subprocess.run(
            [str(python), "-m", "compileall", "-qq", str(self._folder / "lib")],
            check=False,
            capture_output=True,
        )

    def command(self, home: Path, mock_url: str, port: int) -> Command:
        home.mkdir(parents=True, exist_ok=True)
        config = {
            "agents": {"defaults": {"workspace": str(home / "work"), "model": "m", "provider": "custom"}},
            "providers": {"custom": {"apiKey": "none", "apiBase": f"{mock_url}/v1"}},
        }
        (home / "config.json").write_text(json.dumps(config))
        places = ("--config", str(home / "config.json"), "--workspace", str(home / "work"))
        return Command(
            [str(self._folder / "bin" / "nanobot"), "serve", "--port", str(port), *places],
            {**environment(home), "HOME": str(home)},
            port,
            "/health",
            {"session_id": "start", "messages": [{"role": "user", "content": f"hello {TAG}"}]},
        )


PEERS = {peer.name: peer for peer in (Nanobot(),)}


def start(command: Command, log: Path) -> Started:
    """Start it, wait for its first answer and end it."""
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command.words,
            env=dict(command.env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            connection = _healthy(command, process, log)
            listening = time.perf_counter() - began
            headers = {"Content-Type": "application/json"}
            if command.token is not None:
                headers["Authorization"] = f"Bearer {command.token.read_text().strip()}"
            connection.request("POST", COMPLETIONS, json.dumps(command.body), headers)
            answer = connection.getresponse()
            said = answer.read()
            answered = time.perf_counter() - began
            if answer.status != 200 or TAG.encode() not in said:
                raise RuntimeError(f"no answer but {answer.status}: {said[:500]!r}")
            return Started(listening, answered, cpu_seconds(process.pid))
        finally:
            process.terminate()
            process.wait()


def _healthy(command: Command, process: subprocess.Popen[bytes], log: Path) -> HTTPConnection:
    """A connection on which the gateway has answered."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        connection = HTTPConnection("127.0.0.1", command.port, timeout=PATIENCE)
        try:
            connection.request("GET", command.health)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return connection
        except (OSError, HTTPException):
            pass
        connection.close()
        time.sleep(0.002)
    raise RuntimeError(f"the gateway did not start:\n{log.read_text()}")


def medians(starts: Sequence[Started]) -> Started:
    return Started(
        median(one.listening for one in starts),
        median(one.answered for one in starts),
        median(one.cpu for one in starts),
    )


def load() -> str:
    """How busy the machine is, for whoever reads the figures."""
    return f"load {os.getloadavg()[0]:.1f}"
