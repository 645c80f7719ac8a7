"""What a method is, and how one is run: scope first, then parameters, then the method."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from coterie.api import payloads as p
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict, InvalidRequest, UnknownMethod
from coterie.core.token import Scope
from coterie.engine.access import Caller
from coterie.engine.gateway import Gateway

Handler = Callable[[Gateway, Any], p.Answer | Awaitable[p.Answer]]
"""A plain function runs on a thread; a coroutine function runs on the event loop."""


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    scope: Scope
    params: type[p.Params]
    answer: type[p.Answer]
    handler: Handler
    summary: str
    own_keys: bool = False
    """It deals with idempotency keys itself, in the same transaction as its effect."""

    @property
    def on_loop(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)


METHODS: dict[str, Method] = {}


def method(name: str, scope: Scope, *, own_keys: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler. Parameters and answer are read from its signature."""

    def register(handler: Handler) -> Handler:
        signature = inspect.signature(handler, eval_str=True)
        params = list(signature.parameters.values())[1].annotation
        summary = (handler.__doc__ or "").strip()
        METHODS[name] = Method(name, scope, params, signature.return_annotation, handler, summary, own_keys)
        return handler

    return register


async def perform(gateway: Gateway, caller: Caller, name: str, params: Any) -> p.Answer:
    """A method by name, from the event loop."""
    found = find(caller, name)
    parsed = parse(found.params, params)
    if not found.on_loop:
        return await asyncio.to_thread(run, gateway, caller, found, parsed)
    kept = await asyncio.to_thread(_kept, gateway, caller, found, parsed) if _key(found, parsed) else None
    if kept is not None:
        return kept
    outcome = found.handler(gateway, parsed)
    assert not isinstance(outcome, p.Answer)
    answer = await outcome
    if _key(found, parsed):
        await asyncio.to_thread(_keep, gateway, caller, found, parsed, answer)
    return answer


def call(gateway: Gateway, caller: Caller, name: str, params: Any) -> p.Answer:
    """A method by name, from a process that has no event loop."""
    found = find(caller, name)
    if found.on_loop:
        return asyncio.run(perform(gateway, caller, name, params))
    return run(gateway, caller, found, parse(found.params, params))


def find(caller: Caller, name: str) -> Method:
    found = METHODS.get(name)
    if found is None:
        raise UnknownMethod(f"there is no method {name[:200]!r}", details={"method": name[:200]})
    caller.require(found.scope)
    return found


_repeating = threading.Lock()


def run(gateway: Gateway, caller: Caller, found: Method, params: p.Params) -> p.Answer:
    """A plain method; with an idempotency key, its first answer again."""
    if _key(found, params) is None:
        answer = found.handler(gateway, params)
        assert isinstance(answer, p.Answer)
        return answer
    with _repeating:
        kept = _kept(gateway, caller, found, params)
        if kept is not None:
            return kept
        answer = found.handler(gateway, params)
        assert isinstance(answer, p.Answer)
        _keep(gateway, caller, found, params, answer)
        return answer


def parse(model: type[p.Params], params: Any) -> p.Params:
    try:
        return model.model_validate({} if params is None else params)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> InvalidRequest:
    """The first thing that is wrong in a sentence, all of them in the details."""
    found = [
        {
            "field": ".".join(str(step) for step in item["loc"])[:200],
            "message": item["msg"].removeprefix("Value error, "),
        }
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    first = found[0]
    text = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
    return InvalidRequest(text, details={"fields": found[:20]})


def dump(answer: BaseModel) -> dict[str, Any]:
    """As RPC sends it."""
    return answer.model_dump(mode="json", by_alias=False)


def _key(found: Method, params: p.Params) -> str | None:
    return params.idempotency_key if isinstance(params, p.Change) and not found.own_keys else None


def _kept(gateway: Gateway, caller: Caller, found: Method, params: p.Params) -> p.Answer | None:
    """The first answer to a request that is repeated."""
    with gateway.store.read() as tx:
        kept = tx.answers.get(f"{caller.token_id}:{found.name}:{_key(found, params)}")
    if kept is None:
        return None
    if kept[0] != _hash(params):
        raise Conflict("this idempotency key was used with another request")
    return found.answer.model_validate_json(kept[1])


def _keep(gateway: Gateway, caller: Caller, found: Method, params: p.Params, answer: p.Answer) -> None:
    with gateway.store.write() as tx:
        key = f"{caller.token_id}:{found.name}:{_key(found, params)}"
        tx.answers.add(key, _hash(params), answer.model_dump_json(), now_iso())
        tx.answers.forget_before(now_iso(offset_us=-86_400_000_000))


def _hash(params: p.Params) -> str:
    return hashlib.sha256(params.model_dump_json(exclude={"idempotency_key"}).encode()).hexdigest()
