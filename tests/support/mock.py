"""Model servers: the strict mock of the benchmarks as a process, and one in this process that can misbehave."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

MOCK = Path(__file__).parents[2] / "bench" / "mock_llm.py"


def config(base_url: str, *, model: str = "mock/mock-1", more: str = "") -> str:
    """agent.yaml for a household whose models are behind this address."""
    return f"""version: 1
default_model: {model}
models:
  providers:
    mock: {{type: openai-compatible, base_url: "{base_url}"}}
{more}"""


class MockModel:
    """`bench/mock_llm.py`, which refuses what a real provider would refuse."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)

    def log(self, since: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.get("/_log", params={"since": since}).json()
        return found

    def set(self, **settings: Any) -> None:
        self._client.post("/_set", json=settings)

    def bodies(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.get("/_bodies").json()
        return found

    @property
    def actions(self) -> list[str]:
        return [record["action"] for record in self.log()]

    @property
    def refused(self) -> list[str]:
        return [action for action in self.actions if action.startswith("refused")]

    def wait_for(self, true: Callable[[list[dict[str, Any]]], object], seconds: float = 60) -> None:
        """Until the log of requests shows something."""
        deadline = time.monotonic() + seconds
        while not true(log := self.log()):
            assert time.monotonic() < deadline, log
            time.sleep(0.005)

    def close(self) -> None:
        self._client.close()


@contextmanager
def mock_model(*arguments: str) -> Iterator[MockModel]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(MOCK), "--port", str(port), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the mock model did not start"
        model = MockModel(port)
        yield model
        model.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


FENCED = re.compile(r"⟦(\w+) [^⟧]*⟧\n(.*)\n⟦/\1⟧", re.S)
"""Somebody else's words, as a model is shown them."""


def client_said(words: str, text: str) -> bool:
    """Whether a model is told that the program which asks said this."""
    return (
        re.fullmatch(rf"\[System\] ⟦(\w+)⟧ [^\n]+\n⟦\1 client⟧\n{re.escape(words)}\n⟦/\1⟧", text) is not None
    )


class ModelServer:
    """Answers each request as the test says, down to the bytes."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        """The bodies of all requests."""
        self.answer: Callable[[Exchange], None] = lambda exchange: exchange.reply("ok")
        self.base_url = ""
        self.hung_up = threading.Event()
        """Set when a client left a request that `hang` held."""
        self.closing = threading.Event()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(raw) for raw in self.raw]


class Exchange:
    """One request and what is sent back."""

    def __init__(self, handler: BaseHTTPRequestHandler, server: ModelServer, body: dict[str, Any]) -> None:
        self._handler = handler
        self._server = server
        self.body = body
        self.number = len(server.raw)
        """1 for the first request to this server."""

    @property
    def last_user(self) -> str:
        """The newest message that is not the trailing context; another agent's out of its fence."""
        texts = [m["content"] for m in self.body["messages"] if m["role"] == "user"]
        text = str(texts[-2] if len(texts) > 1 else texts[-1])
        fenced = FENCED.fullmatch(text)
        return text if fenced is None else fenced[2]

    @property
    def has_result(self) -> bool:
        return bool(self.body["messages"][-2]["role"] == "tool")

    def status(self, status: int, body: object = None, **headers: str) -> None:
        raw = json.dumps(body if body is not None else {"error": {"message": f"status {status}"}}).encode()
        self.head(status, {"Content-Type": "application/json", "Content-Length": str(len(raw)), **headers})
        self.send(raw)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()

    def begin(self) -> None:
        """A stream whose end is the end of the connection."""
        self.head(200, {"Content-Type": "text/event-stream", "Connection": "close"})
        self._handler.close_connection = True

    def send(self, raw: bytes) -> None:
        self._handler.wfile.write(raw)
        self._handler.wfile.flush()

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> None:
        data = {
            "id": "x",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
        self.send(b"data: " + json.dumps(data).encode() + b"\n\n")

    def reply(self, text: str, tokens: tuple[int, int] | None = None) -> None:
        """With so many tokens in and out, where that matters."""
        self.begin()
        self.chunk({"role": "assistant", "content": text})
        self.chunk({}, "stop")
        if tokens is not None:
            usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
            self.send(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        self.send(b"data: [DONE]\n\n")

    def calls(self, *calls: tuple[str, str]) -> None:
        """Calls of tools by name and argument string."""
        self.begin()
        for index, (name, arguments) in enumerate(calls):
            made = {
                "index": index,
                "id": f"call-{self.number}-{index}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            self.chunk({"tool_calls": [made]})
        self.chunk({}, "tool_calls")
        self.send(b"data: [DONE]\n\n")

    def hang(self) -> None:
        """Say nothing more until the client leaves."""
        self._handler.connection.settimeout(0.1)
        while not self._server.closing.is_set():
            try:
                if not self._handler.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self._server.hung_up.set()


@contextmanager
def model_server() -> Iterator[ModelServer]:
    server = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            raw = self.rfile.read(length)
            if len(raw) < length:  # whoever asked was killed in the middle of it
                self.close_connection = True
                return
            server.raw.append(raw)
            try:
                server.answer(Exchange(self, server, json.loads(raw)))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    listening = Server(("127.0.0.1", 0), Handler)
    server.base_url = f"http://127.0.0.1:{listening.server_address[1]}/v1"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        listening.shutdown()
        listening.server_close()
        thread.join()
