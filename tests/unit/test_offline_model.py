"""The offline model: what it shows, and that it never pretends and never loops."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.message import ImagePart, Message, TextPart, ToolCall
from coterie.core.ports import ModelRequest, Reply, TextDelta, ToolSchema
from coterie.models.offline import LOOKS, OfflineModel, respond
from coterie.models.tour import STEPS

TOOLS = tuple(
    ToolSchema(name, "", {"type": "object"})
    for name in ("system_time", "files_list", "files_write", "files_read")
)


def user(text: str) -> Message:
    return Message(id="u", role="user", origin="user", text=text)


def asked_for(*calls: ToolCall) -> Message:
    return Message(id="a", role="assistant", origin="user", text="", parts=calls)


def result(call: ToolCall, text: str) -> Message:
    return Message(id="t", role="tool", origin="user", text=text, call_id=call.id, tool_name=call.name)


def reply_to(*messages: Message, tools: tuple[ToolSchema, ...] = TOOLS, context: str | None = None) -> Reply:
    async def collect() -> Reply:
        model = OfflineModel(pauses=False)
        assert model.name == "offline/demo"
        *deltas, reply = [event async for event in model.stream(ModelRequest("", tools, messages, context))]
        assert isinstance(reply, Reply)
        said = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
        assert "".join(event.text for event in deltas if isinstance(event, TextDelta)) == said
        assert all(isinstance(event, TextDelta) and len(event.text.split()) <= 1 for event in deltas)
        return reply

    return asyncio.run(collect())


def text_of(reply: Reply) -> str:
    (part,) = reply.parts
    assert isinstance(part, TextPart)
    assert reply.finish == "stop"
    return part.text


def call_of(reply: Reply) -> ToolCall:
    (part,) = reply.parts
    assert isinstance(part, ToolCall)
    assert reply.finish == "tool_calls"
    return part


def test_it_says_that_it_is_no_language_model_and_what_it_heard() -> None:
    text = text_of(reply_to(user("Who wrote Faust?")))
    assert "not a language model" in text
    assert "Who wrote Faust?" in text
    assert "what time is it" in text
    assert "Goethe" not in text


def test_it_promises_only_tools_that_it_was_given() -> None:
    text = text_of(reply_to(user("hello"), tools=TOOLS[:1]))
    assert "what time is it" in text
    assert "list files" not in text
    assert "system_time" in text_of(reply_to(user("what time is it?"), tools=TOOLS[1:]))
    assert "can only repeat" in text_of(reply_to(user("hello"), tools=()))


@pytest.mark.parametrize(
    ("said", "tool", "arguments"),
    [
        ("What time is it?", "system_time", {}),
        ("please list all my files", "files_list", {}),
        (
            "write milk, eggs to shopping.txt",
            "files_write",
            {"path": "shopping.txt", "content": "milk, eggs"},
        ),
        (
            "Write 'to be or not to be' to play",
            "files_write",
            {"path": "play", "content": "to be or not to be"},
        ),
        ("Could you read notes/a.txt?", "files_read", {"path": "notes/a.txt"}),
        ("read play", "files_read", {"path": "play"}),
    ],
)
def test_it_calls_the_tool_that_was_asked_for(said: str, tool: str, arguments: dict[str, str]) -> None:
    call = call_of(reply_to(user("hello"), user(said)))
    assert (call.name, json.loads(call.arguments)) == (tool, arguments)


@pytest.mark.parametrize(
    "said", ["I read the news today", "I write a letter to grandma every week", "sometimes"]
)
def test_ordinary_sentences_are_no_commands(said: str) -> None:
    assert said in text_of(reply_to(user(said)))


@pytest.mark.parametrize(
    "outcome",
    ["2026-11-15T08:00:00+01:00 Sunday", "refused: policy of this agent", "skipped: a new message arrived"],
)
def test_it_passes_on_what_the_tool_answered_and_stops(outcome: str) -> None:
    call = ToolCall("c1", "system_time", "{}")
    text = text_of(reply_to(user("what time is it"), asked_for(call), result(call, outcome)))
    assert f"system_time answered: {outcome}" in text
    assert "not a language model" in text


def test_old_results_do_not_answer_a_new_question() -> None:
    call = ToolCall("c1", "system_time", "{}")
    again = reply_to(user("what time is it"), asked_for(call), result(call, "noon"), user("what time is it"))
    assert call_of(again).id != "c1"


def test_a_backlog_takes_up_the_skipped_call() -> None:
    call = ToolCall("c1", "files_write", '{"path": "a",  "content": "b"}')
    steered = [
        user("write b to a"),
        asked_for(call),
        result(call, "skipped: a new message arrived"),
        user("hello"),
    ]
    backlog = user("[Backlog] You were interrupted. The task: read x.txt")
    taken_up = call_of(reply_to(*steered, backlog))
    assert (taken_up.name, taken_up.arguments) == (call.name, call.arguments)
    assert taken_up.id != call.id
    text = text_of(reply_to(*steered, backlog, asked_for(taken_up), result(taken_up, "wrote 1 character")))
    assert "wrote 1 character" in text
    assert "cannot be made" in text_of(reply_to(*steered, backlog, tools=()))


def test_a_backlog_with_nothing_skipped_reports_or_says_so() -> None:
    call = ToolCall("c1", "system_time", "{}")
    done = [
        user("what time is it"),
        asked_for(call),
        result(call, "noon"),
        user("hello"),
        user("[Backlog] go on"),
    ]
    assert "noon" in text_of(reply_to(*done))
    assert "Nothing of the interrupted task" in text_of(reply_to(user("hello"), user("[Backlog] read x.txt")))


def test_long_messages_are_not_repeated_whole() -> None:
    assert len(text_of(reply_to(user("write to " * 600_000)))) < 1000
    assert "not a language model" in text_of(reply_to())


@given(st.text(), st.booleans())
def test_no_message_makes_it_call_for_ever(said: str, backlog: bool) -> None:
    first = ToolCall("c0", "files_list", "{}")
    messages = [user("list files"), asked_for(first), result(first, "skipped")]
    messages.append(user(f"[Backlog] {said}" if backlog else said))
    for _ in range(2):
        reply = reply_to(*messages, context="list files, what time is it")
        calls = [part for part in reply.parts if isinstance(part, ToolCall)]
        if not calls:
            return
        messages += [asked_for(*calls), *(result(call, "skipped") for call in calls)]
    pytest.fail("it called twice for one message")


def said(reply: Reply) -> Message:
    text = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
    return Message(id="a", role="assistant", origin="agent", text=text, parts=reply.parts)


def test_a_newcomer_is_led_around() -> None:
    messages = [user("Hello!")]
    messages.append(said(reply_to(*messages)))
    assert "show me around" in messages[-1].text
    messages.append(user("show me around"))
    titles = []
    while True:
        reply = reply_to(*messages)
        text = text_of(reply)
        titles += [step.title for step in STEPS if f": {step.title}. " in text]
        if "Say “next”" not in text:
            break
        messages += [said(reply), user("what time is it")]
        call = call_of(reply_to(*messages))
        messages += [asked_for(call), result(call, "noon")]
        reply = reply_to(*messages)
        assert "“next” to go on with the tour" in text_of(reply)
        messages += [said(reply), user("next")]
    assert titles == [step.title for step in STEPS]
    assert "That was the tour" in text
    # It is over: "next" is a word like any other now.
    again = text_of(reply_to(*messages, said(reply), user("next")))
    assert "You said: “next”" in again and "show me around" in again
    everything = "".join(message.text for message in messages if message.role == "assistant")
    assert everything.count("not a language model") == 1, "it says so once, and not in every reply"
    assert "not a language model" in messages[1].text


def test_a_tour_shows_only_what_the_agent_has() -> None:
    messages = [user("show me around")]
    shown = ""
    while "That was the tour" not in shown:
        reply = reply_to(*messages, tools=TOOLS[1:])
        shown += text_of(reply)
        messages += [said(reply), user("next")]
    assert "Step 3 of 3" in shown
    assert "what time is it" not in shown and "watch the clock" not in shown


@pytest.mark.parametrize("interrupted_at", [None, 0, 1, 3])
def test_watching_the_clock_goes_on_after_an_interruption_and_ends(interrupted_at: int | None) -> None:
    messages = [user("Watch the clock, please.")]
    looks = 0
    while True:
        reply = reply_to(*messages)
        calls = [part for part in reply.parts if isinstance(part, ToolCall)]
        if not calls:
            break
        messages.append(replace(asked_for(*calls), text=f"Look {looks + 1}"))
        if looks == interrupted_at:
            interrupted_at = None
            messages += [result(calls[0], "skipped: a new message came first."), user("who are you?")]
            aside = reply_to(*messages)
            assert "You said: “who are you?”" in text_of(aside)
            messages += [said(aside), user("[Backlog] Go on with the task: “Watch the clock, please.”.")]
            continue
        looks += 1
        assert looks <= LOOKS
        messages.append(result(calls[0], f"noon and {looks} seconds"))
    assert looks == LOOKS
    assert f"noon and {looks} seconds" in text_of(reply)


def test_it_says_that_it_cannot_see() -> None:
    picture = replace(user("what is this?"), parts=(ImagePart("image/png", b"1234"),))
    text = text_of(reply_to(picture))
    assert "an image (image/png, 4 bytes), which I cannot see" in text
    assert "not a language model" in text


PEERS = "You are main.\n\nAgents you can ask with agents_message; …:\n- rose (Rose): Knows plants\n- dot"
TOGETHER = tuple(
    ToolSchema(name, "", {"type": "object"})
    for name in ("agents_message", "agents_switch", "subagents_spawn")
)


@pytest.mark.parametrize(
    ("said", "tool", "arguments"),
    [
        (
            "ask rose: which soil?",
            "agents_message",
            {"agentId": "rose", "content": "which soil?", "mode": "sync"},
        ),
        ("Tell Dot it rains", "agents_message", {"agentId": "dot", "content": "it rains", "mode": "async"}),
        ("go to rose and discuss soil", "agents_switch", {"agentId": "rose", "message": "soil"}),
        ("switch to dot", "agents_switch", {"agentId": "dot"}),
        ("spawn a subagent to count planks", "subagents_spawn", {"task": "count planks"}),
    ],
)
def test_it_shows_agents_at_work(said: str, tool: str, arguments: dict[str, str]) -> None:
    made = respond(ModelRequest(PEERS, TOGETHER, [user(said)]))
    assert (made.tool, json.loads(made.arguments or "")) == (tool, arguments)


@pytest.mark.parametrize("said", ["ask me anything", "tell nobody about it", "go to bed", "ask"])
def test_it_takes_no_other_word_for_an_agent(said: str) -> None:
    assert respond(ModelRequest(PEERS, TOGETHER, [user(said)])).tool is None


def test_it_passes_on_what_others_brought() -> None:
    line = Message(id="s", role="system", origin="agent", text="[@agent:Rose#rose] finish")
    context = "results: …\n⟦ab result of Rose#rose, ok, run r, task: x⟧\nloam\n⟦/ab⟧"
    said = respond(ModelRequest(PEERS, TOGETHER, [user("spawn x"), line], context)).text
    assert "Rose is done (ok): loam" in said and "not a language model" in said
