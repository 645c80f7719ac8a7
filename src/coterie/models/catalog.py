"""Finds the model behind `<provider>/<model>`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.core.ports import Model, ModelError

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """Where a family of models is reached. What is None comes from the type's own defaults."""

    type: str
    base_url: str | None = None
    api_key_env: str | None = None
    """Name of the environment variable that holds the key."""


BUILT_IN: Mapping[str, ProviderSettings] = {
    name: ProviderSettings(name) for name in ("openai", "openrouter", "ollama", "offline")
}
"""Providers that need no configuration beyond a key in the environment."""

_DEFAULTS: Mapping[str, ProviderSettings] = {
    "openai": ProviderSettings("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": ProviderSettings("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "ollama": ProviderSettings("ollama", "http://127.0.0.1:11434/v1"),
    "openai-compatible": ProviderSettings("openai-compatible"),
}


class ModelCatalog:
    """Every model that can be named. A provider's module is imported when it is first used."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self._providers = {**BUILT_IN, **providers}
        self._models: dict[str, Model] = {}
        self._connections: httpx2.AsyncClient | None = None
        # A new kind of provider is one more entry here and one more method below.
        self._makers: dict[str, Callable[[str, ProviderSettings], Model]] = {
            "openai": self._openai_chat,
            "openrouter": self._openai_chat,
            "ollama": self._openai_chat,
            "openai-compatible": self._openai_chat,
            "offline": self._offline,
        }

    @property
    def providers(self) -> Mapping[str, ProviderSettings]:
        """Built-in and configured providers by name."""
        return self._providers

    def resolve(self, name: str) -> Model:
        """The model called `<provider>/<model>`, the same object every time."""
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = self._make(name)
        return model

    async def aclose(self) -> None:
        """Close the connections that are kept open to providers."""
        connections, self._connections = self._connections, None
        self._models.clear()
        if connections is not None:
            await connections.aclose()

    def _make(self, name: str) -> Model:
        provider, _, model = name.partition("/")
        if not provider or not model:
            raise _unknown(f"{name!r} is not a model; write <provider>/<model>, as in openai/gpt-5.2")
        settings = self._providers.get(provider)
        if settings is None:
            raise _unknown(
                f"there is no provider {provider!r}; known are {', '.join(sorted(self._providers))}"
            )
        make = self._makers.get(settings.type)
        if make is None:
            raise _unknown(
                f"provider {provider!r} has the type {settings.type!r}, which is not available; "
                f"available are {', '.join(sorted(self._makers))}"
            )
        return make(name, settings)

    def _openai_chat(self, name: str, settings: ProviderSettings) -> Model:
        defaults = _DEFAULTS[settings.type]
        base_url = settings.base_url or defaults.base_url
        if base_url is None:
            raise _unknown(f"provider {name.partition('/')[0]!r} needs a base_url")
        key_env = settings.api_key_env or defaults.api_key_env
        api_key = os.environ.get(key_env, "").strip() if key_env else None
        if key_env and not api_key:
            raise ModelError(
                f"{name} needs an API key: set the environment variable {key_env}",
                kind="auth",
                can_retry=False,
            )

        from coterie.models.openai_chat import Endpoint, OpenAIChat, open_connections

        if self._connections is None:
            self._connections = open_connections()
        endpoint = Endpoint(
            base_url, self._connections, api_key=api_key, api_key_env=key_env, service=settings.type
        )
        return OpenAIChat(name, endpoint)

    def _offline(self, name: str, settings: ProviderSettings) -> Model:
        from coterie.models.offline import OfflineModel

        return OfflineModel(name)


def _unknown(message: str) -> ModelError:
    return ModelError(message, kind="unknown_model", can_retry=False)
