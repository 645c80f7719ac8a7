"""How text comes into the database, wherever it is from: mended, so that no other place has to think of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Dialect, Engine, Text, event
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.types import TypeDecorator

from coterie.core.errors import InvalidRequest
from coterie.core.text import all_storable, is_storable, storable


class NotAKey(InvalidRequest, DontWrapMixin):
    """Mended, it would be the name of something else."""


class Key(TypeDecorator[str]):
    """Text that names something. What cannot be kept as it is names nothing, and is refused."""

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], str | None]:
        return _name  # dozens in every turn: the usual way through this class is five calls for each


def _name(value: str | None) -> str | None:
    if value is None or (value.isascii() and "\0" not in value):
        return value
    if not is_storable(value):
        raise NotAKey(f"{storable(value)[:100]!r} names nothing: a name must be Unicode text without NUL")
    return value


def json_text(value: Any) -> str:
    """A value as a column of JSON holds it. There a NUL is escaped, and nobody further down would see it."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(all_storable(value), ensure_ascii=False) if "\\u0000" in text else text


def mend_parameters(engine: Engine) -> None:
    """Every statement passes here with everything that it carries."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def mend(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> tuple[str, Any]:
        if many and not _are_fine(parameters):
            parameters = [all_storable(row) for row in parameters]
        elif not many and not _is_fine(parameters):
            parameters = all_storable(parameters)
        return statement, parameters


def _are_fine(rows: Sequence[Any]) -> bool:
    """Thousands of rows at once: all their texts in one."""
    values = chain.from_iterable(row.values() if type(row) is dict else row for row in rows)
    return is_storable("".join([value for value in values if type(value) is str]))


def _is_fine(row: Any) -> bool:
    for value in row.values() if type(row) is dict else row or ():
        if type(value) is str and not (value.isascii() and "\0" not in value) and not is_storable(value):
            return False
    return True
