"""A transcript that any provider accepts: each call has exactly one result directly behind it, ids are unique."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coterie.core.message import Message, ToolCall
from coterie.core.steering import NO_RESULT


class Transcript:
    """Stored messages in order, and the form of them that can be sent.

    Repairs are made as messages are added and depend on nothing but the messages before,
    so that the same rows always give the same bytes.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.last_seq = 0
        self._sendable: list[Message] = []
        self._open: dict[str, ToolCall] = {}
        """Calls of the newest reply that have no result yet, under the id they are sent with."""
        self._renamed: dict[str, str] = {}
        self._seen: set[str] = set()
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        self.last_seq = max(self.last_seq, message.seq or 0)
        if message.meta and message.meta.get("cancelled"):
            return  # taken back before any model saw it
        if message.role == "tool":
            self._append_result(message)
            return
        self._close_open_calls()
        if message.tool_calls:
            message = self._with_unique_ids(message)
        self._sendable.append(message)

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls that still need a result before anything else may be sent."""
        return tuple(self._open.values())

    def sendable(self) -> list[Message]:
        """What a request may carry. Not to be changed by the caller."""
        if self._open:
            closed = Transcript()
            closed._sendable = list(self._sendable)
            closed._open = dict(self._open)
            closed._close_open_calls()
            return closed._sendable
        return self._sendable

    def _append_result(self, message: Message) -> None:
        call_id = self._renamed.get(message.call_id or "", message.call_id or "")
        if call_id not in self._open:
            return  # answers no open call; a provider would refuse it
        del self._open[call_id]
        self._sendable.append(
            message if call_id == message.call_id else replace(message, call_id=call_id, wire={})
        )

    def _close_open_calls(self) -> None:
        for call_id, call in self._open.items():
            self._sendable.append(
                Message(
                    f"result-{call_id}", "tool", "system", NO_RESULT, call_id=call_id, tool_name=call.name
                )
            )
        self._open.clear()
        self._renamed.clear()

    def _with_unique_ids(self, message: Message) -> Message:
        parts = []
        changed = False
        for part in message.parts:
            if isinstance(part, ToolCall):
                call_id = part.id
                number = 2
                while not call_id or call_id in self._seen:
                    call_id = f"{part.id or 'call'}-{number}"
                    number += 1
                if call_id != part.id:
                    self._renamed.setdefault(part.id, call_id)
                    part = ToolCall(call_id, part.name, part.arguments)
                    changed = True
                self._seen.add(call_id)
                self._open[call_id] = part
            parts.append(part)
        return replace(message, parts=tuple(parts), wire={}) if changed else message
