"""What a socket hears, and in which order its requests are done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.api.events import EVENTS
from tests.support.gateway import GatewayProcess, Rpc, RpcError, running
from tests.support.mock import Exchange, ModelServer, config, model_server
from tests.support.operations import SLOW, added


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(autouse=True)
def well(server: ModelServer) -> None:
    server.answer = answer


def answer(exchange: Exchange) -> None:
    if "time" in exchange.last_user and not exchange.has_result:
        exchange.calls(("system_time", "{}"))
        return
    exchange.reply(f"answer to {exchange.last_user}")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("watching")
    (folder / "home").mkdir()
    (folder / "home" / "agent.yaml").write_text(config(server.base_url))
    with running(folder / "home", fresh=True, **added(folder / "more", slow=SLOW)) as gateway:
        yield gateway


@pytest.fixture
def rpc(house: GatewayProcess) -> Iterator[Rpc]:
    with house.rpc() as client:
        yield client


@pytest.fixture
def listener(house: GatewayProcess) -> Iterator[Rpc]:
    with house.rpc() as client:
        yield client


@pytest.fixture
def session(house: GatewayProcess) -> dict[str, Any]:
    """Made through another door, so that no socket watches it."""
    with house.http() as http:
        made: dict[str, Any] = http.post("/api/sessions").json()
        return made


def say(house: GatewayProcess, session: str, text: str = "hello") -> str:
    """A message through another door, and its run once it is answered."""
    with house.http() as http:
        sent = http.post(f"/api/sessions/{session}/messages", json={"message": text})
        assert sent.status_code == 202, sent.text
        run_id: str = sent.json()["runId"]
        deadline = time.monotonic() + 30
        while not any(
            m["role"] == "assistant" and m["runId"] == run_id
            for m in http.get(f"/api/sessions/{session}/messages").json()["messages"]
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return run_id


def heard(listener: Rpc, rpc: Rpc) -> set[str]:
    """The sessions of the chat events so far: something that everybody hears comes after them."""
    mark = f"mark {time.monotonic_ns()}"
    made = rpc.call("memory.remember", content=mark)
    listener.wait_for("memory.changed", id=made["id"])
    return {frame["payload"]["session"] for frame in listener.events if frame["event"] == "chat"}


def test_the_turns_of_others_are_not_heard(
    house: GatewayProcess, rpc: Rpc, listener: Rpc, session: dict[str, Any]
) -> None:
    say(house, session["id"])
    assert heard(listener, rpc) == set()


@pytest.mark.parametrize("by", ["id", "key"])
def test_a_session_is_watched_and_no_longer(
    house: GatewayProcess, rpc: Rpc, listener: Rpc, session: dict[str, Any], by: str
) -> None:
    watched = listener.call("sessions.watch", session=session[by])
    assert watched == {"all": False, "sessions": [session[by]]}
    run_id = say(house, session["id"])
    assert listener.wait_for("chat", run_id=run_id, state="final")["text"] == "answer to hello"
    assert listener.call("sessions.unwatch", session=session["key" if by == "id" else "id"]) == {
        "all": False,
        "sessions": [],
    }
    listener.events.clear()
    say(house, session["id"])
    assert heard(listener, rpc) == set()


def test_everything_is_watched(
    house: GatewayProcess, rpc: Rpc, listener: Rpc, session: dict[str, Any]
) -> None:
    assert listener.call("sessions.watch", all=True) == {"all": True, "sessions": []}
    listener.wait_for("chat", run_id=say(house, session["id"]), state="final")
    assert listener.call("sessions.unwatch", all=True) == {"all": False, "sessions": []}
    listener.events.clear()
    say(house, session["id"])
    assert heard(listener, rpc) == set()


def test_whoever_sends_reads_or_makes_a_session_watches_it(
    house: GatewayProcess, rpc: Rpc, listener: Rpc, session: dict[str, Any]
) -> None:
    listener.call("chat.history", session=session["id"])
    listener.wait_for("chat", run_id=say(house, session["key"]), state="final")
    made = listener.call("sessions.create")
    listener.wait_for("chat", run_id=say(house, made["id"]), state="final")
    sent = listener.call("chat.send", session="agent:default:direct:ada", message="hi")
    listener.wait_for("chat", run_id=sent["run_id"], state="final")
    assert heard(listener, rpc) == {session["key"], made["key"], "agent:main:dm:ada"}


def test_a_key_may_be_watched_before_its_session_exists(
    house: GatewayProcess, rpc: Rpc, listener: Rpc
) -> None:
    listener.call("sessions.watch", session="agent:main:dm:early")
    listener.wait_for("chat", run_id=say(house, "agent:main:dm:early"), state="final")


def test_an_id_stays_with_its_session_and_a_key_with_its_place(
    house: GatewayProcess, rpc: Rpc, listener: Rpc
) -> None:
    say(house, "agent:main:dm:moved")
    old = rpc.call("sessions.get", session="agent:main:dm:moved")
    with house.rpc() as by_key:
        listener.call("sessions.watch", session=old["id"])
        by_key.call("sessions.watch", session=old["key"])
        fresh = rpc.call("sessions.renew", session=old["key"])
        assert fresh["key"] == old["key"] and fresh["id"] != old["id"]
        to_the_old, to_the_fresh = say(house, old["id"]), say(house, fresh["id"])
        listener.wait_for("chat", run_id=to_the_old, state="final")
        by_key.wait_for("chat", run_id=to_the_fresh, state="final")
        assert heard(listener, rpc) == {"agent:main:dm:moved:old:1"}
        assert heard(by_key, rpc) == {"agent:main:dm:moved"}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({}, "INVALID_REQUEST"),
        ({"all": False}, "INVALID_REQUEST"),
        ({"all": True, "session": "agent:main:main"}, "INVALID_REQUEST"),
        ({"session": "agent:main:nonsense"}, "INVALID_REQUEST"),
        ({"session": "nowhere"}, "NOT_FOUND"),
        ({"session": ""}, "INVALID_REQUEST"),
        ({"session": "a\x00b"}, "INVALID_REQUEST"),
    ],
)
def test_what_cannot_be_watched(rpc: Rpc, asked: dict[str, Any], code: str) -> None:
    with pytest.raises(RpcError) as refused:
        rpc.call("sessions.watch", **asked)
    assert refused.value.code == code


def test_a_read_token_watches(house: GatewayProcess, rpc: Rpc, session: dict[str, Any]) -> None:
    token = rpc.call("tokens.create", scope="read")["token"]
    with house.rpc(token) as reader:
        reader.call("sessions.watch", session=session["id"])
        reader.wait_for("chat", run_id=say(house, session["id"]), state="final")


def test_every_event_is_as_the_reference_tells_it(house: GatewayProcess, rpc: Rpc) -> None:
    rpc.call("sessions.watch", all=True)
    rpc.wait_for("chat", run_id=say(house, "agent:main:main", "what time is it?"), state="final")
    rpc.call("sessions.create")
    rpc.call("agents.create", id="seen")
    rpc.call("memory.remember", content="seen")
    run = rpc.call("subagents.spawn", task="say hello", requester_session_key="agent:main:main")
    rpc.wait_for("subagent.changed", run_id=run["run_id"], status="completed")
    with (house.home / "agent.yaml").open("a") as file:
        file.write("# touched\n")
    rpc.wait_for("config.changed")
    for frame in rpc.events:
        if frame["event"] != "connect.challenge":
            EVENTS[frame["event"]].model_validate(frame["payload"])
    assert {frame["event"] for frame in rpc.events} >= set(EVENTS) - {"session.switched", "tick"}


# In which order requests are done


def ask(rpc: Rpc, number: int, method: str, **params: Any) -> None:
    rpc.socket.send(json.dumps({"type": "req", "id": number, "method": method, "params": params}))


def next_answer(rpc: Rpc) -> dict[str, Any]:
    while (frame := rpc.receive())["type"] != "res":
        pass
    return frame


@pytest.mark.parametrize("method", ["slow.look", "slow.look_on_a_thread", "slow.do"])
@pytest.mark.parametrize("times", [1, 100])
def test_nothing_holds_up_an_abort(
    rpc: Rpc, server: ModelServer, tmp_path: Path, method: str, times: int
) -> None:
    server.answer = lambda exchange: exchange.hang()
    session = rpc.call("sessions.create")["id"]
    run_id = rpc.call("chat.send", session=session, message="wait")["run_id"]
    go_on = tmp_path / "go on"
    more = {"done": str(tmp_path / "done")} if method == "slow.do" else {}
    for number in range(times):
        ask(rpc, number, method, until=str(go_on), **more)
    ask(rpc, 1000, "chat.abort", run_id=run_id)
    stopped = next_answer(rpc)
    assert stopped["id"] == 1000 and stopped["payload"]["state"] == "aborted"
    go_on.touch()
    assert {next_answer(rpc)["id"] for _ in range(times)} == set(range(times))


def test_a_slow_change_holds_up_no_look(rpc: Rpc, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    ask(rpc, 1, "slow.do", until=str(go_on), done=str(tmp_path / "done"))
    ask(rpc, 2, "sessions.create")
    ask(rpc, 3, "status")
    assert next_answer(rpc)["id"] == 3
    go_on.touch()
    assert [next_answer(rpc)["id"], next_answer(rpc)["id"]] == [1, 2]


def test_messages_arrive_in_the_order_sent(rpc: Rpc, server: ModelServer) -> None:
    server.answer = lambda exchange: exchange.hang()
    session = rpc.call("sessions.create")["id"]
    for number in range(200):
        ask(rpc, number, "chat.send", session=session, message=f"message {number}")
        ask(rpc, 1000 + number, "chat.queue", session=session)
    answers = {frame["id"]: frame for frame in (next_answer(rpc) for _ in range(400))}
    assert all(frame["ok"] for frame in answers.values())
    said = rpc.call("chat.history", session=session, limit=1000)["messages"]
    texts = [message["text"] for message in said if message["text"].startswith("message ")]
    assert texts == [f"message {number}" for number in range(200)]
    ids = [answers[number]["payload"]["message_id"] for number in range(200)]
    assert [message["id"] for message in said if message["id"] in ids] == ids
    rpc.call("sessions.delete", session=session)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_goes_away_cancels_nothing_that_it_asked_for(
    house: GatewayProcess, rpc: Rpc, tmp_path: Path
) -> None:
    go_on, done = tmp_path / "go on", tmp_path / "done"
    with house.rpc() as leaving:
        ask(leaving, 1, "slow.do", until=str(go_on), done=str(done))
        ask(leaving, 2, "agents.create", id="asked-for")
        ask(leaving, 3, "slow.look", until=str(tmp_path / "never"))
        until(done.exists)
    until((tmp_path / "never.cancelled").exists)
    go_on.touch()
    until(lambda: done.read_text() == "begun done ")
    until(lambda: "asked-for" in [a["id"] for a in rpc.call("agents.list")["agents"]])


def test_a_revoked_token_does_nothing_more(house: GatewayProcess, rpc: Rpc, tmp_path: Path) -> None:
    go_on, done = tmp_path / "go on", tmp_path / "done"
    made = rpc.call("tokens.create", scope="admin")
    with house.rpc(made["token"]) as revoked:
        ask(revoked, 1, "slow.do", until=str(go_on), done=str(done))
        ask(revoked, 2, "agents.create", id="too-late")
        until(done.exists)
        rpc.call("tokens.revoke", id=made["id"])
        go_on.touch()
        until(lambda: done.read_text() == "begun done ")
    assert "too-late" not in [a["id"] for a in rpc.call("agents.list")["agents"]]


def test_everybody_hears_that_a_message_made_or_advanced_a_session(
    house: GatewayProcess, rpc: Rpc, listener: Rpc
) -> None:
    """Small events, whoever watches what: a list of sessions stays right."""
    key = f"agent:main:dm:{time.monotonic_ns()}"
    say(house, key)
    assert heard(listener, rpc) == set()
    changes = [frame["payload"] for frame in listener.events if frame["event"] == "session.changed"]
    about = [change for change in changes if change["key"] == key]
    # It came in, which made the session, and it was answered.
    assert [change["change"] for change in about] == ["message", "ended"]
    assert {frozenset(change) for change in about} == {frozenset({"id", "key", "change"})}
