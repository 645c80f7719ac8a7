"""Tool arguments: a model that calls everything there is with whatever comes to mind."""

from __future__ import annotations

import json
import zlib
from random import Random

from tests.fuzz.hostile import as_json, changed, text, value
from tests.fuzz.world import SECONDS, Finding, World, good
from tests.support.providers import Call, Said

Case = list[tuple[str, str]]
ARGUMENTS = {
    "files_read": {"path": "a.txt"},
    "files_write": {"path": "a.txt", "content": "hello"},
    "files_list": {"path": "."},
    "memory_remember": {"content": "I like tea.", "tags": ["a"], "scope": "private"},
    "memory_recall": {"query": "tea", "limit": 3},
    "memory_forget": {"id": "x"},
    "memory_log": {"text": "hello"},
    "memory_edit": {"old": "", "new": "# a" + " " * 20_000 + "b"},
    "agents_list": {},
    "agents_message": {"agentId": "main", "content": "hello", "mode": "async"},
    "agents_switch": {"agentId": "main", "message": "hello"},
    "subagents_spawn": {"task": "count", "agentId": "main"},
    "subagents_list": {},
    "results_read": {"id": "x", "offset": 0},
    "system_time": {},
    "system_status": {},
}


def case(rng: Random) -> Case:
    calls: Case = []
    for _ in range(rng.choice((1, 2, 5, 70))):
        name = rng.choice(list(ARGUMENTS))
        given = changed(rng, ARGUMENTS[name]) if rng.random() < 0.8 else value(rng)
        said = as_json(rng, given) if rng.random() < 0.9 else text(rng, 100_000)
        calls.append((name if rng.random() < 0.95 else text(rng, 200), said))
    return calls


def play(world: World, case: Case) -> None:
    """One reply with all of them, then words. Told apart by a number in the message."""
    number = str(zlib.crc32(str(case).encode("utf-8", "replace")))
    calls = [Call(name, arguments, f"call-{n}") for n, (name, arguments) in enumerate(case)]
    world.scripts[number] = good("chat", Said("let me see", calls=calls))
    with world.gateway.rpc() as rpc:
        run_id = rpc.call("chat.send", session=f"agent:chat:dm:{number}", message=f"go #{number}")["run_id"]
        while True:
            payload = rpc.receive(SECONDS).get("payload") or {}
            if payload.get("run_id") == run_id and payload.get("state") in ("final", "error", "aborted"):
                break
        found = rpc.call("chat.history", session=f"agent:chat:dm:{number}", limit=1000)["messages"]
    results = [m for m in found if m["role"] == "tool"]
    asked = [c for m in found for c in m.get("tool_calls") or ()]
    if len(results) != len(asked):
        raise Finding(f"{len(asked)} calls, {len(results)} results")
    for result in results:
        if "something went wrong inside" in result["text"]:
            raise Finding(json.dumps(result)[:3000])
