"""One RPC connection that many senders share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.support.gateway import RpcError

PATIENCE = 30.0


class Lost(Exception):
    """The connection broke, or nothing came for too long: whether the request arrived is unknown."""


class Line:
    def __init__(self, socket: ClientConnection, hear: Callable[[str, dict[str, Any]], None]) -> None:
        self._socket = socket
        self._hear = hear
        self._next = 0
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, url: str, token: str, hear: Callable[[str, dict[str, Any]], None]) -> Line:
        try:
            address = url.replace("http", "ws", 1) + "/ws"
            socket = await connect(address, max_size=None, proxy=None, ping_interval=None, close_timeout=1)
        except (OSError, WebSocketException, TimeoutError) as error:
            raise Lost(str(error)) from error
        line = cls(socket, hear)
        await line.call("connect", auth={"token": token})
        await line.call("sessions.watch", all=True)
        return line

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        frame_id = str(self._next)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[frame_id] = answer
        try:
            await self._socket.send(
                json.dumps({"type": "req", "id": frame_id, "method": method, "params": params})
            )
            frame = await asyncio.wait_for(answer, PATIENCE)
        except (OSError, WebSocketException, TimeoutError) as error:
            raise Lost(str(error)) from error
        finally:
            self._waiting.pop(frame_id, None)
        if not frame["ok"]:
            raise RpcError(frame["error"])
        payload: dict[str, Any] = frame["payload"]
        return payload

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])
        await self._socket.close()

    async def _read(self) -> None:
        try:
            async for text in self._socket:
                frame = json.loads(text)
                if frame["type"] == "event":
                    self._hear(frame["event"], frame["payload"])
                elif (waiting := self._waiting.get(frame["id"])) is not None and not waiting.done():
                    waiting.set_result(frame)
        except WebSocketException:
            pass
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Lost("the connection broke"))
