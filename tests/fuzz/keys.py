"""Session keys, by every door that takes one."""

from __future__ import annotations

from random import Random
from urllib.parse import quote

from tests.fuzz.hostile import TEXTS, text
from tests.fuzz.world import Finding, World
from tests.support.gateway import RpcError

Case = tuple[str, str]
WORDS = (
    *(
        "agent",
        "main",
        "default",
        "chat",
        "nobody",
        "dm",
        "direct",
        "group",
        "thread",
        "old",
        "web",
        "api",
        "cron",
    ),
    *(
        "once",
        "subagent",
        "telegram",
        "internal",
        "1",
        "ann",
        "%41nn",
        "%",
        "%zz",
        "%00",
        "%ff",
        "%C3%A9",
        "%3A",
        "",
    ),
)
METHODS = ("sessions.get", "chat.history", "chat.queue", "sessions.watch", "sessions.export", "chat.abort")
CHANGES = (
    "chat.send",
    "sessions.fork",
    "sessions.rename",
    "sessions.clear",
    "sessions.renew",
    "sessions.set_agent",
    "sessions.delete",
)
MORE = {
    "chat.send": {"message": "hello"},
    "sessions.rename": {"name": "x"},
    "sessions.set_agent": {"agent_id": "main"},
}


def case(rng: Random) -> Case:
    kind = rng.random()
    if kind < 0.6:
        parts = [
            rng.choice(WORDS) if rng.random() < 0.85 else text(rng, 100) for _ in range(rng.randint(0, 5))
        ]
        key = ":".join(["agent", rng.choice(("main", "main", "chat", text(rng, 40))), *parts])
    elif kind < 0.8:
        key = "agent:main:dm:" + text(rng, 3_000)
    elif kind < 0.9:
        key = rng.choice(
            (
                "agent:main:dm:" + rng.choice(TEXTS) * 200,
                ":" * 2_000,
                "agent:" * 400,
                "agent:main:" + "%2" * 500,
            )
        )
    else:
        key = text(rng)
    return rng.choice((*METHODS, *CHANGES)), key


def play(world: World, case: Case) -> None:
    method, key = case
    with world.gateway.rpc() as rpc:
        try:
            rpc.call(method, session=key, **MORE.get(method, {}))
        except RpcError as error:
            if error.code == "INTERNAL":
                raise Finding(f"{method} {key!r}: {error}") from None
    path = quote(key.encode("utf-8", "surrogatepass"), safe=":")
    for end in ("", "/messages"):
        if len(path) < 60_000 and world.http.get(f"/api/sessions/{path}{end}").status_code == 500:
            raise Finding(f"GET /api/sessions/{path[:500]}{end} is 500")
