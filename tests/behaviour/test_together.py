"""Agents working together: a result arrives exactly once or its failure is seen, and loops cannot start."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie import ToolContext, tool
from coterie.core.announce import SubagentRun
from coterie.core.errors import Conflict, NotFound
from coterie.core.message import Message
from coterie.core.ports import ModelRequest
from coterie.core.turn import TurnState
from coterie.engine.preview import preview
from coterie.engine.turns import tool_calls
from coterie.testing import Scripted, call
from tests.support.house import MAIN, FunctionModel, House, household, last_user, run, until

ROSTER = """
- {name: rose, label: Rose, description: Knows plants}
- {name: miles}
- {name: dot}
"""
LINE = re.compile(r"\[@agent:(.+)#([a-z0-9-]+)\] finish")


class Minds:
    """Every agent's model: what it says depends on who it is and on the newest message it got."""

    def __init__(self) -> None:
        self.model = FunctionModel(self._reply)
        self.says: dict[str, Callable[[ModelRequest], Scripted | Awaitable[Scripted]]] = {}
        """By a word in the newest message."""
        self.seen: list[tuple[str, ModelRequest]] = []

    async def _reply(self, request: ModelRequest) -> Scripted:
        who = name_of(request)
        self.seen.append((who, replace(request, messages=tuple(request.messages))))
        if "results: " in (request.context or "") and request.messages[-1].role == "system":
            return f"all in: {', '.join(sorted(found(request)))}"
        text = last_user(request)
        for word, says in self.says.items():
            if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text):
                answer = says(request)
                return await answer if isinstance(answer, Awaitable) else answer
        return f"{who} says: {text}"


def name_of(request: ModelRequest) -> str:
    named = re.match(r"You are (\w+)\.", request.system)
    return named.group(1) if named else "main"


FENCED = re.compile(r"⟦(\w+) result of [^⟧]*⟧\n(.*?)\n⟦/\1⟧", re.S)
"""What another agent said, as a model is shown it."""


def said_by(agent: str, text: str) -> str:
    """Another agent's words out of their fence."""
    match = re.fullmatch(r"⟦(\w+) agent (\S+)⟧\n(.*)\n⟦/\1⟧(?:\n\[\d+ more characters\])?", text, re.S)
    assert match is not None and match[2] == agent, text
    return match[3]


async def beside(house: House, agent: str = "main") -> str:
    """Another conversation of the owner's."""
    return (await house.gateway.sessions.create(agent_id=agent)).key


def results(request: ModelRequest) -> list[Message]:
    """Tool results behind the newest message."""
    newest = max(i for i, m in enumerate(request.messages) if m.role == "user")
    return [m for m in request.messages[newest:] if m.role == "tool"]


def found(request: ModelRequest) -> list[str]:
    """Results of other agents that a request shows."""
    return [text for _, text in FENCED.findall(request.context or "")]


def once(*calls: Any) -> Callable[[ModelRequest], Scripted]:
    """First these calls, then what came of them."""

    def say(request: ModelRequest) -> Scripted:
        got = results(request)
        return list(calls) if not got else "; ".join(m.text for m in got)

    return say


def asking(agent: str, content: str, **more: Any) -> Any:
    return call("agents_message", {"agentId": agent, "content": content, **more})


def spawning(task: str, **more: Any) -> Any:
    return call("subagents_spawn", {"task": task, **more})


async def runs(house: House) -> list[SubagentRun]:
    """Oldest first."""
    return [told.run for told in reversed(await house.gateway.subagents.list())]


async def settled(house: House, session: str = MAIN) -> None:
    """Until every run has ended, and everything that came of it in this session."""
    while True:
        await house.idle(session)
        if any(r.is_live for r in await runs(house)):
            await asyncio.sleep(0.002)
        elif not (await house.gateway.queue(session))[1]:
            return


def lines(history: list[Message]) -> list[Message]:
    return [m for m in history if LINE.fullmatch(m.text)]


async def states(house: House) -> dict[str, tuple[str, str | None]]:
    told = await house.gateway.subagents.list()
    return {
        t.run.task: (t.announcement.state, t.announcement.reason) if t.announcement else ("none", None)
        for t in told
    }


# Asking another agent


