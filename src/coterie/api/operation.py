"""What an operation is, said once: RPC, HTTP, the OpenAPI document and the reference pages are made from this."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
    """It deals with idempotency keys itself, in the same transaction as its effect."""
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
            gives if isinstance(gives, type) else get_args(gives)[0],
            handler,
            inspect.cleandoc(handler.__doc__ or ""),
            routes,
            rpc,
            own_keys,
            overtakes,
            on_loop=inspect.iscoroutinefunction(handler),
            watches=len(parameters) > 2,
            streams=Streamed in get_args(gives),
        )
        return handler

    return register
