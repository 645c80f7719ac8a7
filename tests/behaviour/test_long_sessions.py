"""Sessions that outgrow their model's window: summarised between rounds, whole on disk, never too long to send."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coterie.core.compaction import tokens
from coterie.core.message import ToolCall
from coterie.core.ports import ModelError, ModelRequest
from coterie.core.tool import tool
from coterie.core.turn import TurnState
from coterie.testing import Scripted
from tests.support.house import MAIN, FunctionModel, House, household, last_user, run, wire

SETTINGS = """default_model: small/test
models:
  providers:
    small: {{type: openai-compatible, base_url: "http://127.0.0.1:9/v1", context_window: {window}}}
"""
TURNS = 2_000
FACT = "The key of the boathouse lies under the third flowerpot."


def is_summary_request(body: dict[str, Any]) -> bool:
    return "compress conversations" in body["messages"][0]["content"]


def size(body: dict[str, Any]) -> int:
    """Tokens by the same cautious measure that the engine takes, over the whole request."""
    return tokens(len(json.dumps(body, ensure_ascii=False).encode()))


def answer(request: ModelRequest) -> Scripted:
    asked = last_user(request)
    if "compress conversations" in request.system:
        return "They talk about boats. " * 20
    return f"You said {asked[:40]}. " + "Indeed it is so. " * 10


def test_two_thousand_turns_in_a_small_window(home: Path) -> None:
    model = FunctionModel(answer, "small/test")

    async def scene(house: House) -> None:
        assert (await house.say(FACT)).state is TurnState.DONE
        for number in range(1, TURNS):
            await house.say(f"This is remark number {number}. " + "It goes on about boats. " * 4)
        history = await house.history()
        said = [m for m in history if m.role == "user"]
        assert len(said) == TURNS and said[0].text == FACT, "everything stays"
        [(_, hit)] = await house.gateway.sessions.search("third flowerpot", agent_id=None, limit=5)
        assert hit.seq == 1
        summaries = [m for m in history if m.meta and "compaction" in m.meta]
        assert len(summaries) > 5
        assert all(m.text.startswith("Summary of messages 1 to ") for m in summaries)
        # The same rows give the same request after a restart.
        before = house.gateway.turns.transcripts.get(history_id(house)).sendable()
        house.gateway.turns.transcripts.drop(history_id(house))
        after = house.gateway.turns.transcripts.get(history_id(house)).sendable()
        assert [m.text for m in before] == [m.text for m in after]

    def history_id(house: House) -> str:
        with house.gateway.store.read() as tx:
            found = tx.sessions.find(MAIN)
        assert found is not None
        return found.id

    async def whole() -> None:
        async with household(home, model, settings=SETTINGS.format(window=16_000)) as house:
            await scene(house)

    run(whole(), seconds=280)
    assert model.refused == []
    assert max(size(body) for body in model.bodies) <= 16_000
    turns = [body for body in model.bodies if not is_summary_request(body)]
    assert len(turns) == TURNS
    breaks = 0
    for earlier, later in pairwise(turns):
        assert later["tools"] == earlier["tools"] and later["messages"][0] == earlier["messages"][0]
        kept = wire(earlier["messages"][:-1])
        if wire(later["messages"][: len(kept)]) != kept:
            breaks += 1
            assert "Summary of messages 1 to " in later["messages"][1]["content"], "only a summary breaks it"
    assert breaks == len(model.bodies) - len(turns), "one break for each summary"


@tool(safe_to_repeat=True)
def long_list(lines: int) -> str:
    """Many lines."""
    return "\n".join(f"line {number} of a very long list" for number in range(lines))


def test_a_window_of_two_thousand_tokens(home: Path) -> None:
    """It holds little more than the tools: what fits is answered, what does not is refused plainly."""

    def reply(request: ModelRequest) -> Scripted:
        if request.messages[-1].role == "user" and "LIST" in request.messages[-1].text:
            return [ToolCall("c", "long_list", '{"lines": 500}')]
        return answer(request)

    model = FunctionModel(reply, "small/test")

    async def scene() -> None:
        roster = "- {name: main, tool_allowlist: [long_list, results_read]}"
        settings = SETTINGS.format(window=2_000)
        async with household(home, model, tools=[long_list], roster=roster, settings=settings) as house:
            for number in range(40):
                assert (await house.say(f"remark {number} about boats")).state is TurnState.DONE
            done = await house.say("LIST them")
            assert done.state is TurnState.DONE, done.error
            [shown] = [m for m in await house.history() if m.role == "tool"]
            assert "results_read" in shown.text and len(shown.text) < 1_000
            failed = await house.say("word " * 20_000)
            assert failed.state is TurnState.ERROR
            assert "too long for the model's window of 2000 tokens" in (failed.error or "")
            assert (await house.say("and now?")).state is TurnState.DONE, "the session is not stuck"

    run(scene())
    assert model.refused == []
    assert any(is_summary_request(body) for body in model.bodies)
    assert max(size(body) for body in model.bodies) <= 2_000


@pytest.mark.parametrize("summary", ["", None], ids=["an empty summary", "no summary"])
def test_without_a_summary_a_plain_note_stands_in(home: Path, summary: str | None) -> None:
    def reply(request: ModelRequest) -> Scripted:
        if "compress conversations" in request.system:
            if summary is None:
                raise ModelError("no", kind="rejected", can_retry=False)
            return summary
        return answer(request)

    model = FunctionModel(reply, "small/test")

    async def scene() -> None:
        async with household(home, model, settings=SETTINGS.format(window=6_000)) as house:
            for number in range(80):
                assert (await house.say(f"remark {number} " + "about boats " * 20)).state is TurnState.DONE
            notes = [m.text for m in await house.history() if m.meta and "compaction" in m.meta]
            assert notes and all("no summary of them could be made" in note for note in notes)

    run(scene())
    assert model.refused == []
    assert max(size(body) for body in model.bodies) <= 6_000
