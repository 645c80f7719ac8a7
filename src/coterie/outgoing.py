"""How much of an answer over HTTP is taken in, counted after decompression, and where answers may come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer, streamed or whole: far more than any model writes in one reply."""
LARGEST_LINE = 8 * 1024 * 1024
"""Bytes of one line of a stream of events: whoever reads it has to hold the whole line."""
LARGEST_ERROR = 16 * 1024
"""Bytes of an answer that is an error; the rest is not read."""


class NotTaken(httpx2.RequestError):
    """An answer that is not taken in. What is said of it names no address in full."""


class Redirected(NotTaken):
    """The server wants us to ask elsewhere: with the same key and the same prompt."""

    def __init__(self, host: str) -> None:
        super().__init__(f"it redirects to {host}, which is not followed")
        self.host = host


class TooLong(NotTaken):
    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{what} has more than {limit // (1024 * 1024)} MB")


def refuse_redirect(response: httpx2.Response) -> None:
    if 300 <= response.status_code < 400 and response.status_code != 304:
        try:
            host = response.url.join(response.headers.get("location", "")).host
        except (httpx2.InvalidURL, ValueError):
            host = ""
        raise Redirected(host or "nowhere")


class _Count:
    """What of the pieces of one answer is still taken."""

    def __init__(self, response: httpx2.Response) -> None:
        self._left = LARGEST_ERROR if response.is_error else LARGEST_ANSWER
        self._is_error = response.is_error
        self._has_lines = "event-stream" in response.headers.get("content-type", "")
        self._line = 0

    def taken(self, piece: bytes) -> bytes:
        if self._is_error:
            piece = piece[: self._left]
        self._left -= len(piece)
        if self._left < 0:
            raise TooLong("its answer", LARGEST_ANSWER)
        if self._has_lines:
            end = piece.rfind(b"\n")
            self._line = self._line + len(piece) if end < 0 else len(piece) - end - 1
            if self._line > LARGEST_LINE:
                raise TooLong("a line of its answer", LARGEST_LINE)
        return piece

    @property
    def full(self) -> bool:
        return self._is_error and self._left <= 0


class _Bounded(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """The decoded body of a response, as far as it is taken."""

    def __init__(self, body: Any, count: _Count) -> None:
        self._body = body
        self._count = count

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body:
            yield self._count.taken(piece)
            if self._count.full:
                return

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield self._count.taken(piece)
            if self._count.full:
                return

    def close(self) -> None:
        self._body.close()

    async def aclose(self) -> None:
        await self._body.aclose()


class _Decoded(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """A body that came compressed. A response of its own decodes it; httpx decodes in small steps."""

    def __init__(self, response: httpx2.Response) -> None:
        self._inner = httpx2.Response(
            response.status_code, headers=response.headers, stream=response.stream, request=response.request
        )

    def __iter__(self) -> Iterator[bytes]:
        return self._inner.iter_bytes()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._inner.aiter_bytes()

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()


def bound(response: httpx2.Response) -> None:
    """From now on its body comes decoded, and only as far as it is taken."""
    count = _Count(response)
    if "content-encoding" not in response.headers:
        response.stream = _Bounded(response.stream, count)
        return
    response.stream = _Bounded(_Decoded(response), count)
    response.headers.pop("content-encoding")
    response.headers.pop("content-length", None)


class BoundedClient(httpx2.AsyncClient):
    """Every request goes through `send`, whoever makes it."""

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        response = await super().send(request, stream=True, **{**options, "follow_redirects": False})
        try:
            refuse_redirect(response)
            bound(response)
            if not stream:
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


class BoundedSyncClient(httpx2.Client):
    """The same for whoever waits on a thread."""

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        response = super().send(request, stream=True, **{**options, "follow_redirects": False})
        try:
            refuse_redirect(response)
            bound(response)
            if not stream:
                response.read()
        except BaseException:
            response.close()
            raise
        return response
