"""What a provider sees: a prefix that stays the same bytes from request to request, and one message behind it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import mock_llm
from coterie.core.ports import Model
from coterie.core.session import Session
from coterie.engine.household.brain import Brain
from coterie.models.openai_chat import Endpoint, OpenAIChat, open_connections
from tests.support.gateway import Rpc, running
from tests.support.house import MAIN, FunctionModel, household, last_user, run, why_illegal
from tests.support.mock import Exchange, config, mock_model, model_server

TURNS = 50
CONTEXT = b'{"role":"user","content":"<context>'


def check_prefix(bodies: Sequence[Mapping[str, Any]]) -> None:
    """Tools, system prompt and every message up to the trailing one are the same in the next request."""
    for before, after in itertools.pairwise(bodies):
        assert json.dumps(before["tools"]) == json.dumps(after["tools"])
        kept = [json.dumps(m) for m in before["messages"][:-1]]
        assert [json.dumps(m) for m in after["messages"][: len(kept)]] == kept
        assert len(after["messages"]) > len(before["messages"])
    for body in bodies:
        contexts = [i for i, m in enumerate(body["messages"]) if str(m["content"]).startswith("<context>")]
        assert contexts == [len(body["messages"]) - 1]


def check_raw_prefix(raw: Sequence[bytes]) -> None:
    """The same of the bytes themselves."""
    for before, after in itertools.pairwise(raw):
        cut = before.rindex(CONTEXT)
        assert after[:cut] == before[:cut]
        # What stands behind the messages, the tools among it, is the same too.
        assert before[before.index(b"}]", cut) :] == after[after.index(b"}]", after.rindex(CONTEXT)) :]


def as_mock(exchange: Exchange) -> None:
    """What the strict mock would answer."""
    assert why_illegal("/chat/completions", exchange.body) is None
    decided: tuple[Any, ...] = _decide(exchange.body)
    if decided[1] is None:
        exchange.reply(decided[3])
    else:
        exchange.calls((decided[1], json.dumps(decided[2])))


def _decide(body: dict[str, Any]) -> tuple[Any, ...]:
    normalise: Any = mock_llm.normalise
    decide: Any = mock_llm.decide
    _, tools, messages = normalise("/chat/completions", body)
    found: tuple[Any, ...] = decide(tools, messages)
    return found


def test_fifty_turns_are_the_same_bytes(home: Path) -> None:
    """Tool rounds, steering, restarts, and a context provider that says something else every time."""
    count = itertools.count()

    def context(session: Session, brain: Brain) -> Mapping[str, str]:
        return {"recall": f"thought {next(count)}", "panels": '{"open": ["ü"]}'}

    async def story() -> None:
        connections = open_connections()
        with model_server() as server:
            server.answer = as_mock
            model = OpenAIChat("mock/mock-1", Endpoint(server.base_url, connections))
            async with household(home, model, context=[context]) as house:
                for turn in range(TURNS):
                    rounds = f"TOOLS {turn % 4} " if turn % 4 else ""
                    sent = [await house.send(f"{rounds}message {turn} “ü” [t:{turn}]")]
                    if turn % 5 == 0:
                        sent.append(await house.send(f"and this [t:{turn}b]"))
                    for receipt in sent:
                        assert (await house.outcome(receipt)).text.startswith("ok")
                    await house.idle()
                    if turn % 10 == 9:
                        # What was read back from the store is what was sent before.
                        await house.crash()
                        await house.restart()
                stored = await house.history()
                assert any(m.text.startswith("[Backlog]") for m in stored)
                assert not any("<context>" in m.text or "thought" in m.text for m in stored)
            check_prefix(server.bodies)
            check_raw_prefix(server.raw)
            said = [body["messages"][-1]["content"] for body in server.bodies]
            assert len(set(said)) == len(said) > 100
            await connections.aclose()

    run(story())


def test_fifty_turns_of_a_real_gateway(home: Path) -> None:
    home.mkdir()
    with mock_model("--tool", "system_time") as mock:
        mock.set(keep_bodies=10_000)
        (home / "agent.yaml").write_text(config(mock.base_url))
        with running(home) as gateway, gateway.rpc() as rpc:
            for turn in range(TURNS):
                rounds = f"TOOLS {turn % 4} " if turn % 4 else ""
                runs = [_send(rpc, f"{rounds}message {turn} [t:{turn}]")]
                if turn % 5 == 1:
                    runs.append(_send(rpc, f"and this [t:{turn}b]"))
                for run_id in runs:
                    rpc.wait_for("chat", run_id=run_id, state="final")
        assert mock.refused == []
        check_prefix(mock.bodies())
        assert len(mock.bodies()) > 100


def test_the_request_after_a_switch_is_the_new_agents(home: Path) -> None:
    """On an idle session: prompt, model and tools; what the new agent lacks is refused when it is called anyway."""
    home.mkdir()
    roster = """agents:
  roster:
    - {name: rose, system_prompt: You are Rose., model: mock/rose-1, tool_allowlist: [files_list]}
    - {name: miles, system_prompt: You are Miles., model: mock/miles-1, tool_denylist: ["files_*"]}
