"""RPC over one WebSocket: requests, answers, and events as they happen."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from contextlib import suppress
from typing import Any

from pydantic import Field, model_validator
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from coterie import __version__
from coterie.api.events import EVENTS
from coterie.api.frames import MAX_FRAME, BadFrame, Request, read_request
from coterie.api.lanes import Lanes
from coterie.api.methods import METHODS, carry_out, dump, find
from coterie.api.operation import Operation
from coterie.api.shapes import Params, Shape, parse
from coterie.api.watching import Watching
from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError, Internal, Unauthorized
from coterie.core.token import SCOPES, Scope
from coterie.engine.access import Caller
from coterie.engine.events import Event, Subscription
from coterie.engine.gateway import Gateway

log = logging.getLogger("coterie.rpc")

PROTOCOL = 1
HARD_LIMIT = 16 * 1024 * 1024
"""Frames between the two limits get a typed error; beyond, the connection is closed while they arrive."""
CONNECT_SECONDS = 10
TICK_SECONDS = 30


class Connect(Params):
    """The first request on a socket."""

    class Auth(Shape):
        token: str = Field(max_length=4000)

    auth: Auth
    client: dict[str, Any] | None = Field(None, description="Whatever the client says of itself.")
    scopes: list[Scope] | None = Field(
        None, description="Ask for no more than these; the highest one counts."
    )

    @model_validator(mode="after")
    def _some_scope(self) -> Connect:
        if self.scopes == []:
            raise ValueError("scopes must name at least one scope")
        return self


class Connection:
    """One client."""

    def __init__(self, gateway: Gateway, socket: WebSocket) -> None:
        self._gateway = gateway
        self._socket = socket
        self._seq = 0
        self._sending = asyncio.Lock()
        self._lanes = Lanes()
        self._watching = Watching(gateway)
        self._ended = False
        """We closed it: what was not begun yet is not done."""

    async def serve(self) -> None:
        await self._socket.accept()
        with suppress(WebSocketDisconnect):
            await self._event("connect.challenge", {"nonce": secrets.token_urlsafe(16), "ts": now_iso()})
            caller = await self._connect()
            if caller is None:
                return
            with self._gateway.events.subscribe() as events:
                pump = asyncio.create_task(self._pump(events, caller))
                try:
                    await self._requests(caller)
                finally:
                    pump.cancel()
                    await self._lanes.close()

    async def _connect(self) -> Caller | None:
        """The first frame must be `connect`. Anything else is answered and ends the connection."""
        frame_id: Any = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                request = read_request(await self._receive())
            frame_id = request.id
            if request.method != "connect":
                raise Unauthorized("the first request must be connect")
            asked = parse(Connect, request.params)
            client = self._socket.client.host if self._socket.client else "?"
            caller = self._gateway.access.check(asked.auth.token, client)
            if asked.scopes:
                caller = caller.limited_to(max(asked.scopes, key=SCOPES.index))
        except TimeoutError:
            await self._close("connect did not come in time")
            return None
        except BadFrame as bad:
            await self._error(bad.frame_id, bad.error)
            await self._close(bad.error.message)
            return None
        except CoterieError as error:
            await self._error(frame_id, error)
            await self._close(error.message)
            return None
        await self._send({"type": "res", "id": frame_id, "ok": True, "payload": hello(caller)})
        return caller

    async def _requests(self, caller: Caller) -> None:
        while True:
            frame = await self._receive()
            if self._ended:
                return
            try:
                request = read_request(frame)
            except BadFrame as bad:
                await self._error(bad.frame_id, bad.error)
                continue
            try:
                operation = find(caller, request.method)
                params = parse(operation.params, request.params)
            except CoterieError as error:
                await self._error(request.id, error)
                continue
            work = self._answer(request, caller, operation, params)
            await self._lanes.start(operation, work, request.size)

    async def _answer(self, request: Request, caller: Caller, operation: Operation, params: Params) -> None:
        try:
            async with self._lanes.of(operation):
                if self._ended:
                    return
                answer = await carry_out(self._gateway, caller, operation, params, self._watching)
            await self._send({"type": "res", "id": request.id, "ok": True, "payload": dump(answer)})
        except CoterieError as error:
            await self._error(request.id, error)
        except Exception:
            reference = secrets.token_hex(4)
            log.exception("%s failed (%s)", operation.name, reference)
            wrong = Internal(f"something went wrong here; the log says what ({reference})")
            await self._error(request.id, wrong)

    async def _pump(self, events: Subscription, caller: Caller) -> None:
        """Events out, with a tick when nothing else happens."""
        while True:
            event: Event | None
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    event = await events.next()
            except TimeoutError:
                event = Event("tick", {"ts": now_iso()})
            if event is None:
                await self._close("this client fell too far behind; connect again")
                return
            if event.name == "token.revoked" and event.payload["id"] == caller.token_id:
                await self._close("the token was revoked")
                return
            if event.name == "session.changed":
                self._watching.session_changed(event.payload)
            if event.name in EVENTS and (
                event.name != "chat" or self._watching.wants(event.payload["session"])
            ):
                await self._event(event.name, event.payload)

    async def _receive(self) -> str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text = message.get("text")
        if text is None:
            text = (message.get("bytes") or b"").decode("utf-8", "replace")
        return str(text)

    async def _error(self, frame_id: Any, error: CoterieError) -> None:
        await self._send({"type": "res", "id": frame_id, "ok": False, "error": error.payload()})

    async def _event(self, name: str, payload: dict[str, Any]) -> None:
        async with self._sending:
            self._seq += 1
            await self._write({"type": "event", "event": name, "payload": payload, "seq": self._seq})

    async def _send(self, frame: dict[str, Any]) -> None:
        async with self._sending:
            await self._write(frame)

    async def _write(self, frame: dict[str, Any]) -> None:
        """To a client that is gone nothing is said; that it is gone is told by `_receive`."""
        text = json.dumps(frame, ensure_ascii=False)
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._socket.send_text(text)

    async def _close(self, reason: str) -> None:
        self._ended = True
        if self._socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.close(1008, reason[:120])


def hello(caller: Caller) -> dict[str, Any]:
    """What a client is greeted with."""
    return {
        "type": "hello-ok",
        "protocol": PROTOCOL,
        "server": {"name": "coterie", "version": __version__},
        "features": {"methods": sorted(METHODS), "events": list(EVENTS)},
        "auth": {"scopes": list(SCOPES[: SCOPES.index(caller.scope) + 1])},
        "policy": {"max_frame_bytes": MAX_FRAME, "tick_interval_ms": TICK_SECONDS * 1000},
    }
