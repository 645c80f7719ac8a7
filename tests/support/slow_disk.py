"""A disk whose syncs take their time, for processes that are started with these variables. Linux, with a C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("slow_sync.c")


def available() -> bool:
    return sys.platform == "linux" and shutil.which("cc") is not None


needs_slow_disk = pytest.mark.skipif(
    not available() and not os.environ.get("CI"), reason="a slow disk needs Linux and a C compiler"
)


def slow_disk(milliseconds: int = 0, gate: Path | None = None, broken: Path | None = None) -> dict[str, str]:
    """The variables of a process that is to have such a disk. While there is a file `gate`, no sync ends; while there is
    one `broken`, each fails."""
    files = {"SLOW_SYNC_GATE": gate, "SLOW_SYNC_BROKEN": broken}
    given = {name: str(file) for name, file in files.items() if file is not None}
    return {"LD_PRELOAD": str(_library()), "SLOW_SYNC_MS": str(milliseconds), **given}


@cache
def _library() -> Path:
    library = Path(tempfile.mkdtemp(prefix="slow-sync-")) / "slow_sync.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library
