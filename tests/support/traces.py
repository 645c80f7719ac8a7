"""What a household leaves on disk and in its store, to show that nothing changed."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

Trace = dict[str, Any]


def trace(home: Path) -> Trace:
    """Every file by its hash, every link by its target, and every row of every table."""
    found: Trace = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if name.startswith("coterie.db"):
            continue  # its bytes may change while its rows do not
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return {**found, **rows(home)}


def rows(home: Path) -> Trace:
    with closing(sqlite3.connect(f"file:{home / 'coterie.db'}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            f"table {name}": sorted(database.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr)
            for name in tables
        }
