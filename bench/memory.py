"""Memories: search over HTTP beside a bare FTS5 query, a turn with many of them, a small agent among a million
strangers' rows, import, and size.

    python -m bench.memory [--markdown] [--text FILE] [--up-to N]

On SQLite. Memories and questions are English (bench/text.py); bare queries and searches alternate, so that whatever
else the machine does meets both. The bare query is on a plain connection of its own, with FTS5's own defaults.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.house import House, furnish, home_folder, message, mock_process
from bench.line import Line
from bench.row import Row, at_most, markdown, plain
from bench.text import Prose
from coterie.app import opened
from coterie.core.memory import Memory
from coterie.core.ports import Embedder
from coterie.engine.gateway import Gateway
from coterie.engine.household.home import Home
from tests.support.gateway import GatewayProcess

NAME = "memory"

SIZES = (1_000, 10_000, 100_000, 1_000_000)
ABOVE_MS = 3
"""What a search may take beyond a bare query, up to ten thousand memories."""
TIMES = 3
"""How many times as long as a bare query it may take at a hundred thousand."""
MOST_MS = 100
"""At a million."""
TURNS = 60
STRANGERS = 1_000_000
SMALL = 100
IMPORTED = 10_000
QUESTIONS = 40
ROUNDS = 3
BATCH = 5_000
AT = "2026-05-01T12:00:00Z"


def run(file: Path | None = None, up_to: int = SIZES[-1]) -> list[Row]:
    sizes = [size for size in SIZES if size <= up_to]
    rows = [row for size in sizes for row in search(size, file)]
    rows += turns(file)
    if up_to >= STRANGERS:
        rows += strangers(file)
    return [*rows, *importing(file), *size(file)]


def questions(file: Path | None) -> list[str]:
    asked = Prose(7, file)
    return [asked.question() for _ in range(QUESTIONS)]


def search(count: int, file: Path | None) -> list[Row]:
    """One agent's memories, asked for over HTTP."""
    texts = Prose(2, file).sentences(count)
    asked = questions(file)
    with bare(texts) as connection, home_folder() as home:
        with opened(Home(home)) as gateway:
            fill(gateway, "main", texts, private=True)
        process = GatewayProcess(home).wait()
        try:
            line = Line(f"{process.url}/api/memory/recall", {"Authorization": f"Bearer {process.token}"})
            for question in asked:
                line.ask({"query": question, "agentId": "main"})
            alone, ours = [], []
            for _ in range(ROUNDS):
                for question in asked:
                    line.refresh()
                    alone.append(timed(lambda q=question: bare_query(connection, q)))
                    ours.append(timed(lambda q=question: line.ask({"query": q, "agentId": "main"})))
        finally:
            process.stop()
    what = f"search among {count:,} memories over HTTP"
    figure = f"{median(ours):.1f} / {median(alone):.1f} ms bare"
    above = median(ours) - median(alone)
    if count <= 10_000:
        return [at_most(f"{what}, above bare", figure, above, ABOVE_MS, "ms")]
    if count <= 100_000:
        return [at_most(f"{what} / bare", figure, median(ours) / median(alone), TIMES)]
    return [at_most(what, figure, median(ours), MOST_MS, "ms")]


def turns(file: Path | None) -> list[Row]:
    """The same turns with ten thousand memories and with none."""
    took: dict[str, list[float]] = {"none": [], "many": []}
    with mock_process() as mock, home_folder() as home:
        furnish(home, mock.url, ("main", "none", "many"))
        with opened(Home(home)) as gateway:
            fill(gateway, "many", Prose(2, file).sentences(10_000), private=True)
        process = GatewayProcess(home).wait()
        try:
            line = House(process, mock).line()
            for turn, question in enumerate((questions(file) * 2)[:TURNS]):
                for agent in took:
                    line.refresh()
                    body = message(agent, f"u{turn % 4}", question)
                    took[agent].append(timed(lambda body=body: line.ask(body)))
        finally:
            process.stop()
    many, none = median(took["many"][10:]), median(took["none"][10:])
    return [
        at_most("a turn with 10,000 memories / with none", f"{many:.1f} / {none:.1f} ms", many / none, 1.3)
    ]


def strangers(file: Path | None) -> list[Row]:
    """A hundred memories, alone and beside a million rows of others; then the million as global rows."""
    made = Prose(3, file)
    asked = questions(file)
    own = made.sentences(SMALL)
    others = made.sentences(STRANGERS)
    with house(("dot", "rose")) as gateway:
        fill(gateway, "dot", own, private=True)
        alone, _ = small_agent(gateway, asked, own)
        fill(gateway, "rose", others, private=True)
        crowded, found = small_agent(gateway, asked, own)
    with house(("dot", "rose")) as gateway:
        fill(gateway, "dot", own, private=True)
        fill(gateway, "rose", others, private=False)
        shared, _ = small_agent(gateway, asked, own)
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


def small_agent(gateway: Gateway, asked: Sequence[str], own: Sequence[str]) -> tuple[float, int]:
    handle = gateway.memories.as_("dot")
    handle.recall("warm up")
    took = [min(timed(lambda q=q: handle.recall(q, limit=10)) for _ in range(ROUNDS)) for q in asked]
    telling = " ".join(own[:3])
    return median(took), min(len(handle.recall(f"{q} {telling}", limit=10)) for q in asked)


def importing(file: Path | None) -> list[Row]:
    """Ten thousand rows, beside a bare insert of the same and the embedding alone."""
    texts = Prose(5, file).sentences(IMPORTED)
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


def size(file: Path | None) -> list[Row]:
    """The gateway before and after its first search."""
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        gateway = GatewayProcess(Path(folder) / "home").wait()
        try:
            with gateway.http() as client:
                before = resident(gateway.process.pid)
                lines = "".join(f'{{"content": "{text}"}}\n' for text in Prose(6, file).sentences(500))
                client.post("/api/memory/import", content=lines.encode()).raise_for_status()
                for question in questions(file):
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


def fill(gateway: Gateway, agent: str, texts: Sequence[str], *, private: bool) -> None:
    """Straight into the store, in large transactions. Beyond the first, batches repeat its vectors: how long a search
    takes does not depend on what is in them."""
    embedder = gateway.memories.embedder
    assert embedder is not None
    made: list[bytes] = []
    for start in range(0, len(texts), BATCH):
        some = texts[start : start + BATCH]
        made = made or embedder.embed(some)
        rows = [
            Memory(
                id=f"{agent}-{start + number}",
                agent_id=agent,
                scope="private" if private else "global",
                content=content,
                created_at=AT,
                updated_at=AT,
            )
            for number, content in enumerate(some)
        ]
        with gateway.store.write() as tx:
            tx.memories.add(rows, made[: len(rows)], embedder.name)


def timed(work: object) -> float:
    """Milliseconds."""
    assert callable(work)
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def resident(pid: int) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="the table for a page")
    parser.add_argument("--text", type=Path, help="a file of English to take words from")
    parser.add_argument("--up-to", type=int, default=SIZES[-1], help="memories, at most")
    given = parser.parse_args()
    rows = run(given.text, given.up_to)
    print(markdown(rows) if given.markdown else plain(rows))


if __name__ == "__main__":
    main()
