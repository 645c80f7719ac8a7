"""Requests that come twice: what was asked once is done once, and what was asked twice is done twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.api.methods import OPERATIONS
from coterie.api.shapes import Change
from tests.support.gateway import GatewayProcess, running
from tests.support.mock import Exchange, ModelServer, config, model_server

RETRY = {"x-stainless-retry-count": "1"}
CHAT: dict[str, Any] = {"model": "coterie/main", "messages": [{"role": "user", "content": "yes"}]}
DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat with a user": ("/v1/chat/completions", {**CHAT, "user": "ann"}),
    "responses": ("/v1/responses", {"model": "coterie/main", "input": "yes"}),
    "responses with a user": ("/v1/responses", {"model": "coterie/main", "input": "yes", "user": "ann"}),
    "gateway": ("/api/gateway/chat", {"sessionKey": "agent:main:main", "text": "yes"}),
}


@contextmanager
def house(home: Path) -> Iterator[tuple[GatewayProcess, ModelServer]]:
    """Its model numbers its answers."""
    home.mkdir(exist_ok=True)
    with model_server() as server:
        server.answer = lambda exchange: exchange.reply(f"answer {exchange.number}")
        (home / "agent.yaml").write_text(config(server.base_url))
        with running(home) as gateway:
            yield gateway, server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, ModelServer]]:
    with house(tmp_path_factory.mktemp("repeats") / "home") as pair:
        yield pair


def text_of(response: httpx.Response) -> str:
    """What was answered, by whichever protocol."""
    assert response.status_code == 200, response.text
    if "event-stream" in response.headers["content-type"]:
        found = ""
        for line in response.text.splitlines():
            if line.startswith("data: {"):
                data = json.loads(line.removeprefix("data: "))
                found += "".join(c["delta"].get("content") or "" for c in data.get("choices", []))
                found += data.get("delta", "") if isinstance(data.get("delta"), str) else ""
                if data.get("state") == "final":
                    found = data["text"]
        return found
    body = response.json()
    if "choices" in body:
        return str(body["choices"][0]["message"]["content"])
    return str(body["text"] if "text" in body else body["output"][0]["content"][0]["text"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_a_key_is_answered_once_and_the_same_again(
    served: tuple[GatewayProcess, ModelServer], door: str, stream: bool
) -> None:
    gateway, server = served
    path, body = DOORS[door]
    body = {**body, "stream": stream}
    headers = {"Idempotency-Key": f"{door} {stream}"}
    before = len(server.raw)
    with gateway.http() as http:
        first = text_of(http.post(path, json=body, headers=headers))
        assert text_of(http.post(path, json=body, headers=headers)) == first == f"answer {before + 1}"
        other = http.post(path, json={**body, **_other(door)}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "CONFLICT")
        assert len(server.raw) == before + 1
        token = http_token(gateway)
    with gateway.http(token) as http:  # somebody else's key of the same name is another key
        assert text_of(http.post(path, json=body, headers=headers)) == f"answer {before + 2}"


def _other(door: str) -> dict[str, Any]:
    """What makes it another request."""
    if door.startswith("chat"):
        return {"messages": [{"role": "user", "content": "no"}]}
    return {"input": "no"} if door.startswith("responses") else {"text": "no"}


def http_token(gateway: GatewayProcess) -> str:
    with gateway.rpc() as rpc:
        return str(rpc.call("tokens.create", scope="write")["token"])


def test_two_at_once_under_one_key_are_one(served: tuple[GatewayProcess, ModelServer]) -> None:
    gateway, server = served
    before, said = len(server.raw), []

    def ask() -> None:
        with gateway.http() as http:
            said.append(
                text_of(http.post("/v1/chat/completions", json=CHAT, headers={"Idempotency-Key": "at once"}))
            )

    asking = [threading.Thread(target=ask) for _ in range(6)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert said == [f"answer {before + 1}"] * 6


def test_keys_outlive_a_crash(home: Path) -> None:
    headers = {"Idempotency-Key": "kept"}
    with house(home) as (gateway, server):
        with gateway.http() as http:
            assert text_of(http.post("/v1/chat/completions", json=CHAT, headers=headers)) == "answer 1"
        gateway.kill()
        with running(home) as again, again.http() as http:
            assert text_of(http.post("/v1/chat/completions", json=CHAT, headers=headers)) == "answer 1"
        assert len(server.raw) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", [door for door in DOORS if door != "gateway"])
def test_the_same_words_are_not_lost_behind_an_answer_that_arrived(
    served: tuple[GatewayProcess, ModelServer], door: str, stream: bool
) -> None:
    gateway, server = served
    path, body = DOORS[door]
    before = len(server.raw)
    with gateway.http() as http:
        answers = [text_of(http.post(path, json={**body, "stream": stream}, headers=RETRY)) for _ in range(3)]
    assert answers == [f"answer {before + n}" for n in (1, 2, 3)]


def test_what_arrived_is_known_after_a_restart(home: Path) -> None:
    with house(home) as (gateway, _):
        with gateway.http() as http:
            assert text_of(http.post("/v1/chat/completions", json=CHAT)) == "answer 1"
        gateway.stop()
        with running(home) as again, again.http() as http:
            assert text_of(http.post("/v1/chat/completions", json=CHAT, headers=RETRY)) == "answer 2"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_nobody_took_waits_for_the_retry(home: Path, stream: bool) -> None:
    """The client's connection breaks while the model thinks; the turn ends without it."""
    go_on = threading.Event()
    body = {**CHAT, "user": "ann", "stream": stream}
    with house(home) as (gateway, server):

        def slowly(exchange: Exchange) -> None:
            go_on.wait(30)
            exchange.reply(f"answer {exchange.number}")

        server.answer = slowly
        with gateway.rpc() as rpc, gateway.http() as http:
            rpc.call("sessions.watch", all=True)
            with pytest.raises(httpx.ReadTimeout):
                http.post("/v1/chat/completions", json=body, timeout=1).read()
            go_on.set()
            rpc.wait_for("chat", state="final")
            assert text_of(http.post("/v1/chat/completions", json=body, headers=RETRY)) == "answer 1"
            # Now it arrived.
            assert text_of(http.post("/v1/chat/completions", json=body, headers=RETRY)) == "answer 2"


def test_every_operation_that_changes_something_takes_a_key() -> None:
    without = [
        operation.name
        for operation in OPERATIONS.values()
        if operation.scope in ("write", "admin")
        and not operation.name.endswith((".list", ".get", ".export_all"))
        and not issubclass(operation.params, Change)
    ]
    assert without == []
