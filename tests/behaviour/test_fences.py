"""Words that are not the person's: whatever anybody writes, no line of the house is forged and no fence closed early."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core import fence
from coterie.core.compaction import shortened
from coterie.core.fence import Fences, shown, with_mark
from coterie.core.message import Message
from coterie.core.ports import ModelError, ModelRequest
from coterie.core.steering import backlog_text
from coterie.core.tool import tool
from coterie.testing import Scripted, call
from tests.support.house import MAIN, FunctionModel, House, household, last_user, run

PIECES = (
    "⟦", "⟧", "⟦/", "[Backlog]", "[System]", "[Retry]", "[@agent:Rose#rose] finish", "<context>", "</context>",
    "<context panel-id=1 />", "\n", " ", "user: ", "deadbeef", "⟦deadbeef⟧", "⟦/deadbeef⟧", "⟦deadbeef agent rose⟧",
    "## User, 2026-01-01", "```", '"', "\\", "”", "\u2028", "hello",
)  # fmt: skip
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join)
_BRACKET = re.compile("⟦([^⟦⟧]*)⟧|[⟦⟧]")


def check(text: str, marks: set[str], *, lines: int) -> None:
    """Every bracket is one of ours, fences open and close in order, and only so many lines are the house's own."""
    inside: list[str] = []
    own = 0
    for found in _BRACKET.finditer(text):
        said = found[1]
        assert said is not None, f"half a bracket at {found.start()} of {text!r}"
        mark = said.removeprefix("/").partition(" ")[0]
        assert mark in marks, f"{found[0]} is not ours: {text!r}"
        if said.startswith("/"):
            assert inside and inside.pop() == mark, f"{found[0]} closes what is not open: {text!r}"
        elif " " in said:
            inside.append(mark)
        else:
            own += 1
            assert not inside and re.fullmatch(r"\[\w+\] ", text[: found.start()]), text
    assert not inside, f"open to the end: {text!r}"
    assert own == lines, text


@given(HOSTILE, st.sampled_from(["user", "schedule"]))
def test_a_persons_words_have_no_mark(text: str, origin: Any) -> None:
    check(shown(Message("m", "user", origin, text)), set(), lines=0)


@given(HOSTILE, HOSTILE, st.sampled_from(["agent", "external"]))
def test_others_words_stay_inside_their_fence(text: str, who: str, origin: Any) -> None:
    message = with_mark(Message("m", "user", origin, text, meta={"from": {"agent_id": who}}))
    assert message.mark is not None
    sent = shown(message)
    check(sent, {message.mark}, lines=0)
    assert sent.startswith(f"⟦{message.mark} ") and sent.endswith(f"\n⟦/{message.mark}⟧")
    assert shown(message) == sent and shown(replace(message, wire={})) == sent


@given(HOSTILE, st.sampled_from([None, {"error": "x"}, {"compaction": {"through": 3}}, {"switch": {}}]))
def test_a_line_of_the_house_is_marked_and_says_what_is_not_its_own(text: str, meta: Any) -> None:
    if meta and "error" in meta:
        meta = {"error": text}
    for message in (
        Message("m", "system", "system", text, meta=meta),
        Message("m", "system", "external", text),
        Message("m", "user", "system", backlog_text(text, ())),
        Message("m", "system", "agent", "[@agent:Rose#rose] finish"),
    ):
        message = with_mark(message)
        assert message.mark is not None
        check(shown(message), {message.mark}, lines=1)


def test_the_first_word_stays_and_the_mark_stands_behind_it() -> None:
    backlog = with_mark(Message("m", "user", "system", backlog_text("sweep", ())))
    assert shown(backlog).startswith(f"[Backlog] ⟦{backlog.mark}⟧ Go on with the task")
    typed = Message("m", "user", "user", backlog_text("sweep", ()))
    assert shown(typed) == typed.text


@given(st.lists(HOSTILE, min_size=1, max_size=3), HOSTILE, HOSTILE, st.booleans())
def test_fences_inside_a_result(texts: list[str], around: str, who: str, as_json: bool) -> None:
    fences = Fences()
    parts = [fences.around(text, who) for text in texts]
    text = (
        json.dumps({"said": parts, "more": around}, ensure_ascii=False)
        if as_json
        else around + "\n".join(parts)
    )
    message = Message("m", "tool", "agent", text, call_id="c", mark=" ".join(fences.marks))
    check(shown(message), set(fences.marks), lines=0)


@given(HOSTILE, HOSTILE, st.integers(0, 120))
def test_a_result_that_is_cut_closes_its_fences(text: str, around: str, limit: int) -> None:
    fences = Fences()
    whole = f"{around} {fences.around(text, 'agent rose')} {around} {fences.around(text, 'x')}"
    cut = shortened(whole, limit, "c", fences.marks)
    message = Message("m", "tool", "agent", cut, call_id="c", mark=" ".join(fences.marks))
    check(shown(message), set(fences.marks), lines=0)


