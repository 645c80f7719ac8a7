"""OpenAI, by its responses protocol."""

from __future__ import annotations

from coterie.core.ports import Model
from coterie.models.provider import Provider, Reach


def make(name: str, reach: Reach) -> Model:
    from coterie.models.openai_responses import OpenAIResponses
    from coterie.models.pydantic_model import Address

    return OpenAIResponses(name, Address(reach.base_url, reach.key or "none", reach.key_name), reach.pool())


PROVIDER = Provider(
    make,
    "https://api.openai.com/v1",
    key_names=("OPENAI_API_KEY",),
    library_name="openai",
)
