"""RPC over one WebSocket: requests, answers, and events as they happen."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from coterie import __version__
from coterie.api import payloads as p
from coterie.api.methods import METHODS, dump, parse, perform
from coterie.core.errors import CoterieError, Internal, InvalidRequest, Unauthorized
from coterie.core.token import SCOPES
from coterie.engine.access import Caller
from coterie.engine.events import Event, Subscription
from coterie.engine.gateway import Gateway

log = logging.getLogger("coterie.rpc")

PROTOCOL = 1
MAX_FRAME = 8 * 1024 * 1024
HARD_LIMIT = 16 * 1024 * 1024
"""Frames between the two limits get a typed error; beyond, the connection is closed while they arrive."""
CONNECT_SECONDS = 10
TICK_SECONDS = 30
EVENTS = (
    "chat",
    "session.changed",
    "session.switched",
    "agents.changed",
    "subagent.changed",
    "approval.requested",
    "approval.resolved",
    "memory.changed",
    "config.changed",
    "tick",
)


class Connection:
    """One client."""

    def __init__(self, gateway: Gateway, socket: WebSocket) -> None:
        self._gateway = gateway
        self._socket = socket
        self._seq = 0
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        await self._socket.accept()
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._event(
                "connect.challenge", {"nonce": secrets.token_urlsafe(16), "ts": int(time.time() * 1000)}
            )
            caller = await self._connect()
            if caller is None:
                return
            with self._gateway.events.subscribe() as events:
                pump = asyncio.create_task(self._pump(events, caller))
                try:
                    await self._requests(caller)
                finally:
                    pump.cancel()

    async def _connect(self) -> Caller | None:
        """The first frame must be `connect`. Anything else is answered and ends the connection."""
        frame_id: Any = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                frame_id, name, params = self._parse(await self._receive())
            if name != "connect":
                raise Unauthorized("the first request must be connect")
            asked = parse(p.Connect, params)
            assert isinstance(asked, p.Connect)
            client = self._socket.client.host if self._socket.client else "?"
            caller = self._gateway.access.check(asked.auth.token, client)
            if asked.scopes:
                caller = caller.limited_to(max(asked.scopes, key=SCOPES.index))
        except TimeoutError:
            await self._close("connect did not come in time")
            return None
        except _BadFrame as bad:
            await self._error(bad.frame_id, bad.error)
            await self._close(bad.error.message)
            return None
        except CoterieError as error:
            await self._error(frame_id, error)
            await self._close(error.message)
            return None
        await self._send({"type": "res", "id": frame_id, "ok": True, "payload": self._hello(caller)})
        return caller

    def _hello(self, caller: Caller) -> dict[str, Any]:
        return {
            "type": "hello-ok",
            "protocol": PROTOCOL,
            "server": {"name": "coterie", "version": __version__},
            "features": {"methods": sorted(METHODS), "events": list(EVENTS)},
            "auth": {"scopes": list(SCOPES[: SCOPES.index(caller.scope) + 1])},
            "policy": {"max_frame_bytes": MAX_FRAME, "tick_interval_ms": TICK_SECONDS * 1000},
        }

    async def _requests(self, caller: Caller) -> None:
        while True:
            frame = await self._receive()
            try:
                frame_id, name, params = self._parse(frame)
            except _BadFrame as bad:
                await self._error(bad.frame_id, bad.error)
                continue
            try:
                answer = await perform(self._gateway, caller, name, params)
                await self._send({"type": "res", "id": frame_id, "ok": True, "payload": dump(answer)})
            except CoterieError as error:
                await self._error(frame_id, error)
            except Exception:
                reference = secrets.token_hex(4)
                log.exception("%s failed (%s)", name[:100], reference)
                await self._error(
                    frame_id, Internal(f"something went wrong here; the log says what ({reference})")
                )

    async def _pump(self, events: Subscription, caller: Caller) -> None:
        """Events out, with a tick when nothing else happens."""
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                event: Event | None
                try:
                    async with asyncio.timeout(TICK_SECONDS):
                        event = await events.next()
                except TimeoutError:
                    event = Event("tick", {"ts": int(time.time() * 1000)})
                if event is None:
                    await self._close("this client fell too far behind; connect again")
                    return
                if event.name == "token.revoked":
                    if event.payload["id"] == caller.token_id:
                        await self._close("the token was revoked")
                        return
                    continue
                await self._event(event.name, event.payload)

    def _parse(self, frame: str) -> tuple[Any, str, Any]:
        if len(frame) > MAX_FRAME:
            raise _BadFrame(None, InvalidRequest(f"a frame has at most {MAX_FRAME} bytes"))
        try:
            data = json.loads(frame)
        except (ValueError, RecursionError):
            raise _BadFrame(None, InvalidRequest("the frame is not JSON")) from None
        if not isinstance(data, dict):
            raise _BadFrame(None, InvalidRequest("a frame is a JSON object"))
        frame_id = data.get("id")
        if not isinstance(frame_id, str | int) or isinstance(frame_id, bool) or len(str(frame_id)) > 200:
            raise _BadFrame(None, InvalidRequest("a request needs an id: a short string or a number"))
        if "\\u" in frame and not _is_text(data):
            usable = frame_id if _is_text(frame_id) else None
            raise _BadFrame(usable, InvalidRequest("the frame has characters that are not valid Unicode"))
        if data.get("type") != "req":
            raise _BadFrame(frame_id, InvalidRequest("the type of a request is 'req'"))
        name = data.get("method")
        if not isinstance(name, str):
            raise _BadFrame(frame_id, InvalidRequest("a request needs a method"))
        params = data.get("params")
        if params is not None and not isinstance(params, dict):
            raise _BadFrame(frame_id, InvalidRequest("params is a JSON object"))
        return frame_id, name, params

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
        await self._socket.send_text(json.dumps(frame, ensure_ascii=False))

    async def _close(self, reason: str) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.close(1008, reason[:120])


def _is_text(data: Any) -> bool:
    """Half a surrogate pair can be escaped in JSON, but it can be neither stored nor sent back."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


class _BadFrame(Exception):
    def __init__(self, frame_id: Any, error: CoterieError) -> None:
        super().__init__(error.message)
        self.frame_id = frame_id
        self.error = error
