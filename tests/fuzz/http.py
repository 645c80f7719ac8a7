"""HTTP: heads that are none, bodies that never come or come twice, and every operation with parameters that are wrong."""

from __future__ import annotations

import json
import re
import socket
import time
from random import Random
from urllib.parse import quote

from tests.fuzz.hostile import as_json, damaged, text, value
from tests.fuzz.requests import operations, parameters, route
from tests.fuzz.world import SECONDS, Finding, World

Case = tuple[bytes, bool]
"""Bytes, with {token} where a token belongs; whether they are a request that must be answered."""
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "X" * 300, "")
HEADERS = (
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding : chunked",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 5, 5",
    "Content-Encoding: gzip",
    "Content-Type: application/json; charset=utf-16",
    "Content-Type: multipart/form-data; boundary=",
    "Content-Type: text/plain",
    "Expect: 100-continue",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Origin: http://evil.example",
    "Host: evil.example",
    "X-Forwarded-For: 1.2.3.4",
    "Authorization: Bearer",
    "Authorization: Basic Og==",
    "Accept-Encoding: br;q=NaN",
    "Idempotency-Key: " + "k" * 300,
    "Idempotency-Key: \ud83d",
    "Cookie: " + "a=b; " * 500,
    "X: " + "y" * 70_000,
    " folded: yes",
    ": nothing",
    "no colon",
    "Range: bytes=0-,0-,0-",
    "If-Match: *",
)


def case(rng: Random) -> Case:
    kind = rng.random()
    if kind < 0.55:
        return _request(rng), True
    if kind < 0.7:
        return damaged(rng, _request(rng)), False
    if kind < 0.8:
        return b"".join(_request(rng, last=n == 3) for n in range(4)), False
    if kind < 0.9:
        return _request(rng, more=[rng.choice(HEADERS) for _ in range(rng.randint(1, 3))]), False
    if kind < 0.95:
        return _chunked(rng), False
    return rng.choice(
        (rng.randbytes(300), b"\r\n" * 500, b"GET " + b"/" * 100_000, b"\x16\x03\x01\x02\x00\x01")
    ), False


def _request(rng: Random, more: list[str] | None = None, *, last: bool = True) -> bytes:
    operation = rng.choice(operations(over_http=True))
    way = route(rng, operation)
    given = parameters(rng, operation)
    if not isinstance(given, dict):
        given = {}
    path = re.sub(r"\{(\w+)(:\w+)?\}", lambda m: _part(rng, given, way.names.get(m[1], m[1])), way.path)
    if way.verb in ("GET", "DELETE") or rng.random() < 0.1:
        said = "&".join(f"{_quoted(k)}={_quoted(v)}" for k, v in given.items())
        path, body = f"{path}?{said}", b""
    else:
        body = as_json(rng, given if rng.random() < 0.9 else value(rng)).encode("utf-8", "surrogatepass")
    verb = way.verb if rng.random() < 0.9 else rng.choice(VERBS)
    lines = [
        f"{verb} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Authorization: Bearer {token}",
        *(more or ()),
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
        *(["Connection: close"] if last else []),
    ]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


def _part(rng: Random, given: dict[str, object], name: str) -> str:
    said = given.pop(name, None)
    if said is None or rng.random() < 0.2:
        said = text(rng, 300)
    return _quoted(said)


def _quoted(said: object) -> str:
    plain = said if isinstance(said, str) else json.dumps(said)
    return quote(plain.encode("utf-8", "surrogatepass"), safe=":")


def _chunked(rng: Random) -> bytes:
    body = b'{"message": "hello"}'
    chunks = [
        f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n",
        b"ffffffffffffffff\r\n" + body,
        b"-1\r\n" + body,
        b"5;ext=" + b"x" * 5000 + b"\r\nhello\r\n0\r\n\r\n",
        b"0\r\nTrailer: " + b"x" * 70_000 + b"\r\n\r\n",
        b"1\r\n{\r\n" * 3000,
    ]
    head = (
        b"POST /api/sessions/agent:main:main/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    )
    return head + (b"Content-Length: 4\r\n" if rng.random() < 0.3 else b"") + b"\r\n" + rng.choice(chunks)


def play(world: World, case: Case) -> None:
    raw, must_answer = case
    raw = raw.replace(b"{token}", world.gateway.token.encode())
    host, _, port = world.gateway.url.removeprefix("http://").partition(":")
    said, deadline = bytearray(), time.monotonic() + (SECONDS if must_answer else 0.5)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as wire:
        try:
            wire.sendall(raw)
        except OSError:
            pass  # refused while it was being sent
        wire.settimeout(0.5)
        while True:
            try:
                came = wire.recv(65536)
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                if must_answer:
                    raise Finding(f"no answer in {SECONDS} s") from None
                break
            except OSError:
                break
            if not came:
                break
            said += came
    for status in STATUS.findall(bytes(said)):
        if status == b"500":
            raise Finding(bytes(said[:3000]).decode(errors="replace"))
    if must_answer and not STATUS.search(bytes(said)):
        raise Finding("closed without an answer")
