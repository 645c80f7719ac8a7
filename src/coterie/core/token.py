"""Access tokens: what they allow, and how one is recognised without keeping it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal, get_args

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""In rising order: each includes those before it."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is stored: the secret itself is shown once and never kept."""

    id: str
    scope: Scope
    label: str | None
    secret_hash: str
    created_at: str
    revoked_at: str | None = None

    def opens_with(self, secret: str) -> bool:
        return self.revoked_at is None and hmac.compare_digest(self.secret_hash, hash_secret(secret))


def hash_secret(secret: str) -> str:
    """Secrets are 256 random bits, so a plain hash cannot be reversed by guessing."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def spell(token_id: str, secret: str) -> str:
    return f"cot_{token_id}_{secret}"


def parts(token: str) -> tuple[str, str] | None:
    """Id and secret of a token string, or None where it has another form."""
    prefix, _, rest = token.partition("_")
    token_id, _, secret = rest.partition("_")
    known_form = prefix == "cot" and token_id.isascii() and token_id.isalnum() and secret
    return (token_id, secret) if known_form else None


def allows(have: Scope, need: Scope) -> bool:
    return SCOPES.index(have) >= SCOPES.index(need)
