"""The OpenAI SDK as a client: any program that speaks to OpenAI can speak to the household."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.support.gateway import GatewayProcess, Rpc, running
from tests.support.mock import Exchange, MockModel, ModelServer, client_said, config, mock_model, model_server

ROSTER = """agents:
  roster:
    - {name: rose, system_prompt: You are Rose.}
    - {name: hidden, ui_visible: false}
"""
RETRY = {"x-stainless-retry-count": "1"}


@pytest.fixture(scope="module")
def mock() -> Iterator[MockModel]:
    with mock_model("--tool", "system_time") as model:
        yield model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, mock: MockModel) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("openai") / "home"
    home.mkdir()
    (home / "agent.yaml").write_text(config(mock.base_url, more=ROSTER))
    with running(home) as gateway:
        yield gateway


@contextmanager
def client(gateway: GatewayProcess, **options: Any) -> Iterator[OpenAI]:
    options = {"max_retries": 0, "timeout": 60, **options}
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token, **options) as sdk:
        yield sdk


def user(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def history(rpc: Rpc, session: str) -> list[str]:
    return [m["text"] for m in rpc.call("chat.history", session=session, limit=1000)["messages"]]


def test_each_visible_agent_is_a_model(served: GatewayProcess) -> None:
    with client(served) as sdk:
        assert [m.id for m in sdk.models.list()] == ["coterie/main", "coterie/rose"]


def test_without_a_user_a_request_brings_its_own_history(served: GatewayProcess, mock: MockModel) -> None:
    mock.set(keep_bodies=1)
    with client(served) as sdk:
        answer = sdk.chat.completions.create(
            model="coterie/rose",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "earlier [t:old]"},
                {"role": "assistant", "content": "an answer"},
                {"role": "user", "content": "now [t:new]"},
            ],
        )
    assert answer.object == "chat.completion"
    assert answer.model == "coterie/rose"
    assert answer.choices[0].message.content == "ok [t:new]"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens > 0
    texts = [m["content"] for m in mock.bodies()[-1]["messages"]]
    assert texts[0].startswith("You are Rose.")
    system, *others = texts[1:5]
    assert client_said("Be brief.", system)
    assert others == ["earlier [t:old]", "an answer", "now [t:new]"]


def test_with_a_user_the_session_lasts(served: GatewayProcess, mock: MockModel) -> None:
    with client(served) as sdk:
        for n in range(3):
            answer = sdk.chat.completions.create(
                model="coterie/rose", messages=user(f"TOOLS 1 [t:{n}]"), user="Ann:1"
            )
            assert answer.choices[0].message.content == f"ok [t:{n}]"
    with served.rpc() as rpc:
        texts = history(rpc, "agent:rose:api:Ann%3A1")
        assert [t for t in texts if t.startswith("ok")] == ["ok [t:0]", "ok [t:1]", "ok [t:2]"]
        # Users called like a word of the key grammar are users like any other.
        for name in ("direct", "dm", "old", "thread"):
            with client(served) as sdk:
                sdk.chat.completions.create(model="coterie/rose", messages=user(name), user=name)
            assert history(rpc, f"agent:rose:api:{name}")[0] == name


def test_a_header_names_the_session_outright(served: GatewayProcess) -> None:
    with served.rpc() as rpc, client(served) as sdk:
        session = rpc.call("sessions.create", agent_id="rose")
        sdk.chat.completions.create(
            model="coterie/main",
            messages=user("here [t:h]"),
            extra_headers={"x-coterie-session": session["id"]},
        )
        assert history(rpc, session["key"]) == ["here [t:h]", "ok [t:h]"]
        with pytest.raises(openai.NotFoundError):
            sdk.chat.completions.create(
                model="coterie/main", messages=user("there"), extra_headers={"x-coterie-session": "nowhere"}
            )


def test_streaming_with_usage(served: GatewayProcess) -> None:
    with client(served) as sdk:
        stream = sdk.chat.completions.create(
            model="coterie/main",
            messages=user("TOOLS 2 [t:s] SIZE 200"),
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said.startswith("ok [t:s] x") and len(said) == 200
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert len({c.id for c in chunks}) == 1
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6  # three requests of two


def test_the_streaming_helper_reads_it_too(served: GatewayProcess) -> None:
    with (
        client(served) as sdk,
        sdk.chat.completions.stream(model="coterie/main", messages=user("[t:z]")) as stream,
    ):
        assert stream.get_final_completion().choices[0].message.content == "ok [t:z]"


@pytest.mark.parametrize(
    ("model", "messages", "error", "said"),
    [
        ("coterie/nobody", user("hi"), openai.NotFoundError, "coterie/nobody"),
        ("gpt-5", user("hi"), openai.NotFoundError, "gpt-5"),
        ("coterie/main", [], openai.BadRequestError, "messages"),
        ("coterie/main", user(" "), openai.BadRequestError, "empty"),
        ("coterie/main", [{"role": "assistant", "content": "hi"}], openai.BadRequestError, "user"),
        ("coterie/main", [{"role": "wizard", "content": "hi"}], openai.BadRequestError, "role"),
        (
            "coterie/main",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
            openai.BadRequestError,
            "image_url",
        ),
    ],
)
def test_mistakes_are_the_sdks_own_exceptions(
    served: GatewayProcess, model: str, messages: Any, error: type[openai.APIStatusError], said: str
) -> None:
    for stream in (False, True):
        with client(served) as sdk, pytest.raises(error, match=said):
            sdk.chat.completions.create(model=model, messages=messages, stream=stream)


def test_a_wrong_token_and_a_large_message(served: GatewayProcess) -> None:
    with (
        OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0) as sdk,
        pytest.raises(openai.AuthenticationError),
    ):
        sdk.models.list()
    with client(served) as sdk, pytest.raises(openai.APIStatusError) as caught:
        sdk.chat.completions.create(model="coterie/main", messages=user("x" * 5_000_000))
    assert caught.value.status_code == 413


def test_text_in_parts_is_text(served: GatewayProcess) -> None:
    parts: Any = [{"type": "text", "text": "one [t:1]"}, {"type": "text", "text": "two [t:2]"}]
    with client(served) as sdk:
        answer = sdk.chat.completions.create(
            model="coterie/main", messages=[{"role": "user", "content": parts}]
        )
    assert answer.choices[0].message.content == "ok [t:1] [t:2]"


# Retries


def slowly(server: ModelServer, seconds: float) -> None:
    def answer(exchange: Exchange) -> None:
        time.sleep(seconds)
        exchange.reply(f"answer {exchange.number}")

    server.answer = answer


@pytest.mark.parametrize("name", ["ann", None])
def test_a_retry_in_mid_run_starts_no_second_turn(home: Path, name: str | None) -> None:
    """The SDK gives up waiting and sends the same body again; it gets the answer of the run under way."""
    home.mkdir()
    with model_server() as server:
        slowly(server, 1.5)
        (home / "agent.yaml").write_text(config(server.base_url))
        with running(home) as gateway:
            options: dict[str, Any] = {"user": name} if name else {}
            with client(gateway, max_retries=5, timeout=0.7) as sdk:
                answer = sdk.chat.completions.create(model="coterie/main", messages=user("once"), **options)
                assert answer.choices[0].message.content == "answer 1"
            with client(gateway) as sdk:
                # That answer arrived: what looks like a retry now is one of a message that we never saw.
                lost = sdk.chat.completions.create(
                    model="coterie/main", messages=user("once"), extra_headers=RETRY, **options
                )
                assert lost.choices[0].message.content == "answer 2"
            with gateway.rpc() as rpc:
                sessions = rpc.call("sessions.list")["sessions"]
                assert len(sessions) == (1 if name else 0)
    assert len(server.raw) == 2


def test_two_streams_of_one_run_say_the_same(home: Path) -> None:
    home.mkdir()
    with model_server() as server:
        begun, go_on = threading.Event(), threading.Event()

        def answer(exchange: Exchange) -> None:
            exchange.begin()
            exchange.chunk({"content": "first half, "})
            begun.set()
            go_on.wait(30)
            exchange.chunk({"content": "second half"})
            exchange.chunk({}, "stop")
            exchange.send(b"data: [DONE]\n\n")

        server.answer = answer
        (home / "agent.yaml").write_text(config(server.base_url))
        said: dict[str, str] = {}

        def listen(who: str, **more: Any) -> None:
            with client(gateway) as sdk:
                stream = sdk.chat.completions.create(
                    model="coterie/main", messages=user("tell"), user="u", stream=True, **more
                )
                said[who] = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)

        with running(home) as gateway:
            first = threading.Thread(target=listen, args=("first",))
            first.start()
            assert begun.wait(30)
            second = threading.Thread(target=listen, args=("second",), kwargs={"extra_headers": RETRY})
            second.start()
            time.sleep(0.2)
            go_on.set()
            first.join()
            second.join()
        assert said == {"first": "first half, second half", "second": "first half, second half"}
        assert len(server.raw) == 1


@pytest.mark.parametrize("name", ["ann", None])
def test_a_retry_after_a_crash_gets_the_run_that_was_begun(home: Path, name: str | None) -> None:
    home.mkdir()
    options: dict[str, Any] = {"user": name} if name else {}
    with model_server() as server:
        (home / "agent.yaml").write_text(config(server.base_url))
        server.answer = lambda exchange: exchange.hang()
        with running(home) as gateway:

            def ask() -> None:
                with client(gateway) as sdk, pytest.raises(openai.APIConnectionError):
                    sdk.chat.completions.create(model="coterie/main", messages=user("once"), **options)

            asking = threading.Thread(target=ask)
            asking.start()
            while not server.raw:
                time.sleep(0.01)
            gateway.kill()
            asking.join()
        slowly(server, 0.5)
        with running(home) as gateway, client(gateway) as sdk:
            answer = sdk.chat.completions.create(
                model="coterie/main", messages=user("once"), extra_headers=RETRY, **options
            )
            assert answer.choices[0].message.content == "answer 2"
            with gateway.rpc() as rpc:
                assert len(rpc.call("sessions.list")["sessions"]) == (1 if name else 0)
                with sqlite3.connect(home / "coterie.db") as database:
                    [(key,)] = database.execute("SELECT key FROM sessions").fetchall()
                assert history(rpc, key) == ["once", "answer 2"]


def test_a_turn_that_failed_is_an_error_and_its_retries_ask_no_model_again(home: Path) -> None:
    home.mkdir()
    with model_server() as server:
        server.answer = lambda exchange: exchange.status(401, {"error": {"message": "bad key"}})
        (home / "agent.yaml").write_text(config(server.base_url))
        with running(home) as gateway:
            with client(gateway, max_retries=2) as sdk, pytest.raises(openai.InternalServerError) as caught:
                sdk.chat.completions.create(model="coterie/main", messages=user("hi"), user="u")
            assert "bad key" in str(caught.value)
            assert len(server.raw) == 1
            with client(gateway) as sdk, pytest.raises(openai.APIError, match="bad key"):
                list(
                    sdk.chat.completions.create(
                        model="coterie/main", messages=user("hi"), user="u", stream=True
                    )
                )
            assert len(server.raw) == 2
