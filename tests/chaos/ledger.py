"""Counts from outside, over the store, the model server's log and the effects file, whether every promise held."""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.chaos.house import ONCE
from tests.chaos.world import Life, Said, World

FIRST_REQUEST = 0.2
"""No process asks a model sooner after its start; what arrives earlier was sent by the one before."""
MUST_BE_ZERO = (
    "lost",
    "answered twice",
    "overtaken",
    "overlapping turns",
    "once-only effects repeated",
    "effects without a trace",
    "refused by the model server",
    "tasks with a wrong number of rounds",
    "boundaries missed",
    "wrong answers over /v1",
    "errors seen by senders",
    "tracebacks in the log",
)


@dataclass(slots=True)
class Row:
    """A stored message, as far as it is counted."""

    session_id: str
    seq: int
    id: str
    role: str
    origin: str
    content: str
    called: bool
    call_id: str | None
    tool_name: str | None
    agent_id: str
    run_id: str | None
    created_at: float

    @property
    def skipped(self) -> bool:
        return self.role == "tool" and self.content.startswith("skipped")

    @property
    def unknown(self) -> bool:
        return self.role == "tool" and self.content.startswith("outcome unknown")


@dataclass(slots=True)
class Run:
    """A stored turn."""

    session_id: str
    message_id: str
    state: str
    error: str | None
    agent_id: str | None
    created_at: float
    ended_at: float | None


class Store:
    """What is on disk at the end, read beside the program."""

    def __init__(self, database: Path) -> None:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        try:
            self.keys = {row["key"]: row["id"] for row in connection.execute("SELECT key, id FROM sessions")}
            self.runs = {
                row["run_id"]: Run(
                    row["session_id"],
                    row["message_id"],
                    row["state"],
                    row["error"],
                    row["agent_id"],
                    _seconds(row["created_at"]),
                    _seconds(row["ended_at"]) if row["ended_at"] else None,
                )
                for row in connection.execute("SELECT * FROM turn_jobs")
            }
            self.rows: dict[str, list[Row]] = defaultdict(list)
            for row in connection.execute("SELECT * FROM messages ORDER BY session_id, seq"):
                self.rows[row["session_id"]].append(_row(row))
            self.waiting = connection.execute(
                "SELECT count(*) FROM inbox WHERE run_id IS NOT NULL"
            ).fetchone()[0]
            self.backlog = connection.execute("SELECT count(*) FROM backlog").fetchone()[0]
            guard = (
                "SELECT count(*) FROM sqlite_master WHERE name = 'turn_jobs_one_active' AND type = 'index'"
            )
            self.allows_one_turn = connection.execute(guard).fetchone()[0] == 1
        finally:
            connection.close()

    def session_id(self, ref: str) -> str | None:
        return self.keys.get(ref) if ref.startswith("agent:") else ref


@dataclass(slots=True)
class Result:
    """The counts, and for those that should be zero what was found."""

    found: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in MUST_BE_ZERO})
    facts: dict[str, int | float | str] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return not any(self.found.values())

    def table(self) -> str:
        lines = [f"{name:<40} {len(found):>8}" for name, found in self.found.items()]
        lines += [""]
        lines += [f"{name:<40} {value:>8}" for name, value in self.facts.items()]
        for name, found in self.found.items():
            lines += [f"  {name}: {one}" for one in found[:10]]
        return "\n".join(lines)

    def payload(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "counts": {n: len(f) for n, f in self.found.items()},
            "facts": self.facts,
            "found": self.found,
        }


