"""Every operation by its RPC name, and how one is run: scope first, then parameters, then the operation."""

from __future__ import annotations

import asyncio
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from coterie.api import operations, repeats
from coterie.api.operation import OPERATIONS, Operation
from coterie.api.shapes import Params, parse
from coterie.api.watching import Watching
from coterie.core.errors import UnknownMethod, of_the_disk
from coterie.engine.access import Caller
from coterie.engine.gateway import Gateway

__all__ = ["METHODS", "OPERATIONS", "Operation", "carry_out", "dump", "find", "parse", "perform", "run"]

for _module in pkgutil.iter_modules(operations.__path__):
    import_module(f"{operations.__name__}.{_module.name}")

METHODS: dict[str, Operation] = {name: found for name, found in OPERATIONS.items() if found.rpc}

_threads = ThreadPoolExecutor(16, "coterie-operation")
"""For handlers that are plain functions; the store's own threads are never taken up by slow ones."""


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
    do = partial(found.handler, gateway, params, *([watching] if found.watches else []))
    if not found.on_loop:
        do = partial(asyncio.get_running_loop().run_in_executor, _threads, do)
    key = repeats.key_of(caller, found, params)
    try:
        return await do() if key is None else await repeats.once(gateway, key, found, params, do)
    except OSError as error:
        raise of_the_disk(error) or error from None


def run(gateway: Gateway, caller: Caller, found: Operation, params: Params) -> Any:
    """As `carry_out`, for a plain function and a process that has no event loop."""
    key = repeats.key_of(caller, found, params)
    do = partial(found.handler, gateway, params)
    return do() if key is None else repeats.once_here(gateway, key, found, params, do)


def dump(answer: BaseModel) -> dict[str, Any]:
    """As RPC sends it."""
    return answer.model_dump(mode="json", by_alias=False)
