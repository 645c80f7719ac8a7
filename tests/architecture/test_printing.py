"""One place prints: whatever a command shows goes through cli/output.py, which cleans it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from coterie.cli import app

CLI = Path(__file__).parents[2] / "src" / "coterie" / "cli"
PRINTER = "output.py"
PROMPT = "chat/prompt.py"
"""Where a person types; what stands around the prompt is made fit there, and what is written above it is painted."""
NAMES = {"print", "input", "echo", "secho", "echo_via_pager", "progressbar", "breakpoint"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__", "displayhook", "excepthook"}
OF_TYPER = {"echo", "secho", "prompt", "confirm", "style"}
MODULES = (
    "rich.console",
    "rich.live",
    "rich.progress",
    "rich.prompt",
    "rich.status",
    "click",
    "curses",
    "getpass",
)
RICH = {"print", "print_json", "inspect", "get_console"}


def prints(tree: ast.Module) -> Iterator[str]:
    """What could write to a terminal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
            yield f"line {node.lineno}: {node.func.id}()"
        elif isinstance(node, ast.Attribute) and node.attr in ("write_raw", "print_formatted_text"):
            yield f"line {node.lineno}: {node.attr}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (
                (owner == "sys" and name in STREAMS)
                or (owner == "typer" and name in OF_TYPER)
                or (owner == "os" and name in ("write", "system", "popen", "writev", "sendfile"))
                or (owner == "logging" and name in ("basicConfig", "StreamHandler", "lastResort"))
                or (owner == "rich" and name in RICH)
            ):
                yield f"line {node.lineno}: {owner}.{name}"
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            full = {f"{node.module}.{name}" for name in names} | {str(node.module)}
            if (
                any(module.startswith(MODULES) for module in full)
                or (node.module == "sys" and names & STREAMS)
                or (node.module == "typer" and names & OF_TYPER)
                or (node.module == "rich" and names & RICH)
                or str(node.module).startswith("prompt_toolkit")
            ):
                yield f"line {node.lineno}: from {node.module}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith((*MODULES, "prompt_toolkit")):
                    yield f"line {node.lineno}: import {alias.name}"


def test_nothing_but_the_printer_prints() -> None:
    found = {
        name: list(prints(ast.parse(file.read_text(encoding="utf-8"))))
        for file in sorted(CLI.rglob("*.py"))
        if (name := file.relative_to(CLI).as_posix()) not in (PRINTER, PROMPT)
    }
    assert {name: places for name, places in found.items() if places} == {}


def test_the_prompt_paints_all_that_it_writes() -> None:
    tree = ast.parse((CLI / PROMPT).read_text(encoding="utf-8"))
    others = [place for place in prints(tree) if "prompt_toolkit" not in place and "write_raw" not in place]
    assert others == []
    [written] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "write_raw"
    ]
    [argument] = written.args
    assert ast.unparse(argument) == "painted(text)"


@pytest.mark.parametrize(
    "source",
    [
        "print('x')",
        "import typer\ntyper.echo(text)",
        "from typer import echo",
        "import sys\nsys.stdout.write(text)",
        "import sys\nsys.stderr.buffer.write(text)",
        "from sys import stdout",
        "import os\nos.write(1, text)",
        "from rich.console import Console",
        "from rich import print",
        "from rich import console",
        "import click",
        "output.write_raw(text)",
        "from prompt_toolkit import print_formatted_text",
        "import logging\nlogging.basicConfig()",
    ],
)
def test_another_way_would_be_seen(source: str) -> None:
    assert list(prints(ast.parse(source)))


def test_help_needs_no_more_than_every_terminal_has() -> None:
    """typer prints it itself."""

    def texts(command: Any, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        yield " ".join(names), command.get_help(Context(command, info_name=names[-1]))
        for name, below in getattr(command, "commands", {}).items():
            yield from texts(below, (*names, name))

    assert [name for name, text in texts(get_command(app), ("coterie",)) if not text.isascii()] == []
