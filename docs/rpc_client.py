"""Says something to an agent and prints the reply as it comes.

python client.py ws://127.0.0.1:18790/ws TOKEN agent:main:main "Hello"
"""

import asyncio
import itertools
import json
import sys
import uuid
from typing import Any

from websockets.asyncio.client import ClientConnection, connect


class Coterie:
    """One socket: answers go to whoever asked, events into a queue."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        frame = {"type": "req", "id": number, "method": method, "params": params}
        await self._socket.send(json.dumps(frame))
        return await answer

    async def _read(self) -> None:
        async for text in self._socket:
            frame = json.loads(text)
            if frame["type"] == "event":
                self.events.put_nowait(frame)
            elif frame["ok"]:
                self._waiting.pop(frame["id"]).set_result(frame["payload"])
            else:
                error = frame["error"]
                said = RuntimeError(f"{error['code']}: {error['message']}")
                self._waiting.pop(frame["id"]).set_exception(said)


async def main(url: str, token: str, session: str, text: str) -> None:
    async with connect(url, max_size=None) as socket:
        house = Coterie(socket)
        await house.call("connect", auth={"token": token}, client={"name": "example"})
        key = uuid.uuid4().hex  # send it again with the same key if the connection breaks
        sent = await house.call("chat.send", session=session, message=text, idempotency_key=key)
        attempt = 1
        while True:
            event = await house.events.get()
            what = event["payload"]
            if event["event"] != "chat" or what["run_id"] != sent["run_id"]:
                continue
            if what["attempt"] != attempt:
                attempt = what["attempt"]
                print("\n(starts over)")
            if what["state"] == "delta":
                print(what["text"], end="", flush=True)
            elif what["state"] == "tool_start":
                print(f"\n({what['name']})")
            elif what["state"] == "final":
                print()
                return
            elif what["state"] in ("error", "aborted"):
                sys.exit(f"no answer: {what.get('message') or what.get('reason')}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
