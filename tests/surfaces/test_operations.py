"""An operation is one description in one file; its repeats are one effect, whichever door they come through."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import GatewayProcess, RpcError, environment, running
from tests.support.operations import SLOW, added

ROOT = Path(__file__).parents[2]

WEATHER = '''
"""The weather, as far as anybody here knows."""

from coterie.api.operation import Post, operation
from coterie.api.shapes import Answer, Change
from coterie.engine.gateway import Gateway


class WeatherSet(Change):
    place_name: str
    wind_speed: int = 0


class Weather(Answer):
    place_name: str
    wind_speed: int


@operation("weather.set", "write", http=Post("/api/weather/{place}", 201, place="place_name"))
def weather_set(gateway: Gateway, params: WeatherSet) -> Weather:
    """Say what the weather is."""
    return Weather.of(params)
'''


def test_a_method_is_added_in_one_file(home: Path, tmp_path: Path) -> None:
    env = added(tmp_path / "more", weather=WEATHER)
    with running(home, fresh=True, **env) as gateway, gateway.rpc() as rpc, gateway.http() as http:
        asked = {"place_name": "Ushant", "wind_speed": 9}
        assert rpc.call("weather.set", **asked) == asked
        with pytest.raises(RpcError, match="wind_speed"):
            rpc.call("weather.set", **{**asked, "wind_speed": "much"})
        answer = http.post("/api/weather/Ushant", json={"windSpeed": 9})
        assert (answer.status_code, answer.json()) == (201, {"placeName": "Ushant", "windSpeed": 9})
        assert http.post("/api/weather/Ushant").json() == {"placeName": "Ushant", "windSpeed": 0}
        told = http.get("/openapi.json").json()["paths"]["/api/weather/{place}"]["post"]
        assert told["summary"] == "Say what the weather is." and told["x-scope"] == "write"
        token = rpc.call("tokens.create", scope="read")["token"]
        with gateway.http(token) as reader:
            assert reader.post("/api/weather/Ushant", content=b"{").status_code == 403
    pages = tmp_path / "pages"
    code = f"from docs import generate; from pathlib import Path; generate.main([], Path({str(pages)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(home, **env), check=True)
    assert "## `weather.set`" in (pages / "rpc.md").read_text()
    assert "## `POST /api/weather/{place}`" in (pages / "http.md").read_text()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("operations")
    with running(folder / "home", fresh=True, **added(folder / "more", slow=SLOW)) as gateway:
        yield gateway


@pytest.fixture
def http(house: GatewayProcess) -> Iterator[httpx.Client]:
    with house.http() as client:
        yield client


def until(true: Any) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_equal_requests_at_once_are_one(house: GatewayProcess, tmp_path: Path) -> None:
    """The second waits for the first, through whichever door; one under another key waits for nobody."""
    go_on, done, other = (tmp_path / name for name in ("go_on", "done", "other"))
    asked = {"until": str(go_on), "done": str(done)}
    answers: list[Any] = []

    def over_rpc() -> None:
        with house.rpc() as rpc:
            answers.append(rpc.call("slow.do", **asked, idempotency_key="at-once"))

    def over_http() -> None:
        with house.http() as http:
            answers.append(http.post("/api/slow", json=asked, headers={"Idempotency-Key": "at-once"}).json())

    threads = [threading.Thread(target=door) for door in (over_rpc, over_http, over_rpc)]
    for thread in threads:
        thread.start()
    until(lambda: done.exists())
    with house.rpc() as rpc:
        assert rpc.call("slow.do", until=str(done), done=str(other), idempotency_key="another")
    assert done.read_text() == "begun " and answers == []
    go_on.touch()
    for thread in threads:
        thread.join(30)
    assert answers == [{"count": 1}] * 3
    assert done.read_text() == "begun done "


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/agents", {"id": "dot"}),
        ("/api/sessions", {}),
        ("/api/memory/remember", {"content": "once"}),
        ("/api/agents/subagents/spawn", {"task": "say hello"}),
        ("/api/sessions/agent:main:main/messages", {"message": "hello"}),
    ],
)
def test_a_repeat_over_http_gets_the_first_answer(
    house: GatewayProcess, http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    headers = {"Idempotency-Key": f"once {path}"}
    first = http.post(path, json=body, headers=headers)
    assert first.is_success, first.text
    again = http.post(path, json=body, headers=headers)
    assert again.status_code == first.status_code
    stay_the_same = {"messages": {"messageId", "runId"}}.get(path.rpartition("/")[2], set(first.json()))
    assert {k: again.json()[k] for k in stay_the_same} == {k: first.json()[k] for k in stay_the_same}
    given_twice = http.post(path, json={**body, "idempotency_key": "k"}, headers=headers)
    assert given_twice.status_code == 400


def test_a_body_that_may_be_empty_may_be_absent(http: httpx.Client) -> None:
    session = http.post("/api/sessions")
    assert session.status_code == 201
    forked = http.post(f"/api/sessions/{session.json()['id']}/fork")
    assert forked.status_code == 201 and forked.json()["parentId"] == session.json()["id"]
    assert http.post(f"/api/sessions/{session.json()['id']}/abort").json()["state"] == "idle"


def test_what_the_path_says_is_not_said_again(http: httpx.Client) -> None:
    for body in ({"agent_id": "rose"}, {"agentId": "rose"}, {"id": "rose"}):
        answer = http.patch("/api/agents/main", json=body)
        assert answer.status_code == 400, body
    assert http.get("/api/agents/main?agentId=rose").status_code == 400
    assert http.get("/api/sessions?limit=1&limit=2").status_code == 400


def test_lists_in_an_address_have_commas(http: httpx.Client) -> None:
    http.post("/api/sessions").raise_for_status()
    kinds = {s["kind"] for s in http.get("/api/sessions?kinds=web,dm").json()["sessions"]}
    assert kinds == {"web"}
    wrong = http.get("/api/sessions?kinds=web,nothing")
    assert wrong.status_code == 400 and wrong.json()["error"]["details"]["fields"][0]["field"] == "kinds.1"


def test_errors_name_what_the_address_calls_it(http: httpx.Client) -> None:
    missing = http.get("/memory/search").json()["error"]
    assert missing["message"] == "q: Field required"
    long = http.get(f"/api/agents/{'a' * 300}").json()["error"]
    assert long["details"]["fields"][0]["field"] == "id"


def test_head_is_get_without_its_body(http: httpx.Client) -> None:
    answer = http.head("/api/agents")
    assert answer.status_code == 200 and answer.content == b""


def test_allow_names_every_method_of_a_path(http: httpx.Client) -> None:
    refused = http.put("/api/agents/main")
    assert refused.status_code == 405
    assert {"GET", "PATCH", "DELETE"} <= {verb.strip() for verb in refused.headers["allow"].split(",")}
