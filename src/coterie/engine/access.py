"""Who may do what: tokens, their scopes, and a brake on guessing."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.core.clock import now_iso
from coterie.core.errors import Forbidden, InvalidRequest, NotFound, RateLimited, Unauthorized, Unavailable
from coterie.core.token import SCOPES, Scope, Token, allows, hash_secret, parts, spell
from coterie.engine.household.home import Home

if TYPE_CHECKING:
    from coterie.store.transaction import Store

ENVIRONMENT = "COTERIE_TOKEN"
OWNER = "owner"
"""Token id of the admin token that belongs to the home folder."""
FAILURES = 20
REFILL_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who showed a valid token."""

    token_id: str
    scope: Scope

    def require(self, need: Scope) -> None:
        if not allows(self.scope, need):
            raise Forbidden(f"this needs the scope {need}; the token has {self.scope}")

    def limited_to(self, scope: Scope) -> Caller:
        """The same caller with no more than this scope."""
        return self if allows(scope, self.scope) else Caller(self.token_id, scope)


class Access:
    """Checks tokens, makes them, takes them back."""

    def __init__(self, home: Home, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._failures: dict[str, tuple[float, float]] = {}
        self._proven: set[str] = set()
        """Hashes of tokens that were right before: failures of others must not lock their owners out."""

    def owner_token(self) -> str | None:
        """The admin token of this home, if there is one."""
        given = os.environ.get(ENVIRONMENT, "").strip()
        if given:
            return given
        try:
            return self._home.token.read_text().strip() or None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Unavailable(f"the token in {self._home.token} cannot be read: {error}") from error

    @property
    def owner_token_is_given(self) -> bool:
        """It stands in the environment."""
        return bool(os.environ.get(ENVIRONMENT, "").strip())

    def make_owner_token(self) -> str:
        """Kept in the home folder, readable by its owner alone."""
        token = spell(OWNER, secrets.token_urlsafe(32))
        descriptor = os.open(self._home.token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        return token

    def check(self, token: str | None, client: str) -> Caller:
        """The caller behind a token. Repeated failures from one client are slowed down."""
        if not token:
            raise Unauthorized("a token is needed: send Authorization: Bearer TOKEN")
        proof = hash_secret(token)
        if proof not in self._proven:
            self._brake(client)
        caller = self._find(token)
        if caller is None:
            self._proven.discard(proof)
            self._count_failure(client)
            raise Unauthorized("the token is not valid")
        self._proven.add(proof)
        return caller

    def create(self, scope: str, label: str | None = None) -> tuple[Token, str]:
        """A new token, and its spelling, which is shown this once."""
        if scope not in SCOPES:
            raise InvalidRequest(f"{scope!r} is not a scope: {', '.join(SCOPES)}", details={"field": "scope"})
        secret = secrets.token_urlsafe(32)
        token = Token(secrets.token_hex(6), scope, label, hash_secret(secret), now_iso())
        with self._store.write() as tx:
            tx.tokens.add(token)
        return token, spell(token.id, secret)

    def tokens(self) -> list[Token]:
        with self._store.read() as tx:
            return tx.tokens.all()

    def revoke(self, token_id: str) -> None:
        with self._store.write() as tx:
            if not tx.tokens.revoke(token_id, now_iso()):
                raise NotFound(f"there is no live token {token_id!r}")
        self._proven.clear()

    def _find(self, token: str) -> Caller | None:
        owner = self.owner_token()
        if owner is not None and hmac.compare_digest(owner.encode(), token.encode("utf-8", "surrogatepass")):
            return Caller(OWNER, "admin")
        split = parts(token)
        if split is None:
            return None
        with self._store.read() as tx:
            stored = tx.tokens.get(split[0])
        return Caller(stored.id, stored.scope) if stored is not None and stored.opens_with(split[1]) else None

    def _brake(self, client: str) -> None:
        if self._level(client) >= FAILURES:
            raise RateLimited("too many wrong tokens; wait a moment", details={"retry_after": REFILL_SECONDS})

    def _count_failure(self, client: str) -> None:
        if len(self._failures) > 10_000:
            self._failures.clear()
        self._failures[client] = (self._level(client) + 1, self._clock())

    def _level(self, client: str) -> float:
        """Recent failures, one forgiven every few seconds."""
        count, at = self._failures.get(client, (0.0, self._clock()))
        return max(0.0, count - (self._clock() - at) / REFILL_SECONDS)
