"""A message that comes in the middle of a task is answered first; then the task goes on and ends as itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from coterie import tool
from coterie.core.message import Message
from coterie.core.ports import ModelRequest
from coterie.core.turn import TurnState
from coterie.testing import Scripted, call
from tests.support.house import MAIN, FunctionModel, House, household, last_user, run

ROUNDS = 8


class Task:
    """A model that does `TASK name` in eight rounds of one call, and answers anything else with a word.

    It reads how far a task has come from the transcript alone, as a real model would. `during[round]` is
    awaited inside the reply of that round, so that a test can send something at exactly this moment.
    """

    def __init__(self, rounds: int = ROUNDS, calls: int = 1) -> None:
        self.rounds = rounds
        self.calls = calls
        self.asked: list[str] = []
        """What each request was for: `task 3`, or the message that was answered."""
        self.during: dict[str, Callable[[], Awaitable[object]]] = {}
        self.ran: list[str] = []
        """The tool calls that really ran, by what they were called with."""
        self.before_tool: dict[str, Callable[[], Awaitable[object]]] = {}
        self.model = FunctionModel(self._reply)

        @tool
        async def work(step: str) -> str:
            """Do one step."""
            if step in self.before_tool:
                await self.before_tool.pop(step)()
            self.ran.append(step)
            return f"did {step}"

        self.tool = work

    async def _reply(self, request: ModelRequest) -> Scripted:
        text = last_user(request)
        named = re.search(r"TASK (\w+)", text)
        if named is None:
            self.asked.append(text)
            await self._pause(text)
            return f"answer to {text}"
        name = named.group(1)
        done = {m.text for m in request.messages if m.role == "tool" and m.text.startswith(f"did {name}.")}
        number = len(done) // self.calls + 1
        self.asked.append(f"{name} {number}")
        await self._pause(f"{name} {number}")
        if number > self.rounds:
            return f"{name} is done"
        steps = [f"{name}.{number}.{i}" for i in range(self.calls)]
        return [call("work", {"step": step}) for step in steps if f"did {step}" not in done]

    async def _pause(self, moment: str) -> None:
        if moment in self.during:
            await self.during.pop(moment)()

    def steps(self, name: str) -> list[str]:
        return [f"{name}.{n}.{i}" for n in range(1, self.rounds + 1) for i in range(self.calls)]


def backlog(messages: list[Message]) -> list[Message]:
    return [m for m in messages if m.text.startswith("[Backlog]")]


def position(messages: list[Message], text: str) -> int:
    return next(i for i, m in enumerate(messages) if m.text == text)


async def check_task(house: House, task: Task, run_id: str, name: str) -> list[Message]:
    """The task ended under its own run id, with every step once and one final answer."""
    history = await house.history()
    outcome = await house.gateway.outcome(run_id)
    assert outcome.state is TurnState.DONE
    assert outcome.text == f"{name} is done"
    assert [m.run_id for m in history if m.text == f"{name} is done"] == [run_id]
    assert [step for step in task.ran if step.startswith(f"{name}.")] == task.steps(name)
    own = [m for m in history if m.role == "tool" and m.text.startswith(f"did {name}.")]
    assert {m.run_id for m in own} == {run_id}
    assert task.model.refused == []
    return history


def test_a_message_in_round_3_is_answered_before_round_5(home: Path) -> None:
    async def story() -> None:
        task = Task()
        async with household(home, task.model, tools=[task.tool]) as house:
            second: list[str] = []

            async def interrupt() -> None:
                receipt = await house.send("how far are you?")
                assert receipt.status == "steering"
                second.append(receipt.run_id)

            task.during["boat 3"] = interrupt
            first = await house.send("TASK boat")
            assert (await house.outcome(first)).state is TurnState.DONE
            answer = await house.outcome(second[0])
            assert answer.text == "answer to how far are you?"

            assert task.asked == [
                "boat 1",
                "boat 2",
                "boat 3",
                "how far are you?",
                *(f"boat {n}" for n in range(3, ROUNDS + 2)),
            ]
            history = await check_task(house, task, first.run_id, "boat")
            assert len(backlog(history)) == 1
            note = backlog(history)[0]
            assert (note.role, note.origin, note.run_id) == ("user", "system", first.run_id)
            assert position(history, "answer to how far are you?") < history.index(note)
            # The call that was asked for in round 3 never began: it was skipped, with a stored result.
            skipped = [m for m in history if m.role == "tool" and m.text.startswith("skipped")]
            assert [m.run_id for m in skipped] == [first.run_id]
            replies = [m for m in history if m.role == "assistant" and m.run_id == second[0]]
            assert [m.text for m in replies] == ["answer to how far are you?"]

    run(story())


def test_a_message_during_a_tool_call_lets_the_call_finish(home: Path) -> None:
    async def story() -> None:
        task = Task(calls=3)
        async with household(home, task.model, tools=[task.tool]) as house:
            second: list[str] = []

            async def interrupt() -> None:
                second.append((await house.send("wait")).run_id)

            task.before_tool["boat.3.0"] = interrupt
            first = await house.send("TASK boat")
            await house.outcome(first)
            history = await check_task(house, task, first.run_id, "boat")
            # The call under way kept its result; the two behind it were skipped and asked for again.
            skipped = [m for m in history if m.role == "tool" and m.text.startswith("skipped")]
            assert len(skipped) == 2
            assert task.asked.index("wait") == 3
            assert task.asked.count("boat 3") == 2
            assert len(backlog(history)) == 1
            assert "work" in backlog(history)[0].text

    run(story())


def test_three_messages_are_each_answered_in_order(home: Path) -> None:
    async def story() -> None:
        task = Task()
        async with household(home, task.model, tools=[task.tool]) as house:
            runs: list[str] = []

            async def interrupt() -> None:
                for text in ("one", "two", "three"):
                    runs.append((await house.send(text)).run_id)

            task.during["boat 3"] = interrupt
            first = await house.send("TASK boat")
            await house.outcome(first)
            for number, text in enumerate(("one", "two", "three")):
                assert (await house.outcome(runs[number])).text == f"answer to {text}"
            assert task.asked[:8] == ["boat 1", "boat 2", "boat 3", "one", "two", "three", "boat 3", "boat 4"]
            history = await check_task(house, task, first.run_id, "boat")
            assert len(backlog(history)) == 1
            order = [m.text for m in history if m.origin == "user" or m.text.startswith("answer")]
            assert order == [
                "TASK boat",
                "one",
                "answer to one",
                "two",
                "answer to two",
                "three",
                "answer to three",
            ]

    run(story())


def test_messages_that_come_one_by_one_interrupt_again_and_again(home: Path) -> None:
    async def story() -> None:
        task = Task()
        async with household(home, task.model, tools=[task.tool]) as house:

            def sends(text: str) -> Callable[[], Awaitable[object]]:
                return lambda: house.send(text)

            for number in (2, 4, 6):
                task.during[f"boat {number}"] = sends(f"message {number}")
            first = await house.send("TASK boat")
            await house.outcome(first)
            history = await check_task(house, task, first.run_id, "boat")
            assert len(backlog(history)) == 3
            for number in (2, 4, 6):
                assert task.asked.index(f"message {number}") == task.asked.index(f"boat {number}") + 1

    run(story())


def test_a_steered_answer_can_be_steered_too_and_the_oldest_task_goes_on_first(home: Path) -> None:
    async def story() -> None:
        task = Task()
        async with household(home, task.model, tools=[task.tool]) as house:
            runs: dict[str, str] = {}

            def sends(name: str, text: str) -> Callable[[], Awaitable[object]]:
                async def send() -> None:
                    runs[name] = (await house.send(text)).run_id

                return send

            task.during["boat 3"] = sends("car", "TASK car")
            task.during["car 2"] = sends("third", "and a word")
            runs["boat"] = (await house.send("TASK boat")).run_id
            await house.outcome(runs["boat"])
            await house.outcome(runs["car"])
            assert (await house.outcome(runs["third"])).text == "answer to and a word"
            assert task.asked == [
                "boat 1",
                "boat 2",
                "boat 3",
                "car 1",
                "car 2",
                "and a word",
                *(f"boat {n}" for n in range(3, ROUNDS + 2)),
                *(f"car {n}" for n in range(2, ROUNDS + 2)),
            ]
            for name in ("boat", "car"):
                history = await check_task(house, task, runs[name], name)
            assert [m.run_id for m in backlog(history)] == [runs["boat"], runs["car"]]

    run(story())


def test_a_message_in_the_last_round_gets_its_own_turn(home: Path) -> None:
    async def story() -> None:
        task = Task()
        async with household(home, task.model, tools=[task.tool]) as house:
            second: list[str] = []

            async def interrupt() -> None:
                second.append((await house.send("too late?")).run_id)

            task.during[f"boat {ROUNDS + 1}"] = interrupt  # the final answer is being written
            first = await house.send("TASK boat")
            await house.outcome(first)
            assert (await house.outcome(second[0])).text == "answer to too late?"
            history = await check_task(house, task, first.run_id, "boat")
            assert backlog(history) == []
            assert task.asked == [*(f"boat {n}" for n in range(1, ROUNDS + 2)), "too late?"]
            assert position(history, "boat is done") < position(history, "too late?")

    run(story())


def test_a_message_before_the_first_request_waits_for_it(home: Path) -> None:
    async def story() -> None:
        task = Task()
        asked, answered = asyncio.Event(), asyncio.Event()

        async def busy() -> None:
            asked.set()
            await answered.wait()

        task.during["elsewhere"] = busy
        async with household(
            home, task.model, tools=[task.tool], roster="- {name: rose}", settings="turns: {concurrency: 1}"
        ) as house:
            other = await house.send("elsewhere", session="agent:rose:main")
            await asked.wait()  # the only slot is taken, so the task cannot have begun below
            first = await house.send("TASK boat")
            second = await house.send("at once")
            assert second.status == "queued"
            answered.set()
            for receipt in (other, first, second):
                await house.outcome(receipt)
            # No boundary lies before a turn's first request.
            assert task.asked[:4] == ["elsewhere", "boat 1", "at once", "boat 1"]
            await check_task(house, task, first.run_id, "boat")

    run(story())


def test_a_crash_at_any_commit_of_a_steered_task_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Power cuts before and after every commit from the interruption to the end."""

    async def story(home: Path, commits: int, kept: bool) -> bool:
        task = Task(rounds=3)
        async with household(home, task.model, tools=[task.tool]) as house:

            async def interrupt() -> None:
                await house.send("a word", key="word")
                house.power.arm(commits, kept=kept)

            task.during["boat 2"] = interrupt
            first = await house.send("TASK boat")
            ended = asyncio.create_task(house.events(first.run_id))
            cut = asyncio.create_task(house.power.happened.wait())
            await asyncio.wait([ended, cut], return_when=asyncio.FIRST_COMPLETED)
            happened = house.power.happened.is_set()
            cut.cancel()
            if happened:
                await house.crash()
                await asyncio.gather(ended, return_exceptions=True)
                await house.restart()
            await house.outcome(first)
            await house.idle()
            history = await house.history()
            assert task.model.refused == []
            assert (await house.gateway.outcome(first.run_id)).text == "boat is done"
            assert [m.text for m in history if m.role == "assistant" and m.text] == [
                "answer to a word",
                "boat is done",
            ]
            assert [m.text for m in history if m.origin == "user"] == ["TASK boat", "a word"]
            # A call that was under way at the crash is not made again: the model is told, and decides.
            for step in task.steps("boat"):
                unknown = sum(1 for m in history if m.role == "tool" and m.text.startswith("outcome unknown"))
                assert 1 <= task.ran.count(step) <= 1 + unknown
            assert 1 <= len(backlog(history)) <= 2
            return happened

    for kept in (False, True):
        commits = 1
        while run(story(tmp_path / f"{kept}-{commits}", commits, kept)):
            commits += 1
        assert commits > 10


