"""Context lines, as a client writes them before a message: stored as they are, whatever they hold."""

from __future__ import annotations

import zlib
from random import Random

from tests.fuzz.hostile import text
from tests.fuzz.world import SECONDS, Finding, World
from tests.support.gateway import RpcError

Case = str
NAMES = (
    "panel-id",
    "panel-type",
    "panel-title",
    "type",
    "id",
    "name",
    "selection",
    "mode",
    "view-name",
    "view-query",
    "x",
)


def case(rng: Random) -> Case:
    said = "<context"
    for _ in range(rng.choice((0, 1, 3, 8, 400))):
        name = rng.choice(NAMES) if rng.random() < 0.9 else text(rng, 60)
        quotes = rng.choice(('"', "'", "", '"', '"'))
        said += f" {name}={quotes}{text(rng, rng.choice((20, 200, 20_000)))}{quotes}"
    said += rng.choice((" />", "/>", ">", "", " / >", "></context>", "\n/>", "/>/>", "<context />"))
    if rng.random() < 0.2:
        said = rng.choice((said * 20, "<" * 5_000 + said, said.replace(" ", "\t" * 500), said.upper()))
    return said[:200_000] + rng.choice(("\nhello", "", "\n\n", " hello", "\r\nhello"))


def play(world: World, case: Case) -> None:
    number = zlib.crc32(case.encode("utf-8", "replace")) % 50
    session = f"agent:main:dm:{number}"
    with world.gateway.rpc() as rpc:
        try:
            run_id = rpc.call("chat.send", session=session, message=case)["run_id"]
        except RpcError as error:
            if error.code == "INTERNAL":
                raise Finding(str(error)) from None
            return
        while True:
            frame = rpc.receive(SECONDS)
            payload = frame.get("payload") or {}
            if payload.get("run_id") == run_id and payload.get("state") in ("final", "error", "aborted"):
                break
        if payload["state"] != "final":
            raise Finding(f"the turn ended with {payload}")
        page = rpc.call("chat.history", session=session, limit=100)
        stored = [m["text"] for m in page["messages"] if m.get("run_id") == run_id and m["role"] == "user"]
        if stored != [case]:
            raise Finding(f"stored otherwise: {str(stored)[:500]}")
        rpc.call("sessions.export", session=session, format="markdown")
        rpc.call("memory.recall", agent_id="main", query=case[:4_000] or "x")
