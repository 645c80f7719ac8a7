"""How a value stands in its table: a field in the column of its name, or as JSON in that name with `_json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar

from sqlalchemy import Boolean, RowMapping, Table

from coterie.store.columns import json_text

T = TypeVar("T")


class Record(Generic[T]):
    """Reads and writes one kind of dataclass. Its fields and the table's columns are the only description of it."""

    def __init__(self, kind: type[T], table: Table, /, **renamed: str) -> None:
        self._kind = kind
        self._plain: list[tuple[str, str, bool]] = []
        self._json: list[tuple[str, str, bool]] = []
        self._defaults: dict[str, Any] = {}
        """What an empty JSON column stands for."""
        self._always = {column.name for column in table.c if not column.nullable}
        for field in fields(kind):  # type: ignore[arg-type]
            column = renamed.get(field.name, field.name)
            if column in table.c:
                self._plain.append((field.name, column, isinstance(table.c[column].type, Boolean)))
            elif f"{column}_json" in table.c:
                self._json.append((field.name, f"{column}_json", "tuple" in str(field.type)))
                made = field.default_factory() if field.default_factory is not MISSING else field.default
                self._defaults[field.name] = None if made is MISSING else made

    def values(self, value: T) -> dict[str, Any]:
        """As the table holds it. What is empty needs no JSON, where the column may be empty."""
        found = {column: getattr(value, name) for name, column, _ in self._plain}
        for name, column, _ in self._json:
            part = getattr(value, name)
            needed = column in self._always or (part is not None and (part or part != self._defaults[name]))
            found[column] = json_text(part) if needed else None
        return found

    def read(self, row: RowMapping | Mapping[str, Any], prefix: str = "", **more: Any) -> T:
        """From a row's mapping, whose columns may carry the table's name; `more` is what other columns add up to."""
        found = {
            name: bool(row[prefix + column]) if is_flag else row[prefix + column]
            for name, column, is_flag in self._plain
        }
        for name, column, is_tuple in self._json:
            text = row[prefix + column]
            if text is None:
                found[name] = self._defaults[name]
            else:
                found[name] = tuple(json.loads(text)) if is_tuple else json.loads(text)
        return self._kind(**{**found, **more})
