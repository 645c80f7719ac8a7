"""Embeddings over HTTP: the OpenAI form, which Ollama speaks too."""

from __future__ import annotations

import os
from collections.abc import Sequence

from coterie.core.errors import Unavailable
from coterie.core.redaction import at_path, keep_secret, keep_secrets_of, redacted
from coterie.embedders.quantise import quantise

LONGEST = 8_000
BATCH = 64
SECONDS = 60


class RemoteEmbedder:
    """`POST <base_url>/embeddings`."""

    averages = False
    waits = True
    ready = True

    def __init__(self, kind: str, model: str, base_url: str, api_key_env: str | None) -> None:
        self.name = f"{kind}/{model}"
        self._model = model
        self._url = at_path(base_url, "embeddings")
        keep_secrets_of(base_url)
        self._key_name = api_key_env

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        import httpx2

        from coterie.outgoing import BoundedSyncClient

        headers = {}
        if self._key_name is not None:
            key = os.environ.get(self._key_name, "").strip()
            if not key:
                raise Unavailable(f"the embeddings need a key: set {self._key_name}")
            keep_secret(key)
            headers["Authorization"] = f"Bearer {key}"
        found: list[bytes] = []
        try:
            with BoundedSyncClient(headers=headers, timeout=SECONDS) as client:
                for start in range(0, len(texts), BATCH):
                    some = [text[:LONGEST] or " " for text in texts[start : start + BATCH]]
                    answer = client.post(self._url, json={"model": self._model, "input": some})
                    answer.raise_for_status()
                    data = sorted(answer.json()["data"], key=lambda one: int(one["index"]))
                    if len(data) != len(some):
                        raise Unavailable(
                            f"{self.name} answered with {len(data)} vectors for {len(some)} texts"
                        )
                    found += quantise([one["embedding"] for one in data])
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            # The cause quotes the address, and with it a login.
            said = redacted(str(error))[:200]
            raise Unavailable(f"{self.name} cannot be reached or understood: {said}") from None
        return found
