"""Turns as they happen: what was streamed so far, and who follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from coterie.core.errors import Unavailable
from coterie.core.events import LAST, ChatEvent, ChatState
from coterie.core.text import all_storable
from coterie.engine.events import Events

BEHIND = 20_000
"""Events of one turn that wait for somebody who reads slowly."""


class FellBehind(Unavailable):
    """Whoever followed did not keep up. The turn goes on."""


class LiveTurn:
    """One turn that is queued or under way in this process."""

    def __init__(self, run_id: str, session_key: str, events: Events) -> None:
        self.run_id = run_id
        self.session_key = session_key
        self._events = events
        self._followers: list[asyncio.Queue[ChatEvent | None]] = []
        self._seq = 0
        self.attempt = 1
        self.text = ""
        self.thinking = ""
        self.tools: list[dict[str, Any]] = []
        self.state: ChatState = "queued"

    def emit(self, state: ChatState, **fields: Any) -> None:
        fields = all_storable(fields)  # as it will stand in the history
        if state == "delta":
            self.text += fields["text"]
        elif state == "thinking":
            self.thinking += fields["text"]
        else:
            self.state = state
            self._note(state, fields)
        self._seq += 1
        event = ChatEvent(self.run_id, self.session_key, self._seq, state, self.attempt, fields)
        self._events.publish("chat", event.payload())
        for follower in self._followers:
            if follower.qsize() < BEHIND:
                follower.put_nowait(event)
            elif follower.qsize() == BEHIND:
                follower.put_nowait(None)

    def start_over(self) -> None:
        """The reply that was being streamed is void."""
        self.attempt += 1
        self.text = self.thinking = ""

    def reply_committed(self) -> None:
        """What follows is another reply of the same turn."""
        self.text = self.thinking = ""

    def snapshot(self) -> dict[str, Any]:
        """The turn so far, for somebody who comes in the middle."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "attempt": self.attempt,
            "seq": self._seq,
            "text": self.text,
            "thinking": self.thinking,
            "tools": [dict(tool) for tool in self.tools],
        }

    async def follow(self) -> AsyncIterator[ChatEvent]:
        """First the turn so far, then every event until the last."""
        queue: asyncio.Queue[ChatEvent | None] = asyncio.Queue()
        self._followers.append(queue)
        try:
            if self.thinking:
                yield self._so_far("thinking", self.thinking)
            if self.text:
                yield self._so_far("delta", self.text)
            while True:
                event = await queue.get()
                if event is None:
                    raise FellBehind("this client fell too far behind; ask again")
                yield event
                if event.state in LAST:
                    return
        finally:
            self._followers.remove(queue)

    def _so_far(self, state: ChatState, text: str) -> ChatEvent:
        return ChatEvent(self.run_id, self.session_key, self._seq, state, self.attempt, {"text": text})

    def _note(self, state: ChatState, fields: dict[str, Any]) -> None:
        if state == "tool_start":
            self.tools.append({"id": fields["call_id"], "name": fields["name"], "state": "running"})
        elif state == "tool_end":
            for tool in self.tools:
                if tool["id"] == fields["call_id"]:
                    tool["state"] = "done"


class Live:
    """Every turn of this process that has not ended."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._turns: dict[str, LiveTurn] = {}

    def open(self, run_id: str, session_key: str) -> LiveTurn:
        turn = self._turns.get(run_id)
        if turn is None:
            turn = self._turns[run_id] = LiveTurn(run_id, session_key, self._events)
        return turn

    def get(self, run_id: str) -> LiveTurn | None:
        return self._turns.get(run_id)

    def close(self, run_id: str, state: ChatState, **fields: Any) -> None:
        """The last event of a turn."""
        turn = self._turns.pop(run_id, None)
        if turn is not None:
            turn.emit(state, **fields)
