"""Calling methods: on the gateway that runs, or on the store itself where none does. Same answers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from coterie.core.errors import CoterieError, Unavailable, from_payload
from coterie.engine.household.home import Home


class Connection(Protocol):
    def call(self, method: str, **params: Any) -> dict[str, Any]: ...


@contextmanager
def connected(home: Path | None) -> Iterator[Connection]:
    """The household that a command is about."""
    place = Home.locate(home)
    running = place.running_gateway()
    if running is not None:
        with _remote(place, running) as remote:
            if remote is not None:
                yield remote
                return
    from coterie.app import opened

    with opened(place) as gateway:
        connection = _Local(gateway)
        for problem in gateway.registry.sync.state.problems:
            print(f"warning: {problem}; the last good configuration is in force", file=sys.stderr)  # noqa: T201
        yield connection


class _Local:
    def __init__(self, gateway: Any) -> None:
        from coterie.engine.access import OWNER, Caller

        self._gateway = gateway
        self._caller = Caller(OWNER, "admin")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        from coterie.api.methods import dump, find, parse, run

        given = {key: value for key, value in params.items() if value is not None}
        found = find(self._caller, method)
        if found.on_loop:
            return asyncio.run(self._on_loop(method, given))
        return dump(run(self._gateway, self._caller, found, parse(found.params, given)))

    async def _on_loop(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """Sessions and prompts need the engine's parts, but no turn is run by a command that only looks."""
        from coterie.api.methods import dump, perform
        from coterie.app import running_engine

        async with running_engine(self._gateway, run=False):
            return dump(await perform(self._gateway, self._caller, method, given))


@contextmanager
def _remote(home: Home, running: dict[str, Any]) -> Iterator[_Remote | None]:
    """A connection to the gateway, or None where it went away meanwhile."""
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    try:
        socket = connect(
            socket_address(running), max_size=None, open_timeout=10, compression=None, proxy=None
        )
    except (OSError, WebSocketException):
        yield None
        return
    with socket:
        remote = _Remote(socket)
        remote.introduce(owner_token(home))
        yield remote


class _Remote:
    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._next = 0

    def introduce(self, token: str) -> None:
        self.call("connect", auth={"token": token}, client={"name": "coterie-cli"})
        problems = self.call("status")["config"]["problems"]
        for problem in problems:
            print(f"warning: {problem}; the last good configuration is in force", file=sys.stderr)  # noqa: T201

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        self._next += 1
        given = {key: value for key, value in params.items() if value is not None}
        frame = {"type": "req", "id": self._next, "method": method, "params": given}
        try:
            self._socket.send(json.dumps(frame))
            while True:
                answer = json.loads(self._socket.recv())
                if answer.get("type") == "res" and answer.get("id") == self._next:
                    break
        except ConnectionClosed as error:
            raise Unavailable("the gateway closed the connection") from error
        if not answer["ok"]:
            raise from_payload(answer["error"])
        payload: dict[str, Any] = answer["payload"]
        return payload


def socket_address(running: dict[str, Any]) -> str:
    """Where the gateway that `run/gateway.json` names takes RPC."""
    return str(running["url"]).replace("http", "ws", 1) + "/ws"


def owner_token(home: Home) -> str:
    """What a command on this machine shows the gateway."""
    token = os.environ.get("COTERIE_TOKEN", "").strip()
    if not token:
        try:
            token = home.token.read_text().strip()
        except OSError:
            raise CoterieError(
                f"the gateway needs a token: set COTERIE_TOKEN, or make {home.token} readable"
            ) from None
    return token
