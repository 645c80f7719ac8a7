"""A call that a person is asked about first: decided before it counts as begun, so that a crash leaves nothing unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie import tool
from coterie.api.methods import perform
from coterie.core.message import DataPart, FilePart, ImagePart, ResultPart, TextPart, ToolCall
from coterie.core.policy import Decision, after_asking
from coterie.core.ports import ModelRequest
from coterie.core.tool import Tool, result_text
from coterie.core.turn import TurnState
from coterie.engine.access import Caller
from coterie.engine.turns.active_turn import ActiveTurn
from coterie.testing import Scripted, call
from tests.support.house import MAIN, FunctionModel, House, household, run, until

ASKS = "- {name: main, tool_asklist: ['ring_*'], capability_asklist: [door.open]}"
PIXEL = b"\x89PNG\r\n\x1a\n" + b"\x00" * 20


class Person:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def __call__(self, turn: ActiveTurn, call: ToolCall, decision: Decision) -> Decision:
        self.asked.append((call.name, decision.reason))
        said = await asyncio.shield(self.answer)
        return after_asking(decision, allowed=said, reason="the owner said so")


class Bell:
    """A tool with an effect that must happen at most once."""

    def __init__(self) -> None:
        self.rung: list[str] = []

        @tool(capabilities=["bells.ring"])
        def ring_bell(name: str = "front") -> str:
            """Ring."""
            self.rung.append(name)
            return f"rang {name}"

        @tool(capabilities=["door.open"])
        def front_door() -> str:
            """Open."""
            self.rung.append("door")
            return "open"

        self.tools: list[Tool] = [ring_bell, front_door]


def once(*calls: ToolCall) -> FunctionModel:
    def reply(request: ModelRequest) -> Scripted:
        return "done" if any(m.role == "tool" for m in request.messages) else list(calls)

    return FunctionModel(reply)


async def results(house: House) -> dict[str | None, str]:
    return {m.call_id: m.text for m in await house.history() if m.role == "tool"}


def test_a_call_waits_for_a_person_without_a_slot_and_runs_once_allowed(tmp_path: Path) -> None:
    async def story() -> None:
        person, bell = Person(), Bell()
        model = once(call("ring_bell", id="a"), call("front_door", id="b"), call("system_time", id="c"))
        async with household(
            tmp_path / "home",
            model,
            tools=bell.tools,
            approve=person,
            roster=ASKS,
            settings="turns: {concurrency: 1}",
        ) as house:
            sent = await house.send("ring")
            await until(lambda: person.asked)
            job = (await house.gateway.outcome(sent.run_id)).job
            assert (job.state, job.waits_for, job.open_call, bell.rung) == (
                TurnState.WAITING,
                "approval",
                None,
                [],
            )
            # The only slot is free meanwhile.
            other = await house.gateway.sessions.create()
            model.reply = lambda request: "hello"
            assert (await house.say("hello", other.id)).text == "hello"
            person.answer.set_result(True)
            assert (await house.outcome(sent)).state is TurnState.DONE
            assert bell.rung == ["front", "door"]
            assert person.asked == [
                ("ring_bell", "'ring_*' in tool_asklist"),
                ("front_door", "its capability door.open matches 'door.open' in capability_asklist"),
            ]

    run(story())


def test_a_refusal_by_a_person_is_a_result(tmp_path: Path) -> None:
    async def story() -> None:
        person, bell = Person(), Bell()
        async with household(
            tmp_path / "home", once(call("ring_bell", id="a")), tools=bell.tools, approve=person, roster=ASKS
        ) as house:
            person.answer.set_result(False)
            assert (await house.say("ring")).text == "done"
            assert (await results(house))["a"].startswith("error: denied: ring_bell")
            assert bell.rung == []

    run(story())


def test_where_nobody_can_be_asked_it_is_listed_and_refused(tmp_path: Path) -> None:
    async def story() -> None:
        bell = Bell()
        model = once(call("ring_bell", id="a"))
        async with household(tmp_path / "home", model, tools=bell.tools, roster=ASKS) as house:
            assert (await house.say("ring")).text == "done"
            assert "none can be asked here" in (await results(house))["a"]
            assert bell.rung == []
            answer: Any = await perform(house.gateway, Caller("test", "read"), "tools.effective", {})
            decided: Mapping[str, str] = {one.name: one.verdict for one in answer.tools}
            assert (decided["ring_bell"], decided["front_door"]) == ("ask", "ask")
            told = {one["function"]["name"] for one in model.bodies[0]["tools"]}
            assert {"ring_bell", "front_door"} <= told

    run(story())


def test_a_crash_while_a_person_is_asked_leaves_nothing_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        person, bell = Person(), Bell()
        async with household(
            tmp_path / "home", once(call("ring_bell", id="a")), tools=bell.tools, approve=person, roster=ASKS
        ) as house:
            sent = await house.send("ring")
            await until(lambda: person.asked)
            await house.crash()
            await house.restart()
            await until(lambda: len(person.asked) == 2)
            person.answer.set_result(True)
            assert (await house.outcome(sent.run_id)).text == "done"
            assert (await results(house), bell.rung) == ({"a": "rang front"}, ["front"])

    run(story())


def test_an_abort_while_a_person_is_asked_ends_the_turn(tmp_path: Path) -> None:
    async def story() -> None:
        person, bell = Person(), Bell()
        async with household(
            tmp_path / "home", once(call("ring_bell", id="a")), tools=bell.tools, approve=person, roster=ASKS
        ) as house:
            sent = await house.send("ring")
            await until(lambda: person.asked)
            assert await house.gateway.abort(sent.run_id) == "aborted"
            assert (await results(house))["a"].startswith("not run")
            assert bell.rung == []

    run(story())


# What a tool may bring


@tool
def picture() -> list[ResultPart | str]:
    """A picture and more."""
    return [
        "Here it is.",
        ImagePart("image/png", PIXEL, "pixel.png"),
        FilePart("text/csv", b"a,b\n", "t.csv"),
    ]


@tool
def measure() -> DataPart:
    """A value."""
    return DataPart({"celsius": 21.5})


def test_results_are_parts_that_are_kept_shown_and_read(tmp_path: Path) -> None:
    async def story() -> None:
        model = once(call("picture", id="p"), call("measure", id="m"))
        async with household(tmp_path / "home", model, tools=[picture, measure]) as house:
            assert (await house.say("look")).text == "done"
            kept = {m.call_id: m for m in await house.history() if m.role == "tool"}
            assert kept["p"].text == (
                f"Here it is.\n[image pixel.png: image/png, {len(PIXEL)} bytes]\n[file t.csv: text/csv, 4 bytes]"
            )
            assert kept["m"].text == '{"celsius":21.5}'
            assert [type(part) for part in kept["p"].parts] == [ImagePart, FilePart]
            caller = Caller("test", "read")
            page: Any = await perform(
                house.gateway, caller, "chat.history", {"session": MAIN, "with_data": True}
            )
            shown = {m.call_id: m.parts for m in page.messages if m.role == "tool"}
            assert [(part.type, part.name) for part in shown["p"]] == [
                ("image", "pixel.png"),
                ("file", "t.csv"),
            ]
            assert shown["m"][0].data == {"celsius": 21.5}
            # The picture comes behind the round's last result, from where every provider takes it.
            roles = [m["role"] for m in model.bodies[1]["messages"]][-5:]
            assert roles == ["assistant", "tool", "tool", "user", "user"]
            seen = model.bodies[1]["messages"][-2]["content"]
            assert [part["type"] for part in seen] == ["text", "image_url"]
            assert model.refused == []
            # The same bytes again, also when it is read anew.
            house.gateway.turns.transcripts.forget(idle=0)
            await house.say("and now?")
            before, after = (body["messages"][:-1] for body in model.bodies[1:3])
            assert after[: len(before)] == before

    run(story())


@pytest.mark.parametrize("parts", [[], [TextPart("")], [TextPart("a"), TextPart("b")]])
def test_text_alone_stays_text(parts: list[ResultPart]) -> None:
    assert result_text(parts) == "\n".join(part.text for part in parts if isinstance(part, TextPart))
