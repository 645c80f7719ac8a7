"""Providers that misbehave and messages that are none: the person is told, nothing is lost, the house stands."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import GatewayProcess, Rpc, RpcError, running
from tests.support.mock import Exchange, ModelServer, config, model_server

ROSTER = """agents:
  roster:
    - {name: rose}
    - {name: lost, model: nowhere/model-1}
    - {name: gone}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("bad") / "home"
    home.mkdir()
    (home / "agent.yaml").write_text(config(server.base_url, more=ROSTER))
    with running(home) as gateway:
        yield gateway


@pytest.fixture
def rpc(served: GatewayProcess) -> Iterator[Rpc]:
    with served.rpc() as client:
        yield client


def messages(rpc: Rpc, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rpc.call("chat.history", session=session, limit=1000)["messages"]
    return found


def send(rpc: Rpc, session: str, text: str) -> str:
    run_id: str = rpc.call("chat.send", session=session, message=text)["run_id"]
    return run_id


def ends_with_error(rpc: Rpc, session: str, said: str) -> None:
    """A turn fails as an event and as a note in the history; the next one works."""
    run_id = send(rpc, session, "go")
    event = rpc.wait_for("chat", run_id=run_id, state="error", seconds=60)
    assert said in event["message"]
    user, *_, note = messages(rpc, session)
    assert (user["text"], user["seq"]) == ("go", 1)
    assert note["role"] == "system" and said in note["text"]
    assert rpc.call("chat.queue", session=session)["entries"] == []


def works(rpc: Rpc, server: ModelServer, session: str) -> None:
    server.answer = lambda exchange: exchange.reply(f"answer to {exchange.last_user}")
    assert (
        rpc.wait_for("chat", run_id=send(rpc, session, "hello"), state="final")["text"] == "answer to hello"
    )


def times(count: int, bad: Callable[[Exchange], None]) -> Callable[[Exchange], None]:
    """Bad so many times, then good."""
    left = [count]

    def answer(exchange: Exchange) -> None:
        left[0] -= 1
        if left[0] >= 0:
            bad(exchange)
        else:
            exchange.reply("good at last")

    return answer


def garbage(exchange: Exchange) -> None:
    exchange.begin()
    exchange.send(b"data: {not json\n\n\xff\xfe\x00")


def closes(exchange: Exchange) -> None:
    exchange.begin()
    exchange.chunk({"content": "half of what I wanted to s"})


def html(exchange: Exchange) -> None:
    exchange.head(200, {"Content-Type": "text/html", "Content-Length": "13"})
    exchange.send(b"<html></html>")


def limited(exchange: Exchange) -> None:
    exchange.status(429, {"error": {"message": "slow"}}, Retry_After="0.05")


# Providers


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("garbage", garbage),
        ("closes", closes),
        ("html", html),
        ("429", limited),
        ("500", lambda e: e.status(500)),
        ("429 without a hint", lambda e: e.status(429)),
    ],
)
def test_one_bad_reply_is_tried_again(
    rpc: Rpc, server: ModelServer, name: str, bad: Callable[[Exchange], None]
) -> None:
    server.answer = times(1, bad)
    session = f"agent:main:dm:once {name}".replace(" ", "-")
    final = rpc.wait_for("chat", run_id=send(rpc, session, "go"), state="final")
    assert final["text"] == "good at last"
    assert [m["text"] for m in messages(rpc, session)] == ["go", "good at last"]


@pytest.mark.parametrize(
    ("name", "bad", "requests", "said"),
    [
        ("401", lambda e: e.status(401, {"error": {"message": "bad key"}}), 1, "refused the API key"),
        ("404", lambda e: e.status(404, {"error": {"message": "no such model"}}), 1, "not known"),
        ("400", lambda e: e.status(400, {"error": {"message": "too long"}}), 1, "too long"),
        ("429 for ever", limited, 5, "slow down"),
        ("429 far away", lambda e: e.status(429, None, Retry_After="86400"), 1, "slow down"),
    ],
)
def test_a_reply_that_stays_bad_is_an_error_to_the_person(
    rpc: Rpc, server: ModelServer, name: str, bad: Callable[[Exchange], None], requests: int, said: str
) -> None:
    before = len(server.raw)
    server.answer = bad
    session = f"agent:main:dm:{name}".replace(" ", "-")
    ends_with_error(rpc, session, said)
    assert len(server.raw) == before + requests
    works(rpc, server, session)


