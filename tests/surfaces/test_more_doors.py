"""/v1/responses with OpenAI's SDK, and /api/gateway/chat: whole and as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.support.gateway import GatewayProcess, Rpc, running
from tests.support.mock import Exchange, ModelServer, client_said, config, model_server

ROSTER = """agents:
  roster:
    - {name: rose, system_prompt: You are Rose.}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(autouse=True)
def well(server: ModelServer) -> None:
    server.answer = answer


def answer(exchange: Exchange) -> None:
    """A tool round where one is asked for, words in pieces otherwise."""
    if "time" in exchange.last_user and not exchange.has_result:
        exchange.calls(("system_time", "{}"))
        return
    exchange.begin()
    for word in ("It ", "is ", "fine ", "here."):
        exchange.chunk({"content": word})
    exchange.chunk({}, "stop")
    exchange.send(b"data: [DONE]\n\n")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("doors") / "home"
    home.mkdir()
    (home / "agent.yaml").write_text(config(server.base_url, more=ROSTER))
    with running(home) as gateway:
        yield gateway


@pytest.fixture
def sdk(served: GatewayProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key=served.token, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def http(served: GatewayProcess) -> Iterator[httpx.Client]:
    with served.http() as client:
        yield client


@pytest.fixture
def rpc(served: GatewayProcess) -> Iterator[Rpc]:
    with served.rpc() as client:
        yield client


def texts(rpc: Rpc, session: str) -> list[str]:
    found = rpc.call("chat.history", session=session)["messages"]
    return [m["text"] for m in found if m["role"] in ("user", "assistant") and m["text"]]


# /v1/responses


def test_a_response_and_the_one_that_follows_it(sdk: OpenAI, server: ModelServer) -> None:
    first = sdk.responses.create(model="coterie/rose", input="hello")
    assert (first.status, first.output_text, first.model) == ("completed", "It is fine here.", "coterie/rose")
    assert first.usage is not None and first.usage.total_tokens >= 0
    assert server.bodies[-1]["messages"][0]["content"].startswith("You are Rose.")
    second = sdk.responses.create(model="coterie/rose", input="what time?", previous_response_id=first.id)
    assert second.output_text == "It is fine here."
    said = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "user"]
    assert said[:2] == ["hello", "what time?"], "the conversation went on"


def test_a_response_over_messages_and_for_a_user(sdk: OpenAI, server: ModelServer, rpc: Rpc) -> None:
    messages: Any = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": [{"type": "input_text", "text": "Who am I?"}]},
    ]
    sdk.responses.create(model="coterie/main", input=messages, instructions="Be brief.")
    sent = [m["content"] for m in server.bodies[-1]["messages"][1:-1]]
    assert client_said("Be brief.", sent[0])
    assert sent[1:] == ["My name is Ada.", "Hello Ada.", "Who am I?"]
    for word in ("one", "two"):
        sdk.responses.create(model="coterie/main", input=word, user="ada")
    assert texts(rpc, "agent:main:api:ada") == ["one", "It is fine here.", "two", "It is fine here."]


def test_a_response_as_events(sdk: OpenAI) -> None:
    seen: list[str] = []
    said = ""
    with sdk.responses.stream(model="coterie/main", input="what time is it?") as stream:
        for event in stream:
            seen.append(event.type)
            if event.type == "response.output_text.delta":
                said += event.delta
        final = stream.get_final_response()
    assert said == final.output_text == "It is fine here."
    assert seen[:2] == ["response.created", "response.in_progress"] and seen[-1] == "response.completed"
    assert seen.count("response.output_text.delta") > 1


