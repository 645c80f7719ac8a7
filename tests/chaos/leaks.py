"""Looks for leaks: random questions by every door, and whether anything comes back that the reader may not see.

    python -m tests.chaos.leaks --queries 20000

Every text carries a mark that says whose it is, so that it is known again wherever it turns up.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateway import GatewayProcess, Rpc, coterie
from tests.support.mock import Exchange, ModelServer, config, model_server

READERS = ("ada", "bea", "cleo", "dora", "edna", "fay", "gwen", "hope")
GONE = ("ines", "june")
"""Archived before the first question."""
ISOLATED = ("cleo",)
GROUPS = {"dora": ("ada", "bea")}
ROWS = 30
"""Memories of each agent with each scope."""
WORDS = [
    "boat",
    "key",
    "harbour",
    "violin",
    "bread",
    "garden",
    "letter",
    "winter",
    "ticket",
    "doctor",
    "school",
    "lamp",
    "river",
    "coat",
    "bicycle",
    "tea",
    "window",
    "market",
    "sister",
    "brother",
    "train",
    "island",
    "recipe",
    "paint",
    "secret",
    "plan",
    "money",
    "birthday",
    "hospital",
    "song",
]
MARK = re.compile(r"zq([a-z]+)x(private|global|said)x(\d+)")
DOORS = ("rpc", "http", "cli", "tool", "turn", "transcript", "export", "stats")
SHARES = {
    "rpc": 0.42,
    "http": 0.42,
    "transcript": 0.06,
    "stats": 0.04,
    "export": 0.02,
    "tool": 0.015,
    "turn": 0.015,
    "cli": 0.01,
}
LEAST = 200


@dataclass(slots=True)
class Tally:
    asked: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """Marks that came back, by door: a search that finds nothing would leak nothing."""
    leaks: list[str] = field(default_factory=list)

    def check(self, door: str, reader: str | None, shown: str) -> None:
        self.asked[door] += 1
        for owner, kind, number in MARK.findall(shown):
            self.seen[door] += 1
            if not may_see(reader, owner, kind):
                self.leaks.append(f"{door}: {reader} saw {kind} {number} of {owner}")


def may_see(reader: str | None, owner: str, kind: str) -> bool:
    """Said once more, apart from the program."""
    if owner in GONE:
        return False
    if kind in ("private", "said"):
        return owner == reader
    if reader in ISOLATED:
        return owner == reader
    if reader in GROUPS:
        return owner == reader or owner in GROUPS[reader]
    return True


class World:
    def __init__(self, gateway: GatewayProcess, server: ModelServer, rpc: Rpc, client: httpx.Client) -> None:
        self.gateway = gateway
        self.server = server
        self.rpc = rpc
        self.client = client
        self.random = random.Random()
        self.tally = Tally()
        self._turns = 0
        self.doors: dict[str, Callable[[str | None, str], None]] = {
            "rpc": self._rpc,
            "http": self._http,
            "cli": self._cli,
            "tool": self._tool,
            "turn": self._turn,
            "transcript": self._transcript,
            "export": self._export,
            "stats": self._stats,
        }

    def furnish(self) -> None:
        for agent in (*READERS, *GONE):
            lines = []
            for kind in ("private", "global"):
                for number in range(ROWS):
                    said = " ".join(self.random.sample(WORDS, 6))
                    entry = {"content": f"{said} zq{agent}x{kind}x{number}", "scope": kind, "agentId": agent}
                    # Threads run through both scopes, so that neighbours are strangers to some readers.
                    lines.append({**entry, "thread": f"t{number % 5}", "tags": [self.random.choice(WORDS)]})
            self.random.shuffle(lines)
            body = "".join(json.dumps(line) + "\n" for line in lines)
            self.client.post("/api/memory/import", content=body.encode()).raise_for_status()
            folder = self.gateway.home / "agents" / agent / "memory"
            folder.mkdir(exist_ok=True)
            (folder / "2026-05-01.md").write_text(
                "\n\n".join(f"# {word}\n\n{word} zq{agent}xprivatex{900 + n}" for n, word in enumerate(WORDS))
            )
            for number in range(8):
                said = " ".join(self.random.sample(WORDS, 6))
                self._say(agent, f"{said} zq{agent}xsaidx{number}", f"past{number % 4}")
        for agent in GONE:
            self.client.delete(f"/api/agents/{agent}").raise_for_status()

    def question(self) -> str:
        kind = self.random.random()
        words = self.random.sample(WORDS, self.random.randint(1, 5))
        if kind < 0.15:
            owner = self.random.choice((*READERS, *GONE))
            words.append(
                f"zq{owner}x{self.random.choice(('private', 'global', 'said'))}x{self.random.randrange(ROWS)}"
            )
        elif kind < 0.25:
            words.append(
                self.random.choice(('"', "*", "NEAR", "OR", "shared0", "part:", "-", "🦊", "in May", "today"))
            )
        return " ".join(words)

    def reader(self, *, somebody: bool = False) -> str | None:
        return self.random.choice(READERS if somebody else (*READERS, None))

    # Doors

    def _rpc(self, reader: str | None, query: str) -> None:
        given: dict[str, Any] = {} if reader is None else {"agent_id": reader}
        which = self.random.random()
        if which < 0.8:
            mode = self.random.choice(("hybrid", "text", "vector"))
            found = self.rpc.call(
                "memory.recall", query=query, limit=self.random.randint(1, 50), mode=mode, **given
            )
        else:
            owner = self.random.choice((*READERS, *GONE))
            found = self.rpc.call("memory.list", owner=owner, superseded=True, **given)
        self.tally.check("rpc", reader, json.dumps(found))

    def _http(self, reader: str | None, query: str) -> None:
        given = {} if reader is None else {"agentId": reader}
        which = self.random.random()
        if which < 0.5:
            extra = {"tags": [self.random.choice(WORDS)]} if which < 0.1 else {}
            answer = self.client.post(
                "/api/memory/recall", json={"query": query, "limit": 20, **extra, **given}
            )
        elif which < 0.85:
            answer = self.client.get("/memory/search", params={"q": query, "limit": 20, **given})
        else:
            answer = self.client.get("/api/memories", params={"limit": 500, **given})
        answer.raise_for_status()
        self.tally.check("http", reader, answer.text)

    def _cli(self, reader: str | None, query: str) -> None:
        who = [] if reader is None else ["--agent", reader]
        done = coterie(self.gateway.home, "recall", *who, "--", query)
        assert done.returncode == 0, done.stderr
        self.tally.check("cli", reader, done.stdout)

    def _tool(self, reader: str | None, query: str) -> None:
        assert reader is not None
        self._ask_model(reader, f"use the tool: {query}", "tool")

    def _turn(self, reader: str | None, query: str) -> None:
        assert reader is not None
        self._ask_model(reader, query, "turn")

    def _transcript(self, reader: str | None, query: str) -> None:
        assert reader is not None
        found = self.rpc.call("sessions.recall", agent_id=reader, query=query, limit=20)
        self.tally.check("transcript", reader, json.dumps(found))

    def _export(self, reader: str | None, query: str) -> None:
        form = self.random.choice(("jsonl", "markdown"))
        given: dict[str, Any] = {} if reader is None else {"agent_id": reader}
        self.tally.check("export", reader, self.rpc.call("memory.export", format=form, **given)["content"])

    def _stats(self, reader: str | None, query: str) -> None:
        """Counts of what cannot be seen would be a leak too."""
        given: dict[str, Any] = {} if reader is None else {"agent_id": reader}
        found = self.rpc.call("memory.stats", **given)
        self.tally.check("stats", reader, json.dumps(found))
        for row in found["agents"]:
            owner = row["agent_id"]
            shared = ROWS if may_see(reader, owner, "global") else 0
            private = ROWS + len(WORDS) if may_see(reader, owner, "private") else 0
            if (row["shared"], row["private"], row["archived"]) != (shared, private, 0):
                self.tally.leaks.append(f"stats: {reader} was told {row}")
            self.tally.seen["stats"] += 1

    # A model that shows what it is shown

    def _ask_model(self, reader: str, text: str, door: str) -> None:
        before = len(self.server.raw)
        # Asked without marks: a question stands in its session's transcript, and would be taken for an answer.
        self._say(reader, MARK.sub("", text), f"q{self._turns % 20}")
        shown = "\n".join(raw.decode() for raw in self.server.raw[before:])
        self.tally.check(door, reader, shown)

    def _say(self, agent: str, text: str, thread: str) -> None:
        """In a conversation of the owner's."""
        self._turns += 1
        body = {"sessionKey": f"agent:{agent}:main:thread:{thread}", "text": text}
        self.client.post("/api/gateway/chat", json=body).raise_for_status()

    def answer(self, exchange: Exchange) -> None:
        asked = exchange.last_user
        if "use the tool: " in asked and not exchange.has_result:
            query = asked.partition("use the tool: ")[2]
            exchange.calls(("memory_recall", json.dumps({"query": query, "limit": 20})))
        else:
            exchange.reply("noted")


