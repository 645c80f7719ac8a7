"""Printing: the one place where the command line writes, and nothing leaves it that was not cleaned.

Names, memories, replies and errors come from models, plug-ins, web pages and other people. A test holds that nothing else
here reaches for the terminal, and that no command lets a control sequence through.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from coterie.cli.clean import clean, escaped, one_line, painted, to_ascii

if TYPE_CHECKING:
    from pathlib import Path

PIPE_COLUMNS = 200


def to_terminal() -> bool:
    """Somebody reads what is printed, as it is printed."""
    return sys.stdout.isatty()


def at_terminal() -> bool:
    """Somebody can be asked."""
    return sys.stdin.isatty() and to_terminal()


def encoding() -> str:
    return sys.stdout.encoding or "ascii"


def knows_escapes(environment: Mapping[str, str] = os.environ) -> bool:
    """The terminal is more than a printer: bold, and moving the cursor."""
    return environment.get("TERM", "").lower() not in ("", "dumb", "unknown")


def say(line: str = "", *, err: bool = False) -> None:
    """A line of ours, whatever it quotes."""
    _put(one_line(line) + "\n", err=err)


def say_error(message: str) -> None:
    say(f"error: {message}", err=True)


def say_text(text: str, *, err: bool = False) -> None:
    """Somebody's words, in as many lines as they have."""
    _put(clean(text) + "\n", err=err)


def say_painted(text: str) -> None:
    """Text with colours of ours in it, as it is to stand."""
    _put(painted(text))


def say_exactly(text: str) -> None:
    """What a program or a file is to get, to the letter; a terminal gets it clean."""
    if to_terminal():
        _put(clean(text))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def print_json(payload: Any) -> None:
    _put(escaped(json.dumps(payload, indent=2, ensure_ascii=False)) + "\n")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns; in a pipe without colour and never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(one_line(heading), overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    columns = terminal_columns() if to_terminal() else PIPE_COLUMNS
    say_painted(rendered(table, columns, colour=to_terminal() and knows_escapes()))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values; a value's further lines stand below its first."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        lines = clean(value).split("\n")
        for head, line in zip([name, *[""] * len(lines)], lines, strict=False):
            say(f"{head:<{width}}  {line}")


def ask(question: str) -> str:
    answer: str = typer.prompt(one_line(question), default="", show_default=False)
    return answer


def confirm(question: str) -> None:
    """Ends the command where the answer is no."""
    typer.confirm(one_line(question), abort=True)


def size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def terminal_columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def rendered(thing: Any, columns: int, *, colour: bool) -> str:
    """What rich makes of something that it can draw; nothing is printed."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(
        file=out,
        width=columns,
        force_terminal=True,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(thing)
    return out.getvalue()


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(one_line(title), total=total or None)
        yield lambda done: progress.update(task, completed=done)


class Picture:
    """The end of a terminal, drawn again and again, with lines that stay above it."""

    def __init__(self, *, colour: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(no_color=not colour, highlight=False)
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Picture:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def above(self, text: str) -> None:
        """Text that stays, with colours of ours in it."""
        from rich.text import Text

        self._live.update(Text(""), refresh=True)
        self._live.stop()
        say_painted(text)
        self._live.start()

    def draw(self, lines: Sequence[str], *, dim: bool) -> None:
        from rich.text import Text

        text = clean("\n".join(lines))
        self._live.update(Text(text, style="dim" if dim else ""), refresh=True)


def start_log(level: int, file: Path | None = None) -> None:
    """What is logged, to a file or to stderr: like everything else, clean."""
    import logging

    from coterie.cli.log import FORMAT, OneLine

    handler: logging.Handler = (
        logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
    )
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def reader_left() -> None:
    """Whoever read this went away: say nothing more, also not when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _put(text: str, *, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:
        if stream.isatty():  # it knows few letters
            stream.write(to_ascii(text))
        else:
            stream.flush()
            stream.buffer.write(text.encode("utf-8", "replace"))
    stream.flush()
