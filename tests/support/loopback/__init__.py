"""A test that reaches beyond loopback fails, whoever does it: the test, a thread, or a process that it started.

Each attempt is refused where it is made and written into a file. The file is looked at after every phase of every test,
so that an attempt counts also where its error was swallowed. Proxies on loopback would lead out as well: none is used.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class ReachedOut(Exception):
    """Something tried to leave this machine."""


class Record:
    """The attempts of one test process and of everything that it starts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def check(self) -> None:
        """Raises for what was written down since the last time."""
        with self._path.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
        self._seen += len(new)
        if new:
            raise ReachedOut("beyond loopback: " + new.decode().strip())


def guarded() -> Record:
    """This process and its children, from now on."""
    descriptor, name = tempfile.mkstemp(prefix="coterie-loopback-")
    os.close(descriptor)
    Path(name).chmod(0o666)  # a child may run under another account
    atexit.register(Path(name).unlink, missing_ok=True)
    for proxy in [variable for variable in os.environ if variable.lower().endswith("_proxy")]:
        del os.environ[proxy]
    os.environ |= {"NO_PROXY": "*", "no_proxy": "*"}  # nor one that the system's settings name
    os.environ["LOOPBACK_RECORD"] = name
    _add("PYTHONPATH", str(HERE), os.pathsep)
    _add("NODE_OPTIONS", f'--require="{HERE / "guard.cjs"}"', " ")

    from tests.support.loopback import sitecustomize

    sitecustomize.guard()
    return Record(Path(name))


def _add(variable: str, value: str, separator: str) -> None:
    parts = os.environ.get(variable, "").split(separator)
    os.environ[variable] = separator.join([value, *(part for part in parts if part and part != value)])


RECORD = guarded()


def _checked() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        RECORD.check()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from _checked())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from _checked())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    return (yield from _checked())
