"""Who may run a turn: a claim names its owner and a lease, as both databases keep them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.core.agent import Agent, AgentState
from coterie.core.session import Session
from coterie.core.turn import Claim, ClaimLost, InboxEntry, TurnJob, TurnState
from coterie.store.database import Database
from coterie.store.turn_writes import TurnWrites

AT = "2026-05-01T08:00:00.000000Z"
LATER = "2026-05-01T09:00:00.000000Z"
LATEST = "2026-05-01T10:00:00.000000Z"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = "sqlite:///coterie.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Database.connect(url, tmp_path)
    made.bring_forward(tmp_path / "backups")
    with made.write() as tx:
        tx.agents.save([Agent("main", "Main", True, AgentState.ACTIVE, {}, AT, AT)])
        tx.sessions.add(Session("s", "agent:main:main", "main", "main", created_at=AT, updated_at=AT))
        job = TurnJob("run", "s", "m", TurnState.QUEUED, trace_id="run", created_at=AT)
        entry = InboxEntry("s", "m", "run", "main", "user", "user", "go", None, AT)
        TurnWrites(tx.connection).submit(job, entry)
    yield made
    made.close()


def claim(database: Database, claim: Claim, at: str = AT) -> bool:
    try:
        with database.write() as tx:
            TurnWrites(tx.connection).claim("run", claim, agent_id="main", audience="owner", at=at)
    except ClaimLost:
        return False
    return True


def steps(database: Database, claim: Claim) -> bool:
    try:
        with database.write() as tx:
            TurnWrites(tx.connection).step("run", claim, agent_id="main")
    except ClaimLost:
        return False
    return True


def test_whoever_takes_the_lock_next_takes_over_at_once(database: Database) -> None:
    first, second = Claim("first", 1), Claim("second", 2)
    assert claim(database, first) and steps(database, first)
    assert claim(database, first), "its own turn, taken up again after a failure"
    assert claim(database, second) and steps(database, second)
    assert not steps(database, first)
    assert not claim(database, first)


def test_a_lease_is_waited_out(database: Database) -> None:
    leased = Claim("first", 1, lease_until=LATER)
    other = Claim("second", 2, lease_until=LATEST)
    assert claim(database, leased)
    assert not claim(database, other, AT)
    assert steps(database, leased)
    assert claim(database, other, LATEST)
    assert not steps(database, leased) and steps(database, other)


def test_two_owners_of_one_epoch_are_two(database: Database) -> None:
    one, other = Claim("one", 3, lease_until=LATER), Claim("other", 3, lease_until=LATER)
    assert claim(database, one)
    assert not claim(database, other) and not steps(database, other)


def test_an_interrupted_turn_is_nobodys(database: Database) -> None:
    leased, other = Claim("first", 1, lease_until=LATEST), Claim("second", 1, lease_until=LATEST)
    assert claim(database, leased)
    with database.write() as tx:
        TurnWrites(tx.connection).interrupt("run", leased, "s", {"skipped": []}, AT)
    assert not steps(database, leased)
    with database.write() as tx:
        TurnWrites(tx.connection).resume("run")
    assert claim(database, other)


def test_who_waits_says_for_whom_until_its_next_step(database: Database) -> None:
    mine, other = Claim("first", 1), Claim("other", 1)
    assert claim(database, mine)
    for reason in ("agent", "approval"):
        with database.write() as tx:
            TurnWrites(tx.connection).wait("run", mine, reason)
        with database.read() as tx:
            job = tx.turns.get("run")
        assert job is not None and (job.state, job.waits_for) == (TurnState.WAITING, reason)
    with pytest.raises(ClaimLost), database.write() as tx:
        TurnWrites(tx.connection).wait("run", other, "outside")
    assert steps(database, mine)
    with database.read() as tx:
        job = tx.turns.get("run")
    assert job is not None and (job.state, job.waits_for) == (TurnState.RUNNING, None)
