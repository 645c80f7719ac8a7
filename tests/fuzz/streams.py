"""Provider streams: every wire, damaged, cut, swollen and of the wrong kind."""

from __future__ import annotations

import gzip
import json
import zlib
from random import Random

from tests.fuzz.hostile import as_json, changed, damaged, value
from tests.fuzz.world import SECONDS, Finding, World, head
from tests.support.providers import PROTOCOLS, Call, Said, words

Case = tuple[str, bytes]
"""A wire, and the whole answer in bytes."""
SAID = (
    Said("hello there"),
    Said("hello", thought="hm", signature="c2ln"),
    Said("let me look", calls=[Call("system_time", "{}", "c1")]),
    Said(calls=[Call("files_read", '{"path": "a"}', "c1"), Call("system_time", "{}", "c1")]),
)
HEADS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-16\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 999 What\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 429 Slow\r\nRetry-After: 0\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 429 Slow\r\nRetry-After: Wed, 99 Foo\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 500 Oh\r\nContent-Type: text/html; charset=nonsense\r\nConnection: close\r\n\r\n",
    b"HTTP/9.9 200\r\n\r\n",
    b"garbage",
    b"",
)


def case(rng: Random) -> Case:
    wire = rng.choice(PROTOCOLS)
    stream = words(wire, rng.choice(SAID))
    kind = rng.random()
    if kind < 0.35:
        return wire, head(_other_values(rng, stream))
    if kind < 0.55:
        return wire, head(damaged(rng, stream))
    if kind < 0.65:
        return wire, head(stream[: rng.randint(0, len(stream))], length=len(stream) + 1000)
    if kind < 0.72:
        events = stream.split(b"\n\n")
        rng.shuffle(events)
        return wire, head(b"\n\n".join(events * rng.choice((1, 1, 3))))
    if kind < 0.78:
        return wire, head(stream.replace(b"hello", b"hello" * rng.choice((1_000, 400_000)), 1))
    if kind < 0.84:
        return wire, head(
            stream.replace(b"\n\n", rng.choice((b"\r\n\r\n", b"\r\r", b"\n", b"\n: ping\n\n", b"\x0b\n")))
        )
    if kind < 0.88:
        return wire, head(b"data: " + b"x" * rng.choice((10, 100_000, 3_000_000)))
    body = rng.choice(
        (
            stream,
            as_json(rng, value(rng)).encode("utf-8", "surrogatepass"),
            gzip.compress(stream),
            b"[" * 100_000,
        )
    )
    return wire, rng.choice(HEADS) + body


def _other_values(rng: Random, stream: bytes) -> bytes:
    """One event, or a few, that say something else."""
    lines = stream.split(b"\n")
    places = [n for n, line in enumerate(lines) if line.startswith(b"data: {")]
    for place in rng.sample(places, min(len(places), rng.choice((1, 1, 3)))):
        data = changed(rng, json.loads(lines[place][6:]))
        lines[place] = b"data: " + as_json(rng, data).replace("\n", " ").encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def play(world: World, case: Case) -> None:
    """The first answer is bad, the next ones are good: the turn ends, one way or the other."""
    wire, raw = case
    number = str(zlib.crc32(raw))
    world.scripts[number] = raw
    with world.gateway.rpc() as rpc:
        session = f"agent:{wire}:dm:{number}"
        run_id = rpc.call("chat.send", session=session, message=f"go #{number}")["run_id"]
        while True:
            payload = rpc.receive(SECONDS).get("payload") or {}
            if payload.get("run_id") == run_id and payload.get("state") in ("final", "error", "aborted"):
                break
        if payload["state"] == "error" and "went wrong inside" in payload["message"]:
            raise Finding(f"{wire}: {payload['message']}")
        found = rpc.call("chat.history", session=session, limit=1000)["messages"]
        if not any(m["role"] == "user" and m["text"] == f"go #{number}" for m in found):
            raise Finding("the message is not in the transcript")
