"""What the doors say is so, and is spelled as that door spells everything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.api.events import EVENTS
from tests.support.gateway import GatewayProcess, RpcError, running
from tests.support.mock import Exchange, ModelServer, config, model_server

CLI = """agents:
  roster:
    - {name: coder, model: claude-cli/sonnet}
    - {name: rose}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("words") / "home"
    home.mkdir()
    more = config(server.base_url, more=CLI).replace(
        "  providers:\n", "  providers:\n    claude-cli: {type: claude-cli}\n    codex: {type: codex-cli}\n"
    )
    (home / "agent.yaml").write_text(more)
    with running(home) as gateway:
        yield gateway


def events_of(text: str) -> list[dict[str, Any]]:
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in found]


@pytest.mark.parametrize(
    ("said", "reason", "why"),
    [
        ("stop", "stop", None),
        ("length", "length", "max_output_tokens"),
        ("content_filter", "content_filter", "content_filter"),
    ],
)
def test_a_reply_ends_for_the_reason_that_its_model_gave(
    served: GatewayProcess, server: ModelServer, said: str, reason: str, why: str | None
) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin()
        exchange.chunk({"content": "so far"})
        exchange.chunk({}, said)
        exchange.send(b"data: [DONE]\n\n")

    server.answer = answer
    chat = {"model": "coterie/rose", "messages": [{"role": "user", "content": "go"}]}
    ask = {"model": "coterie/rose", "input": "go"}
    with served.http() as http:
        for repeat in range(2):  # the second time it is told from what was stored
            key = {"Idempotency-Key": f"{said}-{repeat // 2}"}
            whole = http.post("/v1/chat/completions", json=chat, headers=key).json()
            assert whole["choices"][0]["finish_reason"] == reason
            streamed = http.post(
                "/v1/chat/completions", json={**chat, "stream": True}, headers={"Idempotency-Key": f"s{said}"}
            )
            assert [e["choices"][0]["finish_reason"] for e in events_of(streamed.text)][-1] == reason
            response = http.post("/v1/responses", json=ask, headers=key).json()
            assert response["status"] == ("completed" if why is None else "incomplete")
            assert response["incomplete_details"] == (None if why is None else {"reason": why})
            last = events_of(
                http.post(
                    "/v1/responses", json={**ask, "stream": True}, headers={"Idempotency-Key": f"s{said}"}
                ).text
            )[-1]
            assert last["type"] == f"response.{response['status']}"
            assert last["response"]["incomplete_details"] == response["incomplete_details"]


def test_a_model_that_nothing_runs_is_not_available(served: GatewayProcess) -> None:
    with served.rpc() as rpc:
        found = {model["name"]: model for model in rpc.call("models.list")["models"]}
    assert found["claude-cli/sonnet"]["available"] is False
    assert "claude-cli" in found["claude-cli/sonnet"]["reason"]
    assert (found["mock/mock-1"]["available"], found["mock/mock-1"]["reason"]) == (True, None)


def test_times_are_iso_with_a_zone(served: GatewayProcess) -> None:
    with served.socket() as socket:
        challenge = json.loads(socket.recv(30))["payload"]
    assert datetime.fromisoformat(challenge["ts"]).tzinfo is not None


def test_every_event_that_is_announced_is_sent_by_something(served: GatewayProcess) -> None:
    source = Path(coterie.__file__).parent
    text = "\n".join(path.read_text() for path in source.rglob("*.py"))
    sent = set(re.findall(r'(?:publish|Event)\(\s*"([a-z._]+)"', text)) - {"token.revoked"}
    with served.socket() as socket:
        socket.recv(30)
        request = {"type": "req", "id": 1, "method": "connect", "params": {"auth": {"token": served.token}}}
        socket.send(json.dumps(request))
        hello = json.loads(socket.recv(30))["payload"]
    assert set(hello["features"]["events"]) == set(EVENTS) == sent


def test_a_message_from_nowhere_in_particular_is_the_owners(
    served: GatewayProcess, server: ModelServer
) -> None:
    server.answer = lambda exchange: exchange.reply("here", tokens=(5, 2))
    with served.http() as http:
        default = http.post("/api/gateway/chat", json={"text": "hello"}).json()
        assert (default["sessionKey"], default["text"]) == ("agent:main:main", "here")
        named = http.post("/api/gateway/chat", json={"text": "hello", "agentId": "rose"}).json()
        assert (named["sessionKey"], named["agentId"]) == ("agent:rose:main", "rose")
        for half in ({"channel": "x"}, {"peerId": "y"}):
            assert http.post("/api/gateway/chat", json={"text": "hello", **half}).status_code == 400
        stream = http.post("/api/gateway/chat", json={"text": "hello", "stream": True})
    last = events_of(stream.text)[-1]
    assert last["usage"] == {"inputTokens": 5, "outputTokens": 2, "cachedTokens": 0, "cost": None}
    assert not re.search(r'"[a-z]+_[a-z]+":', stream.text)


def test_errors_name_fields_as_their_door_spells_them(served: GatewayProcess) -> None:
    with served.rpc() as rpc:
        with pytest.raises(RpcError) as refused:
            rpc.call("chat.history", session="agent:main:main", withData="yes")
        assert (refused.value.details or {})["fields"][0]["field"] == "with_data"
        with pytest.raises(RpcError) as refused:
            rpc.call("chat.abort")
        assert refused.value.details == {"field": "run_id"}
    with served.http() as http:
        wrong = http.post("/api/gateway/chat", json={"text": "x", "is_group": "yes"}).json()["error"]
        assert wrong["details"]["fields"][0]["field"] == "isGroup"
        guesses = [http.get("/api/agents", headers={"Authorization": "Bearer no"}) for _ in range(25)]
        assert "retryAfter" in guesses[-1].json()["error"]["details"]


def test_a_fork_needs_no_body(served: GatewayProcess, server: ModelServer) -> None:
    server.answer = lambda exchange: exchange.reply("here")
    empty: dict[str, Any] = {"content": b"", "headers": {"content-type": "text/plain"}}
    bodies: list[dict[str, Any]] = [{}, empty, {"json": {}}]
    with served.http() as http:
        session = http.post("/api/gateway/chat", json={"text": "hello"}).json()["sessionId"]
        for ref in (session, "agent:main:main"):
            for options in bodies:
                made = http.post(f"/api/sessions/{ref}/fork", **options)
                assert made.status_code == 201, made.text
