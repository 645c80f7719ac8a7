"""Calling the household and hearing from it: over the running gateway's socket, or in this process."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from coterie.cli.connection import owner_token, socket_address
from coterie.core.errors import CoterieError, Unavailable, from_payload
from coterie.engine.household.home import Home

LOST = "connection.lost"
BACK = "connection.back"
"""Events may have been missed: look at the session again."""
STARTING_SECONDS = 15
"""How long a process that holds the home may take until its socket answers."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    payload: dict[str, Any]


class Client(Protocol):
    """Both ways in."""

    in_process: bool
    """Turns run only as long as this process does."""

    @property
    def connected(self) -> bool: ...

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One method. It may be sent twice if the connection breaks: changes carry a key, see `change`."""

    async def next_event(self) -> Event: ...


async def change(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """A call that changes something, done once however often it is sent."""
    return await client.call(method, idempotency_key=uuid.uuid4().hex, **params)


@asynccontextmanager
async def reached(home: Home, *, patience: float | None = None) -> AsyncIterator[Client]:
    """The household: through the process that runs it, else by running it here.

    `patience` is how long a call waits for a gateway that went away; None: for as long as it takes.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + STARTING_SECONDS
    while True:
        if home.running_gateway() is not None:
            remote = RemoteClient(home, patience)
            if await remote.connect():
                try:
                    yield remote
                finally:
                    await remote.close()
                return
        elif not home.engine_is_held():
            break
        if loop.time() > give_up:
            raise Unavailable(
                "another process uses this home folder, and it is no gateway that answers; "
                "end it first, or run `coterie serve` so that several chats can share the house"
            )
        await asyncio.sleep(0.05)
    async with _opened_here(home) as local:
        yield local


@asynccontextmanager
async def _opened_here(home: Home) -> AsyncIterator[LocalClient]:
    # The store and the models are large to import: not on the event loop, so that a person can type meanwhile.
    app, api, watcher = await asyncio.to_thread(_load_engine)
    opening = app.opened(home, engine=True)
    gateway = await asyncio.to_thread(opening.__enter__)
    try:
        await asyncio.to_thread(gateway.registry.scaffold_all)
        async with app.running_engine(gateway):
            watching = asyncio.create_task(watcher.Watcher(gateway).run())
            client = LocalClient(gateway, api)
            try:
                yield client
            finally:
                client.close()
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
    finally:
        await asyncio.to_thread(opening.__exit__, None, None, None)


def _load_engine() -> tuple[Any, Any, Any]:
    import coterie.api.methods as api
    import coterie.app as app
    import coterie.engine.household.watcher as watcher

    return app, api, watcher


class LocalClient:
    """The household, opened by this process."""

    in_process = True
    connected = True

    def __init__(self, gateway: Any, api: Any) -> None:
        from coterie.engine.access import OWNER, Caller

        self._gateway = gateway
        self._api = api
        self._caller = Caller(OWNER, "admin")
        self._subscribe()

    def _subscribe(self) -> None:
        self._listening = self._gateway.events.subscribe()
        self._events = self._listening.__enter__()

    def close(self) -> None:
        self._listening.__exit__(None, None, None)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        given = {name: value for name, value in params.items() if value is not None}
        answer = await self._api.perform(self._gateway, self._caller, method, given)
        payload: dict[str, Any] = self._api.dump(answer)
        return payload

    async def next_event(self) -> Event:
        event = await self._events.next()
        if event is None:  # fell too far behind
            self.close()
            self._subscribe()
            return Event(BACK, {})
        return Event(event.name, event.payload)


class RemoteClient:
    """One socket to the gateway, opened again whenever it breaks."""

    in_process = False

    def __init__(self, home: Home, patience: float | None) -> None:
        self._home = home
        self._patience = patience
        self._socket: Any = None
        self._ready = asyncio.Event()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: asyncio.Queue[Event | CoterieError] = asyncio.Queue()
        self._number = 0
        self._refused: CoterieError | None = None
        """Why there is no use in trying again."""
        self._keeping: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._ready.is_set()

    async def connect(self) -> bool:
        """False where nobody answers."""
        if not await self._open():
            return False
        self._keeping = asyncio.create_task(self._keep())
        return True

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        if self._socket is not None:
            await self._socket.close()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        given = {name: value for name, value in params.items() if value is not None}
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    await self._ready.wait()
            except TimeoutError:
                raise Unavailable("the gateway went away and did not come back") from None
            if self._refused is not None:
                raise self._refused
            try:
                return await self._ask(method, given)
            except _BrokenOff:
                continue

    async def next_event(self) -> Event:
        event = await self._events.get()
        if isinstance(event, CoterieError):
            raise event
        return event

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        frame = {"type": "req", "id": number, "method": method, "params": params}
        try:
            await self._socket.send(json.dumps(frame))
        except ConnectionClosed:
            self._ready.clear()  # the reader is about to find out too
            raise _BrokenOff from None
        else:
            return await answer
        finally:
            self._answers.pop(number, None)

    async def _open(self) -> bool:
        """Connect and say who we are."""
        connect, errors = await asyncio.to_thread(_load_websockets)
        running = self._home.running_gateway()
        if running is None:
            return False
        try:
            socket = await connect(
                socket_address(running), max_size=None, open_timeout=10, compression=None, proxy=None
            )
        except (OSError, TimeoutError, errors.WebSocketException):
            return False
        hello = {"auth": {"token": owner_token(self._home)}, "client": {"name": "coterie-chat"}}
        try:
            await socket.send(json.dumps({"type": "req", "id": 0, "method": "connect", "params": hello}))
            async with asyncio.timeout(10):
                while (frame := json.loads(await socket.recv())).get("type") != "res":
                    pass
        except (TimeoutError, errors.ConnectionClosed):
            await socket.close()
            return False
        if not frame["ok"]:
            await socket.close()
            raise from_payload(frame["error"])
        self._socket = socket
        self._ready.set()
        return True

    async def _keep(self) -> None:
        while True:
            await self._read()
            self._ready.clear()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(_BrokenOff())
            self._events.put_nowait(Event(LOST, {}))
            try:
                await self._open_again()
            except CoterieError as error:
                self._refused = error
                self._events.put_nowait(error)
                self._ready.set()
                return
            self._events.put_nowait(Event(BACK, {}))

    async def _read(self) -> None:
        """Frames, until the socket is closed, in whatever way."""
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                frame = json.loads(await self._socket.recv())
            except ConnectionClosed:
                return
            if frame["type"] == "event":
                self._events.put_nowait(Event(frame["event"], frame["payload"]))
                continue
            answer = self._answers.get(frame.get("id"))
            if answer is None or answer.done():
                continue
            if frame["ok"]:
                answer.set_result(frame["payload"])
            else:
                answer.set_exception(from_payload(frame["error"]))

    async def _open_again(self) -> None:
        pause = FIRST_PAUSE
        while not await self._open():
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)


class _BrokenOff(Exception):
    """The connection broke before the answer came."""


def _load_websockets() -> tuple[Any, Any]:
    import websockets.exceptions as errors
    from websockets.asyncio.client import connect

    return connect, errors
