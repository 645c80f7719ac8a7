"""What went wrong at a provider, as the one error that the engine knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

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

from coterie.core.ports import ModelError

QUOTED = 300
"""Characters of a provider's own words that an error repeats."""

_NO_SUCH_MODEL = re.compile(
    r"model\b.{0,200}\b(not found|not exist|is unknown|not supported)|(unknown|no such|invalid|not a valid) model",
    re.I,
)
_BUSY = frozenset({408, 409, 425, 429})


def model_error(
    error: Exception,
    name: str,
    *,
    address: str,
    key: str | None,
    key_env: str | None,
    begun: bool,
    protocol: str = "the OpenAI chat protocol",
) -> ModelError:
    """The failure of a request to model `name`. `begun`: the reply had started to arrive."""
    said = _said(error, key)
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    code = f" (HTTP {status})" if status else ""
    if isinstance(error, ModelTimeoutError | ModelRequestTimeout):
        return ModelError(f"{name} did not answer in time at {address}.", kind="timeout", can_retry=True)
    if isinstance(error, ModelConnectionError):
        if begun:
            return broken_off(name, protocol)
        if error.phase == "connect":
            said = f"{name} cannot be reached at {address}. Check the network and the provider's base_url."
        else:
            said = f"{name}: the connection to {address} was lost before an answer came."
        return ModelError(said, kind="network", can_retry=True)
    if isinstance(error, ModelQuotaExceededError):
        return ModelError(
            f"{name}: the account's quota or credit is used up{code}; waiting does not help{said}",
            kind="rate_limit",
            can_retry=False,
        )
    if isinstance(error, ModelAuthenticationError):
        remedy = f"check the key in {key_env}" if key_env else "set api_key_env for this provider"
        return ModelError(f"{name} refused the API key{code}: {remedy}{said}", kind="auth", can_retry=False)
    if isinstance(error, ModelNotFoundError) or (status in (400, 422) and _NO_SUCH_MODEL.search(said)):
        return ModelError(
            f"{name} is not known at {address}{code}: check the model's name and the base_url{said}",
            kind="unknown_model",
            can_retry=False,
        )
    if isinstance(error, ModelRateLimitError) or status in _BUSY:
        return ModelError(
            f"{name} asks to slow down{code}{said}",
            kind="rate_limit",
            can_retry=True,
            retry_after=_retry_after(error),
        )
    if isinstance(error, ModelRequestRejectedError) or (status is not None and status < 500):
        return ModelError(f"{name} refused the request{code}{said}", kind="rejected", can_retry=False)
    if status is not None or (isinstance(error, ModelAPIError) and error.in_stream):
        return ModelError(
            f"{name} failed on the provider's side{code}{said}",
            kind="overloaded",
            can_retry=True,
            retry_after=_retry_after(error),
        )
    if isinstance(error, UserError):
        # The library knows that this model cannot do what it is asked for.
        return ModelError(f"{name} cannot be asked this: {error.message}", kind="rejected", can_retry=False)
    return broken_off(name, protocol)


def broken_off(name: str, protocol: str) -> ModelError:
    """A reply that is no whole reply."""
    return ModelError(
        f"{name} sent something that is not a whole reply: it was broken off or is not {protocol}.",
        kind="garbage",
        can_retry=True,
    )


def _retry_after(error: Exception) -> float | None:
    if not isinstance(error, ModelAPIError):
        return None
    if error.retry_after is not None:
        return error.retry_after
    # The header is defined as whole seconds; proxies send fractions all the same.
    headers = error.headers if isinstance(error, ModelHTTPError) else None
    hint = (headers or {}).get("retry-after") or _retry_delay(error.body)
    try:
        seconds = float(hint)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _retry_delay(body: object) -> str:
    """Google's hint, which stands in the body: `{"error": {"details": [{"retryDelay": "13s"}]}}`."""
    error = body.get("error") if isinstance(body, Mapping) else None
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, Mapping) and isinstance(delay := detail.get("retryDelay"), str):
            return delay.removesuffix("s")
    return ""


def _said(error: Exception, key: str | None) -> str:
    """The provider's own words on one line, without the key, after a colon; or nothing."""
    text = _words(error.body) if isinstance(error, ModelAPIError) else ""
    if not text and isinstance(error, ModelAPIError) and error.in_stream:
        text = error.message
    if key:
        text = text.replace(key, "***")
    text = " ".join(text.split())
    if not text:
        return "."
    return ": " + (text if len(text) <= QUOTED else text[: QUOTED - 1] + "…")


def _words(body: object) -> str:
    if isinstance(body, str):
        return "" if body.lstrip().startswith("<") else body
    if isinstance(body, Mapping):
        fields = cast(Mapping[str, object], body)
        for field in ("message", "error", "detail"):
            if words := _words(fields.get(field)):
                return words
    return ""
