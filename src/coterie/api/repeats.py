"""A repeat under the same idempotency key gets the first answer, whichever door it comes through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic import BaseModel

from coterie.api.operation import Operation, Repeat
from coterie.api.shapes import Change, Params
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict
from coterie.engine.access import Caller
from coterie.engine.gateway import KEY_US, Gateway

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction

_under_way: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
"""One lock per key that is in use just now."""


def repeat_of(caller: Caller, found: Operation, params: Params) -> Repeat:
    key = params.idempotency_key if isinstance(params, Change) else None
    return Repeat(f"{caller.token_id}:{found.name}:", params, key)


async def once(gateway: Gateway, repeat: Repeat, found: Operation, do: Callable[[], Awaitable[Any]]) -> Any:
    """Whoever repeats a request while it is under way waits for its answer."""
    async with under_way(gateway, repeat):
        first = await gateway.store.look(lambda tx: _first(tx, repeat, found))
        if first is None:
            first = await do()
            await gateway.store.transact(lambda tx: _keep(tx, repeat, first))
        return first


def once_here(gateway: Gateway, repeat: Repeat, found: Operation, do: Callable[[], Any]) -> Any:
    """As `once`, in a process that does one thing."""
    with gateway.store.read() as tx:
        first = _first(tx, repeat, found)
    if first is None:
        first = do()
        with gateway.store.write() as tx:
            _keep(tx, repeat, first)
    return first


def under_way(gateway: Gateway, repeat: Repeat) -> asyncio.Lock:
    """One at a time under one key."""
    return _under_way.setdefault((id(gateway), repeat.key or ""), asyncio.Lock())


def _first(tx: Transaction, repeat: Repeat, found: Operation) -> BaseModel | None:
    assert repeat.key is not None
    kept = tx.answers.get(repeat.key, since=now_iso(offset_us=-KEY_US))
    if kept is None:
        return None
    if kept[0] != repeat.body_hash:
        raise Conflict("this idempotency key was used with another request")
    return found.answer.model_validate_json(kept[1])


def _keep(tx: Transaction, repeat: Repeat, answer: BaseModel) -> None:
    assert repeat.key is not None
    tx.answers.forget_before(now_iso(offset_us=-KEY_US))
    tx.answers.add(repeat.key, repeat.body_hash, answer.model_dump_json(), now_iso())