def test_a_provider_that_hangs_can_be_left(rpc: Rpc, server: ModelServer) -> None:
    def hangs(exchange: Exchange) -> None:
        exchange.begin()
        exchange.chunk({"content": "so far"})
        exchange.hang()

    server.hung_up.clear()
    server.answer = hangs
    session = "agent:main:dm:hangs"
    run_id = send(rpc, session, "go")
    rpc.wait_for("chat", run_id=run_id, state="delta")
    assert rpc.call("chat.abort", session=session) == {"state": "aborted", "run_id": run_id}
    rpc.wait_for("chat", run_id=run_id, state="aborted")
    assert server.hung_up.wait(30)  # the request was really given up
    *said, mark = messages(rpc, session)
    assert [m["text"] for m in said] == ["go", "so far"]
    assert (mark["role"], mark["meta"]) == ("system", {"aborted": True})
    works(rpc, server, session)


def test_a_model_that_nobody_provides(rpc: Rpc, server: ModelServer) -> None:
    ends_with_error(rpc, "agent:lost:main", "nowhere")
    rpc.call("sessions.patch", session="agent:lost:main", model="mock/fine")
    works(rpc, server, "agent:lost:main")
    with pytest.raises(RpcError, match="provider"):
        rpc.call("sessions.patch", session="agent:lost:main", model="no-slash")


# Tool calls


def test_calls_of_nothing_of_nonsense_and_of_far_too_much(rpc: Rpc, server: ModelServer) -> None:
    def answer(exchange: Exchange) -> None:
        if exchange.has_result:
            exchange.reply("I see")
        else:
            exchange.calls(
                ("no_such_tool", "{}"),
                ("files_read", '{"path": '),
                ("files_read", "[]"),
                ("files_read", '{"path": "../../etc/passwd"}'),
                *[("system_time", "{}")] * 1000,
            )

    server.answer = answer
    session = "agent:main:dm:calls"
    rpc.wait_for("chat", run_id=send(rpc, session, "go"), state="final", seconds=120)
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = rpc.call("chat.history", session=session, limit=1000, after=after)
        found += page["messages"]
        after = page.get("next_cursor")
    results = {m["call_id"].rpartition("-")[2]: m["text"] for m in found if m["role"] == "tool"}
    assert len(results) == 1004
    assert results["0"].startswith("error: tool_not_allowed: no_such_tool")
    assert all(results[n].startswith("error: ") for n in ("1", "2", "3"))
    assert "passwd" not in results["3"] or "root:" not in results["3"]
    assert sum(not text.startswith("error") for text in results.values()) == 60
    works(rpc, server, session)


def test_calls_for_ever_come_to_an_end(rpc: Rpc, server: ModelServer) -> None:
    before = len(server.raw)
    server.answer = lambda exchange: exchange.calls(("system_time", "{}"))
    ends_with_error(rpc, "agent:main:dm:for-ever", "50 rounds")
    assert len(server.raw) == before + 50
    works(rpc, server, "agent:main:dm:for-ever")


# Messages


@pytest.mark.parametrize("text", ["", "  \n", "a\x00b", "x" * 5_000_000])
def test_what_is_no_message(rpc: Rpc, served: GatewayProcess, text: str) -> None:
    with pytest.raises(RpcError) as caught:
        rpc.call("chat.send", session="agent:main:dm:nobody", message=text)
    assert caught.value.code == "INVALID_REQUEST"
    with served.http() as http:
        refused = http.post("/api/sessions/agent:main:dm:nobody/messages", json={"message": text})
        assert refused.status_code in (400, 413)
        assert refused.json()["error"]["code"] == "INVALID_REQUEST"
        assert http.get("/api/sessions/agent:main:dm:nobody").status_code == 404


def test_bytes_that_are_no_text(served: GatewayProcess) -> None:
    bodies = [
        b'{"message": "\xff\xfe"}',
        b'{"message": "\xed\xa0\x80"}',
        b'{"message": "a", "idempotencyKey": "\xed\xbf\xbf"}',
        b'{"message": "\\ud800"}',
        b"\x00" * 100,
        b"[" * 100_000,
    ]
    with served.http() as http:
        for raw in bodies:
            for path in ("/api/sessions/agent:main:dm:nobody/messages", "/v1/chat/completions"):
                body = raw
                if path.startswith("/v1") and raw.startswith(b"{"):
                    said = raw.partition(b": ")[2].rstrip(b"}")
                    body = (
                        b'{"model":"coterie/main","user":"u","messages":[{"role":"user","content":'
                        + said
                        + b"}]}"
                    )
                refused = http.post(path, content=body, headers={"Content-Type": "application/json"})
                assert refused.status_code == 400, (path, raw[:30], refused.text)
                assert refused.json()["error"]["code"] == "INVALID_REQUEST"
        assert http.get("/api/sessions/agent:main:dm:nobody").status_code == 404
        assert http.get("/api/sessions/agent:main:api:u").status_code == 404


