"""A repeat under the same idempotency key gets the first answer, whichever door it comes through."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic import BaseModel

from coterie.api.operation import Operation
from coterie.api.shapes import Change, Params
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict
from coterie.engine.access import Caller
from coterie.engine.gateway import Gateway

if TYPE_CHECKING:
    from coterie.store.transaction import Transaction

DAY_US = 86_400_000_000
"""How long a first answer is kept."""

_under_way: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
"""One lock per key that is in use just now."""


def key_of(caller: Caller, found: Operation, params: Params) -> str | None:
    """Keys of two tokens, or of two operations, never meet."""
    key = params.idempotency_key if isinstance(params, Change) and not found.own_keys else None
    return None if key is None else f"{caller.token_id}:{found.name}:{key}"


async def once(
    gateway: Gateway, key: str, found: Operation, params: Params, do: Callable[[], Awaitable[Any]]
) -> Any:
    """Whoever repeats a request while it is under way waits for its answer."""
    async with _under_way.setdefault((id(gateway), key), asyncio.Lock()):
        first = await gateway.store.look(lambda tx: _first(tx, key, found, params))
        if first is None:
            first = await do()
            await gateway.store.transact(lambda tx: _keep(tx, key, params, first))
        return first


def once_here(gateway: Gateway, key: str, found: Operation, params: Params, do: Callable[[], Any]) -> Any:
    """As `once`, in a process that does one thing."""
    with gateway.store.read() as tx:
        first = _first(tx, key, found, params)
    if first is None:
        first = do()
        with gateway.store.write() as tx:
            _keep(tx, key, params, first)
    return first


def _first(tx: Transaction, key: str, found: Operation, params: Params) -> BaseModel | None:
    kept = tx.answers.get(key)
    if kept is None:
        return None
    if kept[0] != _hash(params):
        raise Conflict("this idempotency key was used with another request")
    return found.answer.model_validate_json(kept[1])


def _keep(tx: Transaction, key: str, params: Params, answer: BaseModel) -> None:
    tx.answers.add(key, _hash(params), answer.model_dump_json(), now_iso())
    tx.answers.forget_before(now_iso(offset_us=-DAY_US))


def _hash(params: Params) -> str:
    return hashlib.sha256(params.model_dump_json(exclude={"idempotency_key"}).encode()).hexdigest()
