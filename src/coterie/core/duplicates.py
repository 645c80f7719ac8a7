"""Which texts are the same to a reader: those that differ in nothing that could carry a meaning.

Not by how many words they share: "the boat is not blue" shares nearly all of its words with "the boat is blue", and "at 7" with
"at 8". So the rule says what may differ, and everything else keeps two texts apart, in every language: case, spacing, the
punctuation around words, bullets, and a few words that say nothing. Order stays: "Ann owes Bob" is not "Bob owes Ann".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

LONGEST = 20_000
"""Characters that are compared; a longer text is the same only as one that is equal."""
SAYS_NOTHING = frozenset(("the", "please", "also"))
"""Only words that are nothing else in another language: "a" is an object's mark, a letter and a vitamin."""
_AROUND = "\"“”„«»‹›()[]{}‘’'…"
"""Around a word, on either side of it."""
_BEHIND = ".,;:!。，；：！、" + _AROUND
_BULLET = re.compile(r"(?m)^[ \t]*(?:[-*•·]|#{1,6})[ \t]+")

Key = TypeVar("Key", int, str)


def distinct(
    found: Iterable[Key], essence: Mapping[Key, str], newness: Callable[[Key], Any], limit: int
) -> list[tuple[Key, Key]]:
    """Of each group of texts that are the same: which to show, the newest, and which was found first."""
    groups: dict[str, tuple[Key, Key]] = {}
    for key in found:
        shown, first = groups.setdefault(essence[key], (key, key))
        if shown != key and newness(key) > newness(shown):
            groups[essence[key]] = (key, first)
    return list(groups.values())[:limit]


def same(one: str, other: str) -> bool:
    """Near enough that a reader needs only one of them."""
    return essence(one) == essence(other)


def essence(text: str) -> str:
    """What is left of a text without what may differ."""
    if len(text) > LONGEST:
        return text
    plain = _BULLET.sub("", unicodedata.normalize("NFC", text).replace("’", "'"))
    shouted = plain.upper() == plain
    kept = []
    for word in plain.split():
        bare = _bare(word)
        # US is not us, IT is not it; but a text all in capitals is only loud.
        said = bare if len(bare) > 1 and bare.isupper() and not shouted else bare.lower()
        if said not in SAYS_NOTHING:
            kept.append(said)
    return " ".join(kept) or plain


def _bare(word: str) -> str:
    """Without the punctuation around it, which is all there is of some. A point before a number is a part of it."""
    bare = word.rstrip(_BEHIND).lstrip(_AROUND)
    return bare or word
