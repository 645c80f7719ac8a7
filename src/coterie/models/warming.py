"""What SDKs put off until the first reply, done where they are imported: on a thread. It takes a tenth of a second and
more, and replies are read on the event loop."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

from pydantic import BaseModel


def prepare_events(sdk: str, kind: Any) -> None:
    """Makes what reads one kind of event of OpenAI's or Anthropic's SDK. Where that is elsewhere now, only time is lost."""
    with suppress(Exception):
        import_module(f"{sdk}._models").construct_type(type_=kind, value={})


def prepare_models(*kinds: type[BaseModel]) -> None:
    for kind in kinds:
        kind.model_rebuild()
