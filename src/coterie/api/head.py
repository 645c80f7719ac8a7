"""The server's HTTP protocol with a bound on what comes before a body: the parser alone would take any number of bytes."""

from __future__ import annotations

import json
from typing import Any

from coterie.api.pipelined import Pipelined

MAX_HEAD = 64 * 1024
"""Bytes of a request line and headers together, give or take what one read brings."""


class BoundedHead(Pipelined):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: int | None = 0
        """Bytes of the head so far; None while a body comes."""

    def data_received(self, data: bytes) -> None:
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
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
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

    def _answer(self, status: bytes, message: str) -> None:
        body = json.dumps({"error": {"code": "INVALID_REQUEST", "message": message}}).encode()
        self.forget_requests()
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        self.transport.close()
