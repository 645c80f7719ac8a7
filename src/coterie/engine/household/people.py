"""Who is who: which people outside are the owner themself."""

from __future__ import annotations

from coterie.config import Channel
from coterie.core.audience import OWNER, peer_audience
from coterie.core.session import encode_peer
from coterie.engine.household.registry import Registry


class People:
    """Asked whenever a turn is claimed: who is no longer named there is a stranger from then on."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: tuple[dict[str, Channel], frozenset[str]] | None = None

    def hears(self, audience: str) -> str:
        """Who it is that hears what is said to an audience."""
        return OWNER if audience in self._owners() else audience

    def _owners(self) -> frozenset[str]:
        """Peers that the configuration names as the owner. A room never is, whoever writes in it."""
        channels = self._registry.sync.config.channels
        if self._known is None or self._known[0] is not channels:
            found = frozenset(
                peer_audience("dm", encode_peer(peer), encode_peer(name))
                for name, channel in channels.items()
                for account in channel.accounts.values()
                for peer in account.owner
            )
            self._known = (channels, found)
        return self._known[1]
