"""Text that any store keeps and any wire carries: no halves of surrogate pairs, which have no UTF-8, and no NUL."""

from __future__ import annotations

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
    text = well_formed(text)
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def is_storable(text: str) -> bool:
    return storable(text) is text


def all_storable(value: T) -> T:
    """The same for every text in a value: lists, mappings, and frozen dataclasses such as the parts of a message."""
    kept: Any = value
    if type(value) in _PLAIN:  # most of what there is, in every statement and event
        return value
    match value:
        case str():
            kept = storable(value)
        case list() | tuple():
            items = [all_storable(item) for item in value]
            if any(now is not was for now, was in zip(items, value, strict=True)):
                kept = type(value)(items)
        case dict():
            pairs = [(all_storable(key), all_storable(item)) for key, item in value.items()]
            was = value.items()
            if any(k is not old or v is not item for (k, v), (old, item) in zip(pairs, was, strict=True)):
                kept = dict(pairs)
        case _ if is_dataclass(value) and not isinstance(value, type):
            changed = {
                field.name: now
                for field in fields(value)
                if (now := all_storable(was := getattr(value, field.name))) is not was
            }
            kept = replace(value, **changed) if changed else value
    return cast("T", kept)
