"""Text that any store keeps and any wire carries: no halves of surrogate pairs, which have no UTF-8, and no NUL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

T = TypeVar("T")
REPLACEMENT = "\ufffd"


_PLAIN = frozenset((type(None), bool, int, float, bytes))


def well_formed(text: str) -> str:
    """The text itself, or with halves of surrogate pairs joined or replaced where it has any."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def storable(text: str) -> str:
    """The text itself, or as near to it as can be kept: PostgreSQL knows no NUL."""
    if "\0" in text:
        return well_formed(text).replace("\0", REPLACEMENT)
    return text if text.isascii() else well_formed(text)


def is_storable(text: str) -> bool:
    return storable(text) is text


def all_storable(value: T) -> T:
    """The same for every text in a value: lists, mappings, and frozen dataclasses such as the parts of a message."""
    return value if _is_fine(value) else cast("T", _mended(value))


def _is_fine(value: Any) -> bool:
    """Every statement and every event passes here, and nearly all of what they carry is fine."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if isinstance(value, str):
        return is_storable(value)
    items: Iterable[Any]
    if isinstance(value, dict):
        items = (*value, *value.values())
    elif isinstance(value, list | tuple):
        items = value
    elif is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name) for field in fields(value)]
    else:
        return True
    for item in items:
        kind = type(item)
        if kind is str:
            if "\0" in item or not (item.isascii() or is_storable(item)):
                return False
        elif kind not in _PLAIN and not _is_fine(item):
            return False
    return True


def _mended(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case list() | tuple():
            return type(value)([_mended(item) for item in value])
        case dict():
            return {_mended(key): _mended(item) for key, item in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            was = {field.name: getattr(value, field.name) for field in fields(value)}
            return replace(value, **{name: _mended(item) for name, item in was.items() if not _is_fine(item)})
    return value
