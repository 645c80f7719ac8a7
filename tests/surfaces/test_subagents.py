"""Runs of agents through the doors: RPC, HTTP, the command line, and a household with the offline model."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, RpcError, coterie, running
from tests.support.mock import Exchange, ModelServer, config, model_server

ROSTER = "agents:\n  roster:\n    - {name: rose, label: Rose}\n"
MAIN = "agent:main:main"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@contextmanager
def at_home(home: Path, model: ModelServer) -> Iterator[GatewayProcess]:
    home.mkdir()
    (home / "agent.yaml").write_text(config(model.base_url, more=ROSTER))
    with running(home) as gateway:
        yield gateway


@pytest.fixture
def house(home: Path, model: ModelServer) -> Iterator[GatewayProcess]:
    with at_home(home, model) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def idle_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """For what is refused: each test sees that nothing has come of it."""
    with model_server() as server, at_home(tmp_path_factory.mktemp("idle") / "home", server) as gateway:
        yield gateway


def test_spawn_list_get_and_remove_over_http(house: GatewayProcess, model: ModelServer) -> None:
    model.answer = lambda exchange: exchange.reply(f"done: {exchange.last_user}")
    with house.http() as client, house.rpc() as rpc:
        made = client.post(
            "/api/agents/subagents/spawn",
            json={
                "task": "count",
                "agentId": "rose",
                "label": "counting",
                "toolAllowlist": ["files_*"],
                "timeoutSeconds": 60,
                "requesterSessionKey": rpc.call("sessions.create")["key"],
            },
        )
        assert made.status_code == 201, made.text
        receipt = made.json()
        assert receipt["tools"] == ["files_edit", "files_list", "files_read", "files_write"]
        assert (receipt["agentId"], receipt["model"], receipt["workspace"]) == (
            "rose",
            "mock/mock-1",
            "agents/rose/workspace",
        )
        assert receipt["childSessionKey"].startswith("agent:rose:subagent:")
        rpc.wait_for("subagent.changed", run_id=receipt["runId"], status="completed")
        place = f"/api/agents/subagents/{receipt['runId']}"
        found = client.get(place).json()
        assert (found["status"], found["result"], found["label"]) == ("completed", "done: count", "counting")
        assert found["createdAt"] <= found["startedAt"] <= found["endedAt"]
        assert found["usage"]["inputTokens"] >= 0
        assert [r["runId"] for r in client.get("/api/agents/subagents").json()["runs"]] == [receipt["runId"]]
        only = client.get("/api/agents/subagents", params={"status": "error"}).json()
        assert only["runs"] == []
        rpc.wait_for("chat", state="final", session=receipt["requesterSessionKey"])
        assert client.get(place).json()["announcement"]["state"] == "delivered"
        history = client.get(f"/api/sessions/{receipt['requesterSessionKey']}/messages").json()["messages"]
        assert history[0]["text"] == "[@agent:Rose#rose] finish"
        assert history[0]["meta"]["announce"]["result"]["summary"] == "done: count"
        assert client.delete(place).status_code == 200
        assert client.get(place).status_code == 404


def test_deleting_a_live_run_cancels_it(house: GatewayProcess, model: ModelServer) -> None:
    model.answer = Exchange.hang
    with house.http() as client, house.rpc() as rpc:
        run_id = rpc.call("subagents.spawn", task="hang")["run_id"]
        rpc.wait_for("subagent.changed", run_id=run_id, status="running")
        while not model.raw:
            time.sleep(0.005)
        ended = client.delete(f"/api/agents/subagents/{run_id}").json()
        assert (ended["status"], ended["error"]) == ("error", "cancelled")
        assert model.hung_up.wait(30)
        # Nobody asked to be told.
        assert rpc.call("subagents.get", run_id=run_id)["announcement"] is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"task": " "}, 400),
        ({"task": "x" * 1_000_001}, 413),
        ({"task": "x", "agentId": "nobody"}, 404),
        ({"task": "x", "requesterSessionKey": "nowhere"}, 404),
        ({"task": "x", "timeoutSeconds": 0}, 400),
        ({"task": "x", "timeoutSeconds": -1}, 400),
        ({"task": "x", "timeoutSeconds": 1e300}, 400),
        ({"task": "x", "model": "nonsense"}, 400),
        ({"task": "x", "toolAllowlist": ["[a"]}, 400),
        ({"task": "x", "toolAllowlist": "files_read"}, 400),
        ({"task": "x", "surprise": 1}, 400),
    ],
)
def test_bad_spawns_get_a_clear_error(
    idle_house: GatewayProcess, body: dict[str, object], status: int
) -> None:
    with idle_house.http() as client:
        answer = client.post("/api/agents/subagents/spawn", json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["message"]
        assert client.get("/api/agents/subagents").json()["runs"] == []


def test_scopes_and_absent_runs(house: GatewayProcess) -> None:
    with house.rpc() as admin:
        reader = admin.call("tokens.create", scope="read")["token"]
        with house.rpc(reader) as rpc:
            assert rpc.call("subagents.list")["runs"] == []
            for method, params in (
                ("subagents.spawn", {"task": "x"}),
                ("subagents.cancel", {"run_id": "x"}),
                ("subagents.retry", {"run_id": "x"}),
            ):
                with pytest.raises(RpcError) as refused:
                    rpc.call(method, **params)
                assert refused.value.code == "FORBIDDEN"
        for method in ("subagents.get", "subagents.cancel", "subagents.delete", "subagents.retry"):
            with pytest.raises(RpcError) as absent:
                admin.call(method, run_id="none")
            assert absent.value.code == "NOT_FOUND"


def test_a_subagents_session_cannot_ask_for_children(house: GatewayProcess, model: ModelServer) -> None:
    with house.rpc() as rpc:
        child = rpc.call("subagents.spawn", task="x")["child_session_key"]
        with pytest.raises(RpcError) as refused:
            rpc.call("subagents.spawn", task="y", requester_session_key=child)
        assert refused.value.code == "CONFLICT"
        assert refused.value.details == {"reason": "tool_not_allowed"}


def test_the_command_line_sees_and_stops_runs_with_and_without_the_gateway(
    home: Path, model: ModelServer
) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(config(model.base_url, more=ROSTER))
    model.answer = Exchange.hang
    with running(home) as gateway, gateway.rpc() as rpc:
        session = rpc.call("sessions.create")["key"]
        first = rpc.call("subagents.spawn", task="hang", requester_session_key=session)["run_id"]
        second = rpc.call("subagents.spawn", task="hang too", requester_session_key=session)["run_id"]
        rpc.wait_for("subagent.changed", run_id=first, status="running")
        listed = json.loads(coterie(home, "subagent", "list", "--json").stdout)
        assert listed == rpc.call("subagents.list")
        assert coterie(home, "subagent", "cancel", first).stdout == f"{first}: cancelled; pending\n"
    # The gateway is gone; one run is still unfinished on disk.
    done = coterie(home, "subagent", "cancel", second, "--json")
    assert json.loads(done.stdout)["error"] == "cancelled", done.stderr
    shown = coterie(home, "subagent", "show", second).stdout
    assert "hang too" in shown and "cancelled" in shown
    assert second in coterie(home, "subagent", "list", "--session", session).stdout
    failed = coterie(home, "subagent", "retry", second)
    assert failed.returncode == 1 and "pending, not blocked" in failed.stderr
    assert coterie(home, "subagent", "show", "none").returncode == 1
    # Both are told of at the next start, in one turn.
    model.answer = lambda exchange: exchange.reply("both were stopped")
    with running(home) as gateway, gateway.rpc() as rpc:
        while {r["announcement"]["state"] for r in rpc.call("subagents.list")["runs"]} != {"delivered"}:
            pass
        history = rpc.call("chat.history", session=session)["messages"]
        assert [m["text"] for m in history] == ["[@agent:main#main] finish"] * 2 + ["both were stopped"]


def test_a_killed_gateway_tells_the_parent_after_the_restart(home: Path, model: ModelServer) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(config(model.base_url, more=ROSTER))
    let_go = threading.Event()

    def answer(exchange: Exchange) -> None:
        if "finish" in exchange.body["messages"][-2]["content"]:
            exchange.reply("I heard of it")
        elif exchange.last_user == "work":
            let_go.wait(60)
            exchange.reply("worked")
        elif exchange.has_result:
            exchange.reply("on its way")
        else:
            exchange.calls(("subagents_spawn", '{"task": "work"}'))

    model.answer = answer
    gateway = GatewayProcess(home).wait()
    with gateway.rpc() as rpc:
        sent = rpc.call("chat.send", session=MAIN, message="go")
        rpc.wait_for("chat", run_id=sent["run_id"], state="final")
    gateway.kill()
    let_go.set()
    with running(home) as gateway, gateway.rpc() as rpc:
        while rpc.call("chat.history", session=MAIN)["messages"][-1]["text"] != "I heard of it":
            pass
        [run] = rpc.call("subagents.list")["runs"]
        assert (run["status"], run["result"]) == ("completed", "worked")
    with sqlite3.connect(home / "coterie.db") as connection:
        assert connection.execute("SELECT count(*) FROM announcements").fetchone() == (1,)
    connection.close()


def test_the_offline_model_shows_agents_at_work(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(f"version: 1\n{ROSTER}")
    with running(home) as gateway, gateway.rpc() as rpc:

        def say(text: str) -> str:
            sent = rpc.call("chat.send", session=MAIN, message=text)
            return str(rpc.wait_for("chat", run_id=sent["run_id"], state="final")["text"])

        assert "which soil?" in say("ask rose: which soil?")
        assert '"status":"queued"' in say("spawn a subagent to say hello")
        while "is done (ok)" not in rpc.call("chat.history", session=MAIN)["messages"][-1]["text"]:
            pass
        assert '"status":"started"' in say("tell rose that it rains")
        assert '"status":"switched"' in say("go to rose and discuss the roses")
        assert rpc.wait_for("session.switched")["from"] == MAIN
