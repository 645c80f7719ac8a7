"""OpenRouter."""

from __future__ import annotations

from coterie.models.provider import Provider
from coterie.models.providers.openai_compatible import make

PROVIDER = Provider(
    make,
    "https://openrouter.ai/api/v1",
    key_names=("OPENROUTER_API_KEY",),
)
