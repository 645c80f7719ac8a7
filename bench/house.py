"""What is measured: a real gateway, the mock model behind it, and the bare client beside it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from bench.line import Line
from tests.support.gateway import GatewayProcess

AGENTS = ("main", "dot", "rose")
HERE = Path(__file__).parent
COMPLETIONS = "/v1/chat/completions"


class Mock:
    """bench/mock_llm.py in its own process."""

    def __init__(self) -> None:
        self.process = _started([sys.executable, str(HERE / "mock_llm.py"), "--port", str(free_port())])
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split(" on ")[1].strip().removesuffix("/v1")

    def set(self, **settings: Any) -> None:
        self._call("/_set", settings)

    def log(self, since: int = 0) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self._call(f"/_log?since={since}")
        return records

    def count(self) -> int:
        return int(self._call("/_stats")["requests"])

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data), timeout=60) as answer:
            return json.load(answer)


class BareProcess:
    """bench/bare.py in its own process."""

    def __init__(self, mock: Mock) -> None:
        self.process = _started([sys.executable, str(HERE / "bare.py"), mock.url])
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def repeat(self) -> list[tuple[float, float]]:
        """Send every body that the mock kept once more; the milliseconds of each, and those of CPU."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        seconds: list[tuple[float, float]] = json.loads(self.process.stdout.readline())
        return [(wall * 1000, cpu * 1000) for wall, cpu in seconds]


@dataclass(frozen=True)
class House:
    gateway: GatewayProcess
    mock: Mock

    @property
    def pid(self) -> int:
        return self.gateway.process.pid

    def line(self) -> Line:
        return line_to(self.gateway)


def line_to(gateway: GatewayProcess) -> Line:
    return Line(gateway.url + COMPLETIONS, {"Authorization": f"Bearer {gateway.token}"})


def message(agent: str, user: str, text: str) -> dict[str, Any]:
    """The body of a request for one turn."""
    return {"model": f"coterie/{agent}", "user": user, "messages": [{"role": "user", "content": text}]}


def furnish(home: Path, mock_url: str, agents: Sequence[str] = AGENTS) -> None:
    """Default settings, except for where the model is."""
    home.mkdir(parents=True, exist_ok=True)
    roster = "".join(f"    - {{name: {name}}}\n" for name in agents if name != "main")
    (home / "agent.yaml").write_text(
        "version: 1\n"
        "default_model: mock/m\n"
        "models:\n"
        "  providers:\n"
        f"    mock: {{type: openai-compatible, base_url: '{mock_url}/v1', context_window: 10000000}}\n"
        + (f"agents:\n  roster:\n{roster}" if roster else "")
    )


@contextmanager
def opened_house(
    fill: Callable[[Path], None] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[House]:
    """A gateway that runs. `fill` may put things into its store before it starts."""
    with mock_process() as mock, home_folder() as home:
        furnish(home, mock.url)
        if fill is not None:
            fill(home)
        gateway = GatewayProcess(home, fresh=True, **(env or {}))
        try:
            yield House(gateway.wait(), mock)
        finally:
            gateway.stop()


@contextmanager
def home_folder() -> Iterator[Path]:
    # Users run from compiled files; a shell that keeps them from being written must not slow the children.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        yield Path(folder) / "home"


@contextmanager
def mock_process() -> Iterator[Mock]:
    with ExitStack() as stack:
        mock = Mock()
        stack.callback(_end, mock.process)
        yield mock


@contextmanager
def bare_process(mock: Mock) -> Iterator[BareProcess]:
    with ExitStack() as stack:
        bare = BareProcess(mock)
        stack.callback(_end, bare.process)
        yield bare


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
