"""Neural models of the fastembed package, for those who installed it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import Unavailable
from coterie.embedders.quantise import quantise

LONGEST = 8_000


class LocalEmbedder:
    averages = False
    waits = True

    def __init__(self, model: str) -> None:
        self.name = f"fastembed/{model}"
        self._model = model
        self._lock = threading.Lock()
        self._loaded: Any = None

    @property
    def ready(self) -> bool:
        return self._loaded is not None

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        with self._lock:
            if self._loaded is None:
                try:
                    from fastembed import TextEmbedding
                except ImportError:
                    raise Unavailable(
                        "this embedding model needs a package: pip install 'coterie[fastembed]'"
                    ) from None
                try:
                    self._loaded = TextEmbedding(self._model)
                except Exception as error:  # the package raises whatever its downloads and runtimes raise
                    raise Unavailable(f"{self.name} cannot be loaded: {str(error)[:200]}") from error
        return quantise(list(self._loaded.embed([text[:LONGEST] for text in texts]))) if texts else []
