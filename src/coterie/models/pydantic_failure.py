"""What the errors of pydantic-ai come down to."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelTimeoutError,
    UserError,
)

from coterie.models.failure import Trouble, What, by_status, not_taken, seconds, words_of


def trouble_of(error: Exception, *, begun: bool) -> Trouble:
    """The failure behind an error of the library. `begun`: the reply had started to arrive."""
    if (ours := not_taken(error)) is not None:
        return ours
    if isinstance(error, ModelTimeoutError | ModelRequestTimeout):
        return Trouble("timeout")
    if isinstance(error, ModelConnectionError):
        if begun:
            return Trouble("broken_off")
        return Trouble("unreachable" if error.phase == "connect" else "lost")
    if isinstance(error, UserError):
        # The library knows that this model cannot do what it is asked for.
        return Trouble("impossible", said=error.message)
    if not isinstance(error, ModelAPIError):
        return Trouble("broken_off")
    what = _what(error)
    if what is None:
        return Trouble("broken_off")
    said = words_of(error.body) or (error.message if error.in_stream else "")
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    return Trouble(what, status=status, said=said, retry_after=_retry_after(error))


def _what(error: ModelAPIError) -> What | None:
    if isinstance(error, ModelQuotaExceededError):
        return "quota"
    if isinstance(error, ModelAuthenticationError):
        return "auth"
    if isinstance(error, ModelNotFoundError):
        return "unknown_model"
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    meant = None if status is None else by_status(status)
    if isinstance(error, ModelRateLimitError) or meant == "busy":
        return "busy"
    if isinstance(error, ModelRequestRejectedError) or (status is not None and status < 500):
        return "rejected"
    return "failed" if status is not None or error.in_stream else None


def _retry_after(error: ModelAPIError) -> float | None:
    if error.retry_after is not None:
        return error.retry_after
    # The header is defined as whole seconds; proxies send fractions all the same.
    headers = error.headers if isinstance(error, ModelHTTPError) else None
    return seconds((headers or {}).get("retry-after") or _retry_delay(error.body))


def _retry_delay(body: object) -> str:
    """Google's hint, which stands in the body: `{"error": {"details": [{"retryDelay": "13s"}]}}`."""
    error = body.get("error") if isinstance(body, Mapping) else None
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, Mapping) and isinstance(delay := detail.get("retryDelay"), str):
            return delay.removesuffix("s")
    return ""
