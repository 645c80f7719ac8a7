"""The server's HTTP protocol where a client sends on before it has heard: when such a connection ends, none of its requests is
answered any more. The library thinks only of the newest of them, and writes a traceback for each of the others."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class Pipelined(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unanswered: list[RequestResponseCycle] = []

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None:
            older = (one for one in self._unanswered if one is not self.cycle and not one.response_complete)
            self._unanswered = [*older, self.cycle]

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget_requests()
        super().connection_lost(exc)

    def forget_requests(self) -> None:
        """Nobody hears their answers any more."""
        for request in self._unanswered:
            if not request.response_complete:
                request.disconnected = True
                request.message_event.set()
