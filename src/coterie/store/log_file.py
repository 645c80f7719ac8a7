"""SQLite's write-ahead log, looked at before SQLite does: it takes up what it can read and drops the rest in silence.

https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

HEADER, FRAME = 32, 24
LITTLE, BIG = 0x377F0682, 0x377F0683
"""Which way round the checked numbers are."""
MAX_BYTES = 1 << 30
MASK = 0xFFFFFFFF
CHUNK = 512


def trouble_in_log(log: Path) -> str | None:
    """Transactions that were written whole, but cannot be read any more. None where there are none.

    What a crash cut short is no trouble: nobody was told of it. Nobody may have the database open.
    """
    try:
        data = log.read_bytes() if log.stat().st_size <= MAX_BYTES else b""
    except OSError:
        return None
    if len(data) < HEADER + FRAME:
        return None
    magic, _, size, _, salt_1, salt_2, *sums = struct.unpack(">8I", data[:HEADER])
    if magic not in (LITTLE, BIG) or not _is_size(size) or _head_sums(data[:24], magic) != tuple(sums):
        return "the head of its log is not that of a log, so what the log holds is lost"
    state: tuple[int, int] | None = (sums[0], sums[1])
    last = lost = 0
    pending = False
    for number, (page, commit, *salts, sum_1, sum_2, step) in enumerate(_frames(data, magic, size), 1):
        if salts != [salt_1, salt_2] or page == 0:
            state = None  # damaged, or left over from before the log began anew
            continue
        # The very last frame may have been cut off in the middle.
        lost += pending
        pending = False
        if state is not None:
            state = step(state)
            if state != (sum_1, sum_2):
                state = None
        if state is None:
            pending = bool(commit)
        elif commit:
            last = number
    return f"its log cannot be read beyond frame {last}, and {lost} transactions follow" if lost else None


def _frames(data: bytes, magic: int, size: int) -> Iterator[tuple[Any, ...]]:
    """Each frame's head, and what it does to the check sum. Many are added up at once."""
    import numpy as np

    first, second = _weights((8 + size) // 4)
    whole = FRAME + size
    for begin in range(HEADER, len(data) - whole + 1, whole * CHUNK):
        count = min(CHUNK, (len(data) - begin) // whole)
        rows = np.frombuffer(data, np.uint8, count * whole, begin).reshape(count, whole)
        checked = np.concatenate([rows[:, :8], rows[:, FRAME:]], axis=1)
        words = checked.view("<u4" if magic == LITTLE else ">u4").astype(np.uint64)
        added = zip((words @ first[2:]).tolist(), (words @ second[2:]).tolist(), strict=True)
        heads = rows[:, :FRAME].copy().view(">u4").tolist()
        for head, more in zip(heads, added, strict=True):
            yield *head, partial(_step, first[:2].tolist(), second[:2].tolist(), more)


def _step(
    first: list[int], second: list[int], more: tuple[int, int], state: tuple[int, int]
) -> tuple[int, int]:
    return (
        (first[0] * state[0] + first[1] * state[1] + more[0]) & MASK,
        (second[0] * state[0] + second[1] * state[1] + more[1]) & MASK,
    )


def _is_size(size: int) -> bool:
    return 512 <= size <= 65_536 and size & (size - 1) == 0


def _head_sums(data: bytes, magic: int) -> tuple[int, int]:
    """s0 += x[i] + s1; s1 += x[i + 1] + s0."""
    one = two = 0
    numbers = struct.unpack(f"{'<' if magic == LITTLE else '>'}{len(data) // 4}I", data)
    for x, y in zip(numbers[::2], numbers[1::2], strict=True):
        one = (one + x + two) & MASK
        two = (two + y + one) & MASK
    return one, two


@cache
def _weights(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """How much of the state before and of each word is in the two sums: their steps are linear."""
    import numpy as np

    first, second = [1, 0], [0, 1]
    steps = []
    for _ in range(count // 2):
        # What one more pair of words does to all that came before: s0' = s0 + s1, s1' = s0 + 2 s1.
        steps.append((first[:], second[:]))
        first, second = (
            [first[0] + second[0], first[1] + second[1]],
            [
                first[0] + 2 * second[0],
                first[1] + 2 * second[1],
            ],
        )
    into_first, into_second = [first[0], first[1]], [second[0], second[1]]
    # A pair adds x to s0 and x + y to s1, then goes through all the steps that follow it.
    for index in range(count // 2):
        after_first, after_second = steps[count // 2 - 1 - index]
        into_first += [after_first[0] + after_first[1], after_first[1]]
        into_second += [after_second[0] + after_second[1], after_second[1]]
    as_array = [np.array([w & MASK for w in weights], np.uint64) for weights in (into_first, into_second)]
    return as_array[0], as_array[1]
