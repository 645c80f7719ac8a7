"""Which transcripts stay in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from coterie.core.message import ImagePart, Message, ToolCall
from coterie.core.transcript import Transcript
from coterie.engine.turns.transcripts import KEPT_BYTES, Transcripts
from coterie.store.transaction import Store


class Shelf:
    """A store that says which sessions were read."""

    def __init__(self, **sessions: list[Message]) -> None:
        self._stored = sessions
        self.taken: list[str] = []

    @contextmanager
    def read(self) -> Iterator[Any]:
        yield self

    @property
    def sessions(self) -> Shelf:
        return self

    def transcript(self, session_id: str) -> list[Message]:
        self.taken.append(session_id)
        return self._stored.get(session_id, [])


def message(text: str) -> Message:
    return Message("m", "user", "user", text, seq=1)


def transcripts(shelf: Shelf) -> Transcripts:
    return Transcripts(cast(Store, shelf))


def test_a_session_is_read_once_while_it_is_used() -> None:
    async def scene() -> None:
        shelf = Shelf(a=[message("hello")])
        kept = transcripts(shelf)
        assert [m.text for m in kept.get("a").sendable()] == ["hello"]
        kept.get("a").append(message("more"))
        kept.forget(idle=60)
        assert len(kept.get("a").sendable()) == 2
        assert shelf.taken == ["a"]
        kept.drop("a")
        assert len(kept.get("a").sendable()) == 1
        assert shelf.taken == ["a", "a"]

    asyncio.run(scene())


def test_idle_sessions_are_forgotten() -> None:
    async def scene() -> None:
        shelf = Shelf()
        kept = transcripts(shelf)
        for name in "abc":
            kept.get(name)
        kept.forget(idle=0)
        kept.get("b")
        assert shelf.taken == ["a", "b", "c", "b"]

    asyncio.run(scene())


def test_what_a_turn_works_on_is_never_read_a_second_time() -> None:
    async def scene() -> None:
        shelf = Shelf()
        kept = transcripts(shelf)
        held = kept.get("a")
        kept.forget(idle=0)
        assert kept.get("a") is held
        kept.forget(idle=0)
        kept.drop("a")
        assert kept.get("a") is not held
        assert shelf.taken == ["a", "a"]

    asyncio.run(scene())


def test_long_sessions_make_room_for_others() -> None:
    async def scene() -> None:
        half = [message("x" * (KEPT_BYTES // 2))]
        shelf = Shelf(a=half, b=half, c=half)
        kept = transcripts(shelf)
        for name in ("a", "b", "b", "a", "c", "a", "b"):
            kept.get(name)
        assert shelf.taken == ["a", "b", "a", "c", "a", "b"]

    asyncio.run(scene())


def test_one_session_is_kept_however_long_it_is() -> None:
    async def scene() -> None:
        shelf = Shelf(a=[message("x" * (KEPT_BYTES + 1))])
        kept = transcripts(shelf)
        for _ in range(3):
            kept.get("a")
        assert shelf.taken == ["a"]

    asyncio.run(scene())


def test_what_a_repair_adds_was_heard_by_whoever_heard_the_rest() -> None:
    """Otherwise it would look as if the owner had been there."""
    reply = Message("a", "assistant", "agent", "", parts=(ToolCall("c", "t", "{}"),), seq=1, heard_by="a1")
    picture = (ImagePart("image/png", b"x"),)
    found = Message("r", "tool", "agent", "x", parts=picture, call_id="d", seq=3, heard_by="a1")
    again = Message("b", "assistant", "agent", "", parts=(ToolCall("d", "t", "{}"),), seq=2, heard_by="a1")
    transcript = Transcript([reply, again, found])
    assert len(transcript.sendable()) == 5
    assert {message.heard_by for message in transcript.sendable()} == {"a1"}