def test_a_sync_message_is_answered_in_the_targets_own_session(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["garden"] = once(asking("rose", "which soil?"))
        async with household(home, minds.model, roster=ROSTER) as house:
            outcome = await house.say("ask about the garden")
            answer = json.loads(outcome.text)
            answer["response"] = said_by("rose", answer["response"])
            assert answer | {"durationMs": 0} == {
                "mode": "sync",
                "status": "complete",
                "agentId": "rose",
                "sessionId": answer["sessionId"],
                "sessionName": "Asked by main",
                "created": True,
                "responseId": (await runs(house))[0].run_id,
                "response": "Rose says: which soil?",
                "durationMs": 0,
                "toolCallCount": 0,
            }
            theirs = await house.history(answer["sessionId"])
            assert [(m.role, m.origin, m.agent_id) for m in theirs] == [
                ("user", "agent", "rose"),
                ("assistant", "agent", "rose"),
            ]
            assert theirs[0].meta is not None and theirs[0].meta["from"]["agent_id"] == "main"
            # Nothing is announced: the answer was waited for.
            assert await states(house) == {"which soil?": ("none", None)}
            assert lines(await house.history()) == []
            assert (await house.say("ask about the garden again")).text
            assert [r.session_id for r in await runs(house)] == [answer["sessionId"]] * 2
            assert minds.model.refused == []

    run(story())


def test_an_async_message_is_announced_once_and_wakes_the_requester(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["garden"] = once(asking("rose", "which soil?", mode="async"))
        async with household(home, minds.model, roster=ROSTER) as house:
            started = json.loads((await house.say("ask about the garden")).text)
            assert set(started) == {
                "mode",
                "status",
                "agentId",
                "sessionId",
                "sessionName",
                "created",
                "responseId",
            }
            assert (started["mode"], started["status"]) == ("async", "started")
            await settled(house)
            history = await house.history()
            [line] = lines(history)
            assert line.text == "[@agent:Rose#rose] finish"
            assert (line.role, line.origin) == ("system", "agent")
            assert line.meta is not None
            told = line.meta["announce"]
            assert told["task"] == {"label": None, "prompt": "which soil?", "tags": []}
            assert told["result"] == {"status": "ok", "summary": "Rose says: which soil?", "artifacts": []}
            assert told["source"]["run_id"] == told["idempotency_key"] == started["responseId"]
            assert told["hop"] == 0 and told["trace_id"]
            assert set(told["stats"]) == {"duration_ms", "tokens", "cost"}
            assert history[-1].text == "all in: Rose says: which soil?"
            assert await states(house) == {"which soil?": ("delivered", None)}
            # The model saw it fenced; nothing rendered is stored, and the next turn no longer sees it.
            assert not any("⟦" in m.text for m in history)
            await house.say("anything else?")
            assert "result of" not in (minds.seen[-1][1].context or "")
            assert minds.model.refused == []

    run(story())


def test_a_timeout_does_not_cancel_and_the_result_comes_later_under_the_same_id(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def slowly(request: ModelRequest) -> Scripted:
            await release.wait()
            return "loam"

        minds.says["soil"] = slowly
        minds.says["garden"] = once(asking("rose", "which soil?", timeout=0.05))
        async with household(home, minds.model, roster=ROSTER) as house:
            answer = json.loads((await house.say("ask about the garden")).text)
            assert (answer["status"], answer["timeoutSeconds"]) == ("timeout", 0.05)
            assert answer["message"]
            release.set()
            await settled(house)
            history = await house.history()
            [line] = lines(history)
            assert line.meta is not None
            assert line.meta["announce"]["idempotency_key"] == answer["responseId"]
            assert history[-1].text == "all in: loam"
            assert len(await runs(house)) == 1

    run(story())


def test_the_four_strategies(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        async with household(home, minds.model, roster=ROSTER) as house:

            async def ask(**more: Any) -> Any:
                minds.says["garden"] = once(asking("rose", "which soil?", **more))
                text = (await house.say("ask about the garden")).text
                return json.loads(text) if text.startswith("{") else text

            assert "agent_session_error" in await ask(session="latest")
            first = await ask()
            assert first["created"] is True
            assert (await ask(session="latest"))["sessionId"] == first["sessionId"]
            second = await ask(session="create")
            assert second["created"] is True and second["sessionId"] != first["sessionId"]
            assert (await ask())["sessionId"] == second["sessionId"]
            named = await ask(session=first["sessionId"])
            assert (named["sessionId"], named["created"]) == (first["sessionId"], False)
            other = await house.gateway.sessions.create(agent_id="miles")
            assert "agent_session_error" in await ask(session=other.id)
            assert "agent_session_error" in await ask(session="nowhere")
            assert "agent_session_error" in await ask(session=MAIN)

    run(story())


@pytest.mark.parametrize(
    ("call_", "expected"),
    [
        (asking("nobody", "x"), "agent_not_found"),
        (asking("../x", "x"), "agent_not_found"),
        (asking("gone", "x"), "agent_not_found"),
        (asking("hidden", "x"), "agent_not_accessible"),
        (asking("denied", "x"), "agent_not_accessible"),
        (asking("main", "x"), "delegation_limit"),
        (asking("default", "x"), "delegation_limit"),
        (asking("rose", "   "), "invalid_arguments"),
        (asking("rose", "x\x00"), "invalid_arguments"),
        (asking("rose", "x", timeout=0), "invalid_arguments"),
        (asking("rose", "x", timeout=-5), "invalid_arguments"),
        (asking("rose", "x", timeout=1e12), "invalid_arguments"),
        (asking("rose", "x", mode="later"), "invalid_arguments"),
        (call("agents_message", {"content": "x"}), "invalid_arguments"),
        (spawning("x", agentId="nobody"), "agent_not_found"),
        (spawning("x", agentId="denied"), "agent_not_accessible"),
        (spawning(" "), "invalid_arguments"),
        (spawning("x", timeoutSeconds=-1), "invalid_arguments"),
        (spawning("x", timeoutSeconds=1e9), "invalid_arguments"),
        (spawning("x", toolAllowlist=["[a"]), "invalid_arguments"),
        (spawning("x", model="nonsense"), "invalid_arguments"),
        (call("subagents_status", {"runId": "none"}), "there is no run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_requests_are_refused_and_change_nothing(home: Path, call_: Any, expected: str) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["go"] = once(call_)
        roster = f"{ROSTER}\n- {{name: hidden, ui_visible: false}}\n- {{name: denied}}\n- {{name: gone}}\n"
        roster += "- {name: main, agent_denylist: [denied]}"
        async with household(home, minds.model, roster=roster) as house:
            house.gateway.registry.delete("gone")
            text = (await house.say("go")).text
            assert text.startswith("error: ") and expected in text
            assert await runs(house) == []
            assert len((await house.gateway.sessions.list())[0]) == 1

    run(story())


# Subagents


def test_a_spawn_gives_a_receipt_and_its_result_is_used(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["boat"] = once(spawning("count the planks", label="planks", agentId="rose"))
        async with household(home, minds.model, roster=ROSTER) as house:
            receipt = json.loads((await house.say("build a boat")).text)
            assert receipt["childSessionKey"].startswith("agent:rose:subagent:")
            assert (receipt["agentId"], receipt["workspace"]) == ("rose", "agents/rose/workspace")
            assert receipt["status"] == "queued" and receipt["model"]
            assert "files_read" in receipt["tools"]
            assert not {t for t in receipt["tools"] if t.startswith(("system_", "subagents_"))}
            await settled(house)
            [done] = await runs(house)
            assert (done.status, done.result, done.label) == (
                "completed",
                "Rose says: count the planks",
                "planks",
            )
            assert done.usage is not None and done.started_at and done.ended_at
            child = await house.gateway.sessions.get(receipt["childSessionKey"])
            assert (child.kind, child.deliver, child.parent_id) == (
                "subagent",
                False,
                (await house.gateway.sessions.get(MAIN)).id,
            )
            assert (await house.history())[-1].text == "all in: Rose says: count the planks"

    run(story())


def test_many_children_make_one_turn_and_never_more_than_may_run_at_once(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()
        at_once, most = 0, 0

        async def work(request: ModelRequest) -> Scripted:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await release.wait()
            await asyncio.sleep(0.01)
            at_once -= 1
            return last_user(request).removeprefix("task ")

        minds.says["task"] = work
        minds.says["go"] = once(*(spawning(f"task {n:02}") for n in range(20)))
        settings = "subagents: {max_children: 20, max_concurrent: 4}"
        async with household(home, minds.model, roster=ROSTER, settings=settings) as house:
            await house.say("go")
            await until(lambda: at_once == 4)
            assert Counter(r.status for r in await runs(house)) == {"running": 4, "queued": 16}
            release.set()
            await settled(house)
            history = await house.history()
            assert most == 4
            assert len(lines(history)) == 20
            assert len({m.meta["announce"]["source"]["run_id"] for m in lines(history) if m.meta}) == 20
            answers = [m.text for m in history if m.text.startswith("all in")]
            assert answers == [f"all in: {', '.join(f'{n:02}' for n in range(20))}"]
            assert {state for state, _ in (await states(house)).values()} == {"delivered"}
            assert minds.model.refused == []

    run(story())


def test_children_and_messages_on_postgresql(home: Path, postgres_url: str) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["go"] = once(
            *(spawning(f"number {n}") for n in range(8)),
            asking("rose", "number 8", mode="async"),
            asking("miles", "number 9"),
        )
        settings = f"database: {{url: '{postgres_url}'}}\nsubagents: {{max_concurrent: 8}}"
        async with household(home, minds.model, roster=ROSTER, settings=settings) as house:
            assert '"complete"' in (await house.say("go")).text
            await settled(house)
            history = await house.history()
            assert len(lines(history)) == 9
            expected = [f"main says: number {n}" for n in range(8)] + ["Rose says: number 8"]
            assert [m.text for m in history if m.text.startswith("all in")] == [
                f"all in: {', '.join(sorted(expected))}"
            ]
            assert minds.model.refused == []

    run(story())


def test_the_bounds_of_one_session_and_of_one_agent(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def work(request: ModelRequest) -> Scripted:
            await release.wait()
            return "done"

        minds.says["task"] = work
        minds.says["go"] = once(*(spawning(f"task {n}") for n in range(6)))
        settings = "subagents: {max_children: 3, max_concurrent: 8}"
        roster = "- {name: rose, subagents: {max_concurrent: 2}}"
        async with household(home, minds.model, roster=roster, settings=settings) as house:

            async def running_of(session: str) -> int:
                mine = [r for r in await runs(house) if r.requester_session_key == session]
                return sum(r.status == "running" for r in mine)

            await house.say("go")
            rose = (await house.gateway.sessions.create(agent_id="rose")).key
            await house.say("go", rose)
            while (await running_of(MAIN), await running_of(rose)) != (3, 2):
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert (await running_of(MAIN), await running_of(rose)) == (3, 2)
            release.set()
            await settled(house)
            await settled(house, rose)

    run(story())


def test_a_user_turn_in_between_sees_results_and_the_wake_comes_after_the_last(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def slow(request: ModelRequest) -> Scripted:
            await release.wait()
            return "slow one"

        minds.says["slow task"] = slow
        minds.says["fast task"] = lambda request: "fast one"
        minds.says["go"] = once(spawning("fast task"), spawning("slow task"))
        async with household(home, minds.model, roster=ROSTER) as house:
            await house.say("go")
            while not any(state == "pending" for state, _ in (await states(house)).values()):
                await asyncio.sleep(0.002)
            seen = await preview(house.gateway, agent_id=None, session=MAIN, message=None)
            assert found(seen.request) == ["fast one"]
            await house.say("how is it going?")
            assert found(minds.seen[-1][1]) == ["fast one"]
            assert not any(m.text.startswith("all in") for m in await house.history())
            release.set()
            await settled(house)
            assert (await house.history())[-1].text == "all in: fast one, slow one"
            assert len(lines(await house.history())) == 2

    run(story())


def test_announcements_never_steer_a_busy_parent(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def busy(request: ModelRequest) -> Scripted:
            got = results(request)
            if not got:
                return [spawning("small task")]
            if len(got) == 1:
                await until(lambda: minds.seen and any("small task" in last_user(r) for _, r in minds.seen))
                while any(r.is_live for r in await runs(house)):
                    await asyncio.sleep(0.002)
                return [call("system_time")]
            return "my own task is done"

        minds.says["go"] = busy
        async with household(home, minds.model, roster=ROSTER) as house:
            receipt = await house.send("go")
            assert (await house.outcome(receipt)).text == "my own task is done"
            await settled(house)
            history = await house.history()
            assert not any(m.text.startswith(("[Backlog]", "skipped")) for m in history)
            texts = [m.text for m in history]
            assert texts.index("my own task is done") < texts.index("[@agent:main#main] finish")
            assert texts[-1] == "all in: main says: small task"
            release.set()

    run(story())


def test_a_steered_parent_gets_its_results_after_its_task(home: Path) -> None:
    async def story() -> None:
        minds = Minds()

        async def busy(request: ModelRequest) -> Scripted:
            done = [m for m in request.messages if m.role == "tool" and not m.text.startswith("skipped")]
            if not done:
                return [spawning("small task")]
            if len(done) == 1:
                if not any(m.text == "wait, what about tea?" for m in request.messages):
                    await house.send("wait, what about tea?")
                    while any(r.is_live for r in await runs(house)):
                        await asyncio.sleep(0.002)
                return [call("system_time")]
            return "my own task is done"

        minds.says["go"] = busy
        minds.says["[Backlog]"] = busy
        async with household(home, minds.model, roster=ROSTER) as house:
            receipt = await house.send("go")
            assert (await house.outcome(receipt)).text == "my own task is done"
            await settled(house)
            texts = [m.text for m in await house.history()]
            assert texts.count("[@agent:main#main] finish") == 1
            assert texts[-1] == "all in: main says: small task"
            order = ["main says: wait, what about tea?", "my own task is done", texts[-1]]
            assert [t for t in texts if t in order] == order

    run(story())


def test_a_subagent_never_has_what_no_list_can_give_back(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        forbidden = [
            call("subagents_spawn", {"task": "x"}),
            call("agents_switch", {"agentId": "rose"}),
            call("system_time"),
            call("subagents_list"),
            asking("rose", "x"),
        ]
        minds.says["try everything"] = once(*forbidden)
        minds.says["go"] = once(spawning("try everything", toolAllowlist=["*"]))
        minds.says["now you"] = once(forbidden[2], forbidden[1])
        async with household(home, minds.model, roster=ROSTER) as house:
            await house.say("go")
            await settled(house)
            [done] = await runs(house)
            got = (done.result or "").split("; ")
            assert [text.split(":")[1].strip() for text in got] == [
                "tool_not_allowed",
                "tool_not_allowed",
                "tool_not_allowed",
                "tool_not_allowed",
                "delegation_limit",
            ]
            child = [request for who, request in minds.seen if last_user(request) == "try everything"]
            assert {t.name for t in child[0].tools} == {
                "files_edit",
                "files_list",
                "files_read",
                "files_write",
                "memory_edit",
                "memory_forget",
                "memory_log",
                "memory_recall",
                "memory_remember",
                "results_read",
            }
            outside = (await house.say("now you")).text
            assert "error" not in outside and "switched" in outside

    run(story())


def test_a_spawn_may_narrow_tools_and_choose_the_model(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["go"] = once(
            spawning("small task", toolAllowlist=["files_r*", "system_*"], model="other/one")
        )
        async with household(home, minds.model, roster=ROSTER) as house:
            receipt = json.loads((await house.say("go")).text)
            assert (receipt["tools"], receipt["model"]) == (["files_read"], "other/one")
            await settled(house)
            assert "other/one" in house.asked_for
            [child] = [r for _, r in minds.seen if last_user(r) == "small task"]
            assert [t.name for t in child.tools] == ["files_read"]

    run(story())


def test_a_childs_first_request_is_small(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["go"] = once(spawning("small task"))
        async with household(home, minds.model, roster=ROSTER) as house:
            for name in ("SOUL.md", "USER.md", "AGENTS.md", "TOOLS.md"):
                (home / name).write_text(f"{name} " * 5_000)
            (home / "agents" / "main" / "MEMORY.md").write_text("secret " * 5_000)
            await house.say("go")
            await settled(house)
            [body] = [
                b
                for b in minds.model.bodies
                if any(
                    "\nsmall task\n" in str(m.get("content")) for m in b["messages"] if m["role"] == "user"
                )
            ]
            assert len(json.dumps(body).encode()) < 8_000
            assert "secret" not in json.dumps(body) and "USER.md" not in json.dumps(body)

    run(story())


def test_children_that_fail_are_announced_as_such(home: Path) -> None:
    async def story() -> None:
        minds = Minds()

        def loops(request: ModelRequest) -> Scripted:
            return call("files_list")

        async def hangs(request: ModelRequest) -> Scripted:
            await asyncio.Event().wait()
            return ""

        minds.says["break task"] = lambda request: RuntimeError("broken")
        minds.says["loop task"] = loops
        minds.says["hang task"] = hangs
        minds.says["huge task"] = lambda request: "x" * 10_000_000
        minds.says["go"] = once(
            spawning("break task"),
            spawning("loop task"),
            spawning("hang task", timeoutSeconds=1),
            spawning("huge task"),
        )
        roster = "- {name: main, limits: {rounds_per_turn: 5}}"
        async with household(home, minds.model, roster=roster) as house:
            await house.say("go")
            await settled(house)
            history = await house.history()
            told = {
                m.meta["announce"]["task"]["prompt"]: m.meta["announce"]["result"]
                for m in lines(history)
                if m.meta
            }
            assert {task: result["status"] for task, result in told.items()} == {
                "break task": "error",
                "loop task": "error",
                "hang task": "timeout",
                "huge task": "ok",
            }
            assert "5 rounds" in told["loop task"]["summary"]
            huge = told["huge task"]["summary"]
            assert len(huge) < 5_000 and "results_read" in huge
            assert sum(len(m.text) for m in history) < 20_000
            assert history[-1].text.startswith("all in: ")
            run_id = next(r.run_id for r in await runs(house) if r.task == "huge task")
            minds.says["read on"] = once(call("results_read", {"id": run_id, "offset": 4000, "limit": 10}))
            assert said_by("main", (await house.say("read on")).text) == "x" * 10

    run(story())


def test_cancelling_a_run_tells_its_requester_once(home: Path) -> None:
    async def story() -> None:
        minds = Minds()

        async def hangs(request: ModelRequest) -> Scripted:
            await asyncio.Event().wait()
            return ""

        minds.says["hang task"] = hangs
        minds.says["go"] = once(spawning("hang task"))
        async with household(home, minds.model, roster=ROSTER) as house:
            await house.say("go")
            [live] = await runs(house)
            await until(lambda: any("hang task" in last_user(r) for _, r in minds.seen))
            told = await house.gateway.subagents.cancel(live.run_id)
            assert (told.run.status, told.run.error) == ("error", "cancelled")
            assert (await house.gateway.subagents.cancel(live.run_id)).run.error == "cancelled"
            await settled(house)
            [line] = lines(await house.history())
            assert line.meta is not None and line.meta["announce"]["result"]["status"] == "cancelled"
            assert (await house.history())[-1].text == "all in: cancelled"

    run(story())


def test_deleting_a_run_drops_no_announcement(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def busy(request: ModelRequest) -> Scripted:
            if not results(request):
                return [spawning("small task")]
            await release.wait()
            return "done"

        minds.says["go"] = busy
        async with household(home, minds.model, roster=ROSTER) as house:
            receipt = await house.send("go")
            while not (found := await runs(house)) or found[0].is_live:
                await asyncio.sleep(0.002)
            await house.gateway.subagents.delete(found[0].run_id)
            assert await runs(house) == []
            with pytest.raises(NotFound):
                await house.gateway.sessions.get(found[0].session_key)
            release.set()
            await house.outcome(receipt)
            await settled(house)
            assert (await house.history())[-1].text == "all in: main says: small task"

    run(story())


# Where it must end


def test_chains_and_depth(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["one"] = once(asking("rose", "two"))
        minds.says["two"] = once(asking("miles", "three"))
        minds.says["three"] = once(asking("main", "four"))
        minds.says["self"] = once(asking("main", "again"))
        deep = "delegation: {max_depth: 5}"
        async with household(home, minds.model, roster=ROSTER, settings=deep) as house:
            text = (await house.say("one")).text
            assert "delegation_limit" in text and "main → rose → miles → main" in text
            assert [(r.agent_id, r.hop, r.chain) for r in await runs(house)] == [
                ("rose", 0, ("main",)),
                ("miles", 1, ("main", "rose")),
            ]
            assert len({r.trace_id for r in await runs(house)}) == 1
            assert (await house.say("self")).text.startswith("error: delegation_limit")
            assert len(await runs(house)) == 2

    run(story())


def test_with_the_default_depth_who_is_asked_cannot_ask(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["one"] = once(asking("rose", "two"))
        minds.says["two"] = once(asking("miles", "three"), spawning("x"))
        async with household(home, minds.model, roster=ROSTER) as house:
            answer = json.loads((await house.say("one")).text)
            assert answer["response"].count("error: delegation_limit") == 2
            assert [r.agent_id for r in await runs(house)] == ["rose"]
            [asked] = [r for who, r in minds.seen if who == "Rose" and not results(r)]
            assert not {"agents_message", "subagents_spawn"} & {t.name for t in asked.tools}
            assert "Agents you can ask" not in asked.system
            # The same agent, asked by a person, may.
            rose = await house.gateway.sessions.create(agent_id="rose")
            assert json.loads((await house.say("two", rose.key)).text.split("; ")[0])["status"] == "complete"

    run(story())


def test_a_trace_that_used_its_turns_stops_and_costs_no_more(home: Path) -> None:
    """Given an agent that starts another child whenever one is done, it comes to an end that the person sees."""

    async def story() -> None:
        asked: list[str] = []

        def reply(request: ModelRequest) -> Scripted:
            asked.append(last_user(request))
            if last_user(request) == "small task":
                return "done"
            return "started" if request.messages[-1].role == "tool" else [spawning("small task")]

        settings = "delegation: {trace_turns: 5}"
        async with household(home, FunctionModel(reply), roster=ROSTER, settings=settings) as house:
            await house.say("go")
            while not any("5 turns that one message may lead to" in m.text for m in await house.history()):
                await asyncio.sleep(0.005)
            await settled(house)
            count = len(asked)
            await asyncio.sleep(0.1)
            assert len(asked) == count
            assert len(await runs(house)) <= 4
            # A person can go on: that is a trace of its own.
            assert (await house.say("go")).state is TurnState.DONE

    run(story())


@pytest.mark.parametrize("limit", ["trace_tokens: 1", "trace_cost: 0.0", "trace_ttl_s: 1"])
def test_a_trace_has_a_budget_of_tokens_cost_and_time(home: Path, limit: str) -> None:
    async def story() -> None:
        minds = Minds()

        async def ask(request: ModelRequest) -> Scripted:
            if not results(request):
                if "ttl" in limit:
                    await asyncio.sleep(1.2)
                return [asking("rose", "hello there dear friend")]
            return results(request)[-1].text

        minds.says["go"] = ask
        settings = f"delegation: {{{limit}}}"
        async with household(home, minds.model, roster=ROSTER, settings=settings) as house:
            outcome = await house.say("go")
            said = outcome.text + (outcome.error or "")
            assert "this trace" in said
            assert not any(who == "Rose" for who, _ in minds.seen)

    run(story())


def test_ten_agents_in_a_ring_all_finish_with_two_slots(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        names = [f"a{n}" for n in range(10)]
        for n, name in enumerate(names):
            minds.says[f"start {name}"] = once(asking(names[(n + 1) % 10], f"hello from {name}"))
        roster = "\n".join(f"- {{name: {name}}}" for name in names)
        async with household(home, minds.model, roster=roster, settings="turns: {concurrency: 2}") as house:
            sent = [await house.send(f"start {name} now", f"agent:{name}:main") for name in names]
            for receipt in sent:
                answer = json.loads((await house.outcome(receipt)).text)
                assert answer["status"] == "complete"
            assert len(await runs(house)) == 10

    run(story())


def test_latest_or_create_passes_over_a_session_that_waits(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def hold(request: ModelRequest) -> Scripted:
            await release.wait()
            return "held"

        minds.says["hold"] = hold
        minds.says["ask miles"] = once(asking("miles", "hold"))
        minds.says["ask rose"] = once(asking("rose", "quick question"))
        async with household(home, minds.model, roster=ROSTER) as house:
            waiting = await house.send("ask miles", "agent:rose:main")
            while (await house.gateway.queue("agent:rose:main"))[1][0].state is not TurnState.WAITING:
                await asyncio.sleep(0.002)
            answer = json.loads((await house.say("ask rose")).text)
            assert answer["created"] is True
            release.set()
            await house.outcome(waiting)

    run(story())


def test_a_message_of_another_agent_steers_like_a_persons(home: Path) -> None:
    async def story() -> None:
        minds, asked = Minds(), asyncio.Event()

        async def long_task(request: ModelRequest) -> Scripted:
            if not any(m.role == "tool" for m in request.messages):
                asked.set()
                while len((await house.gateway.queue(place))[1]) < 2:
                    await asyncio.sleep(0.002)
                return [call("system_time")]
            if any(m.text.startswith("skipped") for m in request.messages[-3:]):
                return [call("system_time")]
            return "long task is done"

        minds.says["long"] = long_task
        minds.says["[Backlog]"] = long_task
        minds.says["begin"] = once(asking("rose", "long", mode="async"))
        minds.says["elsewhere"] = once(asking("rose", "another question"))
        async with household(home, minds.model, roster=ROSTER) as house:
            begun = json.loads((await house.say("begin")).text)
            place, long = begun["sessionId"], begun["responseId"]
            await asked.wait()
            # A session that is at work is passed over, unless it is asked for.
            other = json.loads((await house.say("elsewhere", await beside(house))).text)
            assert other["created"] and other["sessionId"] != place
            minds.says["ask"] = once(asking("rose", "quick question", session=place))
            answer = json.loads((await house.say("ask", await beside(house))).text)
            assert (said_by("rose", answer["response"]), answer["created"]) == (
                "Rose says: quick question",
                False,
            )
            assert (await house.outcome(long)).text == "long task is done"
            theirs = await house.history(place)
            assert [m.origin for m in theirs if m.role == "user"] == ["agent", "agent", "system"]
            assert minds.model.refused == []

    run(story())


def test_what_was_asked_of_one_agent_is_never_done_by_another(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def hold(request: ModelRequest) -> Scripted:
            await release.wait()
            return "held"

        minds.says["hold"] = hold
        minds.says["begin"] = once(asking("rose", "hold", mode="async"))
        minds.says["ask"] = once(asking("rose", "which soil?", session="latest"))
        async with household(home, minds.model, roster=ROSTER) as house:
            begun = json.loads((await house.say("begin")).text)
            place, busy = begun["sessionId"], begun["responseId"]
            await until(lambda: any("hold" in last_user(r) for _, r in minds.seen))
            asked = await house.send("ask")
            while len((await house.gateway.queue(place))[1]) < 2:
                await asyncio.sleep(0.002)
            await house.gateway.sessions.set_agent(place, "miles")
            release.set()
            await house.outcome(busy)
            answer = json.loads((await house.outcome(asked)).text)
            assert answer["status"] == "error" and "went to another agent" in answer["message"]
            assert not any("which soil?" in last_user(r) for _, r in minds.seen)

    run(story())


# Stopping


def test_stopping_a_session_that_is_idle_stops_its_children(home: Path) -> None:
    async def story() -> None:
        minds = Minds()

        async def hangs(request: ModelRequest) -> Scripted:
            await asyncio.Event().wait()
            return ""

        minds.says["hang"] = hangs
        minds.says["go"] = once(spawning("hang one"))
        async with household(home, minds.model, roster=ROSTER) as house:
            await house.say("go")
            assert await house.gateway.stop_session(MAIN) == ("aborted", None)
            assert [r.error for r in await runs(house)] == ["cancelled"]
            assert await house.gateway.stop_session(MAIN) == ("idle", None)

    run(story())


def test_a_wake_that_is_taken_back_leaves_its_results_blocked(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def hold(request: ModelRequest) -> Scripted:
            await release.wait()
            return "held"

        minds.says["go"] = once(spawning("small task"), spawning("hold it"))
        minds.says["hold"] = hold
        async with household(home, minds.model, roster=ROSTER) as house:
            await house.say("go")
            while not (jobs := (await house.gateway.queue(MAIN))[1]):
                await asyncio.sleep(0.002)
            assert await house.gateway.cancel_queued(jobs[0].run_id) == "cancelled"
            assert (await states(house))["small task"] == ("blocked", "its wake was taken back")
            release.set()
            await settled(house)
            # The other child's end leaves a wake of its own, which answers for both.
            assert (await house.history())[-1].text == "all in: held, main says: small task"
            assert {state for state, _ in (await states(house)).values()} == {"delivered"}

    run(story())


def test_stop_reaches_the_children_and_wakes_nobody(home: Path) -> None:
    async def story() -> None:
        minds = Minds()

        async def hangs(request: ModelRequest) -> Scripted:
            await asyncio.Event().wait()
            return ""

        minds.says["hang"] = hangs
        minds.says["go"] = once(spawning("hang one"), spawning("hang two"), asking("rose", "hang three"))
        async with household(home, minds.model, roster=ROSTER) as house:
            receipt = await house.send("go")
            await until(lambda: sum("hang" in last_user(r) for _, r in minds.seen) == 3)
            assert await house.gateway.abort(receipt.run_id) == "aborted"
            assert [(r.status, r.error) for r in await runs(house)] == [("error", "cancelled")] * 3
            count = len(minds.seen)
            await settled(house)
            assert len(minds.seen) == count
            told = await states(house)
            assert {told["hang one"][0], told["hang two"][0]} == {"blocked"}
            assert told["hang three"] == ("none", None)
            # The next turn learns what happened, and answers for it.
            await house.say("what now?")
            assert found(minds.seen[-1][1]) == ["cancelled", "cancelled"]
            assert {(await states(house))[f"hang {n}"][0] for n in ("one", "two")} == {"delivered"}

    run(story())


@pytest.mark.parametrize("what", ["clear", "delete"])
def test_a_parent_that_is_wiped_stops_its_children_and_says_so(home: Path, what: str) -> None:
    async def story() -> None:
        minds = Minds()

        async def hangs(request: ModelRequest) -> Scripted:
            await asyncio.Event().wait()
            return ""

        minds.says["hang"] = hangs
        minds.says["go"] = once(spawning("hang one"))
        async with household(home, minds.model, roster=ROSTER) as house:
            await house.say("go")
            await until(lambda: any("hang" in last_user(r) for _, r in minds.seen))
            await getattr(house.gateway.sessions, what)(MAIN)
            [done] = await runs(house)
            assert done.error == "cancelled"
            state, reason = (await states(house))["hang one"]
            assert state == "blocked" and reason is not None and f"{what}ed".replace("ee", "e") in reason
            if what == "delete":
                with pytest.raises(Conflict, match="deleted"):
                    await house.gateway.subagents.retry(done.run_id)
                return
            assert await house.history() == []
            await house.say("hello")
            assert found(minds.seen[-1][1]) == []
            await house.gateway.subagents.retry(done.run_id)
            await settled(house)
            assert (await house.history())[-1].text == "all in: cancelled"
            assert len(lines(await house.history())) == 1
            with pytest.raises(Conflict):
                await house.gateway.subagents.retry(done.run_id)

    run(story())


def test_a_switched_or_archived_parent_still_gets_its_results(home: Path) -> None:
    async def story() -> None:
        minds, release = Minds(), asyncio.Event()

        async def hold(request: ModelRequest) -> Scripted:
            await release.wait()
            return "held"

        minds.says["hold"] = hold
        minds.says["go"] = once(spawning("hold it", agentId="dot"))
        async with household(home, minds.model, roster=ROSTER) as house:
            switched = (await house.gateway.sessions.create(agent_id="rose")).key
            archived = (await house.gateway.sessions.create(agent_id="miles")).key
            for session in (switched, archived):
                await house.say("go", session)
            await house.gateway.sessions.set_agent(switched, "main")
            house.gateway.registry.delete("miles")
            release.set()
            for session in (switched, archived):
                await settled(house, session)
                history = await house.history(session)
                assert (history[-1].text, history[-1].agent_id) == ("all in: held", "main")
                assert len(lines(history)) == 1

    run(story())


def test_deleting_an_agent_ends_its_runs_and_tells_who_asked(home: Path) -> None:
    async def story() -> None:
        minds = Minds()

        async def hangs(request: ModelRequest) -> Scripted:
            await asyncio.Event().wait()
            return ""

        minds.says["hang"] = hangs
        minds.says["go"] = once(spawning("hang one", agentId="rose"), spawning("hang two", agentId="rose"))
        minds.says["ask"] = once(asking("rose", "hang three"))
        settings = "subagents: {max_concurrent: 1}"
        async with household(home, minds.model, roster=ROSTER, settings=settings) as house:
            await house.say("go")
            other = (await house.gateway.sessions.create(agent_id="miles")).key
            asked = await house.send("ask", other)
            await until(lambda: sum("hang" in last_user(r) for _, r in minds.seen) == 2)
            house.gateway.registry.delete("rose")
            answer = json.loads((await house.outcome(asked)).text)
            assert answer["status"] == "error" and "rose is no longer active" in answer["message"]
            await settled(house)
            assert {(r.status, r.error) for r in await runs(house)} == {
                ("error", "the agent rose is no longer active")
            }
            assert len(lines(await house.history())) == 2
            house.gateway.registry.restore("rose")
            count = sum(who == "Rose" for who, _ in minds.seen)
            await asyncio.sleep(0.1)
            assert sum(who == "Rose" for who, _ in minds.seen) == count == 2

    run(story())


def test_a_wake_that_fails_leaves_its_results_blocked_and_a_retry_delivers_them(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["go"] = once(spawning("small task"))
        async with household(home, minds.model, roster=ROSTER) as house:
            reply, fails = minds.model.reply, True

            async def broken(request: ModelRequest) -> Scripted:
                if fails and request.messages[-1].role == "system":
                    return RuntimeError("no model today")
                answer = reply(request)
                assert isinstance(answer, Awaitable)
                return await answer

            minds.model.reply = broken
            await house.say("go")
            await settled(house)
            state, reason = (await states(house))["small task"]
            assert state == "blocked" and reason is not None and "went wrong" in reason
            fails = False
            [done] = await runs(house)
            await house.gateway.subagents.retry(done.run_id)
            await settled(house)
            assert (await states(house))["small task"] == ("delivered", None)
            history = await house.history()
            assert len(lines(history)) == 1
            assert [m.text for m in history if m.text.startswith("all in")] == [
                "all in: main says: small task"
            ]

    run(story())


# Crashes


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("mode", ["spawn", "sync", "async"])
def test_a_power_cut_at_any_commit_loses_and_doubles_nothing(home: Path, mode: str, kept: bool) -> None:
    """I2 and I7, commit by commit."""

    async def story() -> None:
        minds = Minds()
        if mode == "spawn":
            minds.says["go"] = once(spawning("task one"), spawning("task two"))
        else:
            minds.says["go"] = once(
                asking("rose", "task one", mode=mode), asking("miles", "task two", mode=mode)
            )
        told = "main says: task one, main says: task two"
        if mode == "async":
            told = "Rose says: task one, miles says: task two"
        async with household(home, minds.model, roster=ROSTER) as house:

            async def tell(session: str) -> None:
                await house.send("go", session)
                await settled(house, session)

            for commit in range(1, 40):
                session = (await house.gateway.sessions.create()).key
                before = len(await runs(house))
                house.power.arm(commit, kept=kept)
                whole = asyncio.create_task(tell(session))
                cut = asyncio.create_task(house.power.happened.wait())
                await asyncio.wait([whole, cut], return_when=asyncio.FIRST_COMPLETED)
                done = cut.done()
                for task in (whole, cut):
                    task.cancel()
                if done:
                    await house.crash()
                    await house.restart()
                    await settled(house, session)
                house.power.at = None
                history = await house.history(session)
                if not any(m.role == "user" for m in history):
                    assert commit == 1 and not kept
                    continue
                assert len(await runs(house)) - before == 2, commit
                finals = [m.text for m in history if m.role == "assistant" and m.text]
                if mode != "sync":
                    assert len(lines(history)) == 2, commit
                    assert finals[-1] == f"all in: {told}"
                    assert sum(text.startswith("all in") for text in finals) == 1, commit
                else:
                    assert len(finals) == 1 and finals[0].count('"complete"') == 2, (commit, finals)
                    assert lines(history) == []
                if not done:
                    break
            else:
                raise AssertionError("the story is longer than that")
            assert minds.model.refused == []

    run(story())


# Not outside


def test_what_agents_say_to_each_other_never_leaves_the_house(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["ask"] = once(asking("rose", "psst"))
        minds.says["go"] = once(spawning("small task"))
        async with household(home, minds.model, roster=ROSTER) as house:

            async def routed(agent: str) -> str:
                session = await house.gateway.sessions.create(agent_id=agent)
                with house.power.write() as tx:
                    tx.sessions.save(
                        replace(session, deliver=True, route={"channel": "telegram", "peer": agent})
                    )
                return session.id

            rose, main = await routed("rose"), await routed("main")
            answer = json.loads((await house.say("ask")).text)
            assert any(m.text == "Rose says: psst" for m in await house.history(answer["sessionId"]))
            assert await house.history(rose) == []
            assert house.outbox() == []
            await house.say("go", main)
            await settled(house, main)
            texts = [text for _, text in house.outbox()]
            assert texts[-1] == "all in: main says: small task" and len(texts) == 2

    run(story())


def test_going_to_another_agent_and_back_with_a_summary(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["go to rose"] = once(
            call("agents_switch", {"agentId": "rose", "message": "let us talk soil"})
        )
        minds.says["go back"] = once(
            call("agents_switch", {"agentId": "main", "returnSummary": "we decided on loam"})
        )
        async with household(home, minds.model, roster=ROSTER) as house:
            with house.gateway.events.subscribe() as heard:
                moved = json.loads((await house.say("go to rose")).text)
                assert (moved["status"], moved["created"]) == ("switched", True)
                while (event := await heard.next()) is not None and event.name != "session.switched":
                    pass
                assert event is not None
                assert event.payload == {"from": MAIN, "to": moved["sessionKey"]}
            rose = moved["sessionKey"]
            await house.idle(rose)
            said = await house.history(rose)
            assert [(m.text, m.origin) for m in said] == [
                ("let us talk soil", "agent"),
                ("Rose says: let us talk soil", "agent"),
            ]
            back = json.loads((await house.say("go back and tell main", rose)).text)
            assert back["sessionKey"] == MAIN
            await house.idle()
            assert (await house.history())[-1].text == "main says: we decided on loam"
            assert await runs(house) == []

    run(story())


def test_two_agents_cannot_send_a_person_back_and_forth(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        minds.says["ping"] = lambda request: (
            results(request)[-1].text
            if results(request)
            else [call("agents_switch", {"agentId": "rose", "message": "pong"})]
        )
        minds.says["pong"] = lambda request: (
            results(request)[-1].text
            if results(request)
            else [call("agents_switch", {"agentId": "main", "message": "ping"})]
        )
        async with household(home, minds.model, roster=ROSTER) as house:
            moved = json.loads((await house.say("ping")).text)
            await house.idle(moved["sessionKey"])
            assert "delegation_limit" in (await house.history(moved["sessionKey"]))[-1].text

    run(story())


# With one agent, and with the tools' clock


def test_alone_in_the_house_nothing_of_the_others_shows(home: Path) -> None:
    async def story() -> None:
        minds = Minds()
        async with household(home, minds.model) as house:
            await house.say("hello")
            names = {t.name for t in minds.seen[-1][1].tools}
            assert not {n for n in names if n.startswith("agents_")}
            assert "Agents you can ask" not in minds.seen[-1][1].system
            assert len(json.dumps(minds.model.bodies[-1]).encode()) < 6_000

    run(story())


def test_time_spent_waiting_does_not_count_as_the_tools(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "TOOL_SECONDS", 1.0)

    async def story() -> None:
        minds = Minds()

        async def slowly(request: ModelRequest) -> Scripted:
            await asyncio.sleep(1.5)
            return "at last"

        minds.says["soil"] = slowly
        minds.says["garden"] = once(asking("rose", "which soil?"))
        async with household(home, minds.model, roster=ROSTER) as house:
            answer = json.loads((await house.say("garden")).text)
            assert said_by("rose", answer["response"]) == "at last"

    run(story())


def test_two_waits_in_one_tool_leave_the_turn_as_it_was(home: Path) -> None:
    async def story() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        seen: list[TurnState] = []

        @tool
        async def ask_two(context: ToolContext) -> str:
            """Wait for two people."""

            async def state() -> TurnState:
                return (await house.gateway.outcome(context.run_id)).state

            async def one(let_go: asyncio.Event) -> None:
                await context.while_waiting(let_go.wait())
                seen.append(await state())

            both = asyncio.gather(one(first), one(second))
            while await state() is not TurnState.WAITING:
                await asyncio.sleep(0.001)
            first.set()
            await asyncio.sleep(0.02)
            second.set()
            await both
            return "both answered"

        def reply(request: ModelRequest) -> Scripted:
            asked = last_user(request) == "go" and request.messages[-1].role == "user"
            return [call("ask_two")] if asked else "done"

        model = FunctionModel(reply)
        async with household(home, model, tools=[ask_two], settings="turns: {concurrency: 1}") as house:
            assert (await house.say("go")).text == "done"
            assert seen == [TurnState.WAITING, TurnState.WAITING]  # until its next step
            assert [m.text for m in await house.history() if m.role == "tool"] == ["both answered"]
            # The one place was given back as often as it was taken.
            assert (await house.say("hello", "agent:main:dm:other")).text == "done"

    run(story())
