"""A keep-alive HTTP connection that costs next to nothing, so that what is measured is the other end."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

IDLE_SECONDS = 2.0
"""After which a connection is not trusted to be open any more."""


class Line:
    """One connection to one address; every request is a JSON body by POST."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, seconds: float = 120) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._address = (parts.hostname, parts.port or 80)
        self._seconds = seconds
        self._connect()
        named = {"Host": parts.netloc, "Content-Type": "application/json", **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self._head = f"POST {parts.path or '/'} HTTP/1.1\r\n{lines}Content-Length: ".encode()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, self._seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.monotonic()

    def refresh(self) -> None:
        """Connect anew after a pause: servers give up on connections that stand idle."""
        if time.monotonic() - self._used > IDLE_SECONDS:
            self._socket.close()
            self._connect()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, body: Mapping[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self._socket.sendall(self._head + str(len(raw)).encode() + b"\r\n\r\n" + raw)

    def receive(self) -> bytes:
        """The body of the answer; anything but 200 is a failure of the whole run."""
        received = self._more()
        while b"\r\n\r\n" not in received:
            received += self._more()
        self._used = time.monotonic()
        head, _, body = received.partition(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"
        )
        while len(body) < length:
            body += self._more()
        if head[9:12] != b"200":
            raise RuntimeError(f"{head[9:12].decode()}: {body[:300]!r}")
        return body

    def ask(self, body: Mapping[str, Any]) -> bytes:
        self.send(body)
        return self.receive()

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> bytes:
        received = self._socket.recv(65_536)
        if not received:
            raise ConnectionError("the other end closed the connection")
        return received


def closed_loop(
    lines: Sequence[Line],
    body: Callable[[int, int], Mapping[str, Any]],
    check: Callable[[int, int, bytes], None],
    seconds: float,
) -> tuple[int, float]:
    """Every line asks again as soon as it was answered. Returns the answers and the seconds they took.

    `body` and `check` are told the line's number and how often it asked before.
    """
    with selectors.DefaultSelector() as waiting:
        asked = [0] * len(lines)
        for number, line in enumerate(lines):
            waiting.register(line, selectors.EVENT_READ, number)
            line.send(body(number, 0))
        answered, open_lines = 0, len(lines)
        started = time.perf_counter()
        while open_lines:
            for key, _ in waiting.select():
                number = key.data
                check(number, asked[number], lines[number].receive())
                answered += 1
                asked[number] += 1
                if time.perf_counter() - started < seconds:
                    lines[number].send(body(number, asked[number]))
                else:
                    open_lines -= 1
        return answered, time.perf_counter() - started
