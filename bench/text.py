"""English sentences for memories and questions, as many as are asked for.

Words follow each other as they do in a real text: the documentation that comes with every Python, or a file.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

_WORD = re.compile(r"[A-Za-z][a-z']*")
_SENTENCE = re.compile(r"[.!?:;]\s|\n\n")
MODULES = 60
"""Of the standard library, whose docstrings are read beside its language reference."""


class Prose:
    """A chain of words: each is followed by one that followed it somewhere in the text."""

    def __init__(self, seed: int, file: Path | None = None) -> None:
        self._drawn = random.Random(seed)
        self._firsts, self._after = _chain(file)

    def sentence(self) -> str:
        draw = self._drawn.choice
        words = [draw(self._firsts)]
        for _ in range(self._drawn.randint(7, 23)):
            words.append(draw(self._after.get(words[-1]) or self._firsts))
        return " ".join(words)

    def sentences(self, count: int) -> list[str]:
        return [self.sentence() for _ in range(count)]

    def question(self) -> str:
        """Seven words in a row, as somebody might ask for what they half remember."""
        return " ".join(self.sentence().split()[:7])


@cache
def _chain(file: Path | None) -> tuple[list[str], dict[str, list[str]]]:
    firsts: list[str] = []
    after: dict[str, list[str]] = {}
    for text in _standard() if file is None else [file.read_text(encoding="utf-8")]:
        for sentence in _SENTENCE.split(text):
            words = _WORD.findall(sentence)
            if len(words) >= 4:
                firsts.append(words[0])
                for one, next_one in pairwise(words):
                    after.setdefault(one, []).append(next_one)
    return firsts, after


def _standard() -> Iterator[str]:
    from pydoc_data.topics import topics

    yield from topics.values()
    largest = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda f: -f.stat().st_size)
    for file in sorted(largest[:MODULES]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""
