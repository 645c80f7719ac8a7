"""Any text from anywhere can be kept: halves of characters and NUL from models, tools, people and programs, on both databases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.gateway import GatewayProcess, Rpc, RpcError, running
from tests.support.mock import Exchange, ModelServer, config, model_server

PLUGIN = '''
from coterie import tool

@tool()
def echo(said: str, data: bool = False) -> object:
    """Give it back."""
    said = json_loads(said)
    return {"said": [said], said: 1} if data else said

@tool()
def fail(said: str) -> str:
    """Fail with it."""
    raise RuntimeError(json_loads(said))

@tool()
def flood(kind: str) -> object:
    """Too much of everything."""
    return "x" * 100_000_000 if kind == "text" else ["x" * 1_000_000] * 100

from json import loads as json_loads
'''
NASTY = st.text(
    st.sampled_from(
        ["\x00", "\ud83d", "\ude00", "\udfff", "a", " ", "é", "🦊", "\ufffd", '"', "\\", "\n", "\x1b"]
    ),
    min_size=1,
    max_size=12,
).map(lambda text: f"w{text}w")
STRAIGHT = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass
class House:
    gateway: GatewayProcess
    server: ModelServer


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    home = tmp_path_factory.mktemp("text") / "home"
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "echo.py").write_text(PLUGIN)
    more = ""
    if request.param == "postgresql":
        more = f"database: {{url: '{request.getfixturevalue('postgres_server').new_database()}'}}\n"
    with model_server() as server:
        (home / "agent.yaml").write_text(config(server.base_url, more=more))
        with running(home) as gateway:
            yield House(gateway, server)
            log = gateway.log.read_text()
    assert not re.search("ERROR +coterie.(rpc|api|turns|dispatcher)", log), log


def is_text(value: Any) -> bool:
    """Nothing in it that cannot be kept or sent."""
    if isinstance(value, dict):
        return all(is_text(key) and is_text(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_text, value))
    return not isinstance(value, str) or not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)


def turn(rpc: Rpc) -> dict[str, Any]:
    """One turn of a new session to its end; everything that was shown of it is text."""
    session = rpc.call("sessions.create")["id"]
    seen = len(rpc.events)
    run = rpc.call("chat.send", session=session, message="go")["run_id"]
    while True:
        frame = rpc.receive()
        if frame.get("event") == "chat" and frame["payload"]["run_id"] == run:
            last: dict[str, Any] = frame["payload"]
            if last["state"] in ("final", "error", "aborted"):
                break
    assert all(is_text(frame) for frame in rpc.events[seen:])
    messages = rpc.call("chat.history", session=session)["messages"]
    assert is_text(messages)
    return {**last, "messages": messages}


def test_a_model_may_say_anything(house: House) -> None:
    @STRAIGHT
    @given(said=NASTY, thought=NASTY, call=NASTY)
    @example(said="\ud83d", thought="\x00", call="\ude00\x00")
    def story(said: str, thought: str, call: str) -> None:
        asked = len(house.server.raw)

        def answer(exchange: Exchange) -> None:
            exchange.begin()
            if exchange.number == asked + 1:
                exchange.chunk({"reasoning_content": thought, "content": said})
                made = {"name": "echo" if said < call else call, "arguments": json.dumps({"said": call})}
                exchange.chunk(
                    {"tool_calls": [{"index": 0, "id": call, "type": "function", "function": made}]}
                )
                exchange.chunk({}, "tool_calls")
            else:
                exchange.chunk({"content": said})
                exchange.chunk({}, "stop")
            exchange.send(b"data: [DONE]\n\n")

        house.server.answer = answer
        with house.gateway.rpc() as rpc:
            last = turn(rpc)
        assert last["state"] == "final", last
        assert len(house.server.raw) == asked + 2

    story()


def test_a_provider_may_fail_with_anything(house: House) -> None:
    @STRAIGHT
    @given(said=NASTY)
    @example(said="half a pair: \ud83d")
    def story(said: str) -> None:
        asked = len(house.server.raw)
        house.server.answer = lambda exchange: exchange.status(400, {"error": {"message": said}})
        with house.gateway.rpc() as rpc:
            assert turn(rpc)["state"] == "error"
            assert is_text(rpc.call("models.test"))
        assert len(house.server.raw) == asked + 2

    story()


@pytest.mark.parametrize("name", ["echo", "fail"])
@pytest.mark.parametrize("data", [False, True])
def test_a_tool_may_give_anything(house: House, name: str, data: bool) -> None:
    @STRAIGHT
    @given(said=NASTY)
    def story(said: str) -> None:
        arguments = json.dumps(
            {"said": json.dumps(said)} | ({"data": True} if data and name == "echo" else {})
        )

        def answer(exchange: Exchange) -> None:
            if exchange.has_result:
                exchange.reply("done")
            else:
                exchange.calls((name, arguments))

        house.server.answer = answer
        with house.gateway.rpc() as rpc:
            assert turn(rpc)["text"] == "done"

    story()


@pytest.mark.parametrize("kind", ["text", "data"])
def test_a_tool_that_gives_too_much_is_cut_or_refused(house: House, kind: str) -> None:
    def answer(exchange: Exchange) -> None:
        if exchange.has_result:
            exchange.reply("done")
        else:
            exchange.calls(("flood", json.dumps({"kind": kind})))

    house.server.answer = answer
    with house.gateway.rpc() as rpc:
        last = turn(rpc)
    assert last["text"] == "done"
    shown = last["messages"][2]
    assert shown["role"] == "tool"
    if kind == "text":
        assert 8_000_000 <= shown["meta"]["full_characters"] < 8_001_000
    else:
        assert shown["text"].startswith("error: too_large: ")


def answered_in_words(rpc: Rpc, method: str, params: dict[str, Any]) -> bool:
    try:
        return is_text(rpc.call(method, **params))
    except RpcError as error:
        return error.code in ("INVALID_REQUEST", "NOT_FOUND")


def test_people_and_programs_may_say_anything_and_are_told_what_is_no_name(house: House) -> None:
    house.server.answer = lambda exchange: exchange.reply("ok")

    @STRAIGHT
    @given(text=NASTY)
    @example(text="\x00")
    @example(text="\ud800")
    def story(text: str) -> None:
        with house.gateway.rpc() as rpc:
            calls: list[tuple[str, dict[str, Any]]] = [
                ("sessions.create", {"name": text}),
                ("sessions.rename", {"session": "agent:main:main", "name": text}),
                ("sessions.patch", {"session": "agent:main:main", "attributes": {"x": [text], text: 1}}),
                ("sessions.get", {"session": text}),
                ("sessions.get", {"session": f"agent:main:dm:{text}"}),
                ("sessions.search", {"query": text}),
                ("chat.send", {"session": "agent:main:main", "message": text}),
                ("chat.send", {"session": f"agent:main:dm:{text}", "message": "hi"}),
                ("chat.send", {"session": "agent:main:main", "message": "hi", "idempotency_key": text}),
                ("chat.abort", {"run_id": text}),
                ("memory.remember", {"content": text, "tags": [text], "thread": text, "source_ref": text}),
                ("memory.recall", {"query": text, "tags": [text]}),
                ("memory.list", {"agent_id": text}),
                ("agents.update", {"agent_id": "main", "label": text}),
                ("agents.files.set", {"agent_id": "main", "name": "USER.md", "content": text}),
                ("agent.identity.update", {"name": text}),
                ("tokens.create", {"scope": "read", "label": text}),
                ("subagents.get", {"run_id": text}),
            ]
            for method, params in calls:
                assert answered_in_words(rpc, method, params), (method, params)
            assert is_text(rpc.call("sessions.list"))
            assert is_text(rpc.call("memory.list"))
        said: list[dict[str, Any]] = [{"role": "system", "content": text}, {"role": "user", "content": "hi"}]
        with house.gateway.http() as http:
            asked: list[tuple[str, Any]] = [
                ("/v1/chat/completions", {"model": "coterie/main", "messages": said}),
                ("/v1/chat/completions", {"model": "coterie/main", "messages": said, "user": text}),
                ("/api/gateway/chat", {"channel": "x", "peerId": text, "text": "hi", "displayName": text}),
                ("/api/memory/import", {"content": text, "sourceRef": text}),
            ]
            headers = {"content-type": "application/json"}
            answers = [http.post(path, content=json.dumps(body), headers=headers) for path, body in asked]
            address = quote(text, errors="surrogatepass", safe="")
            answers += [http.get(f"/api/{kind}/{address}") for kind in ("agents", "sessions", "memories")]
            assert {answer.status_code for answer in answers} <= {200, 201, 202, 400, 404, 405}, [
                a.text for a in answers
            ]

    story()
