"""The house that is fuzzed, and what must hold throughout: it answers, it logs no traceback, it stays small, it works."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fuzz.pulse import Pulse
from tests.support.gateway import GatewayProcess, Rpc, running
from tests.support.providers import PROTOCOLS, Said, words

SECONDS = 60.0
"""After which something that was not answered hangs."""
MOST_MEMORY = 1_500_000_000
"""Bytes; a house at rest has a tenth of it."""
KEY = "TEST_KEY"
ROSTER = "".join(f"    - {{name: {name}, model: {name}/m}}\n" for name in PROTOCOLS)


TRACE = re.compile(r"[^\n]*\n(?:  \| )?Traceback \(most recent call last\).*?(?=\n20\d\d-|\Z)", re.S)
NUMBERED = re.compile(rb"go #(\d+)")


class Finding(AssertionError):
    """Something that must not happen."""


def config(url: str) -> str:
    return f"""version: 1
default_model: offline/demo
models:
  providers:
    chat: {{type: openai-compatible, base_url: "{url}/v1", api_key_env: {KEY}}}
    responses: {{type: openai-responses, base_url: "{url}/v1", api_key_env: {KEY}}}
    anthropic: {{type: anthropic, base_url: "{url}", api_key_env: {KEY}}}
    google: {{type: google, base_url: "{url}", api_key_env: {KEY}}}
turns: {{concurrency: 32}}
agents:
  roster:
{ROSTER}"""


class Provider:
    """A model server in raw bytes, for all protocols."""

    def __init__(self) -> None:
        self.answer: Callable[[str, bytes], bytes] = lambda protocol, body: good(protocol)
        self.url = ""


def good(protocol: str, said: Said = Said("good at last")) -> bytes:
    return head(words(protocol, said))


def head(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    said = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    return said.encode() + body


def protocol_of(path: str) -> str:
    found = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "anthropic"}
    return found.get(path.partition("?")[0], "google")


@contextmanager
def provider() -> Iterator[Provider]:
    model = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.close_connection = True
            try:
                self.wfile.write(model.answer(protocol_of(self.path), body))
            except OSError:
                pass  # it had heard enough

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    listening = Server(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{listening.server_address[1]}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


class World:
    def __init__(self, gateway: GatewayProcess, model: Provider, patience: float) -> None:
        self.gateway = gateway
        self.model = model
        self.home: Path = gateway.home
        self.scripts: dict[str, bytes] = {}
        """What the first answer to a message is, by the number in it."""
        model.answer = self._scripted
        self.slowest = 0.0
        """Seconds that /healthz took at most, once it is over."""
        self.http = gateway.http()
        """One for all: making a client costs more than what is asked with it."""
        self._pulse = Pulse(gateway.url, patience)
        self._read = 0

    def _scripted(self, protocol: str, body: bytes) -> bytes:
        found = NUMBERED.findall(body)
        raw = self.scripts.pop(found[-1].decode(), None) if found else None
        return good(protocol) if raw is None else raw

    def check(self) -> None:
        """Raises what has gone wrong since the last look."""
        if self.gateway.process.poll() is not None:
            raise Finding(f"the gateway ended: {self.gateway.log.read_text(errors='replace')[-3000:]}")
        with self.gateway.log.open(errors="replace") as log:
            log.seek(self._read)
            said = log.read()
        self._read += len(said.encode("utf-8", "replace"))
        if (trace := TRACE.search(said)) is not None:
            raise Finding(f"in the log: {trace[0][:500]}\n…\n{trace[0][-3000:]}")
        if self._pulse.wrong:
            raise Finding("; ".join(self._pulse.wrong[:3]))
        if (size := memory(self.gateway.process.pid)) > MOST_MEMORY:
            raise Finding(f"the gateway takes {size / 1e6:.0f} MB")

    def works(self, wires: Sequence[str]) -> None:
        """A turn over each of these wires, a memory, a list."""
        self.model.answer = lambda protocol, body: good(protocol)
        with self.gateway.rpc() as rpc:
            for name in ("offline", *wires):  # of the others anything may have become
                model = "offline/demo" if name == "offline" else f"{name}/m"
                rpc.call("agents.create", id=f"after-{name}", spec={"model": model})
                answer = say(rpc, f"agent:after-{name}:main", "hello")["text"]
                assert name == "offline" or answer == "good at last"
            fact = "The spare key lies under the blue pot."
            rpc.call("memory.remember", agent_id="after-offline", content=fact)
            found = rpc.call("memory.recall", agent_id="after-offline", query="where is the spare key")
            assert fact in str(found)
            assert len(rpc.call("agents.list")["agents"]) > len(PROTOCOLS)

    def stop(self) -> float:
        """Seconds that /healthz took at most."""
        self.http.close()
        return self._pulse.stop()


def say(rpc: Rpc, session: str, text: str) -> dict[str, Any]:
    run_id = rpc.call("chat.send", session=session, message=text)["run_id"]
    return rpc.wait_for("chat", seconds=SECONDS, run_id=run_id, state="final")


def memory(pid: int) -> int:
    """Bytes that a process has at this moment."""
    try:
        said = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", said)
    return int(found[1]) * 1024 if found else 0


@contextmanager
def opened(home: Path, patience: float) -> Iterator[World]:
    """A house with one agent per wire, watched until the block ends."""
    home.mkdir(parents=True)
    with provider() as model:
        (home / "agent.yaml").write_text(config(model.url))
        with running(home, TEST_KEY="sk-test-0123456789") as gateway:
            world = World(gateway, model, patience)
            try:
                yield world
            finally:
                world.slowest = world.stop()