def test_a_response_that_fails(sdk: OpenAI, server: ModelServer) -> None:
    server.answer = lambda exchange: exchange.status(401)
    with pytest.raises(openai.InternalServerError, match="API key"):
        sdk.responses.create(model="coterie/main", input="hello")
    events = list(sdk.responses.create(model="coterie/main", input="hello", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None and "API key" in events[-1].response.error.message


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"model": "coterie/nobody", "input": "hi"}, openai.NotFoundError),
        ({"model": "coterie/main", "input": ""}, openai.BadRequestError),
        ({"model": "coterie/main", "input": []}, openai.BadRequestError),
        ({"model": "coterie/main", "input": [{"role": "assistant", "content": "x"}]}, openai.BadRequestError),
        ({"model": "coterie/main", "input": "hi", "previous_response_id": "resp_no"}, openai.NotFoundError),
    ],
)
def test_mistakes_are_the_sdks_own_exceptions(sdk: OpenAI, asked: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        sdk.responses.create(**asked)


# /api/gateway/chat


def test_another_programs_conversation(http: httpx.Client, rpc: Rpc) -> None:
    body = {"channel": "matrix", "peerId": "@ada:home", "displayName": "Ada", "text": "hello"}
    answer = http.post("/api/gateway/chat", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["text"] == "It is fine here." and found["agentId"] == "main"
    assert found["sessionKey"] == "agent:main:matrix:dm:@ada%3Ahome"
    messages = [{"role": "assistant", "content": "ignored"}, {"role": "user", "content": "again"}]
    body = {"sessionKey": found["sessionKey"], "messages": messages}  # type: ignore[dict-item]
    assert http.post("/api/gateway/chat", json=body).json()["sessionId"] == found["sessionId"]
    assert texts(rpc, found["sessionId"]) == ["hello", "It is fine here.", "again", "It is fine here."]
    said = rpc.call("chat.history", session=found["sessionId"])["messages"][0]
    assert said["meta"]["sender"]["display_name"] == "Ada"
    group = {"channel": "matrix", "chatId": "!room", "isGroup": True, "text": "hi", "agentId": "rose"}
    found = http.post("/api/gateway/chat", json=group).json()
    assert (found["agentId"], found["sessionKey"]) == ("rose", "agent:rose:matrix:group:!room")


def events(answer: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_the_same_as_events(http: httpx.Client, server: ModelServer) -> None:
    body = {"channel": "matrix", "peerId": "bob", "text": "what time is it?", "stream": True}
    answer = http.post("/api/gateway/chat", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    seen = events(answer)
    states = [state for state, _ in seen]
    assert states.index("tool_start") < states.index("tool_end") < states.index("delta")
    assert "".join(data["text"] for state, data in seen if state == "delta") == "It is fine here."
    last, final = seen[-1]
    assert last == "final" and final["text"] == "It is fine here."
    assert final["sessionKey"] == "agent:main:matrix:dm:bob" and final["agentId"] == "main"
    assert final["runId"] == seen[0][1]["runId"]
    server.answer = lambda exchange: exchange.status(401)
    last, failed = events(http.post("/api/gateway/chat", json=body))[-1]
    assert last == "error" and "API key" in failed["message"]
    answer = http.post("/api/gateway/chat", json={**body, "stream": False})
    assert answer.status_code == 503 and "API key" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"channel": "m", "text": "hi"}, 400),
        ({"channel": "m", "peerId": "x"}, 400),
        ({"channel": "m", "peerId": "x", "text": ""}, 400),
        ({"channel": "m", "peerId": "x", "text": "a", "messages": []}, 400),
        ({"channel": "m", "peerId": "x", "messages": [{"role": "assistant", "content": "a"}]}, 400),
        ({"channel": "m", "peerId": "x", "text": "a", "agentId": "nobody"}, 404),
        ({"sessionKey": "agent:main:main", "text": "a", "agentId": "rose"}, 400),
        ({"sessionKey": "nonsense", "text": "a"}, 404),
    ],
)
def test_a_message_that_cannot_be_placed(http: httpx.Client, body: dict[str, Any], status: int) -> None:
    answer = http.post("/api/gateway/chat", json=body)
    assert answer.status_code == status and answer.json()["error"]["message"]
