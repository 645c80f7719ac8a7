"""Evidence recall on a file of LoCoMo conversations, through the public HTTP API.

    python -m evals FILE [--reverse] [--shared] [--limit N] [--markdown]

Each conversation is one agent, each turn one memory with its thread, time and source. Recall@k is the share of a
question's evidence turns among the first k hits.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

import httpx

from tests.support.gateway import GatewayProcess

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
MODES = {"text": "text only", "vector": "vectors only", "hybrid": "default"}
CUTS = (5, 10)
RESAMPLES = 1_000
TARGETS = {("all", 5): 0.70, ("all", 10): 0.80, ("multi-hop", 10): 0.45}
_TURN = re.compile(r"D\d+:\d+")


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    evidence: frozenset[str]
    category: str


@dataclass(frozen=True, slots=True)
class Conversation:
    agent: str
    memories: list[dict[str, Any]]
    questions: list[Question]


@dataclass(frozen=True, slots=True)
class Answer:
    """How much of a question's evidence was among the first so many hits."""

    category: str
    shares: dict[int, float]


def conversations(path: Path) -> Iterator[Conversation]:
    for number, sample in enumerate(json.loads(path.read_text(encoding="utf-8")), 1):
        agent = f"talk-{number}"
        said = sample["conversation"]
        memories = []
        session = 1
        while f"session_{session}" in said:
            at = datetime.strptime(said[f"session_{session}_date_time"], "%I:%M %p on %d %B, %Y")
            for turn in said[f"session_{session}"]:
                text = f"{turn['speaker']}: {turn['text']}"
                if turn.get("blip_caption"):
                    text += f" [shares {turn['blip_caption']}]"
                memories.append(
                    {
                        "content": text,
                        "agentId": agent,
                        "thread": f"session-{session}",
                        "occurredAt": f"{at.isoformat()}Z",
                        "sourceRef": turn["dia_id"],
                    }
                )
            session += 1
        questions = []
        for asked in sample["qa"]:
            # A few are joined or misspelled, as in "D8:6; D9:17".
            evidence = frozenset(t for entry in asked.get("evidence") or () for t in _TURN.findall(entry))
            if evidence:
                category = CATEGORIES.get(asked["category"], "other")
                questions.append(Question(asked["question"], evidence, category))
        yield Conversation(agent, memories, questions)


def ask(client: httpx.Client, talk: Conversation, mode: str) -> Iterator[Answer]:
    for question in talk.questions:
        body = {"query": question.text, "agentId": talk.agent, "limit": max(CUTS), "mode": mode}
        answer = client.post("/api/memory/recall", json=body)
        answer.raise_for_status()
        found = [memory.get("sourceRef") for memory in answer.json()["memories"]]
        shares = {
            cut: len(question.evidence.intersection(found[:cut])) / len(question.evidence) for cut in CUTS
        }
        yield Answer(question.category, shares)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 %, by drawing the questions again and again."""
    drawn, ordered = random.Random(1), sorted(values)
    means = sorted(mean(drawn.choices(ordered, k=len(ordered))) for _ in range(RESAMPLES))
    return means[math.floor(0.025 * RESAMPLES)], means[math.ceil(0.975 * RESAMPLES) - 1]


def table(answers: dict[str, list[Answer]], markdown: bool) -> str:
    names = ["all", *(name for name in CATEGORIES.values())]
    head = ["category", "questions", *(f"{title} @{cut}" for title in MODES.values() for cut in CUTS)]
    rows = []
    for name in names:
        cells = [name, str(sum(name in ("all", a.category) for a in answers["hybrid"]))]
        for mode in MODES:
            for cut in CUTS:
                values = [a.shares[cut] for a in answers[mode] if name in ("all", a.category)]
                if not values:
                    cells.append("")
                    continue
                low, high = interval(values)
                cells.append(f"{mean(values):.3f} ({low:.2f} to {high:.2f})")
        rows.append(cells)
    if markdown:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in [head, *rows]
    )


def missed(answers: dict[str, list[Answer]]) -> list[str]:
    """Targets that do not hold, and where the default is no better than words alone."""
    found = []
    for (name, cut), target in TARGETS.items():
        figures = {
            mode: mean([a.shares[cut] for a in answers[mode] if name in ("all", a.category)] or [0.0])
            for mode in MODES
        }
        if figures["hybrid"] < target:
            found.append(f"{name} @{cut}: {figures['hybrid']:.3f}, target {target}")
        if figures["hybrid"] <= figures["text"]:
            found.append(f"{name} @{cut}: the default does not beat text only")
    return found


def run(path: Path, *, reverse: bool, shared: bool) -> dict[str, list[Answer]]:
    talks = list(conversations(path))
    if reverse:
        talks.reverse()
    with tempfile.TemporaryDirectory(prefix="coterie-evals-") as folder:
        home = Path(folder) / "home"
        gateway = GatewayProcess(home).wait()
        try:
            with gateway.http() as client:
                for talk in talks:
                    client.post("/api/agents", json={"id": talk.agent}).raise_for_status()
                    scope = "global" if shared else "private"
                    lines = "".join(json.dumps({**m, "scope": scope}) + "\n" for m in talk.memories)
                    client.post("/api/memory/import", content=lines.encode()).raise_for_status()
                return {mode: [a for talk in talks for a in ask(client, talk, mode)] for mode in MODES}
        finally:
            gateway.stop()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="evals", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--reverse", action="store_true", help="the conversations in the other order")
    parser.add_argument("--shared", action="store_true", help="every memory global, so that agents see all")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args(arguments)
    answers = run(given.file, reverse=given.reverse, shared=given.shared)
    print(table(answers, given.markdown))
    problems = missed(answers)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
