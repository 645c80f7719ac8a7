"""Names that were mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 100
"""Characters of a name that is looked for, and of one that is quoted."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one that was meant, where one is near enough."""
    by_small = {one.lower(): one for one in names}
    found = difflib.get_close_matches(name[:LONGEST].lower(), by_small, n=1, cutoff=0.6)
    return by_small[found[0]] if found else None


def hint(name: str, names: Iterable[str]) -> str:
    """To stand behind `there is no …`; empty where nothing is near."""
    meant = nearest(name, names)
    return f"; did you mean {meant!r}?" if meant else ""
