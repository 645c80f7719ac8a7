"""Errors that reach a person or a program: a code, what was wrong, whether a retry can help."""

from __future__ import annotations

import errno
from typing import Any, ClassVar

from coterie.core.redaction import redacted
from coterie.core.text import all_storable, storable


class CoterieError(Exception):
    """Base of every error that crosses a door."""

    code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, details: dict[str, Any] | None = None) -> None:
        # Whatever it quotes: it can be stored and sent, and tells no secret.
        self.message = redacted(storable(message))
        super().__init__(self.message)
        self.details = all_storable(details)

    def payload(self) -> dict[str, Any]:
        """The error as RPC and HTTP show it."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details is not None:
            body["details"] = self.details
        if self.retryable:
            body["retryable"] = True
        return body


class InvalidRequest(CoterieError):
    code = "INVALID_REQUEST"
    http_status = 400


class TooLarge(InvalidRequest):
    http_status = 413


class UnknownMethod(CoterieError):
    code = "UNKNOWN_METHOD"
    http_status = 404


class Unauthorized(CoterieError):
    code = "UNAUTHORIZED"
    http_status = 401


class Forbidden(CoterieError):
    code = "FORBIDDEN"
    http_status = 403


class NotFound(CoterieError):
    code = "NOT_FOUND"
    http_status = 404


class Conflict(CoterieError):
    code = "CONFLICT"
    http_status = 409


class Unavailable(CoterieError):
    code = "UNAVAILABLE"
    http_status = 503
    retryable = True


class RateLimited(Unavailable):
    http_status = 429


class Damaged(Unavailable):
    """What is on the disk cannot be relied on any more. Trying again does not help; a backup does."""

    retryable = False


class Internal(CoterieError):
    """Something that is our fault; the details are in the log, not in the answer."""


DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "a file may not grow any further",
    errno.EROFS: "the disk is read-only",
    errno.EIO: "the disk fails",
}


def of_the_disk(error: OSError) -> Unavailable | None:
    """What is wrong with the disk, where that is what is wrong."""
    if error.errno not in DISK:
        return None
    where = f" ({error.filename})" if error.filename else ""
    return Unavailable(f"{DISK[error.errno]}{where}; it is tried again once that is mended")


BY_CODE: dict[str, type[CoterieError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        UnknownMethod,
        Unauthorized,
        Forbidden,
        NotFound,
        Conflict,
        Unavailable,
        Internal,
    )
}


def from_payload(payload: dict[str, Any]) -> CoterieError:
    """The error that another process reported, as the exception it was there."""
    cls = BY_CODE.get(str(payload.get("code")), Internal)
    return cls(str(payload.get("message", "unknown error")), details=payload.get("details"))
