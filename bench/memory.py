"""Memories: search beside a bare FTS5 query, a small agent among a million strangers' rows, import, and size.

    python -m bench.memory [--markdown]

In one process, on SQLite, through the same handle that every door uses.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.row import Row, at_most, markdown, plain
from coterie.app import opened
from coterie.core.memory import Memory
from coterie.core.ports import Embedder
from coterie.engine.gateway import Gateway
from coterie.engine.household.home import Home
from tests.support.gateway import GatewayProcess

NAME = "memory"

MANY = 100_000
STRANGERS = 1_000_000
SMALL = 100
IMPORTED = 10_000
QUESTIONS = 40
BATCH = 5_000
AT = "2026-05-01T12:00:00Z"


def words() -> list[str]:
    """A vocabulary with common and rare words, as texts have."""
    made = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(made.choices(letters, k=made.randint(3, 9))) for _ in range(20_000)]


WORDS = words()


def sentence(made: random.Random) -> str:
    """Twenty words; the n-th word of the vocabulary comes about once in n."""
    return " ".join(WORDS[min(int(made.paretovariate(0.6)), len(WORDS)) - 1] for _ in range(20))


def questions() -> list[str]:
    made = random.Random(7)
    return [" ".join(sentence(made).split()[:6]) for _ in range(QUESTIONS)]


def run() -> list[Row]:
    return [*search(), *strangers(), *importing(), *size()]


def search() -> list[Row]:
    """Among a hundred thousand memories of one agent."""
    made = random.Random(2)
    texts = [sentence(made) for _ in range(MANY)]
    with bare(texts) as connection:
        alone = [timed(lambda q=q: bare_query(connection, q)) for q in questions()]
    with house(("dot",)) as gateway:
        fill(gateway, "dot", texts, private=True)
        handle = gateway.memories.as_("dot")
        handle.recall("warm up")
        ours = [timed(lambda q=q: handle.recall(q)) for q in questions()]
    return [
        at_most(
            "search among 100,000 memories / bare FTS5 query",
            f"{median(ours):.1f} / {median(alone):.1f} ms",
            median(ours) / median(alone),
            5,
        )
    ]


def strangers() -> list[Row]:
    """A hundred memories, alone and beside a million rows of others; then the million as global rows."""
    made = random.Random(3)
    own = [sentence(made) for _ in range(SMALL)]
    with house(("dot", "rose")) as gateway:
        fill(gateway, "dot", own, private=True)
        alone, _ = small_agent(gateway)
        for start in range(0, STRANGERS, BATCH):
            others = [sentence(made) for _ in range(min(BATCH, STRANGERS - start))]
            fill(gateway, "rose", others, private=True, vectors=False)
        crowded, found = small_agent(gateway)
        with gateway.store.write() as tx:
            connection = tx.connection
            connection.exec_driver_sql("UPDATE memories SET scope = 'global' WHERE agent_id = 'rose'")
            connection.exec_driver_sql("UPDATE memory_index SET private = 0 WHERE owner = 'rose'")
            connection.exec_driver_sql(
                "UPDATE memories_fts SET part = 'shared0 x' WHERE rowid IN"
                " (SELECT number FROM memory_index WHERE owner = 'rose')"
            )
        shared, _ = small_agent(gateway)
    return [
        at_most(
            "small agent among 1,000,000 private rows of others / alone",
            f"{crowded:.1f} / {alone:.1f} ms",
            crowded / alone,
            2,
        ),
        Row("results it still gets, of 10", f"{found}", ok=found == 10),
        Row("the same with 1,000,000 global rows", f"{shared:.1f} ms", f"{shared / alone:.2f}"),
    ]


def small_agent(gateway: Gateway) -> tuple[float, int]:
    handle = gateway.memories.as_("dot")
    asked = questions()
    handle.recall("warm up")
    took = [timed(lambda q=q: handle.recall(q, limit=10)) for q in asked]
    return median(took), min(len(handle.recall(f"{q} {WORDS[0]} {WORDS[1]}", limit=10)) for q in asked)


def importing() -> list[Row]:
    """Ten thousand rows, beside a bare insert of the same and the embedding alone."""
    made = random.Random(5)
    texts = [sentence(made) for _ in range(IMPORTED)]
    started = time.perf_counter()
    with bare(texts):
        inserted = time.perf_counter() - started
    with house(("dot",)) as gateway:
        embedder = gateway.memories.embedder
        assert embedder is not None
        embedder.embed(["warm up"])
        watched = Watched(embedder)
        gateway.memories.use(watched)
        started = time.perf_counter()
        gateway.memories.as_("dot").import_({"content": text} for text in texts)
        took, embedded = time.perf_counter() - started, watched.seconds
    return [
        at_most(
            "import of 10,000 less embedding / bare insert",
            f"{took - embedded:.2f} / {inserted:.2f} s",
            (took - embedded) / inserted,
            5,
        ),
        Row("the embedding of 10,000", f"{embedded:.2f} s"),
    ]


class Watched:
    """An embedder, and how long it was busy: on a machine with other work, two runs of it differ by seconds."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.averages, self.waits, self.ready = embedder.name, embedder.averages, False, True
        self.seconds = 0.0

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        started = time.perf_counter()
        found = self._embedder.embed(texts)
        self.seconds += time.perf_counter() - started
        return found


