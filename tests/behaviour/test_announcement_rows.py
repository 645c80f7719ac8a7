"""Runs, announcements and wakes as both databases keep them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy.exc import IntegrityError

from coterie.core.agent import Agent, AgentState
from coterie.core.announce import SubagentRun
from coterie.core.audience import OWNER
from coterie.core.message import Message, Usage
from coterie.core.session import Session
from coterie.core.turn import Claim, InboxEntry, TurnJob, TurnState
from coterie.engine.events import Events
from coterie.engine.household.brain import Brains
from coterie.engine.turns.announcing import close_run, results_for, settle
from coterie.engine.turns.change import TurnChange
from coterie.engine.turns.transcripts import Transcripts
from coterie.engine.turns.turns import Turns
from coterie.engine.turns.waking import LocalWaker
from coterie.store.database import Database
from coterie.store.transaction import Transaction
from coterie.store.turn_writes import TurnWrites

AT = "2026-05-01T08:00:00.000000Z"
CLAIM = Claim("test", 1)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = "sqlite:///coterie.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Database.connect(url, tmp_path)
    made.bring_forward(tmp_path / "backups")
    with made.write() as tx:
        tx.agents.save([Agent("main", "Main", True, AgentState.ACTIVE, {}, AT, AT)])
        tx.sessions.add(Session("parent", "agent:main:main", "main", "main", created_at=AT, updated_at=AT))
    yield made
    made.close()


def ask(database: Database, number: int, *, announce: bool = True) -> TurnJob:
    """A child of the parent's, under way."""
    run_id, session_id = f"run{number}", f"child{number}"
    job = TurnJob(
        run_id,
        session_id,
        f"m{number}",
        TurnState.QUEUED,
        kind="request",
        trace_id="t",
        hop=1,
        chain=("main",),
        timeout_s=9,
        created_at=AT,
    )
    with database.write() as tx:
        key = f"agent:main:subagent:{session_id}"
        tx.sessions.add(
            Session(session_id, key, "main", "subagent", created_at=AT, updated_at=AT, tools=("files_*",))
        )
        tx.runs.add(
            SubagentRun(
                run_id=run_id,
                kind="subagent",
                agent_id="main",
                session_id=session_id,
                session_key=key,
                task=f"task {number}",
                model="m/m",
                trace_id="t",
                hop=1,
                chain=("main",),
                created_at=f"2026-05-01T08:00:00.{number:06}Z",
                requester_session_id="parent",
                requester_session_key="agent:main:main",
                requester_agent_id="main",
                requester_run_id="asking",
                call_id=f"call{number}",
                announce=announce,
            )
        )
        entry = InboxEntry(session_id, f"m{number}", run_id, "main", "user", "agent", "go", None, AT)
        TurnWrites(tx.connection).submit(job, entry)
    with database.write() as tx:
        work = tx.turns.next_work(session_id)
        assert work is not None
        assert (work.job, work.session.tools) == (job, ("files_*",))
        writes = TurnWrites(tx.connection)
        writes.claim(run_id, CLAIM, agent_id="main", audience="owner", at=AT)
        for one in work.entries:
            writes.take(one)
        tx.runs.start(run_id, AT)
    return job


def changing(database: Database, tx: Transaction) -> TurnChange:
    """A transaction of the owner of turns; nobody here asks who an agent is."""
    turns = Turns(database, CLAIM, cast(Brains, None), LocalWaker(), Events(), Transcripts(database))
    return TurnChange(turns, tx, None)


def end(database: Database, job: TurnJob, text: str = "done") -> None:
    with database.write() as tx:
        session = tx.sessions.find(job.session_id)
        assert session is not None
        used = Usage(3, 4, 0, 0.5)
        final = Message(f"final-{job.run_id}", "assistant", "agent", text, created_at=AT)
        change = changing(database, tx)
        change.step(replace(job, agent_id="main"), usage=used, cost=0.5, final=final)
        change.answered(session, job, final, used, announced=True)


def test_an_end_leaves_one_announcement_one_line_and_one_wake(database: Database) -> None:
    jobs = [ask(database, number) for number in range(3)]
    for job in jobs:
        end(database, job, f"result of {job.run_id}")
    with database.read() as tx:
        assert [e.text for e in tx.turns.noted("parent")] == ["[@agent:Main#main] finish"] * 3
        assert tx.turns.next_work("parent") is None
        wake = tx.turns.queued_wake("parent")
        assert wake is not None
        assert (wake.kind, wake.trace_id, wake.hop, wake.chain) == ("wake", "t", 0, ())
        assert tx.turns.sessions_with_work() == ["parent"]
        shown = tx.announcements.shown("parent")
        assert [one.run_id for one in shown] == ["run0", "run1", "run2"]
        done = tx.runs.get("run0")
        assert done is not None
        assert (done.status, done.result, done.usage) == ("completed", "result of run0", Usage(3, 4, 0, 0.5))
        used = tx.turns.used_by_trace("t")
        assert (used.turns, used.begun, used.usage.input_tokens, used.since) == (4, 3, 9, AT)


