"""Tools that never come back, an embeddings server that hangs, a loop that stands still: the rest of the house goes on."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, Rpc, running
from tests.support.mock import Exchange, config, model_server

PLUGIN = '''
import time
from pathlib import Path
from coterie import tool

@tool
def stuck() -> str:
    """Never comes back."""
    while not Path({gate!r}).exists():
        time.sleep(0.01)
    return "back"

@tool(safe_to_repeat=True)
def quick() -> str:
    """Comes back."""
    return "done"

@tool
async def still() -> str:
    """Holds the loop, as no tool should."""
    Path({held!r}).touch()
    while not Path({gate!r}).exists():
        time.sleep(0.01)
    return "moving"
'''


def uses_tools(exchange: Exchange) -> None:
    if exchange.has_result or exchange.last_user == "hello":
        exchange.reply(f"after {exchange.last_user}")
    else:
        exchange.calls((exchange.last_user, "{}"))


@contextmanager
def house(tmp_path: Path, more: str = "", **env: str) -> Iterator[tuple[GatewayProcess, Path]]:
    home, gate = tmp_path / "home", tmp_path / "gate"
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "parts.py").write_text(PLUGIN.format(gate=str(gate), held=str(tmp_path / "held")))
    with model_server() as server:
        server.answer = uses_tools
        (home / "agent.yaml").write_text(config(server.base_url, more=more))
        with running(home, fresh=False, **env) as gateway:
            try:
                yield gateway, gate
            finally:
                gate.touch()


def begin(rpc: Rpc, session: str, text: str, state: str) -> str:
    run_id: str = rpc.call("chat.send", session=session, message=text)["run_id"]
    rpc.wait_for("chat", run_id=run_id, state=state)
    return run_id


def new(rpc: Rpc) -> str:
    session: str = rpc.call("sessions.create", agent_id="main")["key"]
    return session


def wait_for(true: Callable[[], bool], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def works(gateway: GatewayProcess, rpc: Rpc) -> None:
    session = new(rpc)
    with gateway.http() as http:
        assert http.get("/readyz").status_code == 200
    assert rpc.call("agents.list")["default_id"] == "main"
    rpc.call("memory.recall", query="where does the key hang")
    begin(rpc, session, "hello", "final")
    begin(rpc, session, "quick", "final")


def test_tools_that_never_come_back_hold_up_nobody_and_give_their_place_back(tmp_path: Path) -> None:
    with house(tmp_path) as (gateway, _gate), gateway.rpc() as rpc:
        sessions = [new(rpc) for _ in range(20)]
        stuck = [begin(rpc, session, "stuck", "tool_start") for session in sessions]
        works(gateway, rpc)
        for session, run_id in zip(sessions, stuck, strict=True):
            rpc.call("chat.abort", run_id=run_id)
            rpc.wait_for("chat", run_id=run_id, state="aborted")
            begin(rpc, session, "hello", "final")
        works(gateway, rpc)


def test_calls_that_were_given_up_are_bounded_and_named(tmp_path: Path) -> None:
    with house(tmp_path) as (gateway, gate), gateway.rpc() as rpc:
        for _ in range(100):
            run_id = begin(rpc, "agent:main:main", "stuck", "tool_start")
            rpc.call("chat.abort", run_id=run_id)
            rpc.wait_for("chat", run_id=run_id, state="aborted")
        run_id = rpc.call("chat.send", session="agent:main:main", message="stuck")["run_id"]
        ended = rpc.wait_for("chat", run_id=run_id, state="tool_end")
        assert "given up still run (stuck)" in str(ended)
        rpc.wait_for("chat", run_id=run_id, state="final")
        gate.touch()  # they all come back
        for _attempt in range(1000):
            run_id = rpc.call("chat.send", session="agent:main:main", message="quick")["run_id"]
            if "done" in str(rpc.wait_for("chat", run_id=run_id, state="tool_end")):
                break
        else:
            pytest.fail("places were not given back")


def test_a_gateway_ends_though_a_tool_does_not(tmp_path: Path) -> None:
    with house(tmp_path) as (gateway, _gate):
        with gateway.rpc() as rpc:
            begin(rpc, "agent:main:main", "stuck", "tool_start")
        gateway.process.terminate()
        assert gateway.process.wait(20) in (0, -signal.SIGTERM)


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


def test_an_embeddings_server_that_hangs_holds_up_nobody_and_is_left_alone(tmp_path: Path) -> None:
    with silent_server() as url:
        embeddings = f"memory: {{embeddings: {{type: openai-compatible, base_url: '{url}', model: m}}}}\n"
        with house(tmp_path, embeddings, OPENAI_API_KEY="x") as (gateway, _), gateway.rpc() as rpc:
            rpc.call("memory.remember", content="The spare key hangs behind the clock.")

            def recall(_: int) -> dict[str, object]:
                with gateway.rpc() as one:
                    return one.call("memory.recall", query="where does the spare key hang")

            with ThreadPoolExecutor(12) as pool:
                asked = [pool.submit(recall, number) for number in range(24)]
                works(gateway, rpc)
                answers = [one.result() for one in asked]
            for answer in answers:
                assert "behind the clock" in str(answer["memories"])
                assert "by words alone" in str(answer["note"])


def test_a_loop_that_stands_still_is_noticed_with_where(tmp_path: Path) -> None:
    with house(tmp_path, "gateway: {watchdog_s: 1}\n") as (gateway, gate), gateway.rpc() as rpc:
        rpc.call("chat.send", session="agent:main:main", message="still")
        wait_for(lambda: "in still" in gateway.log.read_text())
        assert "the event loop stands still" in gateway.log.read_text()
        gate.touch()
        wait_for(lambda: "moves again" in gateway.log.read_text())
        begin(rpc, new(rpc), "hello", "final")


def test_a_loop_that_stands_still_under_a_supervisor_is_ended_to_be_restarted(tmp_path: Path) -> None:
    supervised = {"COTERIE_SUPERVISED": "1"}
    with (
        house(tmp_path, "gateway: {watchdog_s: 1}\n", **supervised) as (gateway, _gate),
        gateway.rpc() as rpc,
    ):
        rpc.call("chat.send", session="agent:main:main", message="still")
        assert gateway.process.wait(60) != 0
        said = gateway.log.read_text()
        assert "to be started again" in said and "Timeout" in said and "in still" in said
