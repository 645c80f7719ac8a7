"""A turn as other protocols tell it: words and pictures in, a reply whole or as server-sent events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from coterie.core.errors import CoterieError, InvalidRequest
from coterie.core.events import ChatEvent
from coterie.core.images import image_at
from coterie.core.message import ImagePart
from coterie.engine.gateway import Gateway

PING_SECONDS = 15
PING = b": ping\n\n"


class NoAnswer(CoterieError):
    """A turn ended without an answer. The client would send it again, only to be shown the same turn."""

    headers = {"x-should-retry": "false"}

    def __init__(self, message: str, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id

    def payload(self) -> dict[str, Any]:
        return {**super().payload(), "type": "server_error"}


class Failed(NoAnswer):
    code = "UNAVAILABLE"
    http_status = 503


class Stopped(NoAnswer):
    code = "CONFLICT"
    http_status = 409


async def reply(gateway: Gateway, run_id: str) -> ChatEvent:
    """The last event of a turn that was answered."""
    last = None
    async for event in gateway.follow(run_id):
        last = event
    if last is None or last.state != "final":
        raise (Failed if last is not None and last.state == "error" else Stopped)(reason(last), run_id)
    return last


async def with_pings(events: AsyncIterator[ChatEvent]) -> AsyncIterator[ChatEvent | None]:
    """The events, and None whenever nothing came for a while."""
    pending: asyncio.Future[ChatEvent] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([pending], timeout=PING_SECONDS)
            if not done:
                yield None
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            finally:
                pending = None
            yield event
    finally:
        if pending is not None:
            pending.cancel()


class Sent:
    """What a client has of the present reply: it cannot be taken back, so a repeated beginning is not sent again."""

    def __init__(self) -> None:
        self._sent = ""
        self._now = ""
        self._attempt: int | None = None

    def fresh(self, attempt: int, text: str) -> str:
        if self._attempt is not None and attempt != self._attempt:
            self._now = ""
        self._attempt = attempt
        before = self._now
        self._now += text
        if self._now == self._sent[: len(self._now)]:
            return ""
        new = self._now[len(self._sent) :] if self._now.startswith(self._sent) else text
        if not before and self._sent and not self._now.startswith(self._sent):
            new = "\n\n" + new
        self._sent = self._now
        return new

    def reply_ended(self) -> None:
        """Text before a tool call is a reply of its own."""
        if self._now:
            self._sent = self._now = ""

    def rest(self, final: str) -> str:
        """What the final text has beyond what was streamed, for a client that came late."""
        if not self._sent:
            return final
        return final[len(self._sent) :] if final.startswith(self._sent) else ""


def content_of(content: str | list[dict[str, Any]] | None) -> tuple[str, tuple[ImagePart, ...]]:
    """The words and pictures of a message in OpenAI's form."""
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[ImagePart] = []
    for part in content:
        match part.get("type"):
            case "text" | "input_text" | "output_text":
                texts.append(str(part.get("text", "")))
            case "image_url" | "input_image":
                images.append(_image(part.get("image_url")))
            case other:
                raise InvalidRequest(f"content of type {str(other)[:50]!r} cannot be taken")
    return "\n".join(texts), tuple(images)


def _image(address: Any) -> ImagePart:
    """The chat protocol puts the address into an object, the responses protocol does not."""
    url = address.get("url") if isinstance(address, dict) else address
    if not isinstance(url, str):
        raise InvalidRequest("an image needs an image_url", details={"field": "image_url"})
    try:
        return image_at(url)
    except InvalidRequest as error:
        raise type(error)(f"image_url: {error.message}", details={"field": "image_url"}) from None


def reason(event: ChatEvent | None) -> str:
    fields = {} if event is None else event.fields
    return str(fields.get("message") or fields.get("reason") or "the turn was stopped")


def sse(data: dict[str, Any], event: str | None = None) -> bytes:
    name = b"" if event is None else f"event: {event}\n".encode()
    return name + b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"
