"""Whose ears hear what: every session has an audience, decided by its key when it is made."""

from __future__ import annotations

from typing import Literal

OWNER = "owner"
"""The household's owner. Everybody else's audience is spelled as their keys are, without agent and thread."""

Rights = Literal["owner", "guest", "api"]
"""What somebody's turns may use: everything, what the agent gives to guests, or what it gives to API users."""

API = "api"
ONCE = "once"
_ONCE = f"{ONCE}:"


def api_audience(user: str) -> str:
    """Of a user whom an API client names; `user` as it stands in a key."""
    return f"{API}:{user}"


def once_audience(session_id: str) -> str:
    """Of a single request that names nobody: nobody else has it."""
    return f"{_ONCE}{session_id}"


def peer_audience(kind: str, peer: str, channel: str | None = None) -> str:
    """Of a person or a room on a channel; `channel` and `peer` as they stand in a key."""
    return f"{channel}:{kind}:{peer}" if channel else f"{kind}:{peer}"


def is_outside(audience: str) -> bool:
    return audience != OWNER


def is_once(audience: str) -> bool:
    """Never recalled from, by nobody, and gone after a day."""
    return audience.startswith(_ONCE) and audience.count(":") == 1


def rights_of(audience: str) -> Rights:
    if audience == OWNER:
        return "owner"
    # A channel may be called api, and then has a kind and a peer behind it.
    first, *rest = audience.split(":")
    return "api" if first in (API, ONCE) and len(rest) == 1 else "guest"
