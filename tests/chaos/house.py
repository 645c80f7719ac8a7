"""The gateway under test, killed and started again, and the model server beside it that never is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.line import Line
from tests.chaos.world import Life, World
from tests.support.gateway import GatewayProcess

AGENTS = ("main", "rose", "miles")
LINES = 4
ONCE, AGAIN, STUCK = "chaos_once", "chaos_again", "chaos_stuck"
MOCK = Path(__file__).parents[2] / "bench" / "mock_llm.py"

PLUGIN = f'''
"""Three tools: one whose effect must never happen twice, one that may simply be run again, one that never ends."""

import os
import time
from pathlib import Path

from coterie import ToolContext, tool

HOME = Path(__file__).parent.parent


def note(name: str, call_id: str, ms: int) -> str:
    time.sleep(ms / 2000)
    file = os.open(HOME / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{{call_id}}\\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    time.sleep(ms / 2000)
    return "noted"


@tool
def {ONCE}(context: ToolContext, ms: int = 0) -> str:
    """Write a line that must never be written twice."""
    return note("effects", context.call_id, ms)


@tool(safe_to_repeat=True)
def {AGAIN}(context: ToolContext, ms: int = 0) -> str:
    """Write a line that may be written again."""
    return note("repeatable", context.call_id, ms)


@tool
def {STUCK}() -> str:
    """Does not come back."""
    time.sleep(100_000)
    return "back"
'''


class MockModel:
    """bench/mock_llm.py in its own process. Its log is in memory, so it lives as long as the run."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = ["--port", str(port), "--tool", ONCE, "--tool-args", json.dumps({"ms": 20})]
        self._process = subprocess.Popen(
            [sys.executable, str(MOCK), *arguments], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.url = f"http://127.0.0.1:{port}"
        self._client = httpx.Client(trust_env=False, timeout=120)
        self._known = 0

    def log(self, since: int = 0) -> list[dict[str, Any]]:
        """Every request from the n-th on."""
        found: list[dict[str, Any]] = self._client.get(f"{self.url}/_log", params={"since": since}).json()
        return found

    def news(self) -> int:
        """How many requests came since `forget_news`."""
        return len(self.log(self._known))

    def forget_news(self) -> None:
        self._known += self.news()

    def stop(self) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def mock_model() -> Iterator[MockModel]:
    mock = MockModel()
    try:
        yield mock
    finally:
        mock.stop()


def furnish(home: Path, model_url: str, more: str = "") -> None:
    """A fresh home: three agents that use the mock, and the three tools."""
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "chaos.py").write_text(PLUGIN)
    (home / "agent.yaml").write_text(
        "version: 1\n"
        "default_model: mock/m\n"
        "models:\n"
        "  providers:\n"
        f"    mock: {{type: openai-compatible, base_url: '{model_url}/v1'}}\n"
        "agents:\n"
        "  roster:\n"
        + "".join(f"    - {{name: {name}, outside: {{tool_allowlist: ['*']}}}}\n" for name in AGENTS)
        + more
    )


class House:
    """Where senders find the gateway, whichever process that is now."""

    def __init__(self, home: Path, world: World, env: Callable[[], Mapping[str, str]] = dict) -> None:
        self.home = home
        self.world = world
        self._env = env
        """Variables of each new process."""
        self.url = ""
        self._gateway: GatewayProcess | None = None
        self._lines: list[Line] = []
        self._up = asyncio.Event()

    @property
    def life(self) -> Life:
        return self.world.lives[-1]

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def effects(self) -> Path:
        return self.home / "effects"

    def start(self) -> None:
        self.world.lives.append(Life(len(self.world.lives), time.time()))
        env = self._env()
        self._gateway = GatewayProcess(self.home, fresh=bool(env), **env)

    async def announced(self) -> None:
        """Until the new process has taken up what was left and says where it is; then it opens its doors."""
        gateway = self._gateway
        assert gateway is not None
        while True:
            with contextlib.suppress(OSError, ValueError):
                facts = json.loads((self.home / "run" / "gateway.json").read_text())
                if facts["pid"] == gateway.process.pid:
                    self.url = facts["url"]
                    return
            if gateway.process.poll() is not None:
                raise AssertionError(f"the gateway ended by itself:\n{gateway.log.read_text()[-5000:]}")
            await asyncio.sleep(0.01)

    async def ready(self) -> None:
        """Until it answers; then the lines are open again."""
        await self.announced()
        self._lines = [await Line.open(self.url, self.token, self._hear)]
        self.life.ready = time.time()
        for _ in range(LINES - 1):
            self._lines.append(await Line.open(self.url, self.token, self._hear))
        self._up.set()

    async def kill(self) -> None:
        """As a power cut would."""
        assert self._gateway is not None
        self._up.clear()
        self._gateway.kill()
        self.life.ended = time.time()
        await self._hang_up()

    async def stop(self) -> None:
        self._up.clear()
        await self._hang_up()
        if self._gateway is not None:
            self._gateway.stop()

    async def line(self, label: str) -> Line:
        """A line that is up, always the same one for the same session while the gateway lives."""
        await self._up.wait()
        return self._lines[sum(label.encode()) % len(self._lines)]

    async def up(self) -> int:
        """The number of the life that answers now."""
        await self._up.wait()
        return self.life.number

    def most_attempts(self) -> int:
        """How often the unluckiest unfinished turn was begun without getting further."""
        database = self.home / "coterie.db"
        if not database.exists():
            return 0
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=0.2)
        try:
            query = "SELECT max(attempts) FROM turn_jobs WHERE state IN ('running', 'waiting')"
            return connection.execute(query).fetchone()[0] or 0
        except sqlite3.OperationalError:  # no table yet
            return 0
        finally:
            connection.close()

    async def _hang_up(self) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            await line.close()

    def _hear(self, event: str, payload: dict[str, Any]) -> None:
        if event == "chat" and payload["state"] in ("final", "error", "aborted"):
            self.world.ended.add(payload["run_id"])
