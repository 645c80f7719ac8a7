"""Usage and cost, summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

UsageKey = Literal["agent", "session", "model", "day", "audience"]


@dataclass(frozen=True, slots=True)
class UsageRow:
    key: Mapping[UsageKey, str | None]
    turns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    """In US dollars, as far as prices are known; None where none is."""
    unpriced_turns: int = 0
    """Turns whose price is not known. Of sessions that are gone, those where no price of the day and model is."""
