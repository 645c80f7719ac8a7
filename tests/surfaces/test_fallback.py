"""A model that is down: another answers and the person sees which; or none does, and nothing is lost."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, Rpc, RpcError, coterie, running
from tests.support.mock import Exchange, ModelServer, config, model_server
from tests.support.terminal import chatting

MAIN = "agent:main:main"
MORE = """    second: {{type: openai-compatible, base_url: "{url}"}}
agents:
  roster:
    - {{name: main, model: {{primary: mock/first, fallbacks: [second/backup]}}}}
"""
GIF = base64.b64encode(b"GIF89a\x02\x00\x03\x00\x00\x00\x00").decode()


@pytest.fixture
def primary() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def second() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def house(home: Path, primary: ModelServer, second: ModelServer) -> Path:
    home.mkdir()
    (home / "agent.yaml").write_text(config(primary.base_url, more=MORE.format(url=second.base_url)))
    return home


@pytest.fixture
def served(house: Path) -> Iterator[GatewayProcess]:
    with running(house) as gateway:
        yield gateway


@pytest.fixture
def rpc(served: GatewayProcess) -> Iterator[Rpc]:
    with served.rpc() as client:
        yield client


def refuses(exchange: Exchange) -> None:
    exchange.status(401, {"error": {"message": "this key has expired"}})


def breaks_off(exchange: Exchange) -> None:
    exchange.begin()
    exchange.chunk({"role": "assistant", "content": "I was about to s"})


@pytest.mark.parametrize("trouble", [refuses, breaks_off], ids=["an expired key", "broken off in mid-stream"])
def test_the_fallback_answers_and_the_person_sees_which(
    rpc: Rpc, primary: ModelServer, second: ModelServer, trouble: object
) -> None:
    primary.answer = trouble  # type: ignore[assignment]
    second.answer = lambda exchange: exchange.reply("the second speaks")
    run = rpc.call("chat.send", session=MAIN, message="hello")["run_id"]
    final = rpc.wait_for("chat", run_id=run, state="final")
    assert final["text"] == "the second speaks"
    assert final["fallback"]["model"] == "second/backup"
    assert final["fallback"]["instead_of"] == "mock/first"
    assert "mock/first" in final["fallback"]["reason"]
    said = rpc.call("chat.history", session=MAIN)["messages"][-1]
    assert said["meta"]["fallback"] == final["fallback"]
    assert [row["model"] for row in rpc.call("usage.summary", by=["model"])["rows"]] == ["second/backup"]
    # Once the first is well again, it is asked again and nothing needs to be said.
    primary.answer = lambda exchange: exchange.reply("the first speaks")
    run = rpc.call("chat.send", session=MAIN, message="hello")["run_id"]
    final = rpc.wait_for("chat", run_id=run, state="final")
    assert final["text"] == "the first speaks" and "fallback" not in final


def test_both_down_the_message_is_kept_and_a_retry_answers_it(
    rpc: Rpc, primary: ModelServer, second: ModelServer
) -> None:
    with pytest.raises(RpcError) as caught:
        rpc.call("chat.retry", session=MAIN)
    assert caught.value.code == "NOT_FOUND"
    primary.answer = second.answer = refuses
    run = rpc.call("chat.send", session=MAIN, message="what is this?", attachments=[{"data": GIF}])["run_id"]
    error = rpc.wait_for("chat", run_id=run, state="error")["message"]
    assert "second/backup refused the API key" in error and "this key has expired" in error
    said, note = rpc.call("chat.history", session=MAIN)["messages"]
    assert (said["text"], said["seq"], said["parts"][0]["media_type"]) == ("what is this?", 1, "image/gif")
    assert error in note["text"]
    # Still down: the retry fails as plainly, and can be tried again.
    run = rpc.call("chat.retry", session=MAIN)["run_id"]
    rpc.wait_for("chat", run_id=run, state="error")
    second.answer = lambda exchange: exchange.reply("a very small picture")
    run = rpc.call("chat.retry", session=MAIN, idempotency_key="once")["run_id"]
    assert rpc.wait_for("chat", run_id=run, state="final")["text"] == "a very small picture"
    assert rpc.call("chat.retry", session=MAIN, idempotency_key="once")["run_id"] == run
    asked = second.bodies[-1]["messages"]
    assert sum("what is this?" in str(message["content"]) for message in asked) == 1, "it is not said twice"
    assert GIF in str(asked)
    with pytest.raises(RpcError, match="nothing to try again") as caught:
        rpc.call("chat.retry", session=MAIN)
    assert caught.value.code == "CONFLICT"


def test_at_the_terminal(house: Path, primary: ModelServer, second: ModelServer) -> None:
    primary.answer = second.answer = refuses
    done = coterie(house, "chat", "hello")
    assert done.returncode == 1 and "second/backup refused the API key" in done.stderr
    with chatting(house) as pane:
        pane.wait("session main")
        pane.say("hello again")
        pane.wait("error: second/backup refused the API key")
        pane.wait("/retry has it answered after all")
        second.answer = lambda exchange: exchange.reply("the second speaks")
        pane.say("/retry")
        pane.wait("the second speaks")
        pane.wait("second/backup answered this: mock/first refused the API key")
