"""Calling the household and hearing from it: over a gateway's socket, or in this process where none runs.

Both ways take the same calls and give the same answers and errors. A command visits (`connection.py` makes that
synchronous); the chat stays: it outlives the gateway's restarts, and runs the house where nobody else does.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from coterie.core.errors import CoterieError, Unavailable, from_payload
from coterie.engine.household.home import Home

BACK = "connection.back"
"""Events may have been missed: look at the session again, which has the gateway tell of it again, too."""
STARTING_SECONDS = 15
"""How long a process that holds the home may take until its socket answers."""
OPENING_SECONDS = 10
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    payload: dict[str, Any]


class Answering(Protocol):
    """Whoever answers calls."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]: ...


class Client(Answering, Protocol):
    """A conversation's way in. A call may be sent twice if the connection breaks: see `change`."""

    in_process: bool
    """Turns run only as long as this process does."""

    @property
    def connected(self) -> bool: ...

    async def next_event(self) -> Event: ...

    async def lost(self) -> None:
        """Until the connection breaks. No event: what handles one may itself wait for the gateway to come back."""


async def change(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """A call that changes something, done once however often it is sent."""
    return await client.call(method, idempotency_key=uuid.uuid4().hex, **params)


@asynccontextmanager
async def visited(home: Home) -> AsyncIterator[Answering]:
    """The household for a command: through the gateway, else the store itself. No turn is run here."""
    link = await _linked(home, "coterie-cli", lambda _: None)
    if link is not None:
        try:
            yield link
        finally:
            await link.close()
        return
    async with _opened(home, engine=False) as gateway:
        try:
            yield _House(gateway)
        finally:
            await gateway.models.aclose()


@asynccontextmanager
async def joined(home: Home, *, patience: float | None = None) -> AsyncIterator[Client]:
    """The household for a conversation: through the process that runs it, else by running it here.

    `patience` is how long a call waits for a gateway that went away; None: for as long as it takes.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + STARTING_SECONDS
    while True:
        if home.running_gateway() is not None:
            remote = _Remote(lambda tell: _linked(home, "coterie-chat", tell), patience)
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
    async with _opened(home, engine=True) as gateway, _hosted(gateway) as host:
        yield host


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


# Over a socket

Tell = Callable[[Event], None]


class _BrokenOff(Unavailable):
    """The connection broke before the answer came."""

    def __init__(self) -> None:
        super().__init__("the gateway closed the connection")


class _Link:
    """One socket, from the handshake until it breaks."""

    def __init__(self, socket: Any, tell: Tell) -> None:
        self._socket = socket
        self._tell = tell
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.reading = asyncio.create_task(self._read())
        """Done once the socket is closed, in whatever way."""

    @classmethod
    async def open(cls, url: str, token: str, name: str, tell: Tell) -> _Link | None:
        """Connect and say who we are. None where nobody answers."""
        connect, errors = await asyncio.to_thread(_load_websockets)
        address = url.replace("http", "ws", 1) + "/ws"
        try:
            socket = await connect(
                address, max_size=None, open_timeout=OPENING_SECONDS, compression=None, proxy=None
            )
        except (OSError, TimeoutError, errors.WebSocketException):
            return None
        link = cls(socket, tell)
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                await link.call("connect", auth={"token": token}, client={"name": name})
        except (TimeoutError, _BrokenOff):
            await link.close()
            return None
        except CoterieError:
            await link.close()
            raise
        return link

    async def close(self) -> None:
        await self._socket.close()
        await self.reading

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        frame = {"type": "req", "id": number, "method": method, "params": _given(params)}
        try:
            await self._socket.send(json.dumps(frame))
            return await answer
        except ConnectionClosed:
            raise _BrokenOff from None
        finally:
            self._answers.pop(number, None)

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            while True:
                self._take(json.loads(await self._socket.recv()))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_BrokenOff())

    def _take(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "event":
            self._tell(Event(frame["event"], frame["payload"]))
            return
        answer = self._answers.get(frame["id"])
        if answer is None or answer.done():
            return
        if frame["ok"]:
            answer.set_result(frame["payload"])
        else:
            answer.set_exception(from_payload(frame["error"]))


async def _linked(home: Home, name: str, tell: Tell) -> _Link | None:
    """To the gateway that runs on this home now; None where there is none that answers."""
    running = home.running_gateway()
    return None if running is None else await _Link.open(running["url"], _owner_token(home), name, tell)


def _owner_token(home: Home) -> str:
    """What somebody on this machine shows the gateway."""
    token = os.environ.get("COTERIE_TOKEN", "").strip()
    if not token:
        try:
            token = home.token.read_text().strip()
        except OSError:
            raise CoterieError(
                f"the gateway needs a token: set COTERIE_TOKEN, or make {home.token} readable"
            ) from None
    return token


def _load_websockets() -> tuple[Any, Any]:
    import websockets.exceptions as errors
    from websockets.asyncio.client import connect

    return connect, errors


class _Remote:
    """A gateway for as long as a conversation lasts: one link after another."""

    in_process = False

    def __init__(self, open_link: Callable[[Tell], Awaitable[_Link | None]], patience: float | None) -> None:
        self._open_link = open_link
        self._patience = patience
        self._link: _Link | None = None
        self._ready = asyncio.Event()
        self._events: asyncio.Queue[Event | CoterieError] = asyncio.Queue()
        self._losses: asyncio.Queue[None] = asyncio.Queue()
        self._refused: CoterieError | None = None
        """Why there is no use in trying again."""
        self._keeping: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._ready.is_set()

    async def connect(self) -> bool:
        """False where nobody answers."""
        link = await self._open()
        if link is not None:
            self._keeping = asyncio.create_task(self._keep(link))
        return link is not None

    async def close(self) -> None:
        if self._keeping is not None:
            await _end(self._keeping)
        if self._link is not None:
            await self._link.close()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    await self._ready.wait()
            except TimeoutError:
                raise Unavailable("the gateway went away and did not come back") from None
            if self._refused is not None:
                raise self._refused
            link = self._link
            assert link is not None
            try:
                return await link.call(method, **params)
            except _BrokenOff:
                if link is self._link:
                    self._ready.clear()  # the keeper is about to find out too

    async def next_event(self) -> Event:
        event = await self._events.get()
        if isinstance(event, CoterieError):
            raise event
        return event

    async def lost(self) -> None:
        await self._losses.get()

    async def _open(self) -> _Link | None:
        link = await self._open_link(self._events.put_nowait)
        if link is not None:
            self._link = link
            self._ready.set()
        return link

    async def _keep(self, link: _Link) -> None:
        while True:
            await asyncio.wait((link.reading,))
            self._ready.clear()
            self._losses.put_nowait(None)
            try:
                link = await self._open_again()
            except CoterieError as error:
                self._refused = error
                self._events.put_nowait(error)
                self._ready.set()
                return
            self._events.put_nowait(Event(BACK, {}))

    async def _open_again(self) -> _Link:
        pause = FIRST_PAUSE
        while (link := await self._open()) is None:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
        return link


# In this process


class _House:
    """The household, opened here."""

    def __init__(self, gateway: Any) -> None:
        from coterie.engine.access import OWNER, Caller

        self._gateway = gateway
        self._caller = Caller(OWNER, "admin")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        from coterie.api.methods import dump, perform

        return dump(await perform(self._gateway, self._caller, method, _given(params)))


class _Host(_House):
    """A conversation's: this process runs the turns."""

    in_process = True
    connected = True

    def __init__(self, gateway: Any) -> None:
        super().__init__(gateway)
        self._subscribe()

    def _subscribe(self) -> None:
        self._listening = self._gateway.events.subscribe()
        self._events = self._listening.__enter__()

    def close(self) -> None:
        self._listening.__exit__(None, None, None)

    async def next_event(self) -> Event:
        event = await self._events.next()
        if event is None:  # fell too far behind
            self.close()
            self._subscribe()
            return Event(BACK, {})
        return Event(event.name, event.payload)

    async def lost(self) -> None:
        await asyncio.Event().wait()  # we are the house


@asynccontextmanager
async def _opened(home: Home, *, engine: bool) -> AsyncIterator[Any]:
    # The store and the models are large to import: not on the event loop, so that a person can type meanwhile.
    opened = await asyncio.to_thread(_load_house)
    opening = opened(home, engine=engine)
    gateway = await asyncio.to_thread(opening.__enter__)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(opening.__exit__, None, None, None)


def _load_house() -> Any:
    for part in ("coterie.api.methods", "coterie.engine.household.watcher"):
        import_module(part)
    return import_module("coterie.app").opened


@asynccontextmanager
async def _hosted(gateway: Any) -> AsyncIterator[_Host]:
    from coterie.engine.household.watcher import Watcher

    async with gateway.running():
        watching = asyncio.create_task(
            Watcher(gateway.home, gateway.registry, gateway.brains, gateway.events).run()
        )
        host = _Host(gateway)
        try:
            yield host
        finally:
            host.close()
            await _end(watching)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
