"""What a kind of provider is, and where each is found: one file in providers/."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from coterie.core.ports import Model
from coterie.models import providers

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class Reach:
    """How one configured provider is reached."""

    type: str
    base_url: str
    """Empty where the kind needs none."""
    key: str | None
    key_name: str | None
    """The environment variable that held the key."""
    pool: Callable[[], httpx2.AsyncClient]
    """Connections that all providers share; opened when first used."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A kind of provider, with what it is reached with unless the configuration says otherwise."""

    make: Callable[[str, Reach], Model]
    """A model by its whole name. Imports what it needs by itself: most people use one provider."""
    base_url: str | None = None
    needs_address: bool = True
    key_names: tuple[str, ...] = ()
    """Where its key may stand, in order; empty where it needs none."""
    models: tuple[str, ...] = ()
    """Models that it is known for."""
    library_name: str | None = None
    """What the library that knows more of them calls it."""
    first_model: str | None = None
    """For somebody who has a key and has chosen nothing yet."""
    order: int = 100
    """Whose first model is taken where there are several keys."""
    built_in: bool = True
    """It can be used by its own name, without any configuration."""


@cache
def all_providers() -> Mapping[str, Provider]:
    """By type, those first whose first model comes first."""
    names = [file.name for file in pkgutil.iter_modules(providers.__path__)]
    known = {name.replace("_", "-"): import_module(f"{providers.__name__}.{name}").PROVIDER for name in names}
    return dict(sorted(known.items(), key=lambda item: (item[1].order, item[0])))
