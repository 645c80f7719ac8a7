"""What the terminal can show, and text made fit for it."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.cli import output
from coterie.cli.clean import clean, to_ascii

STEP = 4096
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_COLOURS = frozenset(("red", "green", "yellow", "cyan"))


@dataclass(frozen=True, slots=True)
class Terminal:
    escapes: bool
    """It understands escape sequences: bold, and moving the cursor."""
    colour: bool
    unicode: bool

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ, encoding: str | None = None) -> Terminal:
        escapes = output.knows_escapes(environment)
        encoding = encoding or output.encoding()
        return cls(
            escapes=escapes,
            colour=escapes and not environment.get("NO_COLOR"),
            unicode=encoding.lower().startswith("utf") and _locale_is_utf8(environment),
        )

    @property
    def columns(self) -> int:
        return max(shutil.get_terminal_size().columns, 10)

    @property
    def lines(self) -> int:
        return max(shutil.get_terminal_size().lines, 5)

    def paint(self, text: str, *styles: str) -> str:
        codes = [_CODES[s] for s in styles if self.escapes and (self.colour or s not in _COLOURS)]
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text else text

    def fit(self, text: str) -> str:
        """Without anything that could move the cursor, and in characters that the terminal has."""
        text = clean(text).expandtabs(4)
        return text if self.unicode else to_ascii(text)

    def wrap(self, text: str, indent: str = "  ") -> str:
        """Broken between words; what follows a break is indented."""
        indent = indent if self.columns > 30 else ""
        lines = (
            textwrap.fill(line, self.columns - 1, subsequent_indent=indent, replace_whitespace=False)
            for line in text.split("\n")
        )
        return "\n".join(lines)


def short(text: str, limit: int) -> str:
    """One line of at most this many characters."""
    text = " ".join(text[: limit * 8].split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def last_lines(text: str, columns: int, rows: int, width_of: Callable[[str], int]) -> list[str]:
    """The end of a text as it looks in a window of this size."""
    lines: list[str] = []
    # Cut at steps, so that the lines of a long paragraph do not break elsewhere with every word that comes in.
    start = max(len(text) - columns * rows, 0) // STEP * STEP
    for line in reversed(text[start:].split("\n")):
        lines[:0] = _folded(line, columns, width_of)
        if len(lines) >= rows:
            break
    return lines[-rows:]


def _folded(line: str, columns: int, width_of: Callable[[str], int]) -> list[str]:
    folded, start, width, space = [], 0, 0, -1
    for i, character in enumerate(line):
        width += width_of(character)
        if width > columns:
            end = space + 1 if space >= start else i
            folded.append(line[start:end].rstrip())
            start, width = end, sum(map(width_of, line[end : i + 1]))
        if character == " ":
            space = i
    return [*folded, line[start:]]


def _locale_is_utf8(environment: Mapping[str, str]) -> bool:
    """What the person's locale says. Where it is plain C, Python takes UTF-8 for granted and says so itself."""
    if environment.get("LANG") in ("C", "POSIX") and environment.get("LC_CTYPE", "C.UTF-8") == "C.UTF-8":
        return "utf" in environment.get("LC_ALL", "").lower()
    chosen = next((v for n in ("LC_ALL", "LC_CTYPE", "LANG") if (v := environment.get(n))), "")
    return not chosen or "utf" in chosen.lower()