def size() -> list[Row]:
    """The gateway before and after its first search."""
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        gateway = GatewayProcess(Path(folder) / "home").wait()
        try:
            with gateway.http() as client:
                before = resident(gateway.process.pid)
                lines = "".join(f'{{"content": "{sentence(random.Random(n))}"}}\n' for n in range(500))
                client.post("/api/memory/import", content=lines.encode()).raise_for_status()
                for question in questions():
                    client.get("/memory/search", params={"q": question}).raise_for_status()
                after = resident(gateway.process.pid)
        finally:
            gateway.stop()
    return [
        Row("resident size before memory was used", f"{before:.0f} MiB"),
        at_most("resident size with the embedder loaded", f"{after:.0f} MiB", after, 215, "MiB"),
    ]


@contextmanager
def bare(texts: Sequence[str]) -> Iterator[sqlite3.Connection]:
    """The same rows in a table and an FTS5 index, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        connection = sqlite3.connect(Path(folder) / "bare.db")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE memories (id INTEGER PRIMARY KEY, content TEXT)")
        connection.execute(
            "CREATE VIRTUAL TABLE memories_fts USING fts5 (content, tokenize = 'porter unicode61')"
        )
        rows = list(enumerate(texts, 1))
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            with connection:
                connection.executemany("INSERT INTO memories VALUES (?, ?)", some)
                connection.executemany("INSERT INTO memories_fts (rowid, content) VALUES (?, ?)", some)
        try:
            yield connection
        finally:
            connection.close()


def bare_query(connection: sqlite3.Connection, question: str) -> None:
    match = " OR ".join(f'"{word}"' for word in question.split())
    connection.execute(
        "SELECT m.id, m.content FROM memories_fts f JOIN memories m ON m.id = f.rowid"
        " WHERE memories_fts MATCH ? ORDER BY bm25(memories_fts) LIMIT 10",
        (match,),
    ).fetchall()


@contextmanager
def house(agents: Sequence[str]) -> Iterator[Gateway]:
    with (
        tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder,
        opened(Home(Path(folder) / "home")) as gateway,
    ):
        for agent in agents:
            gateway.registry.create(agent)
        yield gateway


def fill(gateway: Gateway, agent: str, texts: Sequence[str], *, private: bool, vectors: bool = True) -> None:
    """Straight into the store, in large transactions."""
    embedder = gateway.memories.embedder
    assert embedder is not None
    for start in range(0, len(texts), BATCH):
        some = texts[start : start + BATCH]
        made = embedder.embed(some) if vectors else [None] * len(some)
        rows = [
            Memory(
                id=f"{agent}-{time.monotonic_ns()}-{number}",
                agent_id=agent,
                scope="private" if private else "global",
                content=content,
                created_at=AT,
                updated_at=AT,
            )
            for number, content in enumerate(some)
        ]
        with gateway.store.write() as tx:
            tx.memories.add(rows, made, embedder.name)


def timed(work: object) -> float:
    """Milliseconds of the best of three."""
    assert callable(work)
    took = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        took.append((time.perf_counter() - started) * 1000)
    return min(took)


def resident(pid: int) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    rows = run()
    print(markdown(rows) if "--markdown" in sys.argv else plain(rows))


if __name__ == "__main__":
    main()
