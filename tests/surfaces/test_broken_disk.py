"""A disk whose syncs fail for a while: nobody is told what is not on it, and afterwards nothing is missing and nothing there twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, Rpc, RpcError, running
from tests.support.mock import MockModel, config, mock_model
from tests.support.slow_disk import needs_slow_disk, slow_disk

pytestmark = needs_slow_disk
MAIN = "agent:main:main"


@pytest.fixture
def mock() -> Iterator[MockModel]:
    with mock_model() as model:
        yield model


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return tmp_path / "broken"


@pytest.fixture
def served(home: Path, mock: MockModel, broken: Path) -> Iterator[GatewayProcess]:
    home.mkdir()
    (home / "agent.yaml").write_text(config(mock.base_url))
    with running(home, fresh=True, **slow_disk(broken=broken)) as gateway:
        yield gateway


def said(rpc: Rpc) -> list[tuple[str, str]]:
    messages: list[dict[str, Any]] = rpc.call("chat.history", session=MAIN, limit=1000)["messages"]
    return [(m["role"], m["text"]) for m in messages]


def until(true: Callable[[], bool], otherwise: object) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def until_said(rpc: Rpc, text: str) -> None:
    until(lambda: ("assistant", text) in said(rpc), text)


def test_what_could_not_be_synced_is_refused_and_a_retry_finds_it_once(
    served: GatewayProcess, mock: MockModel, broken: Path
) -> None:
    with served.rpc() as rpc:
        broken.touch()
        for method, params in (
            ("chat.send", {"session": MAIN, "message": "one [t:one]", "idempotency_key": "one"}),
            ("memory.remember", {"content": "The key is behind the clock."}),
            ("agents.create", {"id": "dot", "label": "Dot"}),
        ):
            with pytest.raises(RpcError, match="UNAVAILABLE: the disk did not take"):
                rpc.call(method, **params)
        broken.unlink()
        again = rpc.call("chat.send", session=MAIN, message="one [t:one]", idempotency_key="one")
        until_said(rpc, "ok [t:one]")
        rpc.call("chat.send", session=MAIN, message="two [t:two]")
        until_said(rpc, "ok [t:two]")
        assert said(rpc) == [
            ("user", "one [t:one]"),
            ("assistant", "ok [t:one]"),
            ("user", "two [t:two]"),
            ("assistant", "ok [t:two]"),
        ]
        assert again["run_id"] == rpc.call("chat.history", session=MAIN)["messages"][0]["run_id"]
        kept = [m["content"] for m in rpc.call("memory.list", agent_id="main")["memories"]]
        assert kept.count("The key is behind the clock.") <= 1


def test_a_turn_whose_answer_could_not_be_synced_ends_with_one_answer(
    home: Path, served: GatewayProcess, mock: MockModel, broken: Path
) -> None:
    with served.rpc() as rpc:
        slow = rpc.call("chat.send", session=MAIN, message="DELAY 300 [t:slow]")
        mock.wait_for(lambda log: any("slow" in r["tags"] for r in log))
        broken.touch()
        mock.wait_for(lambda log: any("slow" in r["tags"] and r.get("t_out") for r in log))
        until(lambda: "a turn must wait: the disk" in served.log.read_text(), served.log)
        assert not [e for e in rpc.events if e["event"] == "chat" and e["payload"]["state"] == "final"]
        broken.unlink()
        told = rpc.wait_for("chat", run_id=slow["run_id"], state="final")
        assert told["text"] == "ok [t:slow]"
        rpc.call("chat.send", session=MAIN, message="next [t:next]")
        until_said(rpc, "ok [t:next]")
        everything = said(rpc)
    assert everything == [
        ("user", "DELAY 300 [t:slow]"),
        ("assistant", "ok [t:slow]"),
        ("user", "next [t:next]"),
        ("assistant", "ok [t:next]"),
    ]
    served.kill()
    with running(home) as gateway, gateway.rpc() as rpc:
        assert said(rpc) == everything
