"""Which models there are, and whether they answer: over RPC, HTTP and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gateway import coterie, running
from tests.support.mock import Exchange, ModelServer, config, free_port, model_server

KEY = "sk-secret-of-the-test"
MORE = """    keyed: {{type: openai-compatible, base_url: "{url}", api_key_env: KEYED_KEY}}
    away: {{type: openai-compatible, base_url: "http://127.0.0.1:{port}/v1"}}
agents:
  roster:
    - {{name: rose, model: {{primary: keyed/large, fallbacks: [offline/demo]}}}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def house(home: Path, server: ModelServer) -> Path:
    home.mkdir()
    more = MORE.format(url=server.base_url, port=free_port())
    (home / "agent.yaml").write_text(config(server.base_url, more=more))
    return home


def test_every_door_lists_the_same_models(house: Path) -> None:
    alone = coterie(house, "model", "list", "--json", ANTHROPIC_API_KEY=KEY)
    assert alone.returncode == 0, alone.stderr
    found = json.loads(alone.stdout)
    with running(house, ANTHROPIC_API_KEY=KEY) as gateway, gateway.rpc() as rpc, gateway.http() as http:
        assert rpc.call("models.list") == found
        assert json.loads(coterie(house, "model", "list", "--json").stdout) == found
        over_http = http.get("/api/models").json()
        assert [m["name"] for m in over_http["models"]] == [m["name"] for m in found["models"]]
        everything = rpc.call("models.list", all=True)
    models = {m["name"]: m for m in found["models"]}
    assert found["default"] == "mock/mock-1"
    assert list(models)[:3] == ["mock/mock-1", "keyed/large", "offline/demo"]
    assert models["mock/mock-1"]["available"] and models["mock/mock-1"]["named"]
    assert not models["keyed/large"]["available"]
    assert models["anthropic/claude-sonnet-5"] == {
        "name": "anthropic/claude-sonnet-5",
        "provider": "anthropic",
        "available": True,
        "reason": None,
        "named": False,
    }
    assert not any(name.startswith("google/") for name in models)
    assert any(m["name"].startswith("google/") and not m["available"] for m in everything["models"])
    states = {p["name"]: p for p in found["providers"]}
    assert states["anthropic"]["has_key"] and not states["openai"]["has_key"]
    assert states["openai"]["key_names"] == ["OPENAI_API_KEY"]
    assert KEY not in alone.stdout


def test_people_are_told_which_key_is_missing(house: Path) -> None:
    said = coterie(house, "model", "list").stdout
    assert "the default" in said and "an agent's" in said
    assert "anthropic can be used once ANTHROPIC_API_KEY is set." in said
    assert "claude" not in said
    assert "anthropic/claude-sonnet-5" in coterie(house, "model", "list", "--all").stdout


def status(code: int, message: str) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.status(code, {"error": {"message": message, "code": code}})


@pytest.mark.parametrize(
    ("name", "answer", "key", "said"),
    [
        ("keyed/large", None, "", "needs an API key: set the environment variable KEYED_KEY"),
        ("keyed/large", status(401, "Incorrect API key provided"), KEY, "check the key in KEYED_KEY"),
        ("keyed/large", status(401, "This key has expired"), KEY, "This key has expired"),
        ("keyed/none", status(404, "The model does not exist"), KEY, "check the model's name"),
        ("away/large", None, "", "cannot be reached"),
        ("nowhere/large", None, "", "no provider 'nowhere'"),
        ("large", None, "", "<provider>/<model>"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_plainly(
    house: Path,
    server: ModelServer,
    name: str,
    answer: Callable[[Exchange], None] | None,
    key: str,
    said: str,
) -> None:
    server.answer = answer or (lambda exchange: exchange.reply("OK"))
    done = coterie(house, "model", "test", name, KEYED_KEY=key)
    assert done.returncode == 1
    assert said in done.stderr and done.stdout == ""
    assert KEY not in done.stderr
    found = json.loads(coterie(house, "model", "test", name, "--json", KEYED_KEY=key).stdout)
    assert not found["ok"] and said in found["message"]


def test_a_model_that_answers_is_said_to(house: Path, server: ModelServer) -> None:
    server.answer = lambda exchange: exchange.reply("OK")
    done = coterie(house, "model", "test")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mock/mock-1 answers (")
    with running(house, KEYED_KEY=KEY):
        # The gateway has the key, the command's own environment has none.
        assert coterie(house, "model", "test", "keyed/large").stdout.startswith("keyed/large answers (")