def test_agents_and_sessions_that_are_not_there(
    rpc: Rpc, server: ModelServer, served: GatewayProcess
) -> None:
    deleted = rpc.call("sessions.create", agent_id="rose")
    rpc.call("sessions.delete", session=deleted["id"])
    rpc.call("agents.delete", agent_id="gone")
    refused = {
        "agent:nobody:main": "NOT_FOUND",
        "agent:gone:main": "CONFLICT",
        "agent:GONE:main": "INVALID_REQUEST",
        deleted["id"]: "NOT_FOUND",
        deleted["key"]: "NOT_FOUND",
        "00000000-0000-0000-0000-000000000000": "NOT_FOUND",
        "agent:main:subagent:1": "NOT_FOUND",
        "agent:main": "INVALID_REQUEST",
        "' OR 1=1 --": "NOT_FOUND",
    }
    for session, code in refused.items():
        with pytest.raises(RpcError) as caught:
            rpc.call("chat.send", session=session, message="hello")
        assert caught.value.code == code, session
    for method in ("chat.abort", "chat.cancel_queued"):
        with pytest.raises(RpcError) as caught:
            rpc.call(method, run_id="nothing")
        assert caught.value.code == "NOT_FOUND"
    with pytest.raises(RpcError, match="attachments"):
        rpc.call("chat.send", session="agent:main:main", message="see", attachments=[{"a": 1}])
    works(rpc, server, "agent:main:dm:afterwards")


def test_a_client_that_leaves_in_the_middle_stops_nothing(
    rpc: Rpc, server: ModelServer, served: GatewayProcess
) -> None:
    def slow(exchange: Exchange) -> None:
        exchange.begin()
        exchange.chunk({"content": "one "})
        time.sleep(0.5)
        exchange.chunk({"content": "two"})
        exchange.chunk({}, "stop")

    server.answer = slow
    body = {"model": "coterie/main", "user": "leaver", "messages": [{"role": "user", "content": "go"}]}
    with (
        served.http() as http,
        http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer,
    ):
        next(answer.iter_lines())
    session = "agent:main:api:leaver"
    with served.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=body, timeout=0.2)
    deadline = time.monotonic() + 30
    while rpc.call("chat.queue", session=session)["entries"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [m["text"] for m in messages(rpc, session)] == ["go", "one two"] * 2


# A full disk


def test_a_full_disk(home: Path) -> None:
    """Nothing is acknowledged that is not on disk; once there is room again, everything goes on."""
    home.mkdir()
    with model_server() as server:
        server.answer = lambda exchange: exchange.reply(f"answer to {exchange.last_user[:20]}")
        (home / "agent.yaml").write_text(config(server.base_url))
        with running(home) as gateway, gateway.rpc() as rpc:
            rpc.wait_for("chat", run_id=send(rpc, "agent:main:main", "before"), state="final")
            # From here on no file may grow: a disk that is full, for this process alone.
            everything = resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE)
            size = max(f.stat().st_size for f in home.glob("coterie.db*"))
            resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (size, everything[1]))
            accepted: list[str] = []
            refused: list[RpcError] = []
            for n in range(60):
                try:
                    accepted.append(send(rpc, "agent:main:main", f"message {n} " + "x" * 20_000))
                except RpcError as error:
                    refused.append(error)
            assert refused
            for refusal in refused:
                assert refusal.code == "UNAVAILABLE"
                assert "disk" in refusal.message or "full" in refusal.message
            assert httpx.get(f"{gateway.url}/healthz").status_code == 200
            resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, everything)
            accepted.append(send(rpc, "agent:main:main", "there is room again"))
            deadline = time.monotonic() + 60
            while rpc.call("chat.queue", session="agent:main:main")["entries"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            found = messages(rpc, "agent:main:main")
            for run_id in accepted:
                mine = [m["role"] for m in found if m.get("run_id") == run_id]
                assert mine == ["user", "assistant"], (run_id, mine)
            assert len(found) == 2 * (len(accepted) + 1)
