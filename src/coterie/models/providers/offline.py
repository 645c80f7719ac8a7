"""The built-in model that needs no key and no network."""

from __future__ import annotations

from coterie.core.ports import Model
from coterie.models.provider import Provider, Reach


def make(name: str, reach: Reach) -> Model:
    from coterie.models.offline import OfflineModel

    return OfflineModel(name)


PROVIDER = Provider(
    make,
    needs_address=False,
    models=("demo",),
)
