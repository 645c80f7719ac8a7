"""Anthropic."""

from __future__ import annotations

from coterie.core.ports import Model
from coterie.models.provider import Provider, Reach


def make(name: str, reach: Reach) -> Model:
    from coterie.models.anthropic import AnthropicMessages
    from coterie.models.pydantic_model import Address

    return AnthropicMessages(name, Address(reach.base_url, reach.key or "none", reach.key_name), reach.pool())


PROVIDER = Provider(
    make,
    "https://api.anthropic.com",
    key_names=("ANTHROPIC_API_KEY",),
    library_name="anthropic",
    first_model="claude-sonnet-5",
    order=20,
)
