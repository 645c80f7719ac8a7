"""What a reply costs, as far as the public list of prices knows."""

from __future__ import annotations

from typing import Any

import genai_prices

from coterie.core.message import Usage


class Prices:
    """Prices of one model at one address."""

    def __init__(self, service: str, address: str) -> None:
        # The first look at the list reads a megabyte; this is made on a thread, replies are read on the loop.
        genai_prices.data_snapshot.get_snapshot()
        self._places: tuple[dict[str, Any], ...] = ({"provider_api_url": address}, {"provider_id": service})
        self._known = True

    def cost(self, usage: Usage, model: str, *, cache_writes: int, service_tier: str | None) -> float | None:
        """In US dollars; None where the list does not have this model."""
        counted = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=cache_writes,
        )
        context = {"service_tier": service_tier} if service_tier else None
        for place in self._places if self._known else ():
            try:
                price = genai_prices.calc_price(counted, model, price_context=context, **place)
            except (LookupError, ValueError):
                continue
            return float(price.total_price)
        self._known = False  # it will not be looked up again
        return None