def count(world: World, store: Store, model_log: list[dict[str, Any]], home: Path, log: Path) -> Result:
    result = Result()
    found = result.found
    by_label: dict[str, list[Said]] = defaultdict(list)
    for said in world.said:
        if said.label in world.sessions:
            by_label[said.label].append(said)
    lines = Counter((home / "effects").read_text().split()) if (home / "effects").exists() else Counter()
    unknown = interrupted = 0
    for label, spoken in by_label.items():
        session_id = store.session_id(world.sessions[label])
        rows = [] if session_id is None else store.rows[session_id]
        own = [r for r in rows if r.run_id is None or _run_of(store, r) == session_id]
        _answers(store, spoken, own, found)
        _order(spoken, own, found)
        unknown += _rounds(spoken, own, found)
        interrupted += sum(1 for row in own if row.content.startswith("[Backlog]") and row.role == "user")
        _effects(own, lines, found)
        if label not in world.switched:
            _boundaries(store, label, own, found)
    found["once-only effects repeated"] += [f"{call}: {n} times" for call, n in lines.items() if n > 1]
    _untraced(store, lines, found)
    # A clear stops a turn whose request the model server still sees as open.
    counted_log = [r for r in model_log if r.get("tags") and _label(r) in world.sessions]
    found["overlapping turns"] += _overlaps(world.lives, counted_log)
    if not store.allows_one_turn:
        found["overlapping turns"].append("the store has no index that allows one active turn per session")
    found["refused by the model server"] += [r["action"] for r in model_log if "refused" in r["action"]]
    found["wrong answers over /v1"] += [f"{s.tag}: {s.wrong_answer}" for s in world.said if s.wrong_answer]
    found["errors seen by senders"] += world.surprises
    found["tracebacks in the log"] += _tracebacks(log)
    if store.waiting or store.backlog:
        found["lost"].append(f"{store.waiting} in the inbox and {store.backlog} in the backlog at the end")
    counted = [said for spoken in by_label.values() for said in spoken]
    again = (
        Counter((home / "repeatable").read_text().split()) if (home / "repeatable").exists() else Counter()
    )
    result.facts |= {
        "messages acknowledged": sum(1 for s in counted if s.acknowledged),
        "messages given up by their sender": sum(1 for s in counted if s.abandoned),
        "messages sent again": world.repeats,
        "sessions": len(by_label),
        "forks": world.forks,
        "sessions that changed their agent": len(world.switched),
        "clears": world.clears,
        "model requests": len(model_log),
        "tasks taken up from the backlog": interrupted,
        "once-only effects": len(lines),
        "calls with an unknown outcome": unknown,
        "safe calls run again": sum(n - 1 for n in again.values()),
    }
    result.facts |= _times(world, store, counted_log)
    return result


def _answers(store: Store, spoken: list[Said], rows: list[Row], found: Mapping[str, list[str]]) -> None:
    finals: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.role == "assistant" and not row.called and row.run_id is not None:
            finals[row.run_id].append(row)
    for said in spoken:
        tag = f"[t:{said.tag}]"
        stored = [r for r in rows if r.role == "user" and r.origin == "user" and tag in r.content]
        answers = [r for one in finals.values() for r in one if tag in r.content]
        if len(stored) > 1 or len(answers) > 1:
            found["answered twice"].append(f"{said.tag}: stored {len(stored)}, answered {len(answers)} times")
        if said.acknowledged is None:
            continue
        run = store.runs.get(said.run_id or "")
        if run is None:
            found["lost"].append(f"{said.tag}: its run {said.run_id} is not in the store")
            continue
        if not any(r.id == run.message_id and r.content == said.text for r in stored):
            found["lost"].append(f"{said.tag}: not in the transcript, its run is {run.state}")
        under_run = finals[said.run_id or ""]
        if run.state != "done" or not any(tag in r.content for r in under_run):
            shown = [r.content[:80] for r in under_run]
            found["lost"].append(
                f"{said.tag}: run {said.run_id} is {run.state} ({run.error}), answers {shown}"
            )
        if len(under_run) > 1:
            found["answered twice"].append(f"{said.tag}: {len(under_run)} final answers under its run")


def _order(spoken: list[Said], rows: list[Row], found: Mapping[str, list[str]]) -> None:
    places = {r.content: r.seq for r in rows if r.role == "user" and r.origin == "user"}
    sure = [said for said in spoken if said.acknowledged is not None and said.text in places]
    for first in sure:
        for second in sure:
            assert first.acknowledged is not None
            if second.sent > first.acknowledged and places[second.text] < places[first.text]:
                found["overtaken"].append(f"{first.tag} by {second.tag}")


def _rounds(spoken: list[Said], rows: list[Row], found: Mapping[str, list[str]]) -> int:
    """Every task took the rounds it asked for, under its own run. Returns how many ended with an unknown outcome."""
    results = [r for r in rows if r.role == "tool"]
    unknown = sum(1 for r in results if r.unknown)
    for said in spoken:
        if said.acknowledged is None:
            continue
        own = [r for r in results if r.run_id == said.run_id and not r.skipped]
        wrong = [r.content[:80] for r in own if r.content != "noted" and not r.unknown]
        if len(own) != said.rounds or wrong:
            found["tasks with a wrong number of rounds"].append(
                f"{said.tag}: {len(own)} instead of {said.rounds} {wrong}"
            )
    return unknown


def _effects(rows: list[Row], lines: Mapping[str, int], found: Mapping[str, list[str]]) -> None:
    for row in rows:
        done = row.tool_name == ONCE and row.content == "noted"
        if done and row.call_id not in lines:
            found["effects without a trace"].append(f"{row.call_id} has a result and no effect")


