"""Parents with twenty children each, killed with -9 at random moments: every result arrives exactly once.

Each parent is idle, busy or steered while its children finish, four at a time. The model server counts nothing
itself: it reads from each request how far things are, as a real model would.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.chaos.ledger import Result
from tests.support.gateway import GatewayProcess
from tests.support.mock import Exchange, ModelServer, model_server

CHILDREN = 20
AT_ONCE = 4
QUIET = 180.0
"""Seconds within which everything must be over once the killing stops."""
MUST_BE_ZERO = (
    "results lost",
    "results doubled",
    "lines lost or doubled",
    "parents without their one answer",
    "answers that miss a result",
    "announcements not delivered",
    "messages lost or answered twice",
    "children run beside each other beyond the limit",
    "turns that ended in error",
)
TOKEN = re.compile(r"token-\d+-\d+")


class Model:
    """Spawns what is missing, works on tasks for a random time, and reports every result it is shown."""

    def __init__(self, server: ModelServer, random: Random) -> None:
        self._random = random
        self._lock = threading.Lock()
        self.at_once = 0
        self.most = 0
        self.requests = 0
        server.answer = self.answer

    def answer(self, exchange: Exchange) -> None:
        *messages, context = exchange.body["messages"]
        self.requests += 1
        said = next((str(m["content"]) for m in reversed(messages) if m["role"] == "user"), "")
        if "] finish" in str(messages[-1].get("content")):
            exchange.reply("ALL " + " ".join(TOKEN.findall(str(context["content"]))))
        elif task := re.search(r"^CHILD (\d+) (\d+)$", said, re.M):
            self._work(exchange, f"token-{task[1]}-{task[2]}")
        elif parent := re.search(r"GO (\d+)", said):
            missing = sorted(set(range(CHILDREN)) - _spawned(messages))
            if missing:
                exchange.calls(
                    *(
                        ("subagents_spawn", json.dumps({"task": f"CHILD {parent[1]} {number}"}))
                        for number in missing
                    )
                )
            else:
                exchange.reply("started")
        elif said.startswith("BUSY") and messages[-1]["role"] != "tool":
            time.sleep(self._random.uniform(0, 0.1))
            exchange.calls(("system_time", "{}"))
        else:
            exchange.reply(f"heard {said[:40]}")

    def _work(self, exchange: Exchange, token: str) -> None:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self._random.uniform(0, 0.25))
        with self._lock:
            self.at_once -= 1
        exchange.reply(token)


def _spawned(messages: list[dict[str, Any]]) -> set[int]:
    """The tasks whose spawn has a result that is one."""
    tasks: dict[str, int] = {}
    done: set[int] = set()
    for message in messages:
        for made in message.get("tool_calls") or ():
            number = re.search(r"CHILD \d+ (\d+)", made["function"]["arguments"])
            if number:
                tasks[made["id"]] = int(number[1])
        if message["role"] == "tool" and '"runId"' in str(message["content"]):
            done.add(tasks[message["tool_call_id"]])
    return done


class House:
    """The gateway, whichever process that is now."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock = threading.Lock()
        self._gateway = GatewayProcess(home).wait()
        self.kills = 0

    def kill_and_restart(self) -> None:
        self._gateway.kill()
        self.kills += 1
        gateway = GatewayProcess(self.home).wait()
        with self._lock:
            self._gateway = gateway

    def send(self, session: str, text: str) -> str:
        """Until it is acknowledged, under one key: the run."""
        give_up = time.monotonic() + QUIET
        while True:
            try:
                with self._lock:
                    client = self._gateway.http()
                with client:
                    answer = client.post(
                        f"/api/sessions/{session}/messages",
                        json={"message": text},
                        headers={"Idempotency-Key": text},
                    )
                if answer.status_code == 202:
                    return str(answer.json()["runId"])
            except (httpx.HTTPError, OSError):
                pass
            assert time.monotonic() < give_up, f"{text} was never acknowledged"
            time.sleep(0.05)

    def stop(self) -> None:
        self._gateway.stop()


def furnish(home: Path, base_url: str) -> None:
    home.mkdir(parents=True)
    (home / "agent.yaml").write_text(
        "version: 1\ndefault_model: mock/m\nmodels:\n  providers:\n"
        f"    mock: {{type: openai-compatible, base_url: '{base_url}', context_window: 1000000}}\n"
        f"subagents: {{max_children: {CHILDREN}, max_concurrent: {AT_ONCE}}}\n"
        "delegation: {trace_turns: 1000}\n"
        "agents:\n  roster:\n    - {name: rose}\n"
    )


