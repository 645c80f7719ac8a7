"""A real gateway in its own process, and clients for its doors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.support.forge import start


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a child process gets: nothing of the outer Coterie, no keys, no proxies."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("COTERIE_") and not k.endswith("_API_KEY")
    }
    return {**kept, "COTERIE_HOME": str(home), "HOME": str(home.parent), **more}


def coterie(
    home: Path, *arguments: str, text: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return Command(home, *arguments, text=text, **env).finish()


def _files() -> list[IO[bytes]]:
    return [tempfile.TemporaryFile() for _ in range(3)]


class Command:
    """One command under way."""

    def __init__(self, home: Path, *arguments: str, text: str | None = None, **env: str) -> None:
        self._words = arguments
        self._files = ExitStack()
        given, out, errors = (self._files.enter_context(file) for file in _files())
        given.write((text or "").encode())
        given.seek(0)
        self._said = (out, errors)
        self.process = start(arguments, environment(home, **env), stdin=given, stdout=out, stderr=errors)

    def finish(self, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Wait for its end; then how it ended, and what it said."""
        with self._files:
            try:
                code = self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
            for file in self._said:
                file.seek(0)
            out, errors = (file.read().decode() for file in self._said)
        return subprocess.CompletedProcess(self._words, code, out, errors)


class GatewayProcess:
    """`coterie serve` on a free port."""

    def __init__(self, home: Path, *arguments: str, fresh: bool = False, **env: str) -> None:
        self.home = home
        self.log = home.parent / f"{home.name}.log"
        self._output = self.log.open("ab")
        words = ("serve", "--port", "0", *arguments)
        self.process = start(
            words, environment(home, **env), stdout=self._output, stderr=self._output, fresh=fresh
        )

    def wait(self, seconds: float = 60) -> GatewayProcess:
        """Until it answers."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the gateway ended at once:\n{self.log.read_text()}")
            try:
                facts = json.loads((self.home / "run" / "gateway.json").read_text())
                if (
                    facts["pid"] == self.process.pid
                    and httpx.get(f"{facts['url']}/healthz").status_code == 200
                ):
                    self.url: str = facts["url"]
                    return self
            except (OSError, ValueError, httpx.HTTPError):
                pass
            time.sleep(0.02)
        raise AssertionError(f"the gateway did not answer:\n{self.log.read_text()}")

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    def http(self, token: str | None = None, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)

    @contextmanager
    def rpc(self, token: str | None = None) -> Iterator[Rpc]:
        with self.socket() as socket:
            client = Rpc(socket)
            client.call("connect", auth={"token": token or self.token})
            yield client

    def socket(self, **options: Any) -> ClientConnection:
        """A raw socket, before `connect`. It takes in whatever comes, also while nobody reads."""
        address = self.url.replace("http", "ws") + "/ws"
        socket: ClientConnection = connect(address, max_size=None, max_queue=None, proxy=None, **options)
        return socket

    def kill(self) -> None:
        """As a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._output.close()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._output.close()


class RpcError(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.details: dict[str, Any] | None = error.get("details")


class Rpc:
    """A client that keeps the events it sees."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []
        self._next = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        self.socket.send(
            json.dumps({"type": "req", "id": str(self._next), "method": method, "params": params})
        )
        while True:
            frame = self.receive()
            if frame["type"] == "res" and frame["id"] == str(self._next):
                break
        if not frame["ok"]:
            raise RpcError(frame["error"])
        payload: dict[str, Any] = frame["payload"]
        return payload

    def receive(self, seconds: float = 60) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self.socket.recv(seconds))
        if frame["type"] == "event":
            self.events.append(frame)
        return frame

    def wait_for(self, event: str, seconds: float = 30, **fields: Any) -> dict[str, Any]:
        """The first event of this name whose payload has these fields, seen before or still to come."""
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            for frame in self.events[seen:]:
                payload: dict[str, Any] = frame["payload"]
                if frame["event"] == event and all(payload.get(k) == v for k, v in fields.items()):
                    return payload
            seen = len(self.events)
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"no {event} {fields} in {seconds} s; seen: {self.events}")
            try:
                self.receive(left)
            except TimeoutError:
                continue


@contextmanager
def running(home: Path, *arguments: str, fresh: bool = False, **env: str) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(home, *arguments, fresh=fresh, **env)
    try:
        yield gateway.wait()
    finally:
        gateway.stop()
