"""The one naming rule of the wire: snake_case inside and on RPC, camelCase on HTTP, either as input."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Wire(BaseModel):
    """A value that crosses a door. Unknown keys are refused; both spellings are read."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        serialize_by_alias=False,
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Nobody changes it, so a default can be shared: a roster has thousands."""
        return self
