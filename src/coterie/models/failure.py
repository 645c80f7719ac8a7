"""What went wrong at a provider, as the one error that the engine knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, cast

from coterie.core.ports import ModelError
from coterie.core.redaction import redacted, shown_address
from coterie.outgoing import NotTaken, Redirected

QUOTED = 300
"""Characters of a provider's own words that an error repeats."""

_NO_SUCH_MODEL = re.compile(
    r"model\b.{0,200}\b(not found|not exist|is unknown|not supported)|(unknown|no such|invalid|not a valid) model",
    re.I,
)
_BUSY = frozenset({408, 409, 425, 429})

What = Literal[
    "timeout",
    "unreachable",
    "lost",
    "quota",
    "auth",
    "unknown_model",
    "busy",
    "rejected",
    "impossible",
    "failed",
    "broken_off",
    "redirected",
    "too_long",
]
"""The failures that people are told apart; `impossible` is a request that was not even sent."""


class Trouble(Exception):
    """A failed request, before it is put into words for a person."""

    def __init__(
        self,
        what: What,
        *,
        status: int | None = None,
        said: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.status = status
        self.said = said
        """The provider's own words."""
        self.retry_after = retry_after


def not_taken(error: BaseException | None) -> Trouble | None:
    """The failure of our own making behind an error, however often libraries have wrapped it."""
    while error is not None:
        if isinstance(error, Redirected):
            return Trouble("redirected", said=error.host)
        if isinstance(error, NotTaken):
            return Trouble("too_long", said=str(error))
        error = error.__cause__ or error.__context__
    return None


def by_status(status: int) -> What:
    """What a status means where the provider's own code says nothing better."""
    match status:
        case 401 | 403:
            return "auth"
        case 402:
            return "quota"
        case 404:
            return "unknown_model"
        case _ if status in _BUSY:
            return "busy"
    return "rejected" if status < 500 else "failed"


def model_error(
    trouble: Trouble,
    name: str,
    *,
    address: str,
    key: str | None,
    key_env: str | None,
    protocol: str = "the OpenAI chat protocol",
) -> ModelError:
    """The failure of a request to model `name`."""
    address = shown_address(address)
    said = _quoted(trouble.said, key)
    what, status = trouble.what, trouble.status
    code = f" (HTTP {status})" if status else ""
    if what == "rejected" and status in (400, 422) and _NO_SUCH_MODEL.search(said):
        what = "unknown_model"
    match what:
        case "timeout":
            return ModelError(f"{name} did not answer in time at {address}.", kind="timeout", can_retry=True)
        case "unreachable":
            said = f"{name} cannot be reached at {address}. Check the network and the provider's base_url."
            return ModelError(said, kind="network", can_retry=True)
        case "lost":
            said = f"{name}: the connection to {address} was lost before an answer came."
            return ModelError(said, kind="network", can_retry=True)
        case "quota":
            return ModelError(
                f"{name}: the account's quota or credit is used up{code}; waiting does not help{said}",
                kind="rate_limit",
                can_retry=False,
            )
        case "auth":
            remedy = f"check the key in {key_env}" if key_env else "set api_key_env for this provider"
            return ModelError(
                f"{name} refused the API key{code}: {remedy}{said}", kind="auth", can_retry=False
            )
        case "unknown_model":
            return ModelError(
                f"{name} is not known at {address}{code}: check the model's name and the base_url{said}",
                kind="unknown_model",
                can_retry=False,
            )
        case "busy":
            return ModelError(
                f"{name} asks to slow down{code}{said}",
                kind="rate_limit",
                can_retry=True,
                retry_after=trouble.retry_after,
            )
        case "rejected":
            return ModelError(f"{name} refused the request{code}{said}", kind="rejected", can_retry=False)
        case "impossible":
            return ModelError(f"{name} cannot be asked this{said}", kind="rejected", can_retry=False)
        case "failed":
            return ModelError(
                f"{name} failed on the provider's side{code}{said}",
                kind="overloaded",
                can_retry=True,
                retry_after=trouble.retry_after,
            )
        case "broken_off":
            return broken_off(name, protocol)
        case "redirected":
            return ModelError(
                f"{name} is not at {address}: the address points to {trouble.said}, and what is asked of a model is "
                "sent nowhere else; if that is right, put it into the provider's base_url.",
                kind="rejected",
                can_retry=False,
            )
        case "too_long":
            return ModelError(f"{name} was not heard to the end{said}", kind="garbage", can_retry=True)


def broken_off(name: str, protocol: str) -> ModelError:
    """A reply that is no whole reply."""
    return ModelError(
        f"{name} sent something that is not a whole reply: it was broken off or is not {protocol}.",
        kind="garbage",
        can_retry=True,
    )


def words_of(body: object) -> str:
    """What an error's body says to people, wherever in it that stands."""
    if isinstance(body, str):
        return "" if body.lstrip().startswith("<") else body
    if isinstance(body, Mapping):
        fields = cast(Mapping[str, object], body)
        for field in ("message", "error", "detail"):
            if words := words_of(fields.get(field)):
                return words
    return ""


def seconds(hint: object) -> float | None:
    """A provider's hint when to come back, if it is a number of seconds that one can wait."""
    try:
        wait = float(hint)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return wait if 0 <= wait < float("inf") else None


def _quoted(text: str, key: str | None) -> str:
    """The provider's own words on one line, without the key, after a colon; or nothing."""
    text = " ".join(redacted(text, [key]).split())
    if not text:
        return "."
    return ": " + (text if len(text) <= QUOTED else text[: QUOTED - 1] + "…")
