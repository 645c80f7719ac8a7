"""What an agent may use, from one rule for every list."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def permits(name: str, allow: Iterable[str] | None, deny: Iterable[str] | None) -> bool:
    """Missing: no restriction. Empty: nothing. Otherwise globs; deny comes after allow."""
    if allow is not None and not any(fnmatchcase(name, pattern) for pattern in allow):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in deny or ())
