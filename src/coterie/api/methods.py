"""Every operation by its RPC name, and how one is run: scope first, then parameters, then the operation."""

from __future__ import annotations

import pkgutil
from functools import partial
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from coterie.api import operations, repeats
from coterie.api.operation import OPERATIONS, Operation
from coterie.api.shapes import Params, parse
from coterie.api.watching import Watching
from coterie.core.errors import UnknownMethod, of_the_disk
from coterie.core.threads import Purpose, on_thread
from coterie.engine.access import Caller
from coterie.engine.gateway import Gateway

__all__ = ["METHODS", "OPERATIONS", "Operation", "carry_out", "dump", "find", "parse", "perform", "run"]

for _module in pkgutil.iter_modules(operations.__path__):
    import_module(f"{operations.__name__}.{_module.name}")

METHODS: dict[str, Operation] = {name: found for name, found in OPERATIONS.items() if found.rpc}


async def perform(
    gateway: Gateway, caller: Caller, name: str, params: Any, watching: Watching | None = None
) -> BaseModel:
    """An operation by name, from the event loop."""
    found = find(caller, name)
    answer: BaseModel = await carry_out(gateway, caller, found, parse(found.params, params), watching)
    return answer


def find(caller: Caller, name: str) -> Operation:
    found = METHODS.get(name)
    if found is None:
        raise UnknownMethod(f"there is no method {name[:200]!r}", details={"method": name[:200]})
    if found.scope is not None:
        caller.require(found.scope)
    return found


async def carry_out(
    gateway: Gateway, caller: Caller, found: Operation, params: Params, watching: Watching | None = None
) -> Any:
    """An operation whose parameters are right. Under an idempotency key it is done once, and answered alike."""
    repeat = repeats.repeat_of(caller, found, params) if found.changes else None
    do = partial(found.handler, gateway, params)
    if found.own_keys:
        do = partial(do, repeat)
    if found.watches:
        do = partial(do, watching=watching)
    if not found.on_loop:
        purpose: Purpose = "memory" if found.name.startswith("memory.") else "operations"
        do = partial(on_thread, purpose, do)
    try:
        if repeat is None or repeat.key is None or found.own_keys:
            return await do()
        return await repeats.once(gateway, repeat, found, do)
    except OSError as error:
        raise of_the_disk(error) or error from None


def run(gateway: Gateway, caller: Caller, found: Operation, params: Params) -> Any:
    """As `carry_out`, for a plain function and a process that has no event loop."""
    do = partial(found.handler, gateway, params)
    repeat = repeats.repeat_of(caller, found, params) if found.changes else None
    return do() if repeat is None or repeat.key is None else repeats.once_here(gateway, repeat, found, do)


def dump(answer: BaseModel) -> dict[str, Any]:
    """As RPC sends it."""
    return answer.model_dump(mode="json", by_alias=False)
