"""Connections that bring nothing, or too slowly, or too many: none of them takes a place from others."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway import GatewayProcess, running

SITE = """
import coterie.api.head as head
head.HEAD_SECONDS = 0.5
head.BODY_SECONDS = 0.5
import coterie.api.rpc as rpc
rpc.CONNECT_SECONDS = 0.5
"""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that waits for half a second where others wait for half a minute."""
    home = tmp_path_factory.mktemp("slow") / "home"
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "impatient.py").write_text(SITE)
    with running(home) as gateway:
        with gateway.rpc() as rpc:  # plug-ins are loaded with the first list of tools
            rpc.call("tools.list")
        yield gateway


def reach(gateway: GatewayProcess) -> socket.socket:
    parts = urlsplit(gateway.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def ended(line: socket.socket) -> bytes:
    """What came until the other side closed it."""
    found = b""
    while piece := line.recv(65536):
        found += piece
    return found


def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(impatient: GatewayProcess) -> None:
    host = urlsplit(impatient.url).netloc.encode()
    beginnings = [
        b"",
        b"G",
        b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\nX-Slow: ",
    ]
    for beginning in beginnings:
        with reach(impatient) as line:
            line.sendall(beginning)
            assert b"408 Request Timeout" in ended(line)
    with reach(impatient) as line:  # a second request on a connection that was good before
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert line.recv(12) == b"HTTP/1.1 200"
        line.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert b"408 Request Timeout" in ended(line)


def test_a_body_that_does_not_come_is_not_waited_for(impatient: GatewayProcess) -> None:
    host = urlsplit(impatient.url).netloc
    for token, status in ((impatient.token, b"408"), ("wrong", b"401")):
        head = (
            f"POST /api/agents HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        with reach(impatient) as line:
            line.sendall(head.encode())
            assert status in ended(line).split(b"\r\n")[0]


def test_a_socket_that_does_not_connect_is_closed(impatient: GatewayProcess) -> None:
    with impatient.socket() as quiet:
        assert json.loads(quiet.recv(30))["event"] == "connect.challenge"
        with pytest.raises(Exception, match="connect did not come in time"):
            quiet.recv(30)


def test_no_more_connections_than_there_are_places(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text("gateway: {max_connections: 30, max_connections_per_client: 12}\n")
    with running(home) as gateway, ExitStack() as stack:

        def refused(open_one: Callable[[], object]) -> bool:
            try:
                open_one()
            except (OSError, httpx.HTTPError, Exception) as error:
                return "503" in str(error) or isinstance(error, OSError | httpx.HTTPError)
            return False

        with gateway.http() as http:
            assert http.get("/healthz").status_code == 200
        for _ in range(8):  # sockets count as what they came in as
            stack.enter_context(gateway.rpc())
        lines = [stack.enter_context(reach(gateway)) for _ in range(40)]
        answers = [line.recv(1000) for line in lines[-20:]]
        assert all(b"503" in answer and b"UNAVAILABLE" in answer for answer in answers)
        # On a busy machine some of the silent ones were given up by now, and left a place.
        lines += [stack.enter_context(reach(gateway)) for _ in range(20)]
        assert refused(lambda: gateway.socket().close())
        said = [line for line in gateway.log.read_text().splitlines() if "more than 12 connections" in line]
        assert len(said) == 1
        stack.close()
        with gateway.rpc() as rpc:  # whoever left makes room
            assert rpc.call("agents.list")
