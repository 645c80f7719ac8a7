"""A message that was accepted is answered once and in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest

from coterie import ToolContext, tool
from coterie.core.errors import Conflict, InvalidRequest, NotFound, TooLarge
from coterie.core.message import Message, Usage
from coterie.core.ports import ModelError, ModelRequest, Reply
from coterie.core.turn import Claim, TurnState
from coterie.engine.gateway import Gateway, Receipt
from coterie.engine.household.home import Home
from coterie.engine.household.registry import Registry
from coterie.engine.turns.turns import ATTEMPTS
from coterie.store.database import Database
from coterie.testing import Scripted, ScriptedModel, call, thinking
from tests.support.house import MAIN, FunctionModel, House, household, last_user, run, until, write_config


def echo(request: ModelRequest) -> Scripted:
    return f"answer to {last_user(request)}"


class Gate:
    """Replies that begin and then wait until the test lets them end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = asyncio.Event()

    async def reply(self, request: ModelRequest) -> Scripted:
        text = last_user(request)
        self.begun.append(text)
        await self.open.wait()
        return f"answer to {text}"


# Order


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400), timedelta(seconds=-1)])
def test_a_clock_that_jumps_changes_nothing(
    home: Path, jump: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order, keys, backlog and recovery rest on counters: an hour set back and forth loses and repeats nothing."""

    class Clock(datetime):
        ahead = timedelta()

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + cls.ahead

    monkeypatch.setattr("coterie.core.clock.datetime", Clock)

    async def story() -> None:
        gate = Gate()
        model = FunctionModel(gate.reply)
        async with household(home, model) as house:
            sent = [await house.send("one", key="k1")]
            await until(lambda: gate.begun)
            for number, text in enumerate(("two", "three", "four")):
                Clock.ahead = jump * (number % 2)
                sent.append(await house.send(text))
            Clock.ahead = jump
            await house.crash()
            Clock.ahead = -jump
            gate.open.set()
            await house.restart()
            assert (await house.send("one", key="k1")).run_id == sent[0].run_id
            answers = [(await house.outcome(receipt)).text for receipt in sent]
            assert answers == [f"answer to {text}" for text in ("one", "two", "three", "four")]
            await house.idle()
            history = await house.history()
            assert [m.text for m in history if m.origin == "user"] == ["one", "two", "three", "four"]
            assert [m.seq for m in history] == list(range(1, len(history) + 1))
            assert sum(m.role == "assistant" for m in history) == 4
            assert model.refused == []

    run(story())


# Idempotency


def test_a_repeated_key_returns_the_first_run(home: Path) -> None:
    async def story() -> None:
        model = FunctionModel(echo)
        async with household(home, model) as house:
            first = await house.send("hello", key="k1")
            again = await house.send("hello", key="k1")
            assert (again.run_id, again.message_id) == (first.run_id, first.message_id)
            await house.outcome(first)
            late = await house.send("hello", key="k1")
            assert late.run_id == first.run_id
            with pytest.raises(Conflict):
                await house.send("something else", key="k1")
            with pytest.raises(Conflict):
                await house.send("hello", "agent:main:dm:someone", key="k1")
            assert len(model.bodies) == 1
            assert [m.text for m in await house.history()] == ["hello", "answer to hello"]

    run(story())


def test_repeats_at_the_same_moment_are_one_turn(home: Path) -> None:
    async def story() -> None:
        model = FunctionModel(echo)
        async with household(home, model) as house:
            receipts = await asyncio.gather(*(house.send("hello", key="k") for _ in range(20)))
            assert len({r.run_id for r in receipts}) == 1
            await house.outcome(receipts[0])
            assert len(model.bodies) == 1

    run(story())


def test_a_key_outlives_a_crash(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo)) as house:
            house.power.arm(1, kept=True)
            lost = asyncio.create_task(house.send("hello", key="k"))
            await house.power.happened.wait()
            await house.crash()  # on disk, and nobody was told
            assert lost.cancelled()
            await house.restart()
            again = await house.send("hello", key="k")
            assert (await house.outcome(again)).text == "answer to hello"
            assert [m.text for m in await house.history()] == ["hello", "answer to hello"]

    run(story())


# Order and places


def test_messages_of_a_session_are_answered_in_order_of_arrival(home: Path) -> None:
    async def story() -> None:
        model = FunctionModel(echo)
        async with household(home, model) as house:
            receipts = [await house.send(f"message {n}") for n in range(20)]
            for number, receipt in enumerate(receipts):
                assert (await house.outcome(receipt)).text == f"answer to message {number}"
            texts = [m.text for m in await house.history()]
            assert texts == [t for n in range(20) for t in (f"message {n}", f"answer to message {n}")]
            assert len(model.bodies) == 20

    run(story())


def test_one_turn_per_session_and_limits_per_agent_and_in_all(home: Path) -> None:
    roster = """
        - {name: rose, limits: {concurrency: 2}}
        - {name: miles}
    """

    async def story() -> None:
        gate = Gate()
        async with household(
            home, FunctionModel(gate.reply), roster=roster, settings="turns: {concurrency: 3}"
        ) as house:
            for n in range(4):
                await house.send(f"rose {n}", f"agent:rose:dm:{n}")
                await house.send(f"rose {n} again", f"agent:rose:dm:{n}")
            await until(lambda: len(gate.begun) == 2)
            for n in range(3):
                await house.send(f"miles {n}", f"agent:miles:dm:{n}")
            await until(lambda: len(gate.begun) == 3)
            await asyncio.sleep(0.05)
            # Two of rose's four sessions, and one of miles's three: the household's third place.
            assert sorted(t.split()[0] for t in gate.begun) == ["miles", "rose", "rose"]
            # A saved file applies from the next turn on.
            write_config(home, roster, "turns: {concurrency: 5}")
            house.gateway.registry.sync.refresh()
            await house.send("new", "agent:main:dm:new")
            await until(lambda: "new" in gate.begun)
            gate.open.set()
            for n in range(4):
                await house.idle(f"agent:rose:dm:{n}")
            for n in range(3):
                await house.idle(f"agent:miles:dm:{n}")
            await house.idle("agent:main:dm:new")
            assert len(gate.begun) == 12

    run(story())


def test_a_turn_that_waits_for_others_holds_its_session_but_no_place(home: Path) -> None:
    async def story() -> None:
        let_go = asyncio.Event()
        states: list[str] = []

        @tool
        async def ask_person(context: ToolContext) -> str:
            """Wait for somebody."""
            await context.while_waiting(let_go.wait())
            return "they said yes"

        async def reply(request: ModelRequest) -> Scripted:
            if last_user(request) == "ask" and request.messages[-1].role == "user":
                return call("ask_person")
            return echo(request)

        async with household(
            home, FunctionModel(reply), tools=[ask_person], settings="turns: {concurrency: 1}"
        ) as house:
            waiting = await house.send("ask")

            async def look() -> str:
                return (await house.gateway.outcome(waiting.run_id)).state.value

            while await look() != "waiting":
                await asyncio.sleep(0.001)
            # The only place is free: another session's turn runs to its end.
            assert (await house.say("hello", "agent:main:dm:other")).text == "answer to hello"
            behind = await house.send("me too")
            await asyncio.sleep(0.02)
            states.append((await house.gateway.outcome(behind.run_id)).state.value)
            let_go.set()
            await house.outcome(waiting)
            await house.outcome(behind)
            assert states == ["queued"]
            results = [m.text for m in await house.history() if m.role == "tool"]
            assert results == ["they said yes"]

    run(story())


def test_stopping_a_turn_that_waits_needs_no_place(home: Path) -> None:
    async def story() -> None:
        gate = Gate()

        @tool
        async def ask_person(context: ToolContext) -> str:
            """Wait for somebody."""
            await context.while_waiting(asyncio.Event().wait())
            return "never"

        async def reply(request: ModelRequest) -> Scripted:
            return call("ask_person") if last_user(request) == "ask" else await gate.reply(request)

        async with household(
            home, FunctionModel(reply), tools=[ask_person], settings="turns: {concurrency: 1}"
        ) as house:
            waiting = await house.send("ask")
            while (await house.gateway.outcome(waiting.run_id)).state is not TurnState.WAITING:
                await asyncio.sleep(0.001)
            busy = await house.send("long", "agent:main:dm:other")
            await until(lambda: gate.begun)  # the only place is taken
            async with asyncio.timeout(5):
                assert await house.gateway.abort(waiting.run_id) == "aborted"
            gate.open.set()
            await house.outcome(busy)

    run(story())


def test_a_tool_that_fails_while_it_waits_fails_and_the_turn_goes_on(home: Path) -> None:
    async def story() -> None:
        async def breaks() -> None:
            await asyncio.sleep(0)
            raise ValueError("nobody is there")

        @tool
        async def ask_person(context: ToolContext) -> str:
            """Wait for somebody."""
            await context.while_waiting(breaks())
            return "never"

        model = ScriptedModel(call("ask_person"), "then not")
        async with household(home, model, tools=[ask_person], settings="turns: {concurrency: 1}") as house:
            assert (await house.say("ask")).text == "then not"
            assert (await house.history())[2].text == "error: ValueError: nobody is there"

    run(story())


# Stopping


def test_abort_while_a_reply_is_streamed_keeps_what_was_said(home: Path) -> None:
    async def story() -> None:
        held = asyncio.Event()

        class Slow(ScriptedModel):
            async def stream(self, request: ModelRequest) -> Any:
                from coterie.core.ports import TextDelta

                if last_user(request) == "long":
                    yield TextDelta("so far ")
                    held.set()
                    await asyncio.Event().wait()
                async for event in super().stream(request):
                    yield event

        async with household(home, Slow("next answer")) as house:
            first = await house.send("long")
            await held.wait()
            _, history = await house.gateway.sessions.history(MAIN)
            assert history.running is not None
            assert (history.running["text"], history.running["run_id"]) == ("so far ", first.run_id)
            follower = asyncio.create_task(house.events(first.run_id))
            await asyncio.sleep(0)
            assert (
                await asyncio.gather(*(house.gateway.abort(first.run_id) for _ in range(3)))
                == ["aborted"] * 3
            )
            assert (await follower)[-1].state == "aborted"
            assert (await follower)[0].fields["text"] == "so far "
            assert (await house.gateway.outcome(first.run_id)).state is TurnState.ABORTED
            stopped, mark = (await house.history())[-2:]
            assert (stopped.role, stopped.text, stopped.meta) == ("assistant", "so far ", {"aborted": True})
            assert (mark.role, mark.origin, mark.meta) == ("system", "system", {"aborted": True})
            assert await house.gateway.abort(first.run_id) == "ended"
            assert (await house.say("next")).text == "next answer"

    run(story())


def test_abort_in_a_tool_says_that_its_outcome_is_unknown(home: Path) -> None:
    async def story() -> None:
        begun = asyncio.Event()

        @tool
        async def launch(n: int) -> str:
            """Launch something."""
            begun.set()
            await asyncio.Event().wait()
            return "launched"

        model = ScriptedModel([call("launch", {"n": 1}), call("launch", {"n": 2})], "fine")
        async with household(home, model, tools=[launch]) as house:
            first = await house.send("go")
            await begun.wait()
            assert await house.gateway.abort(first.run_id) == "aborted"
            one, two = [m.text for m in await house.history() if m.role == "tool"]
            assert one.startswith("outcome unknown")
            assert two.startswith("not run")
            assert (await house.say("and now?")).text == "fine"

    run(story())


def test_a_queued_message_can_be_taken_back_and_no_model_sees_it(home: Path) -> None:
    async def story() -> None:
        gate = Gate()
        model = FunctionModel(gate.reply)
        async with household(home, model) as house:
            first = await house.send("one")
            await until(lambda: gate.begun)
            second, third, fourth = [await house.send(t) for t in ("two", "three", "four")]
            assert [m.seq for m in await house.history()] == [1, None, None, None]
            assert await house.gateway.cancel_queued(second.run_id) == "cancelled"
            assert await house.gateway.abort(third.run_id) == "cancelled"
            gate.open.set()
            assert (await house.outcome(fourth)).text == "answer to four"
            assert (await house.outcome(second)).state is TurnState.CANCELLED
            with pytest.raises(Conflict):
                await house.gateway.cancel_queued(first.run_id)
            with pytest.raises(NotFound):
                await house.gateway.abort("no-such-run")
            history = await house.history()
            cancelled = [m.text for m in history if m.meta and m.meta.get("cancelled")]
            assert cancelled == ["two", "three"]
            assert [m.text for m in history if not m.meta] == [
                "one",
                "answer to one",
                "four",
                "answer to four",
            ]
            await house.say("five")
            assert "two" not in str(model.bodies) and "three" not in str(model.bodies)

    run(story())


def test_a_message_is_taken_back_while_very_many_others_are_read(home: Path) -> None:
    """A transcript that had to make room in memory is still the one that its turn works on."""

    async def story() -> None:
        gate = Gate()
        async with household(home, FunctionModel(gate.reply)) as house:
            first = await house.send("one")
            await until(lambda: gate.begun)
            second = await house.send("two")
            other = await house.gateway.sessions.create()
            large = Message("m", "user", "user", "the last of very many", seq=200_001)
            with house.power.write() as tx:
                tx.sessions.append(other.id, [large])
            behind = await house.send("three", other.id)
            await until(lambda: "three" in gate.begun)
            house.gateway.turns.transcripts.forget(idle=0)
            assert await house.gateway.cancel_queued(second.run_id) == "cancelled"
            gate.open.set()
            assert (await house.outcome(first)).text == "answer to one"
            assert (await house.outcome(behind)).text == "answer to three"
            assert (await house.say("four")).text == "answer to four"
            assert [m.seq for m in await house.history()] == [1, 2, 3, 4, 5]
            assert gate.begun == ["one", "three", "four"]

    run(story())


def test_an_interrupted_task_can_be_stopped(home: Path) -> None:
    async def story() -> None:
        gate = Gate()

        async def reply(request: ModelRequest) -> Scripted:
            if last_user(request) == "task":
                if request.messages[-1].role == "user":
                    await house.send("word")
                return call("system_time")
            return await gate.reply(request)

        async with household(home, FunctionModel(reply)) as house:
            task = await house.send("task")
            await until(lambda: gate.begun)
            assert (await house.gateway.outcome(task.run_id)).state is TurnState.INTERRUPTED
            assert await house.gateway.abort(task.run_id) == "aborted"
            gate.open.set()
            await house.idle()
            assert gate.begun == ["word"]
            assert (await house.outcome(task)).state is TurnState.ABORTED
            assert not any(m.text.startswith("[Backlog]") for m in await house.history())

    run(story())


def test_somebody_who_stops_following_cancels_nothing(home: Path) -> None:
    async def story() -> None:
        gate = Gate()
        async with household(home, FunctionModel(gate.reply)) as house:
            first = await house.send("one")
            follower = asyncio.create_task(house.events(first.run_id))
            await until(lambda: gate.begun)
            follower.cancel()
            await asyncio.wait([follower])
            gate.open.set()
            assert (await house.outcome(first)).text == "answer to one"

    run(story())


def test_who_comes_in_the_middle_sees_the_turn_so_far(home: Path) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def hold(request: ModelRequest) -> Scripted:
            await gate.wait()
            return "the end"

        model = ScriptedModel([thinking("let me see"), "first I look", call("system_time")], hold)
        async with household(home, model) as house:
            first = await house.send("go")
            await until(lambda: len(model.requests) == 2)
            _, history = await house.gateway.sessions.history(MAIN)
            assert history.running is not None
            assert history.running["state"] == "tool_end"
            assert [t["name"] for t in history.running["tools"]] == ["system_time"]
            assert [m.role for m in history.messages] == ["user", "assistant", "tool"]
            gate.set()
            assert (await house.events(first.run_id))[-1].fields["text"] == "the end"
            # Who comes after the end gets the end.
            assert [e.state for e in await house.events(first.run_id)] == ["final"]

    run(story())


# Limits


def for_ever(request: ModelRequest) -> Scripted:
    return call("system_time")


def costly(request: ModelRequest) -> Usage:
    return Usage(1000, 500, 0, 0.5)


class Costly(FunctionModel):
    """Each reply costs half a dollar and 1,500 tokens."""

    async def stream(self, request: ModelRequest) -> Any:
        async for event in super().stream(request):
            yield replace(event, usage=costly(request)) if isinstance(event, Reply) else event


@pytest.mark.parametrize(
    ("limits", "reply", "rounds", "said"),
    [
        ("{rounds_per_turn: 4}", for_ever, 4, "4 rounds"),
        ("{tokens_per_turn: 4000}", for_ever, 3, "tokens"),
        ("{cost_per_turn: 0.9}", for_ever, 2, "$1.00"),
        ("{}", for_ever, 50, "50 rounds"),
    ],
)
def test_a_turn_that_reaches_a_limit_stops_and_says_why(
    home: Path, limits: str, reply: Callable[[ModelRequest], Scripted], rounds: int, said: str
) -> None:
    async def story() -> None:
        model = Costly(reply)
        async with household(home, model, roster=f"- {{name: rose, limits: {limits}}}") as house:
            outcome = await house.say("go", "agent:rose:main")
            assert outcome.state is TurnState.ERROR
            assert outcome.error is not None and said in outcome.error
            assert len(model.bodies) == rounds
            note = (await house.history("agent:rose:main"))[-1]
            assert (note.role, note.origin) == ("system", "system")
            assert said in note.text
            model.reply = echo
            assert (await house.say("and now?", "agent:rose:main")).state is TurnState.DONE
            assert model.refused == []

    run(story())


def test_the_limit_of_a_day_holds_over_sessions_and_restarts(home: Path) -> None:
    async def story() -> None:
        model = Costly(echo)
        roster = """
            - {name: rose, limits: {cost_per_day: 1.0}}
            - {name: miles, limits: {tokens_per_day: 2000}}
        """
        async with household(home, model, roster=roster) as house:
            for n in range(2):
                assert (await house.say("hi", f"agent:rose:dm:{n}")).state is TurnState.DONE
            await house.crash()
            await house.restart()
            third = await house.say("hi", "agent:rose:dm:3")
            assert third.error is not None and "$1.00 today" in third.error
            for n in range(2):
                assert (await house.say("hi", f"agent:miles:dm:{n}")).state is TurnState.DONE
            third = await house.say("hi", "agent:miles:dm:3")
            assert third.error is not None and "day" in third.error
            assert (await house.say("hi")).state is TurnState.DONE  # main has no limit

    run(story())


def test_the_same_failure_again_and_again_ends_the_turn(home: Path) -> None:
    async def story() -> None:
        @tool(safe_to_repeat=True)
        def broken(n: int) -> str:
            """Never works."""
            raise ValueError("no luck")

        model = FunctionModel(lambda _: call("broken", {"n": 1}))
        async with household(home, model, tools=[broken]) as house:
            outcome = await house.say("go")
            assert outcome.error is not None
            assert "broken failed 5 times" in outcome.error and "no luck" in outcome.error
            assert len(model.bodies) == 5
            assert sum(m.role == "tool" for m in await house.history()) == 5

    run(story())


def test_a_thousand_calls_at_once_are_answered_and_mostly_refused(home: Path) -> None:
    async def story(ids: str) -> None:
        ran: list[int] = []

        @tool(safe_to_repeat=True)
        def count(n: int) -> str:
            """Count."""
            ran.append(n)
            return "ok"

        def reply(request: ModelRequest) -> Scripted:
            if request.messages[-1].role != "user":
                return "done"
            return [call("count", {"n": n}, id=f"c{n}" if ids == "unique" else ids) for n in range(1000)]

        model = FunctionModel(reply)
        async with household(home / ids, model, tools=[count]) as house:
            assert (await house.say("go")).text == "done"
            assert sorted(ran) == list(range(64))
            assert model.refused == []
            results = [m.text for m in await house.history() if m.role == "tool"]
            assert len(results) == 1000
            assert results.count("ok") == 64

    for ids in ("unique", "same"):
        run(story(ids))


def test_calls_that_share_an_id_each_get_their_own_result(home: Path) -> None:
    async def story() -> None:
        @tool(safe_to_repeat=True)
        def double(n: int) -> int:
            """Double."""
            return 2 * n

        same = [call("double", {"n": n}, id="x") for n in (1, 2, 3)]
        model = ScriptedModel(
            same, [call("double", {"n": 4}, id="x"), call("double", {"n": 5}, id="")], "done"
        )
        async with household(home, model, tools=[double]) as house:
            assert (await house.say("go")).text == "done"
            await house.crash()
            await house.restart()
            sent = model.requests[-1].messages
            for message in sent:
                for made in message.tool_calls:
                    result = next(m for m in sent if m.role == "tool" and m.call_id == made.id)
                    assert result.text == str(2 * int(made.arguments.removeprefix('{"n": ').rstrip("}")))
            assert len({c.id for m in sent for c in m.tool_calls}) == 5

    run(story())


# What a model does wrong


def test_retries_wait_as_long_as_the_provider_asks(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    busy = ModelError("slow down", kind="rate_limit", can_retry=True, retry_after=0.02)
    broken = ModelError("broke off", kind="garbage", can_retry=True, retry_after=0.0)

    async def story() -> None:
        model = ScriptedModel(busy, ["half an ans", broken], "whole answer")
        async with household(home, model) as house:
            first = await house.send("go")
            events = await house.events(first.run_id)
            assert events[-1].fields["text"] == "whole answer"
            # What a broken reply said counts no longer: the attempt says so.
            newest = events[-1].attempt
            said = "".join(e.fields["text"] for e in events if e.state == "delta" and e.attempt == newest)
            assert said == "whole answer"
            assert newest == 3
            assert [m.text for m in await house.history()] == ["go", "whole answer"]

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "trying again in 0.0 s" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        ModelError("refused the API key", kind="auth", can_retry=False),
        ModelError("not known", kind="unknown_model", can_retry=False),
        ModelError("come back in an hour", kind="rate_limit", can_retry=True, retry_after=3600),
        RuntimeError("a bug in a provider"),
    ],
)
def test_a_model_that_cannot_answer_is_an_error_that_the_person_sees(home: Path, error: Exception) -> None:
    async def story() -> None:
        model = ScriptedModel(error, "better")
        async with household(home, model) as house:
            first = await house.send("go")
            events = await house.events(first.run_id)
            assert events[-1].state == "error" and events[-1].fields["message"]
            note = (await house.history())[-1]
            assert note.role == "system" and events[-1].fields["message"] in note.text
            assert (await house.say("again")).text == "better"

    run(story())


def test_tools_that_do_not_exist_and_broken_arguments_are_results(home: Path) -> None:
    async def story() -> None:
        model = ScriptedModel(
            [call("no_such_tool"), call("files_read", '{"path": '), call("files_read", {"nope": 1})], "I see"
        )
        async with household(home, model) as house:
            assert (await house.say("go")).text == "I see"
            one, two, three = [m.text for m in await house.history() if m.role == "tool"]
            assert one.startswith("error: tool_not_allowed: no_such_tool")
            assert two.startswith("error: invalid_arguments") and "JSON" in two
            assert three.startswith("error: invalid_arguments") and "nope" in three

    run(story())


def test_a_result_that_is_no_text_at_all_is_stored_all_the_same(home: Path) -> None:
    async def story() -> None:
        @tool(safe_to_repeat=True)
        def strange() -> str:
            """Half a character."""
            return "a\ud800b"

        model = ScriptedModel(call("strange"), "fine")
        async with household(home, model, tools=[strange]) as house:
            assert (await house.say("go")).text == "fine"
            assert (await house.history())[2].text == "a\ufffdb"

    run(story())


# Crashes


def test_killed_between_acknowledgement_and_first_request(home: Path) -> None:
    async def story() -> None:
        model = FunctionModel(echo)
        async with household(home, model) as house:
            receipts: list[Receipt] = []
            for n in range(5):
                house.power.arm(2, kept=n % 2 == 0)  # the claim is the last commit, or not even that
                receipts.append(await house.send(f"message {n}"))
                await house.power.happened.wait()
                assert len(model.bodies) == n
                await house.crash()
                await house.restart()
                assert (await house.outcome(receipts[-1])).text == f"answer to message {n}"
            assert len(await house.history()) == 10

    run(story())


def test_a_run_that_waits_after_a_restart_can_be_followed(home: Path) -> None:
    async def story() -> None:
        gate = Gate()
        async with household(home, FunctionModel(gate.reply)) as house:
            receipts = [await house.send(f"message {n}") for n in range(3)]
            await until(lambda: gate.begun)
            await house.crash()
            await house.restart()
            follower = asyncio.create_task(house.events(receipts[2].run_id))
            await asyncio.sleep(0.01)
            gate.open.set()
            assert (await follower)[-1].fields["text"] == "answer to message 2"

    run(story())


def test_a_turn_that_never_gets_further_is_given_up(home: Path) -> None:
    async def story() -> None:
        begun: list[int] = []

        async def dies(request: ModelRequest) -> Scripted:
            begun.append(len(begun))
            await asyncio.Event().wait()
            return "never"

        model = FunctionModel(dies)
        async with household(home, model) as house:
            first = await house.send("poison")
            behind = await house.send("harmless")
            for n in range(1, ATTEMPTS + 1):
                await until(lambda n=n: len(begun) == n)  # type: ignore[misc]
                await house.crash()
                model.reply = echo if n == ATTEMPTS else dies
                await house.restart()
            outcome = await house.outcome(first)
            assert outcome.state is TurnState.ERROR
            assert outcome.error is not None and f"{ATTEMPTS} times" in outcome.error
            assert (await house.outcome(behind)).text == "answer to harmless"
            assert any(outcome.error in m.text for m in await house.history() if m.role == "system")
            assert len(begun) == ATTEMPTS

    run(story())


@pytest.mark.parametrize("safe", [True, False])
def test_a_call_that_was_under_way_is_run_again_only_if_that_is_safe(home: Path, safe: bool) -> None:
    async def story() -> None:
        ran: list[str] = []
        hang = asyncio.Event()

        @tool(safe_to_repeat=safe)
        async def step(name: str) -> str:
            """One step."""
            ran.append(name)
            if name == "b" and ran.count("b") == 1:
                hang.set()
                await asyncio.Event().wait()
            return f"did {name}"

        model = ScriptedModel([call("step", {"name": n}) for n in "abc"], "done")
        async with household(home, model, tools=[step]) as house:
            first = await house.send("go")
            await hang.wait()
            await house.crash()
            await house.restart()
            assert (await house.outcome(first)).text == "done"
            results = [m.text for m in await house.history() if m.role == "tool"]
            if safe:
                assert ran == ["a", "b", "b", "c"]
                assert results == ["did a", "did b", "did c"]
            else:
                assert ran == ["a", "b", "c"]
                assert [results[0], results[2]] == ["did a", "did c"]
                assert results[1].startswith("outcome unknown")

    run(story())


def test_an_attempt_after_a_crash_has_another_number(home: Path) -> None:
    async def story() -> None:
        gate = Gate()
        async with household(home, FunctionModel(gate.reply)) as house:
            first = await house.send("go")
            await until(lambda: gate.begun)
            await house.crash()
            await house.restart()
            await until(lambda: len(gate.begun) == 2)
            gate.open.set()
            assert (await house.events(first.run_id))[-1].attempt > 1

    run(story())


# Two processes


def test_a_process_that_lost_its_claim_can_commit_nothing(home: Path) -> None:
    """As after a stall so long that another took over: the first one's answer and its excuses come too late."""

    async def story() -> None:
        stalled = Gate()
        async with household(home, FunctionModel(stalled.reply)) as house:
            first = await house.send("go")
            await until(lambda: stalled.begun)
            database = Database.connect("sqlite:///coterie.db", home)
            assert house.gateway.claim is not None
            fresh = Gate()
            second = House(home, FunctionModel(fresh.reply))
            registry = Registry(Home(home), database)
            claim = Claim("another", house.gateway.claim.epoch + 1)
            other = Gateway(Home(home), database, registry, second.parts(Home(home), registry), claim)
            registry.open()
            running = other.running()
            await running.__aenter__()
            await until(lambda: fresh.begun)
            stalled.open.set()
            follower = await house.events(first.run_id)
            assert follower[-1].state != "final"
            assert (await other.outcome(first.run_id)).state is TurnState.RUNNING
            fresh.open.set()
            while (await other.outcome(first.run_id)).state is not TurnState.DONE:
                await asyncio.sleep(0.001)
            assert [m.text for m in await house.history()] == ["go", "answer to go"]
            await running.__aexit__(None, None, None)
            database.close()

    run(story())


# Agents that go


def test_an_agent_that_is_archived_in_mid_turn_stops_visibly(home: Path) -> None:
    async def story() -> None:
        ran: list[str] = []

        @tool(safe_to_repeat=True)
        async def step(name: str) -> str:
            """One step."""
            ran.append(name)
            if name == "a":
                await asyncio.to_thread(house.gateway.registry.delete, "rose")
            return "ok"

        model = FunctionModel(
            lambda r: [call("step", {"name": n}) for n in "ab"] if r.messages[-1].role == "user" else "bad"
        )
        async with household(home, model, tools=[step], roster="- {name: rose}") as house:
            first = await house.send("go", "agent:rose:main")
            outcome = await house.outcome(first)
            assert outcome.state is TurnState.ERROR
            assert outcome.error is not None and "no longer active" in outcome.error
            assert ran == ["a"]
            assert len(model.bodies) == 1
            assert outcome.error in (await house.history("agent:rose:main"))[-1].text

    run(story())


@pytest.mark.parametrize("moment", ["in a reply", "before a reply"])
def test_no_request_is_made_for_an_agent_that_is_gone(home: Path, moment: str) -> None:
    async def story() -> None:
        async def archive() -> None:
            await asyncio.to_thread(house.gateway.registry.delete, "rose")

        async def reply(request: ModelRequest) -> Scripted:
            if moment == "in a reply":
                await archive()
            return call("leave") if request.messages[-1].role == "user" else "never seen"

        @tool(safe_to_repeat=True)
        async def leave() -> str:
            """The last thing that it does."""
            await archive()
            return "gone"

        model = FunctionModel(reply)
        async with household(home, model, tools=[leave], roster="- {name: rose}") as house:
            outcome = await house.say("go", "agent:rose:main")
            assert outcome.error is not None and "no longer active" in outcome.error
            assert len(model.bodies) == 1
            # The session lives on with the default agent.
            model.reply = echo
            assert (await house.say("hello?", "agent:rose:main")).text == "answer to hello?"
            assert (await house.history("agent:rose:main"))[-1].agent_id == "main"
            assert model.refused == []

    run(story())


# What leaves the house


def test_what_leaves_is_written_once_with_the_answer(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo)) as house:
            await house.say("hello")
            assert house.outbox() == []
            session = await house.gateway.sessions.get(MAIN)
            route = {"channel": "test", "peer": "1"}
            with house.power.write() as tx:
                tx.sessions.save(replace(session, deliver=True, route=route))
            expected = []
            for n, kept in enumerate((True, False)):
                house.power.arm(3, kept=kept)  # the third commit of a turn is its answer
                first = await house.send(f"message {n}")
                await house.power.happened.wait()
                await house.crash()
                await house.restart()
                await house.outcome(first)
                expected.append((first.run_id, f"answer to message {n}"))
            assert house.outbox() == expected

    run(story())