def test_a_crash_while_a_message_waits_still_lets_it_steer(home: Path) -> None:
    """The turn that is taken up again meets its boundary like any other."""

    async def story() -> None:
        task = Task()
        async with household(home, task.model, tools=[task.tool]) as house:

            async def interrupt() -> None:
                await house.send("still here?")
                house.power.arm(1, kept=True)  # the reply of round 3 is the last thing on disk

            task.during["boat 3"] = interrupt
            first = await house.send("TASK boat")
            await house.power.happened.wait()
            await house.crash()
            await house.restart()
            await house.outcome(first)
            assert task.asked[:5] == ["boat 1", "boat 2", "boat 3", "still here?", "boat 3"]
            history = await check_task(house, task, first.run_id, "boat")
            assert len(backlog(history)) == 1

    run(story())


def test_queue_shows_what_runs_what_waits_and_what_was_interrupted(home: Path) -> None:
    async def story() -> None:
        task = Task()
        async with household(home, task.model, tools=[task.tool]) as house:
            seen: list[tuple[str, ...]] = []

            async def look() -> None:
                await house.send("later")
                _, jobs, waiting = await house.gateway.queue(MAIN)
                seen.append((*sorted(job.state.value for job in jobs), *(e.text for e in waiting)))

            task.during["boat 2"] = lambda: house.send("first")
            task.during["first"] = look
            first = await house.send("TASK boat")
            await house.outcome(first)
            assert seen == [("interrupted", "queued", "running", "later")]

    run(story())
