"""What comes from providers is taken in only so far, from nowhere else than asked, and nothing secret is repeated."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coterie.core.ports import ModelError, ModelRequest
from coterie.embedders.remote import RemoteEmbedder
from tests.support.gateway import GatewayProcess, running
from tests.support.mock import Exchange, config, model_server
from tests.support.providers import KEY, PROTOCOLS, Answer, failure, raw, reaching, serving

MODELS = {
    "chat": "chat/gpt-5",
    "responses": "responses/gpt-5",
    "anthropic": "anthropic/claude-x",
    "google": "google/gemini-3-pro-preview",
}
WORDS = json.dumps({"error": {"message": "the stars are wrong"}}).encode()
MB = 1024 * 1024


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)


def failure_of(protocol: str, answer: Answer, url: Callable[[str], str] = lambda url: url) -> ModelError:
    async def ask() -> ModelError:
        async with serving(answer) as server, reaching(url(server.url)) as catalog:
            with pytest.raises(ModelError) as found:
                async for _ in catalog.resolve(MODELS[protocol]).stream(ModelRequest("", (), [])):
                    pass
            return found.value

    return asyncio.run(ask())


class Flood:
    """An answer without an end; remembers how much of it was taken."""

    def __init__(self, head: bytes, piece: bytes) -> None:
        self.head, self.piece = head, piece
        self.sent = 0

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self.head)
        while not writer.is_closing() and self.sent < 400 * MB:
            writer.write(self.piece)
            self.sent += len(self.piece)
            await writer.drain()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_of_an_error_without_an_end_the_beginning_is_read(protocol: str) -> None:
    flood = Flood(
        b"HTTP/1.1 400 X\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nthe stars are wrong",
        b" x" * 50_000,
    )
    error = failure_of(protocol, flood)
    assert error.kind == "rejected" and len(error.message) < 1000
    assert flood.sent < 100 * MB


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: ",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n[",
    ],
    ids=["a line of a stream", "a body"],
)
def test_an_answer_without_an_end_is_not_heard_out(protocol: str, head: bytes) -> None:
    flood = Flood(head, b"x" * 500_000)
    error = failure_of(protocol, flood)
    assert error.kind == "garbage"
    assert flood.sent < 200 * MB


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "target", ["http://evil.example/steal?token=abc", "//evil.example:81/", "https://u:p@evil.example"]
)
def test_nothing_follows_a_redirect(protocol: str, target: str) -> None:
    error = failure_of(protocol, failure(307, {}, f"Location: {target}"))
    assert "evil.example" in error.message and not error.can_retry
    assert not re.search("steal|abc|u:p|:81", error.message)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_provider_repeats_of_a_login_is_not_repeated(protocol: str) -> None:
    said = f"no: {KEY}, http://maria:hunter22@10.0.0.1/v1?key=querysecret refused, Basic bWFyaWE6aHVudGVyMjI="

    def with_login(url: str) -> str:
        return url.replace("http://", "http://maria:hunter22@")

    error = failure_of(protocol, failure(401, {"error": {"message": said}}), with_login)
    assert "refused" in error.message
    assert not re.search(f"{KEY}|hunter22|querysecret|bWFyaWE6", error.message)
    unreachable = failure_of(protocol, raw(b"", close=True), with_login)
    assert "hunter22" not in unreachable.message and "127.0.0.1" in unreachable.message


# Through the whole house


def peak(gateway: GatewayProcess) -> int:
    """The most memory that the process ever had, in bytes."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    block = b" " * MB
    return b"".join([packer.compress(block) for _ in range(size // MB)]) + packer.flush()


def test_a_small_answer_that_unpacks_to_a_large_one_does_not_fill_the_memory(home: Path) -> None:
    packed = bomb(300 * MB)

    def explode(exchange: Exchange) -> None:
        status = 400 if exchange.number % 2 else 200
        kind = "application/json" if exchange.number % 2 else "text/event-stream"
        exchange.head(
            status, {"Content-Type": kind, "Content-Encoding": "gzip", "Content-Length": str(len(packed))}
        )
        exchange.send(packed)

    home.mkdir()
    with model_server() as server:
        (home / "agent.yaml").write_text(config(server.base_url))
        server.answer = lambda exchange: exchange.reply("ok")
        with running(home) as gateway, gateway.rpc() as rpc:
            rpc.call("models.test")
            before = peak(gateway)
            server.answer = explode
            for _ in range(2):
                assert rpc.call("models.test")["ok"] is False
            assert peak(gateway) - before < 120 * MB


def test_a_login_in_an_address_is_shown_nowhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = re.compile("hunter22|querysecret|sk-echoed-0123456789")

    def echo(exchange: Exchange) -> None:
        said = "bad key sk-echoed-0123456789 at http://maria:hunter22@h/v1?key=querysecret"
        exchange.status(401, {"error": {"message": said}})

    home.mkdir()
    with model_server() as server:
        address = server.base_url.replace("http://", "http://maria:hunter22@") + "?key=querysecret"
        provider = f'{{type: openai-compatible, base_url: "{address}", api_key_env: ECHO_KEY}}'
        lost = '{type: openai-compatible, base_url: "http://maria:hunter22@127.0.0.1:9/v1?key=querysecret"}'
        (home / "agent.yaml").write_text(
            f"version: 1\ndefault_model: mock/m\nmodels: {{providers: {{mock: {provider}, lost: {lost}}}}}\n"
        )
        server.answer = lambda exchange: exchange.reply("well")
        with running(home, "--verbose", ECHO_KEY="sk-echoed-0123456789") as gateway, gateway.rpc() as rpc:
            assert rpc.call("models.test")["ok"] is True  # the query stays where it belongs
            server.answer = echo
            shown = [
                rpc.call("models.list", all=True),
                rpc.call("models.test"),
                rpc.call("models.test", name="lost/m"),
            ]
            run = rpc.call("chat.send", session="agent:main:main", message="hello")["run_id"]
            shown.append(rpc.wait_for("chat", run_id=run, state="error"))
            shown.append(rpc.call("chat.history", session="agent:main:main"))
            assert "refused" in json.dumps(shown)
            assert not secrets.search(json.dumps(shown))
        assert not secrets.search(gateway.log.read_text())


# Embeddings


@contextmanager
def embeddings(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            try:
                answer(self)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://maria:hunter22@127.0.0.1:{listening.server_address[1]}/v1?key=querysecret"
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def test_embeddings_are_bounded_and_tell_no_secrets() -> None:
    sent = 0

    def flood(handler: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        while sent < 400 * MB:
            handler.wfile.write(b" " * MB)
            sent += MB

    def moved(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(308)
        handler.send_header("Location", "http://evil.example/?token=abcdef")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    for answer, said in ((flood, "64 MB"), (moved, "evil.example"), (refuse, "500")):
        with embeddings(answer) as url, pytest.raises(Exception, match=said) as found:
            RemoteEmbedder("openai", "m", url, None).embed(["hello"])
        assert not re.search("hunter22|querysecret|abcdef", str(found.value))
    assert sent < 200 * MB
