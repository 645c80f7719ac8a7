"""Finds the model behind `<provider>/<model>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from coterie.core.ports import Model, ModelError, ProviderState
from coterie.models.keys import find_key

if TYPE_CHECKING:
    import httpx2

# Dated copies of models that are listed without their date, and what is not made to talk in a chat.
_SPECIAL = re.compile(
    r"\d{8}$|\d{4}-\d{2}-\d{2}|-\d{2}-\d{4}$|-\d{4}$|image|audio|realtime|search|transcribe|tts|computer"
)


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """Where a family of models is reached. What is None comes from the type's own defaults."""

    type: str
    base_url: str | None = None
    api_key_env: str | None = None
    """Name of the environment variable that holds the key."""


BUILT_IN: Mapping[str, ProviderSettings] = {
    name: ProviderSettings(name)
    for name in ("openai", "openai-responses", "anthropic", "google", "openrouter", "ollama", "offline")
}
"""Providers that need no configuration beyond a key."""


@dataclass(frozen=True, slots=True)
class ProviderType:
    """What a kind of provider is reached with unless the configuration says otherwise."""

    base_url: str | None = None
    key_names: tuple[str, ...] = ()
    """Where its key may stand, in order; empty where it needs none."""
    library_name: str | None = None
    """What the library calls it in its list of models."""
    first_model: str | None = None
    """For somebody who has a key and has chosen nothing yet."""


TYPES: Mapping[str, ProviderType] = {
    "openai": ProviderType("https://api.openai.com/v1", ("OPENAI_API_KEY",), "openai", "gpt-5.2"),
    "openai-responses": ProviderType("https://api.openai.com/v1", ("OPENAI_API_KEY",), "openai"),
    "anthropic": ProviderType(
        "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), "anthropic", "claude-sonnet-5"
    ),
    "google": ProviderType(
        "https://generativelanguage.googleapis.com",
        ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        "google",
        "gemini-2.5-flash",
    ),
    "openrouter": ProviderType("https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "ollama": ProviderType("http://127.0.0.1:11434/v1"),
    "openai-compatible": ProviderType(),
    "offline": ProviderType(),
}


def first_model() -> str | None:
    """A model that can be used right away, because its key is here."""
    return next(
        (
            f"{name}/{kind.first_model}"
            for name, kind in TYPES.items()
            if kind.first_model and find_key(kind.key_names)
        ),
        None,
    )


class ModelCatalog:
    """Every model that can be named. A provider's module is imported when it is first used."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self._providers = {**BUILT_IN, **providers}
        self._models: dict[str, Model] = {}
        self._connections: httpx2.AsyncClient | None = None
        # A new kind of provider is one more entry here and one more method below.
        self._makers: dict[str, Callable[[str, ProviderSettings], Model]] = {
            "openai": self._openai_chat,
            "openai-responses": self._openai_responses,
            "anthropic": self._anthropic,
            "google": self._google,
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

    def describe(self, *, only_usable: bool = False) -> list[ProviderState]:
        """Every provider, whether it can be used, and what it is known for; or that only of those that can be."""
        return [self._describe(name, settings, only_usable) for name, settings in self._providers.items()]

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
        try:
            return make(name, settings)
        except ImportError as error:
            raise _unknown(
                f"{name} needs the package {error.name or 'of its provider'}, which is missing: install Coterie anew"
            ) from error

    def _describe(self, name: str, settings: ProviderSettings, only_usable: bool) -> ProviderState:
        kind = TYPES.get(settings.type, ProviderType())
        names = _key_names(settings)
        has_key = not names or find_key(names) is not None
        # The list comes with the library, which takes a while to import.
        known = _known_models(settings.type) if has_key or not only_usable else ()
        return ProviderState(
            name,
            settings.type,
            _without_login(settings.base_url or kind.base_url),
            names,
            has_key,
            tuple(f"{name}/{model}" for model in known),
        )

    def _openai_chat(self, name: str, settings: ProviderSettings) -> Model:
        base_url, key, key_name = _reach(name, settings)

        from coterie.models.openai_chat import Endpoint, OpenAIChat

        endpoint = Endpoint(base_url, self._pool(), api_key=key, api_key_env=key_name, service=settings.type)
        return OpenAIChat(name, endpoint)

    def _openai_responses(self, name: str, settings: ProviderSettings) -> Model:
        base_url, key, key_name = _reach(name, settings)

        from coterie.models.openai_responses import OpenAIResponses
        from coterie.models.pydantic_model import Address

        return OpenAIResponses(name, Address(base_url, key or "none", key_name), self._pool())

    def _anthropic(self, name: str, settings: ProviderSettings) -> Model:
        base_url, key, key_name = _reach(name, settings)

        from coterie.models.anthropic import AnthropicMessages
        from coterie.models.pydantic_model import Address

        return AnthropicMessages(name, Address(base_url, key or "none", key_name), self._pool())

    def _google(self, name: str, settings: ProviderSettings) -> Model:
        base_url, key, key_name = _reach(name, settings)

        from coterie.models.google import GoogleGemini
        from coterie.models.pydantic_model import Address

        return GoogleGemini(name, Address(base_url, key or "none", key_name), self._pool())

    def _offline(self, name: str, settings: ProviderSettings) -> Model:
        from coterie.models.offline import OfflineModel

        return OfflineModel(name)

    def _pool(self) -> httpx2.AsyncClient:
        if self._connections is None:
            from coterie.models.connections import open_connections

            self._connections = open_connections()
        return self._connections


def _reach(name: str, settings: ProviderSettings) -> tuple[str, str | None, str | None]:
    """The address, the key and where the key was found."""
    base_url = settings.base_url or TYPES[settings.type].base_url
    if base_url is None:
        raise _unknown(f"provider {name.partition('/')[0]!r} needs a base_url")
    names = _key_names(settings)
    if not names:
        return base_url, None, None
    found = find_key(names)
    if found is None:
        raise ModelError(
            f"{name} needs an API key: set the environment variable {' or '.join(names)}",
            kind="auth",
            can_retry=False,
        )
    return base_url, *found


def _without_login(url: str | None) -> str | None:
    return url and re.sub(r"(?<=//)[^/@]*@", "", url)


def _key_names(settings: ProviderSettings) -> tuple[str, ...]:
    if settings.api_key_env:
        return (settings.api_key_env,)
    return TYPES.get(settings.type, ProviderType()).key_names


@cache
def _known_models(type: str) -> tuple[str, ...]:
    if type == "offline":
        return ("demo",)
    library_name = TYPES.get(type, ProviderType()).library_name
    if library_name is None:
        return ()

    from pydantic_ai.models import known_model_names

    prefix = f"{library_name}:"
    names = [name.removeprefix(prefix) for name in known_model_names() if name.startswith(prefix)]
    return tuple(name for name in names if not _SPECIAL.search(name))


def _unknown(message: str) -> ModelError:
    return ModelError(message, kind="unknown_model", can_retry=False)
