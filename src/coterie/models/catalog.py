"""Finds the model behind `<provider>/<model>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from coterie.core.errors import InvalidRequest
from coterie.core.ports import Model, ModelError, ProviderState
from coterie.core.redaction import keep_secret, keep_secrets_of, shown_address
from coterie.models.keys import find_key
from coterie.models.provider import Provider, Reach, all_providers

if TYPE_CHECKING:
    import httpx2

# Dated copies of models that are listed without their date, and what is not made to talk in a chat.
_LOGIN = re.compile(r"(?<=//)[^/@]*@")
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


def first_model() -> str | None:
    """A model that can be used right away, because its key is here."""
    return next(
        (
            f"{type}/{kind.first_model}"
            for type, kind in all_providers().items()
            if kind.first_model and find_key(kind.key_names)
        ),
        None,
    )


class ModelCatalog:
    """Every model that can be named. A provider's module is imported when it is first used."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        built_in = {type: ProviderSettings(type) for type, kind in all_providers().items() if kind.built_in}
        self._providers = {**built_in, **providers}
        self._models: dict[str, Model] = {}
        self._connections: httpx2.AsyncClient | None = None

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

    def check(self, name: str) -> None:
        """Raises InvalidRequest where no provider could have a model of this name."""
        try:
            self._provider(name)
        except ModelError as error:
            raise InvalidRequest(error.message, details={"field": "model"}) from None

    def describe(self, *, only_usable: bool = False) -> list[ProviderState]:
        """Every provider, whether it can be used, and what it is known for; or that only of those that can be."""
        return [self._describe(name, settings, only_usable) for name, settings in self._providers.items()]

    async def aclose(self) -> None:
        """Close the connections that are kept open to providers."""
        connections, self._connections = self._connections, None
        self._models.clear()
        if connections is not None:
            await connections.aclose()

    def _provider(self, name: str) -> tuple[ProviderSettings, Provider]:
        provider, _, model = name.partition("/")
        if not provider or not model:
            raise _unknown(f"{name!r} is not a model; write <provider>/<model>, as in openai/gpt-5.2")
        settings = self._providers.get(provider)
        if settings is None:
            raise _unknown(
                f"there is no provider {provider!r}; known are {', '.join(sorted(self._providers))}"
            )
        kind = all_providers().get(settings.type)
        if kind is None:
            raise _unknown(
                f"provider {provider!r} has the type {settings.type!r}, which is not available; "
                f"available are {', '.join(sorted(all_providers()))}"
            )
        return settings, kind

    def _make(self, name: str) -> Model:
        settings, kind = self._provider(name)
        try:
            return kind.make(name, self._reach(name, settings, kind))
        except ImportError as error:
            raise _unknown(
                f"{name} needs the package {error.name or 'of its provider'}, which is missing: install Coterie anew"
            ) from error

    def _describe(self, name: str, settings: ProviderSettings, only_usable: bool) -> ProviderState:
        kind = all_providers().get(settings.type)
        names = _key_names(settings, kind)
        has_key = not names or find_key(names) is not None
        base_url = settings.base_url or (kind.base_url if kind else None)
        # The list comes with the library, which takes a while to import.
        known = _known_models(kind) if kind and (has_key or not only_usable) else ()
        return ProviderState(
            name,
            settings.type,
            base_url and shown_address(base_url),
            names,
            has_key,
            tuple(f"{name}/{model}" for model in known),
            _trouble(settings, kind, names, has_key),
        )

    def _reach(self, name: str, settings: ProviderSettings, kind: Provider) -> Reach:
        base_url = settings.base_url or kind.base_url
        if base_url is None and kind.needs_address:
            raise _unknown(f"provider {name.partition('/')[0]!r} needs a base_url")
        names = _key_names(settings, kind)
        found = find_key(names)
        if names and found is None:
            raise ModelError(
                f"{name} needs an API key: set the environment variable {' or '.join(names)} where the gateway runs "
                "(`coterie serve`; if there is none, the chat itself), and start it again",
                kind="auth",
                can_retry=False,
            )
        key, key_name = found or (None, None)
        keep_secret(key)
        keep_secrets_of(base_url or "")
        return Reach(settings.type, base_url or "", key, key_name, self._pool)

    def _pool(self) -> httpx2.AsyncClient:
        if self._connections is None:
            from coterie.models.connections import open_connections

            self._connections = open_connections()
        return self._connections


def _trouble(
    settings: ProviderSettings, kind: Provider | None, names: tuple[str, ...], has_key: bool
) -> str | None:
    if kind is None:
        return f"nothing here runs the type {settings.type} yet"
    if not has_key:
        return f"needs an API key: set {' or '.join(names)}"
    if kind.needs_address and not (settings.base_url or kind.base_url):
        return "needs a base_url"
    return None


def _key_names(settings: ProviderSettings, kind: Provider | None) -> tuple[str, ...]:
    if settings.api_key_env:
        return (settings.api_key_env,)
    return kind.key_names if kind else ()


@cache
def _known_models(kind: Provider) -> tuple[str, ...]:
    if kind.library_name is None:
        return kind.models

    from pydantic_ai.models import known_model_names

    prefix = f"{kind.library_name}:"
    names = [name.removeprefix(prefix) for name in known_model_names() if name.startswith(prefix)]
    return tuple(name for name in names if not _SPECIAL.search(name))


def _unknown(message: str) -> ModelError:
    return ModelError(message, kind="unknown_model", can_retry=False)
