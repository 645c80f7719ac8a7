"""JSON as it comes in, on a socket or in a body, and the form of a request frame."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import CoterieError, InvalidRequest

MAX_FRAME = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """`{"type": "req", "id", "method", "params"}`"""

    id: str | int
    method: str
    params: dict[str, Any] | None
    size: int


class BadFrame(Exception):
    """No request; answered under its id where it has a usable one."""

    def __init__(self, frame_id: str | int | None, error: CoterieError) -> None:
        super().__init__(error.message)
        self.frame_id = frame_id
        self.error = error


def read_object(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        # The library reads bytes with halves of surrogate pairs in them, which no UTF-8 has.
        data = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InvalidRequest(f"the {what} is not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise InvalidRequest(f"the {what} is not JSON") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"a {what} is a JSON object")
    return data


def check_text(data: Any, what: str) -> None:
    """Half a surrogate pair can be escaped in JSON, but it can be neither stored nor sent back."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise InvalidRequest(f"the {what} has characters that are not valid Unicode") from None


def read_request(frame: str) -> Request:
    if len(frame) > MAX_FRAME:
        raise BadFrame(None, InvalidRequest(f"a frame has at most {MAX_FRAME} bytes"))
    frame_id: str | int | None = None
    try:
        data = read_object(frame, "frame")
        given = data.get("id")
        if not isinstance(given, str | int) or isinstance(given, bool) or len(str(given)) > 200:
            raise InvalidRequest("a request needs an id: a short string or a number")
        if "\\u" in frame:
            check_text(given, "frame")
        frame_id = given
        if "\\u" in frame:
            check_text(data, "frame")
        if data.get("type") != "req":
            raise InvalidRequest("the type of a request is 'req'")
        method, params = data.get("method"), data.get("params")
        if not isinstance(method, str):
            raise InvalidRequest("a request needs a method")
        if params is not None and not isinstance(params, dict):
            raise InvalidRequest("params is a JSON object")
    except InvalidRequest as error:
        raise BadFrame(frame_id, error) from None
    return Request(given, method, params, len(frame))
