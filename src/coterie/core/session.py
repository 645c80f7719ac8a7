"""A session: a durable transcript bound to one agent, and the key that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes

from coterie.core.agent import check_id
from coterie.core.audience import OWNER, api_audience, once_audience, peer_audience
from coterie.core.errors import InvalidRequest

Kind = Literal["main", "dm", "group", "subagent", "cron", "web", "api", "agent", "once"]
ASIDE: tuple[Kind, ...] = ("subagent", "cron", "agent", "once")
"""Kinds that are never somebody's latest conversation."""
MADE: tuple[Kind, ...] = (*ASIDE, "web")
"""Kinds that no key alone brings into being."""
INTERNAL = "agent"
"""The channel that leads nowhere outside: how agents reach each other."""
_MAX_KEY = 1000


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    key: str
    agent_id: str | None
    """Who it is bound to; None reads as the default agent."""
    kind: Kind
    name: str | None = None
    pinned_at: str | None = None
    model: str | None = None
    """Overrides the agent's model."""
    parent_id: str | None = None
    deliver: bool = False
    route: Mapping[str, Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    last_snippet: str | None = None
    created_at: str = ""
    updated_at: str = ""
    tools: tuple[str, ...] | None = None
    """Globs that narrow what its agent may call here; None: nothing more than the agent's own lists."""
    audience: str = OWNER
    """Who hears what is said here. Never changes."""


@dataclass(frozen=True, slots=True)
class ListPlace:
    """Where in the list of sessions a page ended: what the list is ordered by, at that moment."""

    pinned_at: str | None
    updated_at: str
    id: str

    @classmethod
    def of(cls, session: Session) -> ListPlace:
        return cls(session.pinned_at, session.updated_at, session.id)

    @classmethod
    def read(cls, cursor: str) -> ListPlace:
        parts = cursor.split("~")
        if len(parts) != 3:
            raise InvalidRequest("this is no cursor of a list of sessions", details={"field": "before"})
        return cls(parts[0] or None, parts[1], parts[2])

    def __str__(self) -> str:
        return "~".join((self.pinned_at or "", self.updated_at, self.id))


def encode_peer(peer: str) -> str:
    """Peer ids are opaque; only what would clash with the key's own colons, or cannot be seen, is encoded."""
    if not peer:
        raise InvalidRequest("a peer id must not be empty")
    return "".join(quote(c, safe="") if c in ":%" or not c.isprintable() or c.isspace() else c for c in peer)


def decode_peer(part: str) -> str:
    """The peer that a part of a key stands for."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeError:
        raise InvalidRequest(
            f"{part[:200]!r} in a session key is not the percent-encoding of any text",
            details={"field": "session"},
        ) from None


def main_key(agent: str) -> str:
    return f"agent:{agent}:main"


def dm_key(agent: str, peer: str, channel: str | None = None) -> str:
    place = f"{_channel(channel)}:" if channel else ""
    return f"agent:{agent}:{place}dm:{encode_peer(peer)}"


def group_key(agent: str, channel: str, peer: str, thread: str | None = None) -> str:
    key = f"agent:{agent}:{_channel(channel)}:group:{encode_peer(peer)}"
    return f"{key}:thread:{encode_peer(thread)}" if thread else key


def api_key(agent: str, user: str) -> str:
    return f"agent:{agent}:api:{encode_peer(user)}"


def web_key(agent: str, session_id: str) -> str:
    return f"agent:{agent}:web:{session_id}"


def subagent_key(agent: str, session_id: str) -> str:
    return f"agent:{agent}:subagent:{session_id}"


def delegated_key(agent: str, caller: str, session_id: str) -> str:
    """Where one agent asks another."""
    return f"agent:{agent}:agent:{caller}:{session_id}"


def once_key(agent: str, session_id: str) -> str:
    return f"agent:{agent}:once:{session_id}"


def key_for(agent: str, key: str) -> str:
    """The same person's or room's conversation with another agent."""
    return ":".join(["agent", agent, *_without_suffixes(key.split(":")[2:])])


def audience_of(key: str) -> str:
    """Whom a session of this key, in its canonical spelling, is for. Those of agents get theirs from who asked."""
    match _without_suffixes(key.split(":")[2:]):
        case ["agent", _, _]:
            return OWNER
        case ["api", user]:
            return api_audience(user)
        case ["once", session_id]:
            return once_audience(session_id)
        case ["dm", peer]:
            return peer_audience("dm", peer)
        case [channel, "dm" | "group" as kind, peer]:
            return peer_audience(kind, peer, channel)
    return OWNER


def check_audience(text: str) -> str:
    """An audience as somebody wrote it down, in its canonical spelling."""
    if text == OWNER:
        return OWNER
    try:
        found = audience_of(parse_key(f"agent:main:{text}")[2])
    except InvalidRequest:
        found = OWNER
    if found == OWNER:
        raise InvalidRequest(
            f"{text[:200]!r} is no audience: owner, dm:<peer>, <channel>:dm:<peer>, <channel>:group:<peer> or api:<user>",
            details={"field": "audience"},
        )
    return found


def parse_key(key: str) -> tuple[str, Kind, str]:
    """Agent, kind and the key in its one canonical spelling: `direct` is `dm`, `%41nn` is `Ann`.

    Raises where it has no known form.
    """
    _check_length(key)
    parts = key.split(":")
    if len(parts) < 3 or parts[0] != "agent" or "" in parts:
        raise InvalidRequest(
            f"{key[:200]!r} is not a session key: agent:<id>:…", details={"field": "session"}
        )
    agent = check_id(parts[1])
    rest = [encode_peer(decode_peer(part)) for part in parts[2:]]
    place = _place_of_direct(rest)
    if place is not None:
        rest[place] = "dm"
    kind = _kind(rest)
    if kind is None:
        raise InvalidRequest(f"{key[:200]!r} has no known form of session key", details={"field": "session"})
    canonical = ":".join(["agent", agent, *rest])
    _check_length(canonical)
    return agent, kind, canonical


def _check_length(key: str) -> None:
    if len(key) > _MAX_KEY:
        raise InvalidRequest(f"a session key has at most {_MAX_KEY} characters", details={"field": "session"})


def _channel(name: str) -> str:
    if name == INTERNAL:
        raise InvalidRequest(
            f"{INTERNAL!r} is no channel that people write from", details={"field": "channel"}
        )
    return encode_peer(name)


def _place_of_direct(rest: list[str]) -> int | None:
    """Where `direct` stands for `dm`; a peer or a user may be called like that too."""
    match _without_suffixes(rest):
        case ["direct", _]:
            return 0
        case [_, "direct", _]:
            return 1
    return None


def _without_suffixes(rest: list[str]) -> list[str]:
    if len(rest) > 2 and rest[-2] == "old" and rest[-1].isdigit():
        rest = rest[:-2]
    if len(rest) > 2 and rest[-2] == "thread":
        rest = rest[:-2]
    return rest


def _kind(rest: list[str]) -> Kind | None:
    match _without_suffixes(rest):
        case ["main"] | ["main", "old", _]:
            return "main"
        case ["agent", _, _]:
            return "agent"
        case ["subagent", _]:
            return "subagent"
        case ["once", _]:
            return "once"
        case ["cron", _]:
            return "cron"
        case ["web", _]:
            return "web"
        case ["api", _]:
            return "api"
        case ["dm", _] | [_, "dm", _]:
            return "dm"
        case [_, "group", _]:
            return "group"
    return None
