"""Words and their stems."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from coterie.core.words import stem


def test_threads_that_stem_at_once_do_not_mix_up_their_words() -> None:
    words = [
        "relational",
        "hopping",
        "conditional",
        "boats",
        "generously",
        "vietnamization",
        "electrical",
        "a",
    ]
    alone = [stem.__wrapped__(word) for word in words]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: [stem.__wrapped__(word) for word in words], range(400)))
    finally:
        sys.setswitchinterval(before)
    assert all(one == alone for one in found)
