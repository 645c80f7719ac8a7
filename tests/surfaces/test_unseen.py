"""What happened to a turn can be seen afterwards: in the transcript, in the list of sessions and in the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, Rpc, running
from tests.support.mock import Exchange, ModelServer, config, model_server

ROSTER = """agents:
  roster:
    - {name: rose}
    - {name: strict, tool_denylist: [memory_*]}
    - {name: lone, limits: {concurrency: 1}}
    - {name: edited}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("unseen") / "home"
    home.mkdir()
    (home / "agent.yaml").write_text(config(server.base_url, more=ROSTER))
    with running(home) as gateway:
        yield gateway


@pytest.fixture
def rpc(house: GatewayProcess) -> Iterator[Rpc]:
    with house.rpc() as client:
        yield client


def send(rpc: Rpc, session: str, text: str) -> str:
    run_id: str = rpc.call("chat.send", session=session, message=text)["run_id"]
    return run_id


def say(rpc: Rpc, session: str, text: str) -> str:
    """Send, and wait for the answer. Gives the run."""
    run_id = send(rpc, session, text)
    rpc.wait_for("chat", run_id=run_id, state="final")
    return run_id


def said(rpc: Rpc, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rpc.call("chat.history", session=session, limit=1000)["messages"]
    return found


def snippet(rpc: Rpc, session: str) -> str | None:
    found: str | None = rpc.call("sessions.get", session=session)["last_snippet"]
    return found


def lines(house: GatewayProcess, word: str, run_id: str) -> list[str]:
    """What the log says of a run, behind one of its words."""
    found = (line.partition(f"  {word}: run {run_id} of ")[2] for line in house.log.read_text().splitlines())
    return [line for line in found if line]


def echo(exchange: Exchange) -> None:
    exchange.reply(f"answer to {exchange.last_user}")


def hang(words: str) -> Any:
    def answer(exchange: Exchange) -> None:
        exchange.begin()
        if words:
            exchange.chunk({"content": words})
        exchange.hang()

    return answer


# Stopped


@pytest.mark.parametrize("words", ["", "so far"])
def test_a_turn_that_was_stopped_says_so(rpc: Rpc, server: ModelServer, words: str) -> None:
    session = f"agent:main:dm:stopped-{len(words)}"
    server.answer = echo
    say(rpc, session, "one")
    server.answer = hang(words)
    before = len(server.raw)
    run_id = send(rpc, session, "two")
    if words:
        rpc.wait_for("chat", run_id=run_id, state="delta")
    else:
        while len(server.raw) == before:
            rpc.call("status")
    assert rpc.call("chat.abort", session=session)["state"] == "aborted"
    *earlier, mark = said(rpc, session)
    assert [m["text"] for m in earlier] == ["one", "answer to one", "two", *([words] if words else [])]
    assert (mark["role"], mark["origin"], mark["run_id"]) == ("system", "system", run_id)
    assert mark["meta"] == {"aborted": True} and "stopped" in mark["text"]
    assert snippet(rpc, session) == (words or "answer to one")
    exported = rpc.call("sessions.export", session=session, format="markdown")["content"]
    assert mark["text"] in exported
    # The model is told, and everything up to there stays as it was.
    server.answer = echo
    say(rpc, session, "three")
    then, now = (server.bodies[place]["messages"] for place in (before, -1))
    assert now[: len(then) - 1] == then[:-1]
    assert any(mark["text"] in str(m["content"]) and "[System]" in str(m["content"]) for m in now)


def test_an_interrupted_task_that_is_stopped_says_so_behind_the_turn_that_runs(
    rpc: Rpc, server: ModelServer
) -> None:
    session = "agent:main:dm:interrupted"
    asked, go = threading.Event(), threading.Event()

    def answer(exchange: Exchange) -> None:
        if exchange.last_user == "task":
            asked.wait(30)
            exchange.calls(("system_time", "{}"))
        elif exchange.has_result or exchange.last_user != "word":
            exchange.reply("done")
        else:
            go.wait(30)
            exchange.calls(("system_time", "{}"))

    server.answer = answer
    task = send(rpc, session, "task")
    word = send(rpc, session, "word")
    asked.set()
    rpc.wait_for("chat", run_id=task, state="steered")
    assert rpc.call("chat.abort", run_id=task)["state"] == "aborted"
    go.set()
    rpc.wait_for("chat", run_id=word, state="final")
    server.answer = echo
    say(rpc, session, "more")
    found = said(rpc, session)
    mark = next(m for m in found if (m.get("meta") or {}).get("aborted"))
    assert mark["meta"]["run_id"] == task and mark["role"] == "system"
    for place, message in enumerate(found):
        if message.get("tool_calls"):
            assert found[place + 1]["role"] == "tool"


def test_a_fork_shows_what_was_said_where_it_begins(rpc: Rpc, server: ModelServer) -> None:
    session = "agent:main:dm:forked"
    server.answer = echo
    for text in ("one", "two"):
        say(rpc, session, text)
    at = next(m["seq"] for m in said(rpc, session) if m["text"] == "answer to one")
    shown = {
        place: rpc.call("sessions.fork", session=session, at_seq=place)["last_snippet"]
        for place in (at - 1, at, at + 1, at + 2)
    }
    assert shown == {
        at - 1: None,
        at: "answer to one",
        at + 1: "answer to one",
        at + 2: "answer to two",
    }
    assert rpc.call("sessions.fork", session=session)["last_snippet"] == "answer to two"


# The log


def test_a_message_that_waits_is_logged(rpc: Rpc, server: ModelServer, house: GatewayProcess) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(exchange: Exchange) -> None:
        begun.set()
        go.wait(30)
        exchange.reply("done")

    server.answer = slow
    first = send(rpc, "agent:lone:dm:one", "first")
    assert begun.wait(30)
    second = send(rpc, "agent:lone:dm:one", "second")
    third = send(rpc, "agent:lone:dm:one", "third")
    other = send(rpc, "agent:lone:dm:two", "elsewhere")  # its agent takes one turn at a time
    while not lines(house, "queue", other):
        rpc.call("status")
    go.set()
    for run_id in (first, second, third, other):
        rpc.wait_for("chat", run_id=run_id, state="final")
    assert lines(house, "queue", first) == []
    assert f"agent:lone:dm:one, trace {second}, steering" in lines(house, "queue", second)
    assert f"agent:lone:dm:one, trace {third}, queued" in lines(house, "queue", third)
    assert lines(house, "queue", other) == [
        f"agent:lone:dm:two, trace {other}, waits for a place: agent lone, 1 at once"
    ]


def test_a_call_that_is_refused_is_logged(rpc: Rpc, server: ModelServer, house: GatewayProcess) -> None:
    calls = [
        ("memory_remember", '{"content": "x"}'),
        ("no\nsuch tool: run", "{}"),
        ("agents_message", '{"agentId": "nobody", "content": "hello"}'),
    ]

    def answer(exchange: Exchange) -> None:
        if exchange.has_result:
            exchange.reply("I see")
        else:
            exchange.calls(*calls)

    server.answer = answer
    run_id = say(rpc, "agent:strict:main", "go")
    found = lines(house, "refuse", run_id)
    start = f"agent:strict:main, trace {run_id}: strict may not call "
    assert all(line.startswith(start) for line in found)
    one, two, three = (line.removeprefix(start) for line in found)
    assert one.startswith("'memory_remember': ") and "memory_*" in one and "tool_denylist" in one
    assert two.startswith("'no\\nsuch tool: run': ") and "no such tool" in two
    assert three.startswith("'agents_message': ") and "nobody" in three


def test_a_prompt_that_begins_otherwise_is_logged_with_the_reason(
    rpc: Rpc, server: ModelServer, house: GatewayProcess
) -> None:
    session = "agent:edited:main"
    server.answer = echo
    first, same = say(rpc, session, "one"), say(rpc, session, "two")
    rpc.call("sessions.patch", session=session, model="mock/other")
    model = say(rpc, session, "three")
    (house.home / "agents" / "edited").mkdir(parents=True, exist_ok=True)
    (house.home / "agents" / "edited" / "SOUL.md").write_text("You like the sea.\n")
    file = say(rpc, session, "four")
    rpc.call("agents.update", agent_id="edited", spec={"tool_denylist": ["memory_*"]})
    policy = say(rpc, session, "five")
    rpc.call("sessions.set_agent", session=session, agent_id="rose")
    agent = say(rpc, session, "six")
    found = {run: lines(house, "prefix", run) for run in (first, same, model, file, policy, agent)}
    told = [line.partition(": ")[2] for run in (model, file, policy, agent) for line in found[run]]
    assert (found[first], found[same]) == ([], [])
    assert told == [
        "model mock/mock-1 → mock/other",
        "an identity file or a setting: its system prompt is another",
        "policy or plug-ins: its tools are others",
        "agent edited → rose",
    ]
    assert found[model][0].startswith(f"{session}, trace {model}: ")


def test_an_answer_without_words_keeps_the_snippet(rpc: Rpc, server: ModelServer) -> None:
    session = "agent:main:dm:wordless"
    server.answer = echo
    say(rpc, session, "one")
    server.answer = lambda exchange: exchange.reply("")
    run_id = send(rpc, session, "two")
    rpc.wait_for("chat", run_id=run_id, state="final", seconds=60)
    assert snippet(rpc, session) == "answer to one"


@pytest.fixture(autouse=True)
def _nothing_went_wrong(house: GatewayProcess) -> Iterator[None]:
    yield
    assert "Traceback" not in Path(house.log).read_text()
