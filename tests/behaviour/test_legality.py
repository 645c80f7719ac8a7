"""I11: whatever happened to a conversation, every request made from it is one that a provider accepts."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie import ToolContext, tool
from coterie.core.errors import CoterieError
from coterie.core.message import Message, Part, Role, TextPart, ThinkingPart, ToolCall
from coterie.core.ports import ModelError, ModelRequest
from coterie.core.transcript import Transcript
from coterie.core.turn import ENDED, TurnState
from coterie.engine.gateway import Receipt
from coterie.models.openai_wire import request_body
from coterie.testing import Piece, Scripted, call
from tests.support.house import MAIN, FunctionModel, House, household, last_user, run, why_illegal

# Damaged rows

IDS = st.sampled_from(["a", "b", "a-2", "call-2", "", "ü"])
PARTS = st.lists(
    st.one_of(
        st.builds(ToolCall, IDS, st.sampled_from(["t", ""]), st.sampled_from(["{}", "", "{broken", "[1]"])),
        st.builds(TextPart, st.sampled_from(["", "text"])),
        st.builds(ThinkingPart, st.just("hm"), st.none() | st.just("sig"), st.just("some/model")),
    ),
    max_size=4,
)
ROLES: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant", "assistant", "tool", "tool", "system"])
METAS = st.sampled_from([None, None, None, {"cancelled": True}, {"aborted": True}, {"error": "x"}])


@st.composite
def rows(draw: st.DrawFn) -> list[Message]:
    """Messages as no sane program would have stored them."""
    found = []
    for seq in range(1, draw(st.integers(0, 12)) + 1):
        role = draw(ROLES)
        parts: tuple[Part, ...] = tuple(draw(PARTS)) if role == "assistant" or draw(st.booleans()) else ()
        found.append(
            Message(
                id=f"m{seq}",
                role=role,
                origin="user",
                text=draw(st.sampled_from(["", "hello"])),
                parts=parts,
                call_id=draw(st.none() | IDS) if role == "tool" else None,
                meta=draw(METAS),
                seq=seq,
            )
        )
    return found


def body(messages: list[Message]) -> dict[str, Any]:
    request = ModelRequest(system="s", tools=(), messages=messages, context="<context>")
    return json.loads(json.dumps(request_body(request)))  # type: ignore[no-any-return]


def sent(transcript: Transcript) -> list[str]:
    return [json.dumps(m) for m in body(transcript.sendable())["messages"]]


@given(rows())
def test_any_rows_make_a_legal_request(messages: list[Message]) -> None:
    assert why_illegal("/chat/completions", body(Transcript(messages).sendable())) is None


@given(rows())
def test_what_was_sent_stays_as_it_was_sent(messages: list[Message]) -> None:
    """Of a request that waited for no result, every message is in the next one, in its place."""
    transcript = Transcript()
    for message in messages:
        settled = len(sent(transcript)) - 1 - len(transcript.open_calls)
        before = sent(transcript)[:settled]
        transcript.append(message)
        assert sent(transcript)[:settled] == before
    assert sent(transcript) == sent(Transcript(messages))


@given(rows(), st.integers(0, 12))
def test_a_summary_in_the_middle_leaves_it_legal(messages: list[Message], through: int) -> None:
    summary = Message("s", "system", "system", "all this", meta={"compaction": {"through": through}}, seq=99)
    transcript = Transcript([*messages, summary])
    assert why_illegal("/chat/completions", body(transcript.sendable())) is None
    transcript.append(Message("n", "user", "user", "next", seq=100))
    assert why_illegal("/chat/completions", body(transcript.sendable())) is None


# A household under random events

CALLS = st.lists(
    st.tuples(st.sampled_from(["once", "again", "no_such"]), st.sampled_from(["own", "", "x", "y"])),
    min_size=1,
    max_size=3,
)
REPLIES = st.one_of(CALLS, CALLS, st.sampled_from(["text", "text", "refused", "busy", "bug"]))
EVENTS = st.one_of(
    st.tuples(st.just("crash"), st.integers(1, 8)),
    st.tuples(st.just("cut"), st.integers(1, 8)),
    st.tuples(st.just("send"), st.integers(0, 2)),
    st.tuples(st.just("let"), st.integers(1, 60)),
    st.tuples(st.just("fork"), st.integers(1, 10)),
    st.tuples(st.just("abort"), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("switch"), st.integers(0, 1)),
    st.tuples(st.just("clear"), st.integers(0, 2)),
)


class World:
    """A household, what was accepted in it, and what its tools did."""

    def __init__(self, replies: list[Any]) -> None:
        self.replies = itertools.cycle(replies) if replies else itertools.repeat("text")
        self.ending = False
        self.effects: list[tuple[str, str]] = []
        self.accepted: list[tuple[Receipt, str]] = []
        self.sessions = [MAIN]
        self.cleared: set[str] = set()
        self.model = FunctionModel(self._reply)
        self._ids = itertools.count()

        @tool
        async def once(context: ToolContext) -> str:
            """Must not happen twice."""
            self.effects.append((context.run_id, context.call_id))
            await asyncio.sleep(0)
            return "done once"

        @tool(safe_to_repeat=True)
        async def again() -> str:
            """May happen twice."""
            await asyncio.sleep(0)
            return "done again"

        self.tools = [once, again]

    async def _reply(self, request: ModelRequest) -> Scripted:
        for _ in range(3):
            await asyncio.sleep(0)
        reply: Any = "text" if self.ending else next(self.replies)
        if reply == "refused":
            return ModelError("no", kind="rejected", can_retry=False)
        if reply == "busy":
            return ["half of it", ModelError("slow", kind="rate_limit", can_retry=True, retry_after=0)]
        if reply == "bug":
            return RuntimeError("a bug")
        if reply == "text":
            return f"answer to {last_user(request)}"
        pieces: list[Piece] = ["I call"]
        for name, call_id in reply:
            pieces.append(call(name, id=f"id{next(self._ids)}" if call_id == "own" else call_id))
        return pieces


async def happens(house: House, world: World, event: tuple[str, int]) -> None:
    """One event; where the power goes off in the middle of it, the next process takes over."""
    what, number = event
    actions: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: _send(house, world, number),
        "abort": lambda: _on_run(world, number, house.gateway.abort),
        "cancel": lambda: _on_run(world, number, house.gateway.cancel_queued),
        "switch": lambda: house.gateway.sessions.set_agent(MAIN, ("main", "rose")[number]),
        "clear": lambda: _clear(house, world, number),
        "fork": lambda: _fork(house, world, number),
        "let": lambda: _let(number),
        "crash": lambda: _busy(house, world),
        "cut": lambda: _busy(house, world),
    }
    if what in ("crash", "cut"):
        house.power.arm(number, kept=what == "crash")
    action = asyncio.ensure_future(actions[what]())
    cut = asyncio.ensure_future(house.power.happened.wait())
    await asyncio.wait([action, cut], return_when=asyncio.FIRST_COMPLETED)
    if house.power.happened.is_set():
        await house.crash()
        await house.restart()
    cut.cancel()
    await asyncio.gather(cut, action, return_exceptions=True)
    if not action.cancelled() and (error := action.exception()) is not None:
        assert isinstance(error, CoterieError), error


async def _busy(house: House, world: World) -> None:
    """Something is under way until the power goes off."""
    await _send(house, world, 0)
    await house.idle()


async def _send(house: House, world: World, number: int) -> None:
    session = world.sessions[number % len(world.sessions)]
    text = f"message {len(world.accepted)}"
    receipt = await house.send(text, session)
    world.accepted.append((receipt, text))


async def _on_run(world: World, number: int, act: Callable[[str], Awaitable[str]]) -> None:
    if world.accepted:
        await act(world.accepted[-1 - number % len(world.accepted)][0].run_id)


async def _clear(house: House, world: World, number: int) -> None:
    session = await house.gateway.sessions.get(world.sessions[number % len(world.sessions)])
    world.cleared.add(session.id)
    await house.gateway.sessions.clear(session.id)


async def _fork(house: House, world: World, number: int) -> None:
    world.sessions.append((await house.gateway.sessions.fork(MAIN, at_seq=number)).id)


async def _let(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def check(house: House, world: World) -> None:
    assert world.model.refused == []
    assert len(set(world.effects)) == len(world.effects), "a call that must not be repeated was"
    by_session: dict[str, list[tuple[str, str]]] = {}
    for receipt, text in world.accepted:
        outcome = await house.gateway.outcome(receipt.run_id)
        assert outcome.state in ENDED
        if receipt.session.id in world.cleared:
            continue
        history = await house.history(receipt.session.id)
        mine = [m for m in history if m.id == receipt.message_id]
        assert len(mine) == 1, f"{text!r} stands {len(mine)} times in the transcript"
        assert mine[0].seq is not None
        if outcome.state is TurnState.CANCELLED:
            assert mine[0].meta == {"cancelled": True}
        else:
            by_session.setdefault(receipt.session.id, []).append((text, receipt.run_id))
        finals = [
            m for m in history if m.run_id == receipt.run_id and m.role == "assistant" and not m.tool_calls
        ]
        if outcome.state is TurnState.DONE:
            assert [m.id for m in finals] == [outcome.message_id]
        if outcome.state is TurnState.ERROR:
            assert any(m.role == "system" and m.run_id == receipt.run_id for m in history)
    for session_id, messages in by_session.items():
        consumed = [
            m.text
            for m in await house.history(session_id)
            if m.run_id in {run_id for _, run_id in messages} and m.origin == "user"
        ]
        assert consumed == [text for text, _ in messages], "overtaken"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("houses")


_number = itertools.count()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(REPLIES, min_size=1, max_size=8), st.lists(EVENTS, min_size=3, max_size=20))
def test_any_interleaving_stays_legal(
    folder: Path, replies: list[Any], events: list[tuple[str, int]]
) -> None:
    async def story() -> None:
        world = World(replies)
        home = folder / str(next(_number))
        async with household(home, world.model, tools=world.tools, roster="- {name: rose}") as house:
            await house.send("hello")
            for event in events:
                await happens(house, world, event)
            world.ending = True
            house.power.at = None
            if house.power.happened.is_set():
                await house.crash()
                await house.restart()
            for session in world.sessions:
                await house.idle(session)
                await house.say("last word", session)
            await check(house, world)

    run(story())
