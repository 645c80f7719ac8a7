"""The server's protocols with bounds: on what comes before a body, on how long a request may take to arrive, and on how
many connections there are. The library alone would wait for ever, for any number of bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from coterie.api.pipelined import Pipelined
from coterie.api.text_socket import TextSocket
from coterie.api.visitors import Visitors

MAX_HEAD = 64 * 1024
"""Bytes of a request line and headers together, give or take what one read brings."""
HEAD_SECONDS = 15.0
"""From the connection, or from the first byte of a further request, to the end of its headers."""
BODY_SECONDS = 30.0
SLOWEST = 16 * 1024
"""Bytes a second: a body may take this long, and a second more for each of these."""


def protocols(visitors: Visitors) -> tuple[type[BoundedHead], type[Socket]]:
    """For HTTP and for sockets, counting who comes and goes in the same book."""
    http = type("Http", (BoundedHead,), {"visitors": visitors})
    return http, type("WebSocket", (Socket,), {"visitors": visitors})


class Socket(TextSocket):
    """What a connection becomes that asked for it: it came in as HTTP, and leaves as this."""

    visitors: ClassVar[Visitors]

    def connection_lost(self, exc: Exception | None) -> None:
        self.visitors.leave(self.client[0] if self.client else "?")
        super().connection_lost(exc)


class BoundedHead(Pipelined):
    visitors: ClassVar[Visitors]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: int | None = 0
        """Bytes of the head so far; None while a body comes."""
        self._body = 0
        """Bytes of the body so far."""
        self._limit: asyncio.TimerHandle | None = None
        """Ends the wait for a head or a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.visitors.enter(self._address):
            self._wait_for_head()
        else:
            self._answer(b"503 Service Unavailable", "there are too many connections", "UNAVAILABLE")
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.visitors.leave(self._address)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._stop_waiting()
        super().handle_websocket_upgrade()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else "?"

    def _wait_for_head(self) -> None:
        self._limit = self.loop.call_later(HEAD_SECONDS, self._too_slow, "headers")

    def _wait_for_body(self, began: float) -> None:
        """Looks again when the slowest allowed would be through with what has come so far."""
        until = began + BODY_SECONDS + self._body / SLOWEST
        if self.loop.time() >= until:
            self._too_slow("body")
        else:
            self._limit = self.loop.call_at(until, self._wait_for_body, began)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_slow(self, what: str) -> None:
        self._limit = None
        if self.transport.is_closing():
            return
        # Where an answer is on its way already, a second one would be taken for a part of it.
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self._answer(b"408 Request Timeout", f"the request's {what} did not come in time")
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head == 0 and self._limit is None:
            self._wait_for_head()
        before = self._head
        self._ended = False
        super().data_received(data)
        if before is None or self._head is None or self._ended or self.transport.is_closing():
            return
        self._head = before + len(data)
        if self._head > MAX_HEAD:
            self._refuse()

    _ended = False
    """A head ended in what was received last."""

    def on_headers_complete(self) -> None:
        self._head = None
        self._ended = True
        self._stop_waiting()
        self._body = 0
        self._wait_for_body(self.loop.time())
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head = 0
        self._stop_waiting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses; it takes no address of this size, even where all of it came in one read."""
        if len(getattr(self, "url", b"")) >= MAX_HEAD:
            self._refuse()
        else:
            self._answer(b"400 Bad Request", "the request is not valid HTTP")

    def _refuse(self) -> None:
        message = f"a request line and its headers have at most {MAX_HEAD} bytes"
        self._answer(b"431 Request Header Fields Too Large", message)

    def _answer(self, status: bytes, message: str, code: str = "INVALID_REQUEST") -> None:
        self.forget_requests()
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        self.transport.close()
