"""Import beside a bare insert of the same rows plus their embedding, and how long it keeps other writers out.

    python -m bench.importing [--markdown]

Through the operation that HTTP, RPC and the command line call, on SQLite, with the agent named in every line.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.memory import Watched
from bench.row import Row, at_most, markdown, plain
from coterie.api.operations.memory import MemoryImport, memory_import
from coterie.app import opened
from coterie.engine.gateway import Gateway
from coterie.engine.household.home import Home

ROWS = 50_000
BATCH = 5_000
LOOK_SECONDS = 0.002


def run() -> list[Row]:
    texts = sentences(ROWS)
    lines = "".join(
        json.dumps({"content": text, "agentId": "dot", "scope": "private"}) + "\n" for text in texts
    )
    with house() as gateway:
        embedder = gateway.memories.embedder
        assert embedder is not None
        embedder.embed(["warm up"])
        inserted = min(bare(texts) for _ in range(2))
        watched = Watched(embedder)
        gateway.memories.use(watched)
        with Visitor(gateway.home.path / "coterie.db") as visitor:
            started = time.perf_counter()
            done = memory_import(gateway, MemoryImport(content=lines))
            took = time.perf_counter() - started
        assert done.added == ROWS
    allowed = inserted + watched.seconds
    return [
        Row("import with agentId in each line", f"{ROWS / took:,.0f} rows/s"),
        Row("bare insert; embedding", f"{ROWS / inserted:,.0f}; {ROWS / watched.seconds:,.0f} rows/s"),
        at_most(
            f"import of {ROWS:,} / bare insert and embedding",
            f"{took:.2f} / {allowed:.2f} s",
            took / allowed,
            5,
        ),
        at_most(
            f"import of {ROWS:,} less embedding / bare insert",
            f"{took - watched.seconds:.2f} / {inserted:.2f} s",
            (took - watched.seconds) / inserted,
            5,
        ),
        at_most("longest that another writer waits meanwhile", "", visitor.longest * 1000, 50, "ms"),
        Row("99 of 100 wait at most", f"{visitor.usually * 1000:.0f} ms"),
    ]


def sentences(count: int) -> list[str]:
    """Twenty words each, common and rare ones as texts have them."""
    made = random.Random(2)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(made.choices(letters, k=made.randint(3, 9))) for _ in range(20_000)]
    return [
        " ".join(words[min(int(made.paretovariate(0.6)), len(words)) - 1] for _ in range(20))
        for _ in range(count)
    ]


def bare(texts: Sequence[str]) -> float:
    """Seconds for a table and an FTS5 index of the same rows, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        connection = sqlite3.connect(Path(folder) / "bare.db")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE memories (id INTEGER PRIMARY KEY, content TEXT)")
        connection.execute(
            "CREATE VIRTUAL TABLE memories_fts USING fts5 (content, tokenize = 'porter unicode61')"
        )
        rows = list(enumerate(texts, 1))
        started = time.perf_counter()
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            with connection:
                connection.executemany("INSERT INTO memories VALUES (?, ?)", some)
                connection.executemany("INSERT INTO memories_fts (rowid, content) VALUES (?, ?)", some)
        took = time.perf_counter() - started
        connection.close()
        return took


class Visitor:
    """Another process's writer, in effect: a connection of its own that asks for the lock again and again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._end = threading.Event()
        self._waits: list[float] = []
        self._thread = threading.Thread(target=self._ask)

    @property
    def longest(self) -> float:
        return max(self._waits, default=0.0)

    @property
    def usually(self) -> float:
        return sorted(self._waits)[int(len(self._waits) * 0.99)] if self._waits else 0.0

    def __enter__(self) -> Visitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _ask(self) -> None:
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=0)
        waiting_since: float | None = None
        while not self._end.wait(LOOK_SECONDS):
            asked = time.perf_counter()
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                waiting_since = waiting_since or asked
                continue
            self._waits.append(asked - (waiting_since or asked))
            waiting_since = None
        connection.close()


@contextmanager
def house() -> Iterator[Gateway]:
    with (
        tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder,
        opened(Home(Path(folder) / "home")) as gateway,
    ):
        gateway.registry.create("dot")
        yield gateway


def main() -> None:
    rows = run()
    print(markdown(rows) if "--markdown" in sys.argv else plain(rows))


if __name__ == "__main__":
    main()
