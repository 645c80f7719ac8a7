"""Every pattern of Coterie against hostile strings. Run as a process: prints a line of JSON for each that does not end.

Patterns are caught as the modules compile them, so that none can be missed; what is pumped up is made of each pattern's
own characters. A pattern that is not linear takes hours for a megabyte, one that is takes milliseconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import re
import resource
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_parser: Any = import_module("re._parser")  # what a pattern is made of; nothing public says it
MEGABYTE = 1_000_000
SAMPLE = 8_000
SECONDS = 20
"""Of the processor's time: far more than any linear pattern needs, however busy the machine is."""
USUAL = (" ", "\n", "a", "0", "_", "-", ".", "/", "#", "⟦")

Use = tuple[str, "re.Pattern[str]"]
"""Where a pattern was compiled, and the pattern."""


def compiled(package: str = "coterie") -> list[Use]:
    """All patterns that the modules of a package compile as they are imported."""
    found: dict[tuple[str, int], Use] = {}
    usual = re.compile
    folder = str(Path(import_module(package).__file__ or "").parent)

    def watched(pattern: Any, flags: Any = 0) -> Any:
        made = usual(pattern, flags)
        place = sys._getframe(1).f_code.co_filename
        if place.startswith(folder) and isinstance(made.pattern, str):
            module = os.path.relpath(place, folder)
            found[made.pattern, made.flags] = (f"{module}: {made.pattern!r}", made)
        return made

    re.compile = watched
    try:
        for name in [m for m in sys.modules if m.partition(".")[0] == package]:
            del sys.modules[name]
        for module in pkgutil.walk_packages([folder], f"{package}."):
            if "migrations" not in module.name and not module.name.endswith("__main__"):
                import_module(module.name)
    finally:
        re.compile = usual
    return list(found.values())


def hostile(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """What to begin with, and what to repeat behind it."""
    own = list(dict.fromkeys(_characters(_parser.parse(pattern.pattern, pattern.flags))))[:8]
    example = _example(_parser.parse(pattern.pattern, pattern.flags))
    starts = {"", example, *(example[:cut] for cut in (len(example) // 2, len(example) - 1))}
    pumps = {*own, *USUAL, example or "a", example[:-1] or "a", example[1:] or "a"}
    pumps |= {a + b for a in own[:3] for b in (*own[:3], " ", "\n")}
    for start in sorted(starts):
        for pump in sorted(pumps):
            if pump:
                yield start, pump


def _pumped(recipe: tuple[str, str], length: int) -> Iterator[str]:
    start, pump = recipe
    body = pump * (length // len(pump))
    yield start + body
    yield start + body + "\x01"


def _characters(tree: Any) -> Iterator[str]:
    for code, value in tree:
        name = str(code)
        if name in ("LITERAL", "NOT_LITERAL"):
            yield chr(value)
        elif name == "IN":
            yield from _members(value)
        elif name == "BRANCH":
            for branch in value[1]:
                yield from _characters(branch)
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            yield from _characters(value[2])
        elif name == "SUBPATTERN":
            yield from _characters(value[3])
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from _characters(value[1])
        elif name == "ATOMIC_GROUP":
            yield from _characters(value)


CATEGORIES = {"CATEGORY_DIGIT": "0", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}


def _members(members: Any) -> Iterator[str]:
    for code, value in members:
        if str(code) == "LITERAL":
            yield chr(value)
        elif str(code) == "RANGE":
            yield chr(value[0])
        elif str(code) == "CATEGORY":
            yield CATEGORIES.get(str(value), "!")


def _example(tree: Any) -> str:
    """Something that nearly matches."""
    said = ""
    for code, value in tree:
        name = str(code)
        if name == "LITERAL":
            said += chr(value)
        elif name in ("NOT_LITERAL", "ANY"):
            said += "a"
        elif name == "IN":
            negated = str(value[0][0]) == "NEGATE"
            said += "~" if negated else next(_members(value), "a")
        elif name == "BRANCH":
            said += _example(value[1][0])
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            said += _example(value[2]) * max(1, min(int(value[0]), 3))
        elif name == "SUBPATTERN":
            said += _example(value[3])
    return said


def hangs(pattern: re.Pattern[str], methods: frozenset[str], seconds: int = SECONDS) -> bool:
    """Whether there is a recipe that it does not end with."""
    child = multiprocessing.get_context("fork").Process(target=_exercise, args=(pattern, methods, seconds))
    child.start()
    child.join()
    return child.exitcode != 0


def _exercise(pattern: re.Pattern[str], methods: frozenset[str], seconds: int) -> None:
    """All recipes at a sample's length, then the worst of them at a megabyte; the system ends it when its time is over."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    slowest: list[tuple[float, tuple[str, str]]] = []
    for recipe in hostile(pattern):
        started = time.perf_counter()
        for text in _pumped(recipe, SAMPLE):
            _use(pattern, text, methods)
        slowest.append((time.perf_counter() - started, recipe))
    for _, recipe in sorted(slowest, reverse=True)[:2]:
        for text in _pumped(recipe, MEGABYTE):
            _use(pattern, text, methods)


def _use(pattern: re.Pattern[str], text: str, methods: frozenset[str]) -> None:
    for method in methods:
        if method in ("sub", "subn"):
            pattern.sub("", text)
        elif method == "finditer":
            for _ in pattern.finditer(text):
                pass
        else:
            getattr(pattern, method)(text)


def main() -> None:
    """Standard input says which methods each pattern is used with, by its text."""
    methods: dict[str, list[str]] = json.loads(sys.stdin.read())
    patterns = compiled()
    print(json.dumps({"patterns": len(patterns)}), flush=True)
    for place, pattern in patterns:
        used = frozenset(methods.get(pattern.pattern) or ("match", "search", "fullmatch", "finditer", "sub"))
        if hangs(pattern, used):
            print(json.dumps({"hangs": f"{place} ({', '.join(sorted(used))})"}), flush=True)


if __name__ == "__main__":
    main()
