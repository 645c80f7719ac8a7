"""What a turn recalls: from memories, files and past conversations, for itself alone and never stored."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from coterie.core.ports import ModelRequest
from coterie.models.offline import OfflineModel
from coterie.testing import Scripted, call
from tests.support.house import FunctionModel, House, household, last_user, run

ROSTER = """
- {name: dot}
- {name: rose}
- {name: quiet, memory: {recall: false}}
- {name: tagged, memory: {tags: [sea]}}
- {name: brief, memory: {recall_tokens: 60}}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def recalled(model: FunctionModel) -> str:
    """The memory lines of the newest request, which stand in its trailing message."""
    content = str(model.bodies[-1]["messages"][-1]["content"])
    return content.partition("\nmemory: ")[2].rpartition("\n</context>")[0]


def echo(request: ModelRequest) -> Scripted:
    return "Understood."


PLACES: WeakKeyDictionary[House, dict[tuple[str, str], str]] = WeakKeyDictionary()
"""Conversations of the owner's, by agent and by what the test calls them."""


async def place(house: House, agent: str, session: str) -> str:
    """The key of a conversation, begun where there is none yet."""
    known = PLACES.setdefault(house, {})
    if session == "main":
        return f"agent:{agent}:main"
    if (agent, session) not in known:
        known[agent, session] = (await house.gateway.sessions.create(agent_id=agent)).key
    return known[agent, session]


async def talk(house: House, agent: str, text: str, session: str = "main") -> str:
    outcome = await house.say(text, await place(house, agent, session))
    assert outcome.error is None
    return outcome.text


def test_a_question_at_the_end_of_a_long_message_recalls_what_answers_it(home: Path) -> None:
    model = FunctionModel(echo)
    minutes = " ".join(f"Item {n} of the minutes is about budget{n} and staff{n}." for n in range(600))

    async def story() -> None:
        async with household(home, model, roster=ROSTER) as house:
            house.gateway.memories.as_("dot").remember("The kayak is bright orange.")
            await talk(house, "dot", "Лодка Марии стоит у причала номер девять.", "monday")
            await talk(house, "dot", f"{minutes} What colour is the kayak?", "tuesday")
            assert "bright orange" in recalled(model)
            await talk(house, "dot", f"{minutes} Где лодка Марии?", "friday")
            assert "номер девять" in recalled(model)

    run(story())


def test_what_was_said_on_monday_is_recalled_on_friday_in_another_session(home: Path) -> None:
    model = FunctionModel(echo)

    async def story() -> None:
        async with household(home, model, roster=ROSTER) as house:
            await talk(house, "dot", "The boat trip to Anholt leaves from pier nine.", "monday")
            assert recalled(model) == ""
            await talk(house, "dot", "From which pier does the boat trip leave?", "friday")
            assert "pier nine" in recalled(model)
            assert f"conversation {await place(house, 'dot', 'monday')}" in recalled(model)
            await talk(house, "rose", "From which pier does the boat trip leave?", "friday")
            assert recalled(model) == ""
            for message in await house.history(await place(house, "dot", "friday")):
                assert "pier nine" not in message.text
                assert "pier nine" not in json.dumps(message.meta or {})

    run(story())


