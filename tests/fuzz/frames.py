"""The socket: frames of all kinds and orders, down to the bytes."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import struct
import time
from random import Random
from typing import Any

from tests.fuzz.hostile import as_json, damaged
from tests.fuzz.requests import frame
from tests.fuzz.world import SECONDS, Finding, World

TEXT, BINARY, CONTINUED, CLOSE, PING = 1, 2, 0, 8, 9
Case = list[tuple[str, bytes]]
INTERNAL = re.compile(rb'"code": ?"INTERNAL"')


def case(rng: Random) -> Case:
    """What is sent, piece by piece. Most begin with a proper `connect`."""
    pieces: Case = []
    if rng.random() < 0.85:
        pieces.append(("connect", b""))
    for _ in range(rng.choice((1, 3, 8, 30))):
        said = as_json(rng, frame(rng)).encode("utf-8", "surrogatepass")
        kind = rng.random()
        if kind < 0.7:
            pieces.append(("frame", packed(TEXT, said)))
        elif kind < 0.76:
            pieces.append(("frame", packed(BINARY, said)))
        elif kind < 0.84:
            cut = rng.randint(0, len(said))
            opening = packed(TEXT, said[:cut], final=False)
            between = packed(PING, b"?") if rng.random() < 0.3 else b""
            pieces.append(("frame", opening + between + packed(CONTINUED, said[cut:])))
        elif kind < 0.88:
            pieces.append(("odd", damaged(rng, packed(TEXT, said))))
        elif kind < 0.91:
            pieces.append(("odd", packed(rng.randrange(16), rng.randbytes(rng.choice((0, 2, 130))))))
        elif kind < 0.93:
            big = rng.choice((100_000, 1_000_000, 9_000_000))
            pieces.append(("frame", packed(TEXT, said[:50] + b" " * big + said[50:])))
        elif kind < 0.95:
            pieces.append(("frame", struct.pack("!BBQ", 0x81, 0xFF, 2**62)))
        elif kind < 0.97:
            pieces.append(("frame", packed(CLOSE, rng.randbytes(rng.choice((0, 1, 2, 125))))))
        else:
            pieces.append(("connect", b""))
    return pieces


def play(world: World, case: Case) -> None:
    """Everything at once, then a question: it is answered, or the connection was closed."""
    with Socket(world) as wire:
        for kind, raw in case:
            if kind == "connect":
                asked = {
                    "type": "req",
                    "id": "c",
                    "method": "connect",
                    "params": {"auth": {"token": world.gateway.token}},
                }
                raw = packed(TEXT, json.dumps(asked).encode())
            if not wire.send(raw):
                break
        last = {"type": "req", "id": "the-last", "method": "status", "params": {}}
        wire.send(packed(TEXT, json.dumps(last).encode()))
        is_odd = any(kind == "odd" for kind, _ in case)
        said = wire.read(until=b'"the-last"', seconds=1 if is_odd else SECONDS)
        if said is None:
            if not is_odd:  # half a frame may be waited for
                raise Finding(f"no answer in {SECONDS} s")
            return
    if INTERNAL.search(said):
        at = INTERNAL.search(said)
        assert at is not None
        raise Finding(said[max(0, at.start() - 200) : at.end() + 300].decode(errors="replace"))


def packed(opcode: int, data: bytes, *, final: bool = True) -> bytes:
    """One masked frame."""
    first = (0x80 if final else 0) | opcode
    if len(data) < 126:
        head = struct.pack("!BB", first, 0x80 | len(data))
    elif len(data) < 65536:
        head = struct.pack("!BBH", first, 0x80 | 126, len(data))
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, len(data))
    return head + b"\0\0\0\0" + data  # a mask of zeroes leaves them as they are


class Socket:
    """A WebSocket that minds nothing."""

    def __init__(self, world: World) -> None:
        host, _, port = world.gateway.url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        if b" 101 " not in self._socket.recv(4096):
            raise Finding("the socket was refused")

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: Any) -> None:
        self._socket.close()

    def send(self, raw: bytes) -> bool:
        """False where the other end is gone."""
        try:
            self._socket.sendall(raw)
        except TimeoutError:
            raise Finding(f"nothing was read for {SECONDS} s") from None
        except OSError:
            return False
        return True

    def read(self, until: bytes, seconds: float) -> bytes | None:
        """What came, up to these bytes or to the end; None where neither comes."""
        said, deadline = bytearray(), time.monotonic() + seconds
        self._socket.settimeout(0.5)
        while until not in said[-70_000:]:
            try:
                came = self._socket.recv(65536)
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                return None
            except OSError:
                break
            if not came:
                break
            said += came
        return bytes(said)
