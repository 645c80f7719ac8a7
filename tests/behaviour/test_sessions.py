"""Sessions: how they are named, whom they stick to, and what can be done with them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import tool
from coterie.core.errors import Conflict, InvalidRequest, NotFound
from coterie.core.message import Message
from coterie.core.ports import ModelRequest
from coterie.core.session import (
    api_key,
    decode_peer,
    dm_key,
    encode_peer,
    group_key,
    main_key,
    parse_key,
    web_key,
)
from coterie.core.turn import TurnState
from coterie.testing import Scripted, call
from tests.support.house import MAIN, FunctionModel, household, last_user, roles, run, until

ROSTER = """
    - {name: rose, label: Rose}
    - {name: miles}
"""


def echo(request: ModelRequest) -> Scripted:
    return f"answer to {last_user(request)}"


# Keys

PEERS = st.one_of(
    st.text(min_size=1, max_size=40),
    st.sampled_from(
        [
            "direct",
            "dm",
            "old",
            "thread",
            "main",
            "group",
            "a:b",
            "%3A",
            "a/b",
            "ANN",
            "-100",
            "007",
            "ü ",
            "::",
        ]
    ),
)


@pytest.mark.parametrize(
    ("key", "kind", "canonical"),
    [
        ("agent:a:main", "main", None),
        ("agent:a:main:old:1", "main", None),
        ("agent:a:dm:5", "dm", None),
        ("agent:a:direct:5", "dm", "agent:a:dm:5"),
        ("agent:a:telegram:dm:5", "dm", None),
        ("agent:a:telegram:direct:5", "dm", "agent:a:telegram:dm:5"),
        ("agent:a:telegram:direct:5:thread:7", "dm", "agent:a:telegram:dm:5:thread:7"),
        ("agent:a:telegram:group:-100", "group", None),
        ("agent:a:telegram:group:-100:thread:7", "group", None),
        ("agent:a:telegram:group:-100:thread:7:old:2", "group", None),
        ("agent:a:subagent:u", "subagent", None),
        ("agent:a:cron:job", "cron", None),
        ("agent:a:web:u", "web", None),
        ("agent:a:api:ann", "api", None),
        # Peers that are called like a word of the grammar are peers.
        ("agent:a:dm:direct", "dm", None),
        ("agent:a:api:direct", "api", None),
        ("agent:a:telegram:dm:direct", "dm", None),
        ("agent:a:telegram:group:direct", "group", None),
        ("agent:a:cron:direct", "cron", None),
        ("agent:a:dm:old", "dm", None),
        ("agent:a:dm:Ann", "dm", None),
    ],
)
def test_forms_of_keys(key: str, kind: str, canonical: str | None) -> None:
    assert parse_key(key) == ("a", kind, canonical or key)
    assert parse_key(canonical or key)[2] == (canonical or key)


@pytest.mark.parametrize(
    "key",
    [
        "agent:a",
        "agent::main",
        "agent:a:",
        "agent:a:nonsense",
        "agent:a:dm:",
        "agent:A:main",
        "agent:../x:main",
        "agent:a:telegram:group:",
        "agent:a:dm:1:2:3",
        "user:a:main",
        "agent:a:dm:" + "x" * 1000,
    ],
)
def test_what_is_no_key(key: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_key(key)


@given(PEERS, st.sampled_from(["telegram", "web:hook", "direct", "Slack"]), st.none() | PEERS)
def test_peers_are_opaque(peer: str, channel: str, thread: str | None) -> None:
    """Whatever a peer is called, its key names it and nobody else."""
    assert decode_peer(encode_peer(peer)) == peer
    keys = [
        dm_key("a", peer),
        dm_key("a", peer, channel),
        group_key("a", channel, peer, thread),
        api_key("a", peer),
    ]
    if all(len(key) <= 1000 for key in keys):
        parsed = [parse_key(key) for key in keys]
        assert [p[1] for p in parsed] == ["dm", "dm", "group", "api"]
        assert decode_peer(parsed[0][2].split(":")[3]) == peer
        assert decode_peer(parsed[1][2].split(":")[4]) == peer
        assert decode_peer(parsed[2][2].split(":")[4]) == peer
        assert decode_peer(parsed[3][2].split(":")[3]) == peer
        assert parsed[3][2] == keys[3]


@given(PEERS, PEERS)
def test_two_peers_never_share_a_key(one: str, other: str) -> None:
    if one != other:
        assert parse_key(dm_key("a", one))[2] != parse_key(dm_key("a", other))[2]
        assert parse_key(api_key("a", one))[2] != parse_key(api_key("a", other))[2]


def test_a_key_or_an_id_finds_it_and_default_is_whoever_it_is_now(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            sessions = house.gateway.sessions
            await house.say("hi", "agent:rose:direct:Ann")
            found = await sessions.get("agent:rose:dm:Ann")
            assert found.key == "agent:rose:dm:Ann" and found.agent_id == "rose"
            assert (await sessions.get(found.id)).key == found.key
            with pytest.raises(NotFound):
                await sessions.get("agent:rose:dm:ann")
            house.gateway.registry.set_default("rose")
            await house.say("hi", "agent:default:main")
            assert (await sessions.get(main_key("rose"))).agent_id == "rose"
            with pytest.raises(NotFound):
                await house.send("hi", web_key("rose", "not-there"))

    run(story())


# Whom a session sticks to


def test_a_session_sticks_to_its_agent_and_null_reads_as_the_default(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            await house.say("hi")
            session = await house.gateway.sessions.get(MAIN)
            house.gateway.registry.set_default("rose")
            await house.say("again")
            assert (await house.history())[-1].agent_id == "main"
            with house.power.write() as tx:
                tx.sessions.save(replace(session, agent_id=None))
            await house.say("and again")
            assert (await house.history())[-1].agent_id == "rose"
            assert (await house.gateway.sessions.get(MAIN)).agent_id is None  # no backfill
            house.gateway.registry.set_default("miles")
            await house.say("once more")
            assert [m.agent_id for m in await house.history()] == ["main"] * 4 + ["rose"] * 2 + ["miles"] * 2
            listed, _ = await house.gateway.sessions.list(agent_id="miles")
            assert [s.id for s in listed] == [session.id]

    run(story())


def test_a_new_session_takes_the_agent_that_was_viewed(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            sessions = house.gateway.sessions
            rose = await sessions.create(agent_id="rose", name="  with   Rose ")
            assert (rose.name, rose.key) == ("with Rose", f"agent:rose:web:{rose.id}")
            assert (await sessions.create(from_session=rose.key)).agent_id == "rose"
            await sessions.set_agent(rose.id, "miles")
            assert (await sessions.create(from_session=rose.id)).agent_id == "miles"
            assert (await sessions.create()).agent_id == "main"
            with pytest.raises(NotFound):
                await sessions.create(agent_id="nobody")
            with pytest.raises(NotFound):
                await sessions.create(from_session="nothing")

    run(story())


def test_sessions_of_an_archived_agent_run_as_the_default_with_one_warning(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            key = main_key("rose")
            await house.say("hi", key)
            house.gateway.registry.delete("rose")
            for n in range(3):
                await house.say(f"message {n}", key)
            assert (await house.gateway.sessions.get(key)).agent_id == "rose"
            assert [m.agent_id for m in await house.history(key)] == ["rose"] * 2 + ["main"] * 6
            house.gateway.registry.restore("rose")
            await house.say("back", key)
            assert (await house.history(key))[-1].agent_id == "rose"
            # A person may also settle it for good.
            house.gateway.registry.delete("rose")
            await house.gateway.sessions.set_agent(key, "main")
            house.gateway.registry.restore("rose")
            await house.say("stays", key)
            assert (await house.history(key))[-1].agent_id == "main"

    with caplog.at_level(logging.WARNING):
        run(story())
    assert sum("rose is not active" in r.message for r in caplog.records) == 1


# Fork and renew


def test_a_fork_has_the_agent_the_history_and_the_overrides(home: Path) -> None:
    async def story() -> None:
        model = FunctionModel(echo)
        async with household(home, model, roster=ROSTER) as house:
            sessions = house.gateway.sessions
            source = await sessions.create(agent_id="rose", name="Trip")
            for n in range(3):
                await house.say(f"message {n}", source.id)
            await sessions.patch(source.id, model="other/model", attributes={"color": "red"})
            await sessions.set_agent(source.id, "miles")
            fork = await sessions.fork(source.id, at_seq=4)
            assert (fork.agent_id, fork.model, fork.parent_id) == ("miles", "other/model", source.id)
            assert fork.attributes == {"color": "red"} and fork.name == "Trip"
            old, new = await house.history(source.id), await house.history(fork.id)
            assert [(m.role, m.text, m.origin, m.agent_id, m.created_at) for m in new] == [
                (m.role, m.text, m.origin, m.agent_id, m.created_at) for m in old[:4]
            ]
            assert not {m.id for m in old} & {m.id for m in new}
            await house.say("only here", fork.id)
            assert house.asked_for[-1] == "other/model"
            assert len(await house.history(source.id)) == 7  # the marker is the seventh
            assert [m["content"] for m in model.bodies[-1]["messages"][1:-1]] == [
                *(m.text for m in old[:4]),
                "only here",
            ]
            assert len(await house.history((await sessions.fork(source.id)).id)) == 7
            assert await house.history((await sessions.fork(source.id, at_seq=0)).id) == []

    run(story())


def test_a_fork_in_the_middle_of_a_round_can_go_on(home: Path) -> None:
    async def story() -> None:
        begun, end = asyncio.Event(), asyncio.Event()

        @tool
        async def work() -> str:
            """Take a while."""
            begun.set()
            await end.wait()
            return "worked"

        def reply(request: ModelRequest) -> Scripted:
            return call("work") if last_user(request) == "task" and len(request.messages) == 1 else "fine"

        model = FunctionModel(reply)
        async with household(home, model, tools=[work]) as house:
            first = await house.send("task")
            await begun.wait()
            fork = await house.gateway.sessions.fork(MAIN)
            assert (await house.say("and here?", fork.id)).text == "fine"
            end.set()
            assert (await house.outcome(first)).text == "fine"
            assert model.refused == []
            assert [m.text for m in await house.history() if m.role == "tool"] == ["worked"]

    run(story())


def test_new_hands_the_key_over(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            sessions = house.gateway.sessions
            key = "agent:rose:telegram:dm:Ann"
            olds = []
            for n in range(3):
                await house.say(f"message {n}", key)
                await sessions.set_agent(key, "miles")
                before = await sessions.get(key)
                fresh = await sessions.renew(key)
                assert (fresh.key, fresh.agent_id, fresh.kind) == (key, "miles", "dm")
                assert fresh.id != before.id and await house.history(key) == []
                olds.append(before.id)
            for n, session_id in enumerate(olds):
                old = await sessions.get(session_id)
                assert old.key == f"{key}:old:{n + 1}"
                assert (await sessions.get(old.key)).id == session_id
                assert (await house.history(old.key))[0].text == f"message {n}"
            # The old one can still be talked to.
            assert (await house.say("hello", f"{key}:old:1")).state is TurnState.DONE

    run(story())


# Switching


def test_a_switch_on_an_idle_session_leaves_a_marker(home: Path) -> None:
    async def story() -> None:
        model = FunctionModel(echo)
        async with household(home, model, roster=ROSTER) as house:
            await house.say("hi")
            switched = await house.gateway.sessions.set_agent(MAIN, "rose")
            assert (switched.key, switched.agent_id) == (MAIN, "rose")
            await house.gateway.sessions.set_agent(MAIN, "rose")  # nothing to do
            await house.say("who is there?")
            history = await house.history()
            marker = history[2]
            assert (marker.role, marker.origin, marker.text) == (
                "system",
                "system",
                "Rose took over this conversation.",
            )
            assert marker.meta == {"switch": {"from": "main", "to": "rose"}}
            assert roles(history) == ["user", "assistant", "system", "user", "assistant"]
            assert [m.agent_id for m in history if m.role == "assistant"] == ["main", "rose"]
            with pytest.raises(NotFound):
                await house.gateway.sessions.set_agent(MAIN, "nobody")
            house.gateway.registry.delete("miles")
            with pytest.raises(Conflict):
                await house.gateway.sessions.set_agent(MAIN, "miles")

    run(story())


def test_a_switch_in_mid_turn_lets_it_finish_and_absorbs_nothing(home: Path) -> None:
    async def story() -> None:
        asked: list[tuple[str, str]] = []

        async def reply(request: ModelRequest) -> Scripted:
            text = last_user(request)
            done = sum(m.role == "tool" for m in request.messages)
            asked.append((request.system.splitlines()[0], text))
            if text == "task" and done == 2:
                await house.gateway.sessions.set_agent(session.id, "miles")
                await house.send("after", session.id)
            return call("system_time") if text == "task" and done < 4 else f"answer to {text}"

        roster = "- {name: rose, system_prompt: Rose.}\n- {name: miles, system_prompt: Miles.}"
        model = FunctionModel(reply)
        async with household(home, model, roster=roster) as house:
            session = await house.gateway.sessions.create(agent_id="rose")
            task = await house.send("task", session.id)
            assert (await house.outcome(task)).text == "answer to task"
            await house.idle(session.id)
            assert asked == [("Rose.", "task")] * 5 + [("Miles.", "after")]
            history = await house.history(session.id)
            marker = next(i for i, m in enumerate(history) if m.meta and "switch" in m.meta)
            assert {m.agent_id for m in history[:marker]} == {"rose"}
            assert [m.text for m in history[marker + 1 :]] == ["after", "answer to after"]
            assert {m.agent_id for m in history[marker + 1 :]} == {"miles"}
            assert model.refused == []

    run(story())


def test_a_marker_that_waits_behind_a_turn_survives_a_crash(home: Path) -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def reply(request: ModelRequest) -> Scripted:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return f"{request.system.splitlines()[0]} to {last_user(request)}"

        roster = "- {name: rose, system_prompt: Rose.}\n- {name: miles, system_prompt: Miles.}"
        async with household(home, FunctionModel(reply), roster=roster) as house:
            key = main_key("rose")
            first = await house.send("one", key)
            await begun.wait()
            await house.gateway.sessions.set_agent(key, "miles")
            second = await house.send("two", key)
            await house.crash()
            await house.restart()
            # The turn goes on with the agent that began it; the next one is the new agent's.
            assert (await house.outcome(first)).text == "Rose. to one"
            assert (await house.outcome(second)).text == "Miles. to two"
            texts = [m.text for m in await house.history(key)]
            assert texts == [
                "one",
                "Rose. to one",
                "miles took over this conversation.",
                "two",
                "Miles. to two",
            ]

    run(story())


# Clear and delete


@pytest.mark.parametrize("what", ["clear", "delete"])
def test_clear_and_delete_stop_what_runs_first(home: Path, what: str) -> None:
    async def story() -> None:
        begun: list[str] = []

        async def reply(request: ModelRequest) -> Scripted:
            begun.append(last_user(request))
            if last_user(request) == "long":
                await asyncio.Event().wait()
            return echo(request)

        async with household(home, FunctionModel(reply)) as house:
            await house.say("before")
            session = await house.gateway.sessions.patch(MAIN, name="Kept", attributes={"a": 1}, pinned=True)
            long = await house.send("long")
            queued = await house.send("queued")
            await until(lambda: "long" in begun)
            followers = [asyncio.create_task(house.events(r.run_id)) for r in (long, queued)]
            await asyncio.sleep(0)
            if what == "clear":
                await house.gateway.sessions.clear(MAIN)
            else:
                await house.gateway.sessions.delete(MAIN)
            assert [(await f)[-1].state for f in followers] == ["aborted", "aborted"]
            if what == "clear":
                cleared = await house.gateway.sessions.get(MAIN)
                assert (cleared.id, cleared.name, cleared.attributes) == (session.id, "Kept", {"a": 1})
                assert cleared.pinned_at is not None and cleared.last_snippet is None
                assert (await house.gateway.outcome(long.run_id)).state is TurnState.ABORTED
                assert (await house.gateway.outcome(queued.run_id)).state is TurnState.CANCELLED
                assert await house.history() == []
            else:
                with pytest.raises(NotFound):
                    await house.gateway.sessions.get(session.id)
                with pytest.raises(NotFound):
                    await house.gateway.outcome(long.run_id)
            assert (await house.say("after")).text == "answer to after"
            assert [m.text for m in await house.history()] == ["after", "answer to after"]
            assert begun == ["before", "long", "after"]

    run(story())


def test_clear_at_the_same_moment_as_an_abort(home: Path) -> None:
    async def story() -> None:
        begun: list[str] = []

        async def reply(request: ModelRequest) -> Scripted:
            begun.append(last_user(request))
            await asyncio.Event().wait()
            return "never"

        async with household(home, FunctionModel(reply)) as house:
            receipts = [await house.send(f"message {n}") for n in range(3)]
            await until(lambda: begun)
            await asyncio.gather(house.gateway.abort(receipts[0].run_id), house.gateway.sessions.clear(MAIN))
            assert begun == ["message 0"]
            assert await house.history() == []
            assert (await house.gateway.queue(MAIN))[1] == []

    run(story())


# Names, pins, attributes, lists


def test_rename_pin_attributes_and_the_order_of_the_list(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            sessions = house.gateway.sessions
            made = [await sessions.create(agent_id="rose", name=f"s{n}") for n in range(4)]

            async def names() -> list[str | None]:
                return [s.name for s in (await sessions.list(agent_id="rose"))[0]]

            assert await names() == ["s3", "s2", "s1", "s0"]
            await sessions.patch(made[0].id, attributes={"k": {"Camel_Key": 1}, "gone": 1})
            assert (await names())[0] == "s0"
            await sessions.patch(made[1].id, pinned=True)
            await sessions.patch(made[2].id, pinned=True)
            await sessions.patch(made[0].id, name="renamed", attributes={"gone": None})
            assert await names() == ["s2", "s1", "renamed", "s3"]
            await sessions.patch(made[2].id, pinned=False)
            assert (await names())[0] == "s1"
            kept = await sessions.get(made[0].id)
            assert kept.attributes == {"k": {"Camel_Key": 1}}
            assert (await sessions.patch(made[0].id, name="")).name is None
            assert await sessions.list(agent_id="miles") == ([], None)
            for wrong in ({"name": "x" * 201}, {"attributes": {"x": "y" * 70_000}}):
                with pytest.raises(InvalidRequest):
                    await sessions.patch(made[0].id, **wrong)

    run(story())


@pytest.mark.parametrize("pins", [0, 1, 3, 5, 7])
def test_pages_of_the_list_hold_every_session_once(home: Path, pins: int) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            sessions = house.gateway.sessions
            for number in range(7):
                made = await sessions.create(agent_id="rose", name=f"s{number}")
                if number < pins:
                    await sessions.patch(made.id, pinned=True)
            whole = [s.id for s in (await sessions.list(agent_id="rose"))[0]]
            paged: list[str] = []
            cursor: str | None = None
            while True:
                page, cursor = await sessions.list(agent_id="rose", limit=2, after=cursor)
                paged += [s.id for s in page]
                if cursor is None:
                    break
            assert paged == whole
            with pytest.raises(InvalidRequest):
                await sessions.list(after="yesterday")

    run(story())


def test_a_conversation_that_nobody_used_yet_can_be_named_and_handed_over(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            sessions = house.gateway.sessions
            assert (await sessions.patch("agent:rose:main", name="Rose")).name == "Rose"
            assert (await sessions.set_agent("agent:miles:main", "rose")).agent_id == "rose"
            with pytest.raises(NotFound):
                await sessions.patch("agent:rose:web:nothing", name="x")

    run(story())


def test_latest_is_the_most_recently_updated_live_one(home: Path) -> None:
    async def story() -> None:
        async with household(home, FunctionModel(echo), roster=ROSTER) as house:
            sessions = house.gateway.sessions
            one = await sessions.create(agent_id="rose")
            two = await sessions.create(agent_id="rose")

            def latest() -> str | None:
                with house.power.read() as tx:
                    found = tx.sessions.latest(["rose"], "owner")
                return found.id if found else None

            assert latest() == two.id
            await house.say("hi", one.id)
            assert latest() == one.id
            await sessions.patch(two.id, pinned=True)
            assert latest() == two.id
            await sessions.patch(one.id, attributes={"x": 1})
            assert latest() == one.id
            await sessions.patch(two.id, name="x")
            assert latest() == two.id
            for kind in ("subagent", "cron"):
                aside = replace(two, id=kind, key=f"agent:rose:{kind}:1", kind=kind, updated_at="9")
                with house.power.write() as tx:
                    tx.sessions.add(aside)
            assert latest() == two.id

    run(story())


def test_history_pages_in_both_directions(home: Path) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def reply(request: ModelRequest) -> Scripted:
            if last_user(request) == "hold":
                await gate.wait()
            return echo(request)

        async with household(home, FunctionModel(reply)) as house:
            for n in range(5):
                await house.say(f"message {n}")
            await house.send("hold")
            waiting = await house.send("waits")
            await asyncio.sleep(0.01)
            sessions = house.gateway.sessions
            forward: list[Message] = []
            after: int | None = 0
            while after is not None:
                _, page = await sessions.history(MAIN, limit=4, after=after)
                forward += page.messages
                after = page.next_cursor
            backward: list[Message] = []
            before: int | None = None
            while True:
                _, page = await sessions.history(MAIN, limit=4, before=before)
                backward = [*page.messages, *backward]
                before = page.next_cursor
                if before is None:
                    break
            assert [m.id for m in forward] == [m.id for m in backward]
            assert [m.seq for m in forward] == [*range(1, 12), None]
            assert forward[-1].id == waiting.message_id
            gate.set()
            await house.outcome(waiting)

    run(story())


# Search and export


def test_search_and_export_show_who_said_what(home: Path) -> None:
    async def story() -> None:
        def reply(request: ModelRequest) -> Scripted:
            if request.messages[-1].role == "user" and "time" in last_user(request):
                return ["I look", call("system_time")]
            return echo(request)

        async with household(home, FunctionModel(reply), roster=ROSTER) as house:
            await house.say("The BOAT at 100%", main_key("rose"))
            await house.say("what time is it?", main_key("rose"))
            await house.gateway.submit(
                main_key("rose"), "a boat from afar", origin="external", meta={"Key_Of": "mine"}
            )
            await house.idle(main_key("rose"))
            await house.say("no boat here", main_key("miles"))
            await house.gateway.sessions.set_agent(main_key("rose"), "miles")

            async def found(query: str, agent: str | None = None) -> list[str]:
                hits = await house.gateway.sessions.search(query, agent_id=agent, limit=50)
                return [m.text for _, m in hits if m.role == "user"]

            assert await found("boat") == ["no boat here", "a boat from afar", "The BOAT at 100%"]
            assert await found("100%") == ["The BOAT at 100%"]
            assert await found("100_") == []
            assert await found("boat", "miles") == ["no boat here", "a boat from afar", "The BOAT at 100%"]
            with pytest.raises(InvalidRequest):
                await found(" ")

            lines = [
                json.loads(line)
                for line in (await house.gateway.sessions.export(main_key("rose"), "jsonl")).splitlines()
            ]
            history = await house.history(main_key("rose"))
            assert [line["id"] for line in lines] == [m.id for m in history]
            assert all(line["origin"] and line["agent_id"] for line in lines)
            check_origins(history)
            external = next(line for line in lines if line["origin"] == "external")
            assert external["meta"] == {"Key_Of": "mine"}
            markdown = await house.gateway.sessions.export(main_key("rose"), "markdown")
            for text in (
                "The BOAT at 100%",
                "I look",
                "`system_time({})`",
                "## Client",
                "## rose",
                "took over",
            ):
                assert text in markdown
            # A fork keeps every origin.
            fork = await house.gateway.sessions.fork(main_key("rose"))
            assert [(m.origin, m.meta) for m in await house.history(fork.id)] == [
                (m.origin, m.meta) for m in history
            ]

    run(story())


def check_origins(history: Sequence[Message]) -> None:
    expected = {"assistant": {"agent"}, "tool": {"agent"}, "system": {"system"}, "user": {"user", "external"}}
    for message in history:
        assert message.origin in expected[message.role]
