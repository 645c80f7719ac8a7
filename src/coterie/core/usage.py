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
    """In US dollars; None where no price is known."""
