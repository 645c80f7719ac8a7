"""The default: word vectors whose weights come with the package. No download, no network."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coterie.core.errors import Unavailable
from coterie.core.ranking import gist
from coterie.embedders.quantise import quantise

log = logging.getLogger("coterie.embedders")

LONGEST = 4_000
"""Characters of one text that count; averages of more say nothing."""
BATCH = 64


class StaticEmbedder:
    name = "wordllama/l2_supercat_256"
    averages = True
    waits = False

    def __init__(self) -> None:
        self._model: Any = None

    @property
    def ready(self) -> bool:
        return self._model is not None

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        model = self._loaded()
        found: list[bytes] = []
        for start in range(0, len(texts), BATCH):
            some = [gist(text[:LONGEST]) for text in texts[start : start + BATCH]]
            found += quantise(model.embed(some, norm=True))
        return found

    def _loaded(self) -> Any:
        if self._model is None:
            with _loading:
                self._model = _weights()
        return self._model


_loading = threading.Lock()


@cache
def _weights() -> Any:
    """They never change: once for the whole process, however often the configuration asks for them."""
    wordllama = _imported()
    # The folder of the package itself, where its weights and its tokenizer lie.
    folder = Path(str(wordllama.__file__)).parent
    weights = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    log.info("loaded the embedding model %s", StaticEmbedder.name)
    return weights


def _imported() -> Any:
    """The package sets up logging for the whole process when it is imported; that is not its business."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        import wordllama
    except ImportError as error:
        raise Unavailable(f"the embedding model cannot be loaded: {error}") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return wordllama