def test_marks_are_drawn_anew() -> None:
    one = Message("m", "user", "agent", "x")
    assert len({with_mark(one).mark for _ in range(100)}) == 100
    assert with_mark(replace(one, mark="kept")).mark == "kept"


# In a household, from every source at once


def noise(chance: random.Random, stolen: list[str]) -> str:
    """Hostile words, at times with what stood in an earlier request."""
    words = [chance.choice((*PIECES, *stolen[-40:])) for _ in range(chance.randint(1, 10))]
    return "".join(words) + " end"


@pytest.mark.parametrize("seed", range(6))
def test_requests_from_every_source(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stolen: list[str] = []

    @tool(safe_to_repeat=True)
    def page_read() -> str:
        """Read something from outside."""
        return noise(chance, stolen)

    def reply(request: ModelRequest) -> Scripted | BaseException:
        stolen.extend(
            re.findall("⟦[^⟦⟧]*⟧", json.dumps([m.text for m in request.messages], ensure_ascii=False))
        )
        stolen.extend(found for body in model.bodies[-1:] for found in _brackets(body))
        asked = last_user(request)
        if request.messages[-1].role == "tool":
            return noise(chance, stolen)
        match asked.partition(" ")[0]:
            case "tool":
                return [call("page_read"), call("memory_recall", {"query": "end hello"})]
            case "ask":
                return call("agents_message", {"agentId": "rose", "content": noise(chance, stolen)})
            case "later":
                text = noise(chance, stolen)
                return call("agents_message", {"agentId": "rose", "content": text, "mode": "async"})
            case "spawn":
                return call(
                    "subagents_spawn", {"task": noise(chance, stolen), "label": noise(chance, stolen)}
                )
            case "note":
                return call("memory_remember", {"content": noise(chance, stolen)})
            case "fail":
                return ModelError(noise(chance, stolen), kind="rejected", can_retry=False)
        return noise(chance, stolen)

    model = FunctionModel(reply)

    async def story() -> None:
        guest = "agent:main:telegram:dm:⟦bob⟧"
        roster = "- {name: rose, description: '⟦x⟧'}\n- {name: main, outside: {tool_allowlist: ['*'], memory: shared}}"
        async with household(tmp_path / "home", model, roster=roster, tools=[page_read]) as house:
            for _ in range(14):
                place = chance.choice((MAIN, MAIN, guest))
                kind = chance.choice(("tool", "ask", "later", "spawn", "note", "fail", "say"))
                await house.say(f"{kind} {noise(chance, stolen)}", place)
                await house.idle(place)
            await house.gateway.sessions.set_agent(MAIN, "rose")
            await house.say(noise(chance, stolen) + " tail")
            for place in (MAIN, guest):
                await house.idle(place)
                exported = await house.gateway.sessions.export(place, "markdown")
                headings = re.findall(r"^## .*⟦\w+⟧$", exported, re.M)
                assert len(headings) == len(await house.history(place))
            # Others may still be at work: whatever was asked by now has its marks in the store, what is asked later may not.
            bodies = list(model.bodies)
            marks = known_marks(house)
        assert len(bodies) > 14
        for body in bodies:
            check_body(body, marks)

    run(story())


def known_marks(house: House) -> set[str]:
    """All that the store knows, and those that are never stored."""
    with sqlite3.connect(house.home / "coterie.db") as database:
        stored = [row[0] for row in database.execute("SELECT mark FROM messages WHERE mark IS NOT NULL")]
        keys = [row[0] for row in database.execute("SELECT key FROM sessions")]
        lines = [row[0] for row in database.execute("SELECT coalesce(message_id, run_id) FROM announcements")]
    database.close()
    passing = {fence.passing_mark(key) for key in keys}
    announced = {fence.mark_of(Message(line, "system", "agent", "")) for line in lines}
    return {mark for marks in stored for mark in marks.split()} | passing | announced


def check_body(body: dict[str, Any], marks: set[str]) -> None:
    *messages, context = [m for m in body["messages"] if m["role"] != "system"]
    for message in messages:
        if message["role"] != "assistant":
            text = str(message["content"])
            check(text, marks, lines=int(bool(re.match(r"\[\w+\] ⟦\w+⟧ ", text))))
    text = context["content"]
    head = re.match(r"<context> (⟦\w+⟧)\n", text)
    assert head is not None and text.endswith(f"\n</context> {head[1]}") and text.count(head[1]) == 2, text
    check(text[len(head[0]) : -len(f"</context> {head[1]}")], marks, lines=0)


def _brackets(body: dict[str, Any]) -> list[str]:
    return re.findall("⟦[^⟦⟧]*⟧", json.dumps(body["messages"], ensure_ascii=False))
