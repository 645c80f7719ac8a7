"""A transcript that any provider accepts: each call has exactly one result directly behind it, ids are unique."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coterie.core.compaction import message_size
from coterie.core.message import ImagePart, Message, Part, ToolCall
from coterie.core.steering import NO_RESULT

PICTURES = "[System] The pictures that the tools brought, in their order."


class Transcript:
    """Stored messages in order, and the form of them that can be sent.

    Repairs are made as messages are added and depend on nothing but the messages before,
    so that the same rows always give the same bytes.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.last_seq = 0
        self.size = 0
        """About how many bytes the sendable messages take."""
        self._sendable: list[Message] = []
        self._open: dict[str, ToolCall] = {}
        """Calls of the newest reply that have no result yet, under the id they are sent with."""
        self._renamed: dict[str, str] = {}
        self._seen: set[str] = set()
        self._pictures: list[ImagePart] = []
        """What the results of the newest round brought; shown behind the last of them."""
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
        if message.meta and "compaction" in message.meta:
            self._compact(message, message.meta["compaction"]["through"])
            return
        if message.role != "assistant":
            self._add(message)
            return
        sent = self.distinct(message)
        for stored, call in zip(message.tool_calls, sent.tool_calls, strict=True):
            if call.id != stored.id:
                self._renamed.setdefault(stored.id, call.id)
            self._seen.add(call.id)
            self._open[call.id] = call
        self._add(sent)

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
            closed._pictures = list(self._pictures)
            closed._close_open_calls()
            return closed._sendable
        return self._sendable

    def _append_result(self, message: Message) -> None:
        call_id = message.call_id or ""
        if call_id not in self._open:
            call_id = self._renamed.get(call_id, call_id)
        if call_id not in self._open:
            return  # answers no open call; a provider would refuse it
        del self._open[call_id]
        self._add(message if call_id == message.call_id else replace(message, call_id=call_id, wire={}))
        self._pictures += [part for part in message.parts if isinstance(part, ImagePart)]
        if not self._open:
            self._show_pictures()

    def _show_pictures(self) -> None:
        """Not every provider takes pictures in a result; all take them from a user, once the round is closed."""
        if self._pictures:
            last = self._sendable[-1]
            place, name = last.seq, f"pictures-{last.id}"
            shown = tuple(self._pictures)
            self._add(
                Message(name, "user", "system", PICTURES, parts=shown, seq=place, heard_by=last.heard_by)
            )
            self._pictures = []

    def _add(self, message: Message) -> None:
        self._sendable.append(message)
        self.size += message_size(message)

    def _compact(self, summary: Message, through: int) -> None:
        """A summary stands for everything up to a message, and is sent in its place."""
        kept = [message for message in self._sendable if (message.seq or 0) > through]
        while kept and kept[0].role == "tool":
            del kept[0]  # its call is in the summary
        self._sendable, self.size = [], 0
        for message in (summary, *kept):
            self._add(message)

    def _close_open_calls(self) -> None:
        for call_id, call in self._open.items():
            last = self._sendable[-1]
            self._add(
                Message(
                    f"result-{call_id}",
                    "tool",
                    "system",
                    NO_RESULT,
                    call_id=call_id,
                    tool_name=call.name,
                    seq=last.seq,
                    heard_by=last.heard_by,
                )
            )
        self._open.clear()
        self._renamed.clear()
        self._show_pictures()

    def distinct(self, message: Message) -> Message:
        """The message itself, or with other ids for calls whose id is empty or was used before."""
        taken: set[str] = set()
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolCall):
                call_id = part.id
                number = 2
                while not call_id or call_id in self._seen or call_id in taken:
                    call_id = f"{part.id or 'call'}-{number}"
                    number += 1
                taken.add(call_id)
                if call_id != part.id:
                    part = ToolCall(call_id, part.name, part.arguments)
            parts.append(part)
        changed = any(new is not old for new, old in zip(parts, message.parts, strict=True))
        return replace(message, parts=tuple(parts), wire={}) if changed else message
