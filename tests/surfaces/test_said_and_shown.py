"""What is said is so, and what counts is shown: models that were not tried, prices that are not known, who was meant."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, RpcError, coterie
from tests.support.mock import Exchange, config, model_server
from tests.support.terminal import chatting

# Models


def test_a_model_that_was_not_asked_is_not_said_to_answer(home: Path) -> None:
    with chatting(home, ANTHROPIC_API_KEY="not a key") as pane:
        seen = " ".join(pane.wait("Things to try").split())
        assert re.search(
            r"The model is set to anthropic/\S+, and was not asked yet; `coterie model test` tries", seen
        )
        assert "answers." not in seen


def test_a_reply_that_had_not_begun_does_not_start_over(home: Path) -> None:
    home.mkdir()

    def answer(exchange: Exchange) -> None:
        if exchange.number == 1:
            exchange.begin()
            exchange.chunk({"role": "assistant"})  # and broken off, before a word was said
        elif exchange.number == 2:
            exchange.calls(("system_time", "{}"))
        elif exchange.number == 3:
            exchange.begin()
        else:
            exchange.reply("the whole of it")

    with model_server() as server:
        server.answer = answer
        (home / "agent.yaml").write_text(config(server.base_url))
        with chatting(home) as pane:
            pane.wait("session main")
            pane.say("hi")
            seen = pane.wait("the whole of it")
            assert "✓ system_time" in seen and "starts over" not in seen


KNOWN = "there is no provider 'foo'; known are anthropic, google, offline, ollama, openai"


def test_a_provider_that_there_is_none_of_is_refused_at_every_door(gateway: GatewayProcess) -> None:
    with gateway.rpc() as rpc, gateway.http() as http:
        session = rpc.call("sessions.create", agent_id="main")["id"]
        rpc.call("agents.create", id="rose")
        tries: list[tuple[str, dict[str, Any]]] = [
            ("sessions.patch", {"session": session, "model": "foo/bar"}),
            ("subagents.spawn", {"task": "x", "model": "foo/bar"}),
            ("agents.create", {"id": "dot", "spec": {"model": "foo/bar"}}),
            ("agents.update", {"agent_id": "rose", "spec": {"model": {"primary": "offline/demo", "fallbacks": ["foo/bar"]}}}),
        ]  # fmt: skip
        for method, params in tries:
            with pytest.raises(RpcError) as refused:
                rpc.call(method, **params)
            assert refused.value.code == "INVALID_REQUEST" and KNOWN in refused.value.message, method
        over_http = http.patch(f"/api/sessions/{session}", json={"model": "foo/bar"})
        assert over_http.status_code == 400 and KNOWN in over_http.json()["error"]["message"]
        assert rpc.call("sessions.get", session=session)["model"] is None
        # Which models a provider has, it alone knows.
        assert rpc.call("sessions.patch", session=session, model="openai/of-tomorrow")["model"]
    done = coterie(gateway.home, "chat", "hello", "--model", "foo/bar")
    assert done.returncode == 1 and KNOWN in done.stderr
    assert coterie(gateway.home, "agent", "edit", "rose", "--model", "foo/bar").returncode == 1


def test_a_model_in_the_chat(gateway: GatewayProcess) -> None:
    with chatting(gateway.home, columns=200) as pane:
        pane.wait("session main")
        pane.say("/model foo/bar")
        pane.wait("error: there is no provider 'foo'; known are")
        pane.say("/model openai/of-tomorrow")
        pane.wait(
            "the model is openai/of-tomorrow now; it needs OPENAI_API_KEY in the environment where the gateway runs"
        )
        pane.say("/model offline/other")
        pane.wait("the model is offline/other now; it is not among the known ones")
        pane.say("/model openai/gpt-5.2")
        pane.wait("openai/gpt-5.2 now")
        pane.say("hello")
        pane.wait("needs an API key: set the environment variable OPENAI_API_KEY where the gateway runs")
        pane.say("/model default")
        pane.wait("the model is offline/demo now")


def test_a_sum_over_what_is_not_known_says_so(home: Path) -> None:
    home.mkdir()
    with model_server() as server:
        (home / "agent.yaml").write_text(
            config(server.base_url, more="agents: {roster: [{name: dot, model: offline/demo}]}\n")
        )
        for agent in ("main", "dot", "main"):
            assert coterie(home, "chat", "hello", "--agent", agent).returncode == 0
    costs = {line.split()[0]: line.split("  ")[-1].strip() for line in table(home, "usage", "--by", "agent")}
    assert costs == {"main": "unknown", "dot": "$0.0000", "in": "unknown"}
    found = json.loads(coterie(home, "usage", "--json").stdout)
    assert found["total"]["unpriced_turns"] == 2


def table(home: Path, *words: str) -> list[str]:
    """The rows below the line."""
    lines = coterie(home, *words).stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if "───" in line)
    return [line for line in lines[start + 1 :] if line.strip()]


# Agents


def test_agent_info_shows_what_a_turn_would_have_and_whose_word_that_is(gateway: GatewayProcess) -> None:
    home = gateway.home
    (home / "skills" / "calendar").mkdir(parents=True)
    (home / "skills" / "calendar" / "SKILL.md").write_text("# Calendar\n")
    with gateway.rpc() as rpc:
        rpc.call(
            "agents.create",
            id="base",
            spec={"model": "offline/other", "tool_denylist": ["files_write"], "ui_visible": False},
        )
        rpc.call(
            "agents.create",
            id="rose",
            spec={
                "extends": "base",
                "skills": [],
                "agent_allowlist": ["main"],
                "tool_asklist": ["files_edit"],
            },
        )
        payload = rpc.call("agents.get", agent_id="rose")
        decided = rpc.call("tools.effective", agent_id="rose")["tools"]
    assert json.loads(coterie(home, "agent", "info", "rose", "--json").stdout) == payload
    assert set(payload["effective"]) == {"model", "tools", "skills", "agents"}
    assert payload["effective"]["tools"] and "files_write" not in payload["effective"]["tools"]
    assert set(payload["effective"]["tools"]) == {
        tool["name"] for tool in decided if tool["verdict"] != "deny"
    }
    shown = " ".join(coterie(home, "agent", "info", "rose").stdout.split())
    for piece in (
        f"folder {home / 'agents' / 'rose'}",
        "model offline/other (model of base)",
        "(tool_denylist of base)",
        "files_write (not allowed: 'files_write' in tool_denylist)",
        "files_edit (a person is asked: 'files_edit' in tool_asklist)",
        "skills none (skill_allowlist)",
        "agents main (agent_allowlist)",
    ):
        assert piece in shown
    main = " ".join(coterie(home, "agent", "info", "main").stdout.split())
    assert "model offline/demo (default_model of agent.yaml)" in main and "skills calendar (no list" in main


def test_a_mistyped_agent_is_guessed_wherever_one_is_named(gateway: GatewayProcess) -> None:
    home = gateway.home
    coterie(home, "agent", "add", "rose")
    meant = "there is no agent 'rosa'; did you mean 'rose'?"
    for words in (
        ("agent", "info", "rosa"), ("agent", "edit", "rosa", "--label", "x"), ("agent", "default", "rosa"),
        ("agent", "remove", "rosa"), ("agent", "purge", "rosa", "--yes"), ("chat", "hi", "--agent", "rosa"),
        ("prompt", "show", "--agent", "rosa"), ("remember", "x", "--agent", "rosa"), ("recall", "x", "--agent", "rosa"),
    ):  # fmt: skip
        done = coterie(home, *words)
        assert (done.returncode, done.stderr) == (1, f"error: {meant}\n"), words
    with gateway.http() as http:
        assert http.get("/api/agents/rosa").json()["error"]["message"] == meant
        spawned = http.post("/api/agents/subagents/spawn", json={"task": "x", "agentId": "rosa"})
        assert spawned.status_code == 404 and spawned.json()["error"]["message"] == meant
        body = {"model": "coterie/rosa", "messages": [{"role": "user", "content": "x"}]}
        answer = http.post("/v1/chat/completions", json=body)
        assert (
            answer.status_code == 404 and "did you mean 'coterie/rose'?" in answer.json()["error"]["message"]
        )
    assert "did you mean" not in coterie(home, "agent", "info", "zebra").stderr
    assert "did you mean 'rose'?" in coterie(home, "agent", "info", "Rose").stderr


def test_who_cannot_be_seen_is_not_suggested(gateway: GatewayProcess) -> None:
    with gateway.rpc() as rpc, gateway.http() as http:
        rpc.call("agents.create", id="secret", spec={"ui_visible": False})
        rpc.call("agents.create", id="rose")
        body = {"model": "coterie/secrets", "messages": [{"role": "user", "content": "x"}]}
        answer = http.post("/v1/chat/completions", json=body).json()["error"]["message"]
        assert "'coterie/secret'" not in answer and "/v1/models" in answer


def test_an_archived_agent_says_how_it_comes_back(gateway: GatewayProcess) -> None:
    home = gateway.home
    coterie(home, "agent", "add", "rose")
    coterie(home, "agent", "remove", "rose")
    back = "`coterie agent restore rose` brings it back"
    for words in (
        ("agent", "edit", "rose", "--label", "x"), ("agent", "default", "rose"), ("agent", "add", "rose"),
        ("recall", "x", "--agent", "rose"), ("remember", "x", "--agent", "rose"),
    ):  # fmt: skip
        done = coterie(home, *words)
        assert done.returncode == 1 and back in done.stderr, words
    assert back in coterie(home, "agent", "info", "rose").stdout
    with gateway.http() as http:
        spawned = http.post("/api/agents/subagents/spawn", json={"task": "x", "agentId": "rose"})
        assert back in spawned.json()["error"]["message"]
    assert "did you mean 'rose'?" in coterie(home, "agent", "restore", "rosa").stderr


def test_who_has_finished_is_told_in_words_and_kept_to_the_letter(gateway: GatewayProcess) -> None:
    home = gateway.home
    coterie(home, "agent", "add", "rose", "--label", "Rose")
    with gateway.rpc() as rpc, chatting(home) as pane:
        pane.wait("session main")
        pane.say("tell rose: the soil is dry")
        pane.wait("Rose has finished: ")
        pane.wait("Rose is done (ok)")
        assert "[@agent:" not in pane.text()
        kept = [m["text"] for m in rpc.call("chat.history", session="agent:main:main")["messages"]]
        assert "[@agent:Rose#rose] finish" in kept
        with chatting(home) as later:
            seen = later.wait("Rose has finished: ")
            assert "[@agent:" not in seen


def test_the_offline_model_says_once_who_it_is(gateway: GatewayProcess) -> None:
    said = [
        coterie(gateway.home, "chat", text).stdout
        for text in ("hello", "what time is it", "good bye", "who are you?")
    ]
    assert ["not a language model" in text for text in said] == [True, False, False, True]
    other = coterie(gateway.home, "chat", "hello", "--session", "agent:main:dm:another")
    assert "not a language model" in other.stdout
