"""The server's WebSocket protocol, which takes bytes that are no text for what they are: a client's mistake."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State


class TextSocket(WebSocketsSansIOProtocol):
    def send_receive_event_to_app(self) -> None:
        """A text frame that is no UTF-8 ends the connection, as the protocol wants; by itself the server would write
        a traceback for each."""
        if self.conn.state is not State.OPEN:
            self.frames = []  # came behind a close
            return
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.conn.send_close(1007, "a text frame is UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()
