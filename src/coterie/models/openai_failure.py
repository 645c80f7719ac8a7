"""What the errors of an endpoint that speaks OpenAI's protocol come down to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2

from coterie.models.failure import Trouble, What, by_status, not_taken, seconds, words_of

_QUOTA = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "project_spend_limit_exceeded",
    }
)
"""Codes that come with status 429 like a rate limit, though waiting does not help."""
_STATUSES: Mapping[str, int] = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    **dict.fromkeys(_QUOTA, 429),
    "context_length_exceeded": 400,
    "server_error": 500,
    "overloaded": 503,
    "server_is_overloaded": 503,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
}
"""The status that an error inside a stream would have had before it, by its code or type."""


def trouble_of(error: Exception, *, begun: bool) -> Trouble:
    """The failure behind anything that a request can raise. `begun`: the reply had started to arrive."""
    if isinstance(error, Trouble):
        return error
    if (ours := not_taken(error)) is not None:
        return ours
    if isinstance(error, httpx2.TimeoutException):
        return Trouble("timeout")
    if isinstance(error, httpx2.RequestError) and not begun:
        return Trouble("unreachable" if isinstance(error, httpx2.ConnectError) else "lost")
    return Trouble("broken_off")


async def refusal(response: httpx2.Response) -> Trouble:
    """Why there is a status instead of a reply."""
    status = response.status_code
    if status < 400:
        return Trouble("broken_off")
    body = await _error_body(response)
    fields = body if isinstance(body, Mapping) else {}
    what = _by_code(fields) or by_status(status)
    if status == 403 and _is_flagged(fields.get("metadata")):
        what = "rejected"  # OpenRouter's word for input that it does not pass on; the key is good
    return Trouble(what, status=status, said=words_of(body), retry_after=_retry_after(response.headers))


def trouble_in_stream(error: object) -> Trouble:
    """The failure behind an error object that came instead of the next piece."""
    fields = error if isinstance(error, Mapping) else {}
    said = words_of(error) or "An error occurred during streaming"
    code, kind = _code(fields), str(fields.get("type") or "")
    status = _STATUSES.get(code) or _STATUSES.get(kind)
    if status is None and code.isdecimal() and 400 <= int(code) < 600:
        status = int(code)  # some proxies put the status there
    what = _by_code(fields) or ("failed" if status is None else by_status(status))
    return Trouble(what, status=status, said=said)


def _by_code(fields: Mapping[str, object]) -> What | None:
    code = _code(fields)
    if code in _QUOTA or str(fields.get("type")) in _QUOTA:
        return "quota"
    if code == "model_not_found":
        return "unknown_model"
    return "auth" if code == "invalid_api_key" else None


def _code(fields: Mapping[str, object]) -> str:
    code = fields.get("code")
    return str(code) if isinstance(code, str | int) else ""


def _is_flagged(metadata: object) -> bool:
    return isinstance(metadata, Mapping) and ("flagged_input" in metadata or "reasons" in metadata)


async def _error_body(response: httpx2.Response) -> object:
    """The error object, or the body as text where it is none."""
    try:
        text = (await response.aread()).decode(errors="replace")
    except httpx2.HTTPError:
        return ""  # the status says enough
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return body.get("error") or body if isinstance(body, dict) else body


def _retry_after(headers: httpx2.Headers) -> float | None:
    milliseconds = seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    hint = headers.get("retry-after", "")
    wait = seconds(hint)
    if wait is None and hint:
        try:
            at = parsedate_to_datetime(hint)
        except ValueError:
            return None
        # Without a zone the date is meant in UTC.
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        wait = max(0.0, (at - datetime.now(UTC)).total_seconds())
    return wait
