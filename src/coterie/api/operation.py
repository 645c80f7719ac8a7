"""What an operation is, said once: RPC, HTTP, the OpenAPI document and the reference pages are made from this."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from coterie.api.shapes import Change, Params
from coterie.core.token import Scope

Handler = TypeVar("Handler", bound=Callable[..., Any])
"""Takes the gateway and the parameters. A plain function runs on a thread, a coroutine function on the event loop."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where an operation stands in the HTTP API."""

    verb: str
    path: str
    """`{id}` is one segment, `{id:path}` may hold slashes."""
    status: int
    text: str | None
    """The parameter that the body is, as it stands; None: the body is a JSON object of parameters."""
    names: Mapping[str, str]
    """Parameters by what the address calls them, where that is not their own name."""


def _route(verb: str, path: str, status: int = 200, text: str | None = None, **names: str) -> Route:
    return Route(verb, path, status, text, names)


Get, Post, Put, Patch, Delete = (partial(_route, verb) for verb in ("GET", "POST", "PUT", "PATCH", "DELETE"))


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer over HTTP that comes in pieces: server-sent events."""

    pieces: AsyncIterator[bytes]
    run_id: str
    """The turn that it is the answer of."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A turn's answer in one piece."""

    answer: BaseModel
    run_id: str


@dataclass(frozen=True)
class Repeat:
    """What a request is recognised by when it comes a second time. Those of two callers, or two operations, never meet."""

    whose: str
    params: Params
    own_key: str | None
    """As its caller gave it."""

    @property
    def key(self) -> str | None:
        return None if self.own_key is None else self.whose + self.own_key

    @cached_property
    def body_hash(self) -> str:
        """Of everything that it asks."""
        body = self.params.model_dump_json(exclude={"idempotency_key", "x_stainless_retry_count"})
        return hashlib.sha256((self.whose + body).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    scope: Scope | None
    """None: needs no token."""
    params: type[Params]
    answer: type[BaseModel]
    handler: Callable[..., Any]
    summary: str
    routes: tuple[Route, ...] = ()
    rpc: bool = True
    """False: a protocol of its own that only HTTP has."""
    own_keys: bool = False
    """It deals with repeats itself, in the same transaction as its effect: its handler takes the `Repeat`."""
    overtakes: bool = False
    """It waits for nothing that the same socket asked for before."""

    on_loop: bool = False
    watches: bool = False
    """Its handler takes the asking socket's `Watching` as well."""
    streams: bool = False

    @property
    def changes(self) -> bool:
        return issubclass(self.params, Change)


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str,
    scope: Scope | None,
    *,
    http: Route | tuple[Route, ...] = (),
    rpc: bool = True,
    own_keys: bool = False,
    overtakes: bool = False,
) -> Callable[[Handler], Handler]:
    """Register a handler. Parameters, answer and summary are read from its signature and docstring."""
    routes = http if isinstance(http, tuple) else (http,)

    def register(handler: Handler) -> Handler:
        signature = inspect.signature(handler, eval_str=True)
        parameters = list(signature.parameters.values())
        gives = signature.return_annotation
        assert name not in OPERATIONS, name
        OPERATIONS[name] = Operation(
            name,
            scope,
            parameters[1].annotation,
            gives
            if isinstance(gives, type)
            else next(g for g in get_args(gives) if issubclass(g, BaseModel)),
            handler,
            inspect.cleandoc(handler.__doc__ or ""),
            routes,
            rpc,
            own_keys,
            overtakes,
            on_loop=inspect.iscoroutinefunction(handler),
            watches=any(parameter.name == "watching" for parameter in parameters),
            streams=Streamed in get_args(gives),
        )
        return handler

    return register
