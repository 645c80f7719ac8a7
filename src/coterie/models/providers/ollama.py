"""Ollama, on this machine unless told otherwise."""

from __future__ import annotations

from coterie.models.provider import Provider
from coterie.models.providers.openai_compatible import make

PROVIDER = Provider(
    make,
    "http://127.0.0.1:11434/v1",
)
