"""What must never be shown: logins and keys in addresses, and secrets that this process knows. The one place that hides them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "***"
SHORTEST = 6
"""Characters of a secret that is looked for in any text: a shorter one would be found in ordinary words."""

_LOGIN = re.compile(r"(?<=://)[^\s/?#]*@")
_IN_QUERY = re.compile(
    r"([?&;](?:[\w-]{0,40}[_-])?(?:api_?key|key|token|secret|pass|passwd|password|sig|signature|auth|code|credentials?)=)"
    r"[^\s&;#\"'<>\\]+",
    re.I,
)
_known: dict[str, None] = {}


def keep_secret(*secrets: str | None) -> None:
    """From now on these are hidden wherever they turn up."""
    for secret in secrets:
        if secret and len(secret) >= SHORTEST:
            _known[secret] = None


def keep_secrets_of(url: str) -> None:
    """The login in an address, and whatever stands behind its question mark."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    login, at, _ = parts.netloc.rpartition("@")
    if at:
        keep_secret(login, unquote(login), b64encode(unquote(login).encode()).decode())
        password = login.partition(":")[2]
        keep_secret(password, unquote(password))
    for _, value in parse_qsl(parts.query):
        keep_secret(value)


def at_path(url: str, path: str) -> str:
    """An address further down; what stands behind a question mark stays behind it."""
    place, mark, query = url.partition("?")
    return f"{place.rstrip('/')}/{path}{mark}{query}"


def shown_address(url: str) -> str:
    """An address without login, query and fragment."""
    return _LOGIN.sub("", url.partition("?")[0].partition("#")[0])


def redacted(text: str, also: Iterable[str | None] = ()) -> str:
    """The text without secrets; `also` names some that are hidden in this text however short they are."""
    # The longest first: one secret may be a part of another.
    for secret in sorted({*_known, *filter(None, also)}, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, HIDDEN)
    if "://" in text:
        text = _LOGIN.sub("", text)
    return _IN_QUERY.sub(rf"\1{HIDDEN}", text) if "=" in text else text
