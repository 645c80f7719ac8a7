"""OpenAI, by its chat protocol."""

from __future__ import annotations

from coterie.models.provider import Provider
from coterie.models.providers.openai_compatible import make

PROVIDER = Provider(
    make,
    "https://api.openai.com/v1",
    key_names=("OPENAI_API_KEY",),
    library_name="openai",
    first_model="gpt-5.2",
    order=10,
)