def children(
    parents: int, home: Path, seed: int, tell: Callable[[str], None] = lambda _: None, beside: int = 5
) -> Result:
    """So many parents, a few beside each other, with kills all along."""
    random = Random(seed)
    result = Result(found={name: [] for name in MUST_BE_ZERO})
    with model_server() as server:
        model = Model(server, Random(seed + 1))
        furnish(home, server.base_url)
        house = House(home)
        sent: dict[str, list[str]] = {}
        try:
            for first in range(0, parents, beside):
                numbers = range(first, min(first + beside, parents))
                _round(house, random, numbers, sent)
                tell(f"{numbers.stop}/{parents} parents, {house.kills} kills, {model.requests} requests")
        finally:
            house.stop()
    _count(home / "coterie.db", sent, result)
    if model.most > AT_ONCE:
        result.found["children run beside each other beyond the limit"].append(str(model.most))
    result.facts |= {
        "parents": parents,
        "children": parents * CHILDREN,
        "kills": house.kills,
        "requests to the model": model.requests,
        "most children at once": model.most,
        "seed": seed,
    }
    return result


def _round(house: House, random: Random, numbers: range, sent: dict[str, list[str]]) -> None:
    for number in numbers:
        session = f"agent:main:api:p{number}"
        sent[session] = [house.send(session, f"GO {number}")]
        kind = random.choice(("idle", "busy", "steered"))
        if kind == "steered":
            sent[session].append(house.send(session, f"SAY {number} at once"))
        if kind == "busy":
            sent[session].append(house.send(session, f"BUSY {number}"))
    for kill in range(random.randint(2, 5)):
        time.sleep(random.uniform(0, 1.5))
        house.kill_and_restart()
        number = random.choice(numbers)
        session = f"agent:main:api:p{number}"
        word = random.choice(("SAY", "BUSY"))
        sent[session].append(house.send(session, f"{word} {number} after kill {kill}"))
    _until_quiet(house.home / "coterie.db")


def _until_quiet(database: Path) -> None:
    give_up = time.monotonic() + QUIET
    queries = (
        "SELECT count(*) FROM turn_jobs WHERE state IN ('queued', 'running', 'waiting', 'interrupted')",
        "SELECT count(*) FROM subagent_runs WHERE status IN ('queued', 'running')",
    )
    while time.monotonic() < give_up:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1)
        try:
            if not any(connection.execute(query).fetchone()[0] for query in queries):
                return
        finally:
            connection.close()
        time.sleep(0.05)


def _count(database: Path, sent: dict[str, list[str]], result: Result) -> None:
    found = result.found
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    for row in connection.execute("SELECT run_id, kind, error FROM turn_jobs WHERE state != 'done'"):
        found["turns that ended in error"].append(f"{row['run_id']} {row['kind']}: {row['error']}")
    for session, own in sent.items():
        number = session.rpartition("p")[2]
        session_id = connection.execute("SELECT id FROM sessions WHERE key = ?", (session,)).fetchone()[0]
        runs = connection.execute(
            "SELECT * FROM subagent_runs WHERE requester_session_id = ?", (session_id,)
        ).fetchall()
        wanted = {f"token-{number}-{n}" for n in range(CHILDREN)}
        results = Counter(row["result"] for row in runs)
        found["results lost"] += sorted(wanted - set(results))
        found["results doubled"] += [str(token) for token, times in results.items() if times > 1]
        told = connection.execute(
            "SELECT state FROM announcements WHERE session_id = ?", (session_id,)
        ).fetchall()
        wrong = [row["state"] for row in told if row["state"] != "delivered"]
        if wrong or len(told) != CHILDREN:
            found["announcements not delivered"].append(f"{session}: {len(told)}, {wrong}")
        messages = connection.execute(
            "SELECT * FROM messages WHERE session_id = ? ORDER BY seq", (session_id,)
        ).fetchall()
        lines = [m for m in messages if m["content"] == "[@agent:main#main] finish"]
        ids = {json.loads(m["meta_json"])["announce"]["idempotency_key"] for m in lines}
        if len(lines) != CHILDREN or ids != {row["run_id"] for row in runs}:
            found["lines lost or doubled"].append(f"{session}: {len(lines)} lines of {len(ids)} runs")
        answers = [m["content"] for m in messages if m["content"].startswith("ALL")]
        if len(answers) != 1:
            found["parents without their one answer"].append(f"{session}: {len(answers)}")
        elif set(TOKEN.findall(answers[0])) != wanted:
            found["answers that miss a result"].append(f"{session}: {answers[0][:200]}")
        finals = Counter(
            m["run_id"] for m in messages if m["role"] == "assistant" and not _calls(m) and m["run_id"]
        )
        for run_id in own:
            if finals[run_id] != 1:
                found["messages lost or answered twice"].append(f"{session}: {run_id} {finals[run_id]}")
    connection.close()


def _calls(message: sqlite3.Row) -> bool:
    return '"type": "call"' in (message["parts_json"] or "")