# Messages that are none


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", InvalidRequest),
        (" \n\t", InvalidRequest),
        ("x" * 5_000_000, TooLarge),
        ("a\x00b", InvalidRequest),
        ("a\ud800b", InvalidRequest),
    ],
)
def test_what_is_no_message_is_refused_and_changes_nothing(
    home: Path, text: str, error: type[Exception]
) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo)) as house:
            with pytest.raises(error):
                await house.send(text)
            assert (await house.say("hello")).state is TurnState.DONE
            assert len(await house.history()) == 2

    run(story())


def test_unknown_and_archived_agents_and_deleted_sessions_are_refused(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster="- {name: rose}") as house:
            gone = await house.gateway.sessions.create(agent_id="rose")
            await house.gateway.sessions.delete(gone.id)
            house.gateway.registry.delete("rose")
            refused: list[tuple[str, type[Exception]]] = [
                ("agent:nobody:main", NotFound),
                ("agent:rose:main", Conflict),
                (gone.id, NotFound),
                (gone.key, NotFound),
                ("agent:main:subagent:1", NotFound),
                ("agent:main:what:is:this", InvalidRequest),
                ("agent:../x:main", InvalidRequest),
                ("", InvalidRequest),
                ("x" * 2000, InvalidRequest),
            ]
            for ref, error in refused:
                with pytest.raises(error):
                    await house.send("hello", ref)
            assert (await house.gateway.sessions.list()) == ([], None)

    run(story())
