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
REMEMBERED = 10_000
"""Addresses and tokens whose failures are counted; beyond, the one longest ago is forgotten."""


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
        self._failures: dict[tuple[str, str], tuple[float, float]] = {}
        """Recent ones by address and by the token that was guessed at, the latest last."""

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
        """The caller behind a token. Who has the right one gets in, whatever others have tried from the same address."""
        if not token:
            raise Unauthorized("a token is needed: send Authorization: Bearer TOKEN")
        caller, meant = self._find(token)
        if caller is not None:
            return caller
        self._count_failure((client, meant))
        raise Unauthorized("the token is not valid")

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

    def _find(self, token: str) -> tuple[Caller | None, str]:
        """Who has this token, and the id of the one that it was meant to be; empty where there is none such."""
        owner = self.owner_token()
        if owner is not None and hmac.compare_digest(owner.encode(), token.encode("utf-8", "surrogatepass")):
            return Caller(OWNER, "admin"), OWNER
        split = parts(token)
        if split is None:
            return None, ""
        with self._store.read() as tx:
            stored = tx.tokens.get(split[0])
        if stored is None:
            return None, OWNER if split[0] == OWNER else ""
        return Caller(stored.id, stored.scope) if stored.opens_with(split[1]) else None, stored.id

    def _count_failure(self, guess: tuple[str, str]) -> None:
        """One is forgiven every few seconds. Raises where there are too many."""
        now = self._clock()
        count, at = self._failures.pop(guess, (0.0, now))
        count = max(0.0, count - (now - at) / REFILL_SECONDS)
        self._failures[guess] = (min(count + 1, FAILURES), now)
        if len(self._failures) > REMEMBERED:
            del self._failures[next(iter(self._failures))]
        if count + 1 > FAILURES:
            raise RateLimited("too many wrong tokens; wait a moment", details={"retry_after": REFILL_SECONDS})