def test_a_conversation_is_recalled_once_and_silence_not_at_all(home: Path) -> None:
    def reply(request: ModelRequest) -> Scripted:
        asked = last_user(request)
        if request.messages[-1].role == "tool":
            return f"Heard: {request.messages[-1].text}" if asked.startswith("find") else "Understood."
        if asked.startswith("find "):
            return call("memory_recall", {"query": asked[5:]})
        return call("system_time", {}) if "lighthouse" in asked else "Understood."

    async def story() -> None:
        model = FunctionModel(reply)
        async with household(home, model, roster=ROSTER) as house:
            for said in (
                "the lighthouse keeper is called Ann",
                "the lighthouse has a red door",
                *(f"we had soup number {n}" for n in range(6)),
                "the lighthouse keeper has a dog",
            ):
                await talk(house, "dot", said)
            await talk(house, "dot", "what of the lighthouse keeper?", "other")
            lines = [line for line in recalled(model).splitlines() if "conversation" in line]
            assert len(lines) == 1 and "called Ann" in lines[0] and "has a dog" in lines[0]
            assert lines[0].count("called Ann") == 1 and lines[0].count("has a red door") == 1
            assert "assistant:  /" not in lines[0] and not lines[0].endswith("assistant: ")
            found = (await talk(house, "dot", "find lighthouse keeper", "third")).removeprefix("Heard: ")
            told = json.loads(found)["conversations"]
            assert len({one["session"] for one in told}) == len(told)
            assert all(message["text"] for one in told for message in one["messages"])

    run(story())


def test_the_offline_model_shows_its_memory(home: Path) -> None:
    async def story() -> None:
        async with household(home, OfflineModel(), roster=ROSTER) as house:
            assert "memory_remember answered" in await talk(
                house, "dot", "remember that the boat is blue", "monday"
            )
            friday = await talk(house, "dot", "Which colour has the boat?", "friday")
            assert "That reminds me of" in friday and "the boat is blue" in friday
            assert await place(house, "dot", "monday") in friday
            told = await talk(house, "dot", "what do you remember about the boat?", "friday")
            assert "the boat is blue" in told
            rose = await talk(house, "rose", "what do you remember about the boat?", "friday")
            assert "the boat is blue" not in rose.replace("the boat?", "")

    run(story())


def test_recall_keeps_to_policy_budget_and_pins(home: Path) -> None:
    model = FunctionModel(echo)

    async def story() -> None:
        async with household(home, model, roster=ROSTER) as house:
            memories = house.gateway.memories
            for number in range(30):
                memories.as_("dot").remember(f"boat story {number}: " + "the sea was rough that day " * 5)
            memories.as_("rose").remember("the boat of rose is private", scope="private")
            pinned = memories.as_("brief").remember("always say ahoy", scope="private")
            memories.as_("brief").update(pinned.id, pinned=True)
            memories.as_("dot").remember("the sea boat has a tag", tags=["sea"])
            await talk(house, "dot", "tell me a boat story")
            assert 200 < len(recalled(model)) <= 800 * 3.5
            assert "private" not in recalled(model)
            await talk(house, "quiet", "tell me a boat story")
            assert recalled(model) == ""
            await talk(house, "tagged", "tell me about the boat on the sea")
            assert recalled(model).count("\n- ") == 1 and "has a tag" in recalled(model)
            assert "shared by dot" in recalled(model)
            await talk(house, "brief", "good morning to everybody in this house")
            assert "always say ahoy" in recalled(model) and len(recalled(model)) <= 60 * 3.5

    run(story())


def test_what_stands_in_the_prompt_is_not_recalled_again(home: Path) -> None:
    model = FunctionModel(echo)

    async def story() -> None:
        async with household(home, model, roster=ROSTER) as house:
            folder = home / "agents" / "dot"
            (folder / "MEMORY.md").write_text("# Boats\n\nThe quay is called Zephyr.\n")
            (folder / "memory" / "2026-05-01.md").write_text("The Zephyr quay was painted.\n")
            await talk(house, "dot", "what about the Zephyr quay?")
            assert "is called Zephyr" in str(model.bodies[-1]["messages"][0]["content"])
            assert "was painted" in recalled(model) and "is called" not in recalled(model)
            assert "your file memory/2026-05-01.md" in recalled(model)

    run(story())


