"""The connections to providers, kept open from one request to the next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar

import httpx2

from coterie.core.ports import ModelError, ModelEvent
from coterie.outgoing import BoundedClient

CONNECT_TIMEOUT = 10.0
IDLE_TIMEOUT = 300.0
"""Seconds without a byte from the endpoint after which a request counts as lost."""


def open_connections() -> httpx2.AsyncClient:
    """A pool of connections that any number of endpoints can share."""
    # People pause between messages: a connection outlives the pause, so that the next turn needs no handshake.
    limits = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=60)
    return BoundedClient(
        limits=limits,
        timeout=httpx2.Timeout(IDLE_TIMEOUT, connect=CONNECT_TIMEOUT),
        event_hooks={"request": [_hold_back, _connect_soon], "response": [_note]},
    )


@contextmanager
def noting(responses: list[httpx2.Response]) -> Iterator[None]:
    """Whatever is answered meanwhile is put into the list, so that it can be closed whoever holds it."""
    token = _noted.set(responses)
    try:
        yield
    finally:
        _noted.reset(token)


_noted: ContextVar[list[httpx2.Response] | None] = ContextVar("_noted", default=None)


async def _note(response: httpx2.Response) -> None:
    responses = _noted.get()
    if responses is not None:
        responses.append(response)


async def body_of(stream: AsyncGenerator[ModelEvent, None]) -> bytes:
    """The body of the request that this stream begins with, taken at the door: nothing leaves the house."""
    with holding_back() as held:
        try:
            async with aclosing(stream):
                await anext(stream)
        except ModelError:
            if not held:
                raise
    return held[0]


@contextmanager
def holding_back() -> Iterator[list[bytes]]:
    """Requests that are made meanwhile are not sent; their bodies are put into the list."""
    held: list[bytes] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)


_held: ContextVar[list[bytes] | None] = ContextVar("_held", default=None)


class _HeldBack(Exception):
    """The request was only to be looked at."""


async def _hold_back(request: httpx2.Request) -> None:
    held = _held.get()
    if held is not None:
        held.append(await request.aread())
        raise _HeldBack


async def _connect_soon(request: httpx2.Request) -> None:
    # Google's SDK knows one timeout for everything: it would wait for a dead host as long as for a slow answer.
    timeout = request.extensions.get("timeout")
    if timeout and (timeout.get("connect") or CONNECT_TIMEOUT) >= CONNECT_TIMEOUT:
        timeout["connect"] = CONNECT_TIMEOUT