"""
    with model_server() as server:
        (home / "agent.yaml").write_text(config(server.base_url, more=roster))

        def answer(exchange: Exchange) -> None:
            if exchange.last_user == "list them" and not exchange.has_result:
                exchange.calls(("files_list", "{}"))
            else:
                exchange.reply(f"I am {exchange.body['model']}")

        server.answer = answer
        with running(home) as gateway, gateway.rpc() as rpc:
            session = "agent:rose:main"
            rpc.wait_for("chat", run_id=_send(rpc, "list them", session), state="final")
            rpc.call("sessions.set_agent", session=session, agent_id="miles")
            final = rpc.wait_for("chat", run_id=_send(rpc, "list them", session), state="final")
            assert final["text"] == "I am miles-1"
            messages = rpc.call("chat.history", session=session)["messages"]
        first, second, third, fourth = server.bodies
        assert [b["model"] for b in server.bodies] == ["rose-1", "rose-1", "miles-1", "miles-1"]
        assert first["messages"][0]["content"].startswith("You are Rose.")
        assert third["messages"][0]["content"].startswith("You are Miles.")

        def names(body: dict[str, Any]) -> set[str]:
            return {t["function"]["name"] for t in body["tools"]}

        assert "files_list" in names(first) and names(first) == names(second)
        assert "files_list" not in names(third) and names(third) == names(fourth)
        # History stays, the marker says who took over, and the refusal is a result.
        kept = [json.dumps(m) for m in second["messages"][1:-1]]
        assert [json.dumps(m) for m in third["messages"][1 : len(kept) + 1]] == kept
        assert "miles took over" in third["messages"][len(kept) + 2]["content"]
        results = [m["text"] for m in messages if m["role"] == "tool"]
        assert not results[0].startswith("error")
        assert results[1].startswith("error: tool_not_allowed: files_list")
        assert fourth["messages"][-2] == {
            "role": "tool",
            "tool_call_id": fourth["messages"][-3]["tool_calls"][0]["id"],
            "content": results[1],
        }
        owners = [m["agent_id"] for m in messages if m["role"] == "assistant"]
        assert owners == ["rose", "rose", "miles", "miles"]


def test_a_session_keeps_its_model_and_a_changed_prompt_counts_from_the_next_turn(home: Path) -> None:
    async def story() -> None:
        model: Model = FunctionModel(lambda request: f"{request.system.splitlines()[0]}|{last_user(request)}")
        async with household(home, model, roster="- {name: rose, system_prompt: You are Rose.}") as house:
            session = (await house.gateway.sessions.create(agent_id="rose")).id
            assert (await house.say("one", session)).text == "You are Rose.|one"
            await house.gateway.sessions.patch(session, model="other/large")
            registry = house.gateway.registry
            registry.update("rose", spec={"system_prompt": "You are Rosa."})
            assert (await house.say("two", session)).text == "You are Rosa.|two"
            assert house.asked_for[-1] == "other/large"
            assert (await house.say("three", MAIN)).text.endswith("three")
            assert house.asked_for[-1] != "other/large"

    run(story())


def _send(rpc: Rpc, text: str, session: str = MAIN) -> str:
    run_id: str = rpc.call("chat.send", session=session, message=text)["run_id"]
    return run_id
