"""Which embedder the configuration asks for."""

from __future__ import annotations

from coterie.config import Embeddings
from coterie.core.ports import Embedder


def embedder(settings: Embeddings) -> Embedder | None:
    """None: search by words alone."""
    match settings.type:
        case "none":
            return None
        case "static":
            from coterie.embedders.static import StaticEmbedder

            return StaticEmbedder()
        case "fastembed":
            from coterie.embedders.local import LocalEmbedder

            return LocalEmbedder(settings.model or "BAAI/bge-small-en-v1.5")
        case "ollama":
            from coterie.embedders.remote import RemoteEmbedder

            base_url = settings.base_url or "http://127.0.0.1:11434/v1"
            return RemoteEmbedder(
                "ollama", settings.model or "nomic-embed-text", base_url, settings.api_key_env
            )
        case "openai-compatible":
            from coterie.embedders.remote import RemoteEmbedder

            base_url = settings.base_url or "https://api.openai.com/v1"
            key = settings.api_key_env or (None if settings.base_url else "OPENAI_API_KEY")
            return RemoteEmbedder("openai", settings.model or "text-embedding-3-small", base_url, key)
