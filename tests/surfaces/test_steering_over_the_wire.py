"""Steering through the doors that people use, with a real process that can be killed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, Rpc, running
from tests.support.mock import MockModel, config, mock_model

MAIN = "agent:main:main"


@pytest.fixture
def mock() -> Iterator[MockModel]:
    with mock_model("--tool", "system_time") as model:
        yield model


@pytest.fixture
def served(home: Path, mock: MockModel) -> Iterator[GatewayProcess]:
    home.mkdir()
    (home / "agent.yaml").write_text(config(mock.base_url))
    with running(home) as gateway:
        yield gateway


def history(rpc: Rpc, session: str = MAIN) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = rpc.call("chat.history", session=session, limit=1000)["messages"]
    return messages


def check(mock: MockModel, messages: list[dict[str, Any]], rounds: int, run_id: str) -> None:
    """The task took its rounds under its own run id, none of them twice, with one [Backlog] message."""
    assert mock.refused == []
    done = [m for m in messages if m["role"] == "tool" and not m["text"].startswith("skipped")]
    assert len(done) == rounds
    assert {m["run_id"] for m in done} == {run_id}
    assert sum(m["text"].startswith("[Backlog]") for m in messages) == 1
    finals = [m for m in messages if m["role"] == "assistant" and not m.get("tool_calls")]
    assert [m["text"] for m in finals] == ["ok [t:word]", "ok [t:task]"]
    assert [m["run_id"] == run_id for m in finals] == [False, True]


def test_over_rpc(served: GatewayProcess, mock: MockModel) -> None:
    with served.rpc() as rpc:
        task = rpc.call("chat.send", session=MAIN, message="TOOLS 8 DELAY 60 [t:task]")
        mock.wait_for(lambda log: any(r["action"] == "tool 3/8" for r in log))
        word = rpc.call("chat.send", session=MAIN, message="a word [t:word]")
        assert word["status"] == "steering"
        rpc.wait_for("chat", run_id=task["run_id"], state="steered")
        rpc.wait_for("chat", run_id=word["run_id"], state="final")
        rpc.wait_for("chat", run_id=task["run_id"], state="final")
        check(mock, history(rpc), 8, task["run_id"])
        order = [r["action"] for r in mock.log()]
        assert order.index("final") < order.index("tool 5/8")
        states = [
            (e["payload"]["run_id"] == task["run_id"], e["payload"]["state"])
            for e in rpc.events
            if e["event"] == "chat" and e["payload"]["state"] in ("steered", "final")
        ]
        assert states == [(True, "steered"), (False, "final"), (True, "final")]


def test_over_v1(served: GatewayProcess, mock: MockModel) -> None:
    """The first client's request stays open over the interruption and gets the task's own answer."""
    said: dict[str, str] = {}

    def ask(name: str, text: str, *, stream: bool) -> None:
        body = {"model": "coterie/main", "user": "u", "messages": [{"role": "user", "content": text}]}
        with served.http() as http:
            if not stream:
                answer = http.post("/v1/chat/completions", json=body).json()
                said[name] = answer["choices"][0]["message"]["content"]
                return
            said[name] = ""
            with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as lines:
                for line in lines.iter_lines():
                    if line.startswith("data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            said[name] += choice["delta"].get("content") or ""

    client = threading.Thread(target=ask, args=("task", "TOOLS 8 DELAY 60 [t:task]"), kwargs={"stream": True})
    client.start()
    mock.wait_for(lambda log: any(r["action"] == "tool 3/8" for r in log))
    ask("word", "a word [t:word]", stream=False)
    client.join(60)
    assert said == {"task": "ok [t:task]", "word": "ok [t:word]"}
    with served.rpc() as rpc:
        messages = history(rpc, "agent:main:api:u")
        check(mock, messages, 8, messages[0]["run_id"])


def test_killed_in_the_steered_turn(home: Path, mock: MockModel) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(config(mock.base_url))
    with running(home) as gateway, gateway.rpc() as rpc:
        task = rpc.call("chat.send", session=MAIN, message="TOOLS 8 DELAY 60 [t:task]")
        mock.wait_for(lambda log: any(r["action"] == "tool 3/8" for r in log))
        rpc.call("chat.send", session=MAIN, message="a word DELAY 400 [t:word]")
        mock.wait_for(lambda log: any(r["action"] == "final" for r in log))
        gateway.kill()  # the answer is being written
    with running(home) as gateway, gateway.http() as http:
        last: dict[str, Any] = {}
        deadline = time.monotonic() + 60
        while last.get("text") != "ok [t:task]":
            assert time.monotonic() < deadline, last
            time.sleep(0.02)
            last = http.get(f"/api/sessions/{MAIN}/messages").json()["messages"][-1]
        with gateway.rpc() as rpc:
            check(mock, history(rpc), 8, task["run_id"])
            assert rpc.call("chat.queue", session=MAIN)["entries"] == []