def hunt(folder: Path, queries: int, seed: int, least: int = LEAST) -> Tally:
    """Ask so many questions, at least `least` by each door."""
    home = folder / "home"
    home.mkdir(parents=True)
    with model_server() as server:
        roster = "".join(f"    - {{name: {name}, memory: {_policy(name)}}}\n" for name in (*READERS, *GONE))
        (home / "agent.yaml").write_text(config(server.base_url, more=f"agents:\n  roster:\n{roster}"))
        gateway = GatewayProcess(home).wait()
        try:
            with gateway.rpc() as rpc, gateway.http() as client:
                world = World(gateway, server, rpc, client)
                world.random.seed(seed)
                server.answer = world.answer
                world.furnish()
                plan = [door for door in DOORS for _ in range(max(least, int(queries * SHARES[door])))]
                world.random.shuffle(plan)
                for door in plan:
                    somebody = door in ("tool", "turn", "transcript")
                    world.doors[door](world.reader(somebody=somebody), world.question())
                return world.tally
        finally:
            gateway.stop()


def _policy(name: str) -> str:
    if name in ISOLATED:
        return "{read_policy: isolated}"
    if name in GROUPS:
        return f"{{read_policy: group, group: [{', '.join(GROUPS[name])}]}}"
    return "{read_policy: shared}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="leaks", description=__doc__)
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=11)
    given = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coterie-leaks-") as folder:
        tally = hunt(Path(folder), given.queries, given.seed)
    for door in DOORS:
        print(f"{door:12} {tally.asked[door]:>7,} asked {tally.seen[door]:>9,} marked texts came back")
    print(
        f"{'in all':12} {tally.asked.total():>7,} asked, {len(tally.leaks)} leaks, {time.monotonic() - started:.0f} s"
    )
    for leak in tally.leaks[:20]:
        print(leak)
    return 1 if tally.leaks or not all(tally.seen[door] for door in DOORS) else 0


if __name__ == "__main__":
    sys.exit(main())
