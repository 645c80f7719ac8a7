"""No text can hold the interpreter: every pattern takes a hostile megabyte in its stride, and none hides in a function."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.patterns import hangs

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
TREES = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
METHODS = ("match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split")


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node


def _uses_of_re(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re":
            yield node


def test_every_pattern_is_compiled_where_its_module_is_imported() -> None:
    """There the next test finds it. No pattern is made of somebody's text."""
    wrong = []
    for path, tree in TREES.items():
        if any(isinstance(node, ast.ImportFrom) and node.module == "re" for node in ast.walk(tree)):
            wrong.append(f"{path}: from re import …")
        inside = {use for function in _functions(tree) for use in _uses_of_re(function)}
        for use in _uses_of_re(tree):
            harmless = use.attr in ("Pattern", "Match") or use.attr.isupper()
            if not harmless and (use in inside or use.attr not in ("compile", "escape")):
                wrong.append(f"{path}:{use.lineno}: re.{use.attr}")
    assert wrong == []


def _methods_by_name() -> dict[str, set[str]]:
    """How names that look like patterns are used, in any module."""
    found: dict[str, set[str]] = {}
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
                found.setdefault(node.value.id, set()).add(node.attr)
    return found


def _methods_by_pattern() -> dict[str, list[str]]:
    """Patterns that stand alone under a name; those in tables and tuples are tried in every way."""
    from importlib import import_module

    used = _methods_by_name()
    found: dict[str, set[str]] = {}
    for path, tree in TREES.items():
        if not any(True for _ in _uses_of_re(tree)):
            continue
        module = import_module(
            ".".join(("coterie", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        )
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and name in used:
                found.setdefault(value.pattern, set()).update(used[name])
    return {pattern: sorted(methods) for pattern, methods in found.items()}


def test_every_pattern_takes_a_hostile_megabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.architecture.patterns"],
        input=json.dumps(_methods_by_pattern()),
        capture_output=True,
        text=True,
        cwd=SOURCE.parents[1],
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    first, *bad = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["patterns"] > 40
    assert bad == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"^#{1,6}\s+(.*?)\s*#*\s*$",
        r"\bwhat do you (?:remember|know) about (.+?)[?.!]*$",
        r"⟦(\w+) result of (.*?), (\w+), run [^⟧]*⟧\n(.*?)\n⟦/\1⟧",
    ],
)
def test_a_pattern_that_is_not_linear_is_noticed(pattern: str) -> None:
    """The check itself: each of these stood here once."""
    assert hangs(re.compile(pattern, re.S), frozenset(["search"]), seconds=3)


def test_a_pattern_that_is_linear_passes() -> None:
    assert not hangs(re.compile(r"^- ([a-z0-9-]+)(?=[ :]|$)", re.M), frozenset(["findall"]))