def test_a_run_ends_once(database: Database) -> None:
    job = ask(database, 1)
    end(database, job)
    with database.write() as tx:
        assert close_run(tx, job, TurnState.ERROR, AT, "", "too late") is None
    with database.read() as tx:
        done = tx.runs.get(job.run_id)
        assert done is not None and done.status == "completed"
        assert len(tx.turns.noted("parent")) == 1


def test_children_that_end_at_the_same_moment_leave_one_wake(database: Database) -> None:
    jobs = [ask(database, number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: end(database, job), jobs))
    with database.read() as tx:
        assert len(tx.announcements.shown("parent")) == 8
        assert len(tx.turns.noted("parent")) == 8
        assert len([j for j in tx.turns.unfinished("parent") if j.kind == "wake"]) == 1
        assert not tx.runs.some_are_live("parent")


def test_a_call_begins_one_run(database: Database) -> None:
    ask(database, 1)
    with database.read() as tx:
        found = tx.runs.begun_by("asking", "call1")
        assert found is not None and found.run_id == "run1"
        assert tx.runs.begun_by("asking", "call2") is None
    with pytest.raises(IntegrityError), database.write() as tx:
        tx.runs.add(replace(found, run_id="another"))


def test_who_answers_for_what(database: Database) -> None:
    """A turn in between shows results; the wake answers for them; what fails stays open."""
    first, second = ask(database, 1), ask(database, 2)
    end(database, first)
    asked = TurnJob("said", "parent", "mm", TurnState.QUEUED, trace_id="said", created_at=AT)
    with database.write() as tx:
        assert [one.turn_id for one in results_for(tx, asked)] == [None]
    end(database, second)
    with database.write() as tx:
        wake = tx.turns.queued_wake("parent")
        assert wake is not None
        assert [one.turn_id for one in results_for(tx, wake)] == [wake.run_id] * 2
        parent = tx.sessions.find("parent")
        assert parent is not None
        assert changing(database, tx).end(parent, wake, TurnState.ERROR, "the model is down", ours=False)
    with database.write() as tx:
        open_ = tx.announcements.shown("parent")
        assert {one.state for one in open_} == {"blocked"}
        assert all("the model is down" in (one.reason or "") for one in open_)
        # Nothing else will answer for them now: the next turn does.
        assert [one.turn_id for one in results_for(tx, asked)] == ["said", "said"]
        settle(tx, asked, TurnState.DONE, AT, None)
    with database.read() as tx:
        assert tx.announcements.shown("parent") == []
        assert {one.state for one in tx.announcements.of(["run1", "run2"]).values()} == {"delivered"}


def test_who_waits_is_not_told_and_who_gave_up_waiting_is(database: Database) -> None:
    waited, given_up = ask(database, 1, announce=False), ask(database, 2, announce=False)
    with database.write() as tx:
        assert not tx.runs.some_are_live("parent")
        assert tx.runs.announce_later(given_up.run_id)
        assert tx.runs.some_are_live("parent")
    end(database, waited)
    end(database, given_up)
    with database.write() as tx:
        assert not tx.runs.announce_later(waited.run_id)
        assert [one.run_id for one in tx.announcements.shown("parent")] == [given_up.run_id]


def test_what_is_held_wakes_nobody_and_what_lost_its_session_is_blocked(database: Database) -> None:
    held, orphan = ask(database, 1), ask(database, 2)
    with database.write() as tx:
        tx.runs.hold([held.run_id], "stopped")
    end(database, held)
    with database.write() as tx:
        assert tx.turns.queued_wake("parent") is None
        assert [(one.state, one.reason) for one in tx.announcements.shown("parent")] == [
            ("blocked", "stopped")
        ]
        tx.sessions.remove("parent")
    end(database, orphan)
    with database.read() as tx:
        found = tx.announcements.get(orphan.run_id)
        assert found is not None
        assert (found.state, found.message_id) == ("blocked", None)
        assert "deleted" in (found.reason or "")


def test_the_latest_session_that_nobody_waits_in(database: Database) -> None:
    with database.write() as tx:
        for number, state in ((1, "running"), (2, "waiting")):
            session_id = f"s{number}"
            tx.sessions.add(
                Session(
                    session_id,
                    f"agent:main:web:{session_id}",
                    "main",
                    "web",
                    created_at=AT,
                    updated_at=f"{AT}{number}",
                )
            )
            job = TurnJob(f"r{number}", session_id, f"x{number}", TurnState.QUEUED, created_at=AT)
            writes = TurnWrites(tx.connection)
            writes.submit(
                job, InboxEntry(session_id, f"x{number}", job.run_id, "main", "user", "user", "x", None, AT)
            )
            writes.claim(job.run_id, CLAIM, agent_id="main", audience="owner", at=AT)
            if state == "waiting":
                writes.wait(job.run_id, CLAIM, "agent")
    with database.read() as tx:
        latest, idle = tx.sessions.latest(["main"], OWNER), tx.sessions.latest(["main"], OWNER, idle=True)
        assert latest is not None and idle is not None
        assert (latest.id, idle.id) == ("s2", "s1")
