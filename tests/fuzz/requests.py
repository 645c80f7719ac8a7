"""Requests that are nearly right: every operation, with parameters that its own description asks for."""

from __future__ import annotations

from random import Random
from typing import Any

from coterie.api.methods import METHODS
from coterie.api.operation import OPERATIONS, Operation, Route
from tests.fuzz.hostile import changed, text, value

PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    "session": ("agent:main:main", "agent:main:dm:ann", "agent:chat:main", "agent:main:web:gone", "main"),
    "from_session": ("agent:main:main",),
    "agent_id": ("main", "chat", "fuzz", "default", "nobody"),
    "id": ("fuzz", "main", "00000000-0000-0000-0000-000000000000"),
    "message": ("hello", "what time is it?", "remember that I like tea", "<context panel-id=1 />\nhello"),
    "content": ("I like tea.", '{"content": "a"}\n{"content": "b"}', "# one\n\ntwo\n"),
    "query": ("tea", "what did I say last week?"),
    "name": ("SOUL.md", "MEMORY.md", "memory/2026-01-01.md", "fuzz"),
    "method": tuple(METHODS),
    "scope": ("read", "write", "admin", "private", "global"),
    "format": ("markdown", "jsonl"),
    "idempotency_key": ("one", "two"),
    "model": ("offline/demo", "chat/m", "coterie/main"),
    "messages": ([{"role": "user", "content": "hello"}],),
    "input": ("hello", [{"role": "user", "content": "hello"}]),
    "peer": ("ann",),
    "run_id": ("0" * 32,),
    "task": ("count to three",),
    "limit": (1, 10),
    "stream": (True, False),
    "spec": ({"description": "x", "tool_denylist": ["memory_*"]},),
    "attributes": ({"a": 1},),
    "attachments": ([{"data": "iVBORw0KGgo=", "name": "a.png"}],),
}
LEFT_OUT = {"agents.purge", "models.test"}
"""What would empty the house that is to work afterwards, or is slow by nature: it asks a provider."""


def operations(*, over_http: bool) -> list[Operation]:
    found = OPERATIONS if over_http else METHODS
    chosen = [o for o in found.values() if o.name not in LEFT_OUT and (o.routes if over_http else o.rpc)]
    return sorted(chosen, key=lambda operation: operation.name)


def parameters(rng: Random, operation: Operation) -> dict[str, Any]:
    """Those that are needed and some of the others, mostly such as could be meant; then something is wrong with them."""
    given = {}
    for name, field in operation.params.model_fields.items():
        key = field.alias or name
        if field.is_required() or rng.random() < 0.3:
            known = PLAUSIBLE.get(name)
            given[key] = rng.choice(known) if known and rng.random() < 0.8 else value(rng)
    return changed(rng, given) if rng.random() < 0.7 and given else given


def route(rng: Random, operation: Operation) -> Route:
    return rng.choice(operation.routes)


def frame(rng: Random) -> Any:
    operation = rng.choice(operations(over_http=False))
    given: Any = parameters(rng, operation)
    if not isinstance(given, dict) and rng.random() < 0.5:
        given = {}
    said = {"type": "req", "id": rng.choice(("1", 1, "x" * 50)), "method": operation.name, "params": given}
    if rng.random() < 0.2:
        said = changed(rng, said)
    if rng.random() < 0.05 and isinstance(said, dict):
        said["method"] = text(rng)
    return said