def _untraced(store: Store, lines: Iterable[str], found: Mapping[str, list[str]]) -> None:
    results = {r.call_id for rows in store.rows.values() for r in rows if r.role == "tool" and not r.skipped}
    found["effects without a trace"] += [
        f"{call} has an effect and no result" for call in set(lines) - results
    ]


def _boundaries(store: Store, label: str, rows: list[Row], found: Mapping[str, list[str]]) -> None:
    """While a message waits, a turn may finish the step that is under way, and must then give way."""
    for place, message in enumerate(rows):
        run = store.runs.get(message.run_id or "")
        if message.role != "user" or message.origin != "user" or run is None:
            continue
        steps = Counter(
            row.run_id
            for row in rows[:place]
            if row.created_at > run.created_at and row.role in ("assistant", "tool") and not row.skipped
        )
        late = {run_id: n for run_id, n in steps.items() if n > 1}
        if late:
            found["boundaries missed"].append(f"{label} seq {message.seq} waited through {late}")


def _overlaps(lives: list[Life], model_log: list[dict[str, Any]]) -> list[str]:
    found = []
    busy: dict[tuple[int, str], tuple[float, str]] = {}
    for record in model_log:
        life, label = _life_of(lives, record), _label(record)
        begins = record["t_in"] / 1e9
        before = busy.get((life.number, label))
        if before is not None and begins < before[0]:
            found.append(f"{label} in life {life.number}: {before[1]} and {record['tags'][0]}")
        ends = min(record.get("t_out", float("inf")) / 1e9, life.ended or float("inf"))
        busy[life.number, label] = (ends, record["tags"][0])
    return found


def _times(world: World, store: Store, model_log: list[dict[str, Any]]) -> dict[str, int | float | str]:
    """From the start of a process to its open port, and to the moment when everything left over is under way."""
    asked: dict[int, dict[str, float]] = defaultdict(dict)
    for record in model_log:
        asked[_life_of(world.lives, record).number].setdefault(_label(record), record["t_in"] / 1e9)
    labels = {store.session_id(ref): label for label, ref in world.sessions.items()}
    ready, first, every = [], [], []
    for former, life in zip(world.lives, world.lives[1:], strict=False):
        if life.ready is not None:
            ready.append(life.ready - life.started)
        killed = former.ended or 0.0
        with_work = {
            labels[run.session_id]
            for run in store.runs.values()
            if run.session_id in labels and run.created_at < killed and (run.ended_at or 1e12) > killed
        }
        resumed = [asked[life.number][label] for label in with_work if label in asked[life.number]]
        if resumed:
            first.append(min(resumed) - life.started)
        if with_work and len(resumed) == len(with_work):
            every.append(max(resumed) - life.started)
    facts: dict[str, int | float | str] = {}
    for name, values in (("start to open port", ready), ("start to first resumed", first)):
        facts[f"{name}, s: median / p90 (n)"] = _spread(values)
    facts["start to all resumed, s: median / p90 (n)"] = _spread(every)
    return facts


def _spread(values: list[float]) -> str:
    if not values:
        return "none"
    p90 = sorted(values)[min(len(values) - 1, int(len(values) * 0.9))]
    return f"{statistics.median(values):.2f} / {p90:.2f} ({len(values)})"


def _life_of(lives: list[Life], record: dict[str, Any]) -> Life:
    arrived = record["t_in"] / 1e9
    return next((life for life in reversed(lives) if life.started + FIRST_REQUEST <= arrived), lives[0])


def _label(record: dict[str, Any]) -> str:
    """The session that a request belongs to."""
    return str(record["tags"][0]).rsplit("-", 1)[0]


def _tracebacks(log: Path) -> list[str]:
    """Each with the line that it ends in."""
    found, inside = [], False
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("Traceback"):
            inside = True
        elif inside and line and not line.startswith(" "):
            found.append(line[:300])
            inside = False
    return found


def _run_of(store: Store, row: Row) -> str | None:
    run = store.runs.get(row.run_id or "")
    return None if run is None else run.session_id


def _row(row: sqlite3.Row) -> Row:
    parts = json.loads(row["parts_json"]) if row["parts_json"] else []
    return Row(
        row["session_id"],
        row["seq"],
        row["id"],
        row["role"],
        row["origin"],
        row["content"],
        any(part["type"] == "call" for part in parts),
        row["call_id"],
        row["tool_name"],
        row["agent_id"],
        row["run_id"],
        _seconds(row["created_at"]),
    )


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
