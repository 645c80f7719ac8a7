"""A megabyte of the worst text at every door: it is taken or refused, and the house goes on at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from coterie.cli.chat.markdown import render, split_finished
from coterie.cli.chat.terminal import Terminal
from tests.support.gateway import GatewayProcess, Rpc, RpcError, coterie, running
from tests.support.mock import Exchange, ModelServer, config, model_server

SIZE = 1_000_000
PUMPS = {
    "heading": ("# a", " ", "b"),
    "hashes": ("", "# ", ""),
    "breaks": ("a", "\n", "b"),
    "blank lines": ("a", "\n ", "b"),
    "brackets": ("", "⟦a ", ""),
    "colons": ("x: ", "a: ", ""),
    "one word": ("", "a", ""),
    "dates": ("", "2026-1", ""),
    "numbers": ("", "1 ", "."),
    "quotes": ("", "'s", ""),
    "context": ('<context name="', 'a=" ', ""),
    "write": ("write ", "a to ", ""),
    "questions": ("what do you know about ", "?", "x"),
    "files": ("read ", "a.", " "),
}


def pumped(name: str, size: int = SIZE) -> str:
    start, pump, end = PUMPS[name]
    return start + pump * ((size - len(start) - len(end)) // len(pump)) + end


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("hostile") / "home"
    home.mkdir()
    more = "agents:\n  roster:\n    - {name: demo, model: offline/demo}\n"
    (home / "agent.yaml").write_text(config(server.base_url, more=more))
    with running(home) as gateway:
        yield gateway


@pytest.fixture
def rpc(house: GatewayProcess) -> Iterator[Rpc]:
    with house.rpc() as client:
        yield client


def goes_on(house: GatewayProcess) -> None:
    assert httpx.get(f"{house.url}/healthz", timeout=30).status_code == 200
    assert "Traceback" not in house.log.read_text()


def tried(rpc: Rpc, method: str, **params: Any) -> None:
    """Taken, or refused for a reason."""
    try:
        rpc.call(method, **params)
    except RpcError as error:
        if error.code not in ("INVALID_REQUEST", "NOT_FOUND"):
            raise


def test_a_heading_in_a_memory_file_holds_nobody_up(
    rpc: Rpc, server: ModelServer, house: GatewayProcess
) -> None:
    arguments = json.dumps({"old": "", "new": "# a" + " " * 20_000 + "b"})

    def answer(exchange: Exchange) -> None:
        if exchange.has_result:
            exchange.reply("noted")
        else:
            exchange.calls(("memory_edit", arguments))

    server.answer = answer
    run_id = rpc.call("chat.send", session="agent:main:main", message="note it")["run_id"]
    rpc.wait_for("chat", run_id=run_id, state="final")
    assert "b" in (house.home / "agents" / "main" / "MEMORY.md").read_text()
    rpc.call("memory.remember", agent_id="main", content="The kettle is red.")
    found = rpc.call("memory.recall", agent_id="main", query="kettle")["memories"]
    assert [memory["content"] for memory in found] == ["The kettle is red."]
    server.answer = lambda exchange: exchange.reply("hello")
    run_id = rpc.call("chat.send", session="agent:main:main", message="a b?")["run_id"]
    rpc.wait_for("chat", run_id=run_id, state="final")
    goes_on(house)


@pytest.mark.parametrize("name", PUMPS)
def test_a_megabyte_of_it(rpc: Rpc, server: ModelServer, house: GatewayProcess, name: str) -> None:
    text = pumped(name)
    server.answer = lambda exchange: exchange.reply(text[:200_000])
    for session in ("agent:main:dm:hostile", "agent:demo:dm:hostile"):
        run_id = rpc.call("chat.send", session=session, message=text)["run_id"]
        while True:
            payload = rpc.receive().get("payload") or {}
            if payload.get("run_id") == run_id and payload.get("state") in ("final", "error"):
                break
    tried(rpc, "memory.remember", agent_id="main", content=text)
    tried(rpc, "memory.remember", agent_id="main", content=text[:20_000])
    tried(rpc, "memory.recall", agent_id="main", query=text)
    tried(rpc, "memory.recall", agent_id="main", query=text[:4_000])
    tried(rpc, "sessions.search", query=text)
    tried(rpc, "memory.import", agent_id="main", content=text, format="markdown")
    tried(rpc, "sessions.get", session="agent:main:dm:" + text)
    tried(rpc, "agents.files.set", agent_id="main", name="IDENTITY.md", content=text)
    tried(rpc, "agents.files.set", agent_id="main", name="MEMORY.md", content=text)
    tried(rpc, "agents.get", agent_id="main")
    tried(rpc, "memory.recall", agent_id="main", query="tea")
    tried(rpc, "agents.files.set", agent_id="main", name="MEMORY.md", content="")
    tried(rpc, "agents.files.set", agent_id="main", name="IDENTITY.md", content="")
    goes_on(house)


def test_a_megabyte_on_the_wire(house: GatewayProcess) -> None:
    with house.http() as http:
        for name in ("heading", "brackets", "context", "write", "questions", "files"):
            said = {"model": "coterie/demo", "messages": [{"role": "user", "content": pumped(name)}]}
            assert http.post("/v1/chat/completions", json=said).status_code in (200, 400, 413, 503)
    goes_on(house)


def test_a_megabyte_in_the_files(house: GatewayProcess, rpc: Rpc) -> None:
    """Written with an editor, not through a door."""
    folder = house.home / "agents" / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("heading", "blank lines", "quotes"):
        for file in ("IDENTITY.md", "SOUL.md", "MEMORY.md"):
            (folder / file).write_text(pumped(name))
        tried(rpc, "agents.get", agent_id="demo")
        tried(rpc, "memory.recall", agent_id="demo", query="tea")
        tried(rpc, "prompt.preview", agent_id="demo")
    for file in ("IDENTITY.md", "SOUL.md", "MEMORY.md"):
        (folder / file).unlink()
    kept = (house.home / "agent.yaml").read_text()
    for name in ("heading", "breaks"):
        (house.home / "agent.yaml").write_text(f"{kept}\n{pumped(name)}\n")
        tried(rpc, "agents.list")
        assert "Traceback" not in coterie(house.home, "doctor").stderr
    (house.home / "agent.yaml").write_text(kept)
    goes_on(house)


@pytest.mark.parametrize("name", PUMPS)
def test_a_reply_in_the_terminal(name: str) -> None:
    terminal = Terminal(escapes=True, colour=True, unicode=True)
    for size in (49_000, SIZE):
        finished, rest = split_finished(pumped(name, size) + "\n\nx\n")
        assert render(finished, terminal) + rest
