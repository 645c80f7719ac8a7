"""Text that can be sent."""

from __future__ import annotations


def well_formed(text: str) -> str:
    """The text itself, or with halves of surrogate pairs joined or replaced where it has any: they have no UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