def test_the_tools_remember_once_find_and_forget_only_their_own(home: Path) -> None:
    ids: dict[str, str] = {}

    def reply(request: ModelRequest) -> Scripted:
        asked = last_user(request)
        if request.messages[-1].role == "tool":
            return request.messages[-1].text
        name, _, rest = asked.partition(" ")
        if name == "store":
            return call("memory_remember", {"content": rest})
        if name == "hide":
            return call(
                "memory_remember", {"content": "gone", "scope": "global", "supersedes": ids[rest][:16]}
            )
        if name == "share":
            return call("memory_remember", {"content": rest, "scope": "global"})
        if name == "find":
            return call("memory_recall", {"query": rest})
        if name == "drop":
            return call("memory_forget", {"id": ids[rest]})
        if name == "log":
            return call("memory_log", {"text": rest})
        if name == "write":
            return call("memory_edit", {"new": rest})
        return "?"

    async def story() -> None:
        async with household(home, FunctionModel(reply), roster=ROSTER) as house:
            ids["mine"] = json.loads(await talk(house, "dot", "store the boat key is under the mat"))["id"]
            ids["ours"] = json.loads(await talk(house, "dot", "share the boat is blue"))["id"]
            found = json.loads(await talk(house, "dot", "find boat", "other"))
            assert {m["scope"] for m in found["memories"]} == {"private", "global"}
            found = json.loads(await talk(house, "rose", "find boat"))
            assert [m["content"] for m in found["memories"]] == ["the boat is blue"]
            assert "error" in await talk(house, "rose", "drop mine")
            assert "belongs to another" in await talk(house, "rose", "drop ours")
            assert "belongs to another" in await talk(house, "rose", "hide ours")
            assert [m.content for m in house.gateway.memories.as_("quiet").page()[0]] == ["the boat is blue"]
            assert await talk(house, "dot", "drop mine") == "forgotten"
            assert "noted in memory/" in await talk(house, "dot", "log we met the harbourmaster")
            assert await talk(house, "dot", "write The harbourmaster is Ann.") == "MEMORY.md is changed"
            found = json.loads(await talk(house, "dot", "find harbourmaster", "third"))
            assert {m["sourceRef"].split("#")[0][:9] for m in found["memories"][:2]} == {
                "MEMORY.md",
                "memory/20",
            }

    run(story())


def test_a_call_that_is_made_again_after_a_crash_remembers_nothing_twice(home: Path) -> None:
    def reply(request: ModelRequest) -> Scripted:
        if request.messages[-1].role == "tool":
            return "done"
        return call("memory_remember", {"content": "the anchor weighs nine stone"})

    async def story() -> None:
        async with household(home, FunctionModel(reply), roster=ROSTER) as house:
            sent = await house.send("note it", "agent:dot:main")
            # The claim, the reply with the call, and then the result, which never reaches the disk.
            house.power.arm(3, kept=False)
            await house.power.happened.wait()
            await house.crash()
            await house.restart()
            assert (await house.outcome(sent)).text == "done"
            handle = house.gateway.memories.as_("dot")
            assert len(handle.page()[0]) == 1

    run(story())


def test_search_holds_when_the_file_is_written_anew(home: Path) -> None:
    """Rows that are gone leave gaps, and writing the file anew closes them: what is found must not shift with them."""
    model = FunctionModel(echo)

    async def story() -> None:
        async with household(home, model, roster=ROSTER) as house:
            for number in range(4):
                await talk(
                    house, "dot", f"Berth {number} belongs to the boat number {number}0.", f"day{number}"
                )
            await house.gateway.sessions.delete(await place(house, "dot", "day0"))
            await house.gateway.sessions.delete(await place(house, "dot", "day2"))
            with sqlite3.connect(house.home / "coterie.db") as file:
                file.execute("VACUUM")
            file.close()
            for number in (1, 3):
                found = await house.gateway.sessions.search(f"berth {number}", agent_id=None, limit=5)
                assert [m.text[:7] for _, m in found] == [f"Berth {number}"]
            await talk(house, "dot", "Berth 9 belongs to nobody.", "later")
            await house.gateway.sessions.delete(await place(house, "dot", "day3"))
            found = await house.gateway.sessions.search("berth", agent_id=None, limit=5)
            assert sorted(m.text[:7] for _, m in found) == ["Berth 1", "Berth 9"]

    run(story())
