"""A disk that does not answer: nobody is told what is not on it, and nobody else waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, running
from tests.support.slow_disk import needs_slow_disk, slow_disk

pytestmark = needs_slow_disk


def send(gateway: GatewayProcess, session: str) -> str:
    with gateway.http() as http:
        answer = http.post(f"/api/sessions/{session}/messages", json={"message": "Hello."})
    assert answer.status_code in (200, 201, 202), answer.text
    run_id: str = answer.json()["runId"]
    return run_id


def test_a_message_is_acknowledged_after_its_sync_and_the_house_goes_on_meanwhile(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with (
        running(tmp_path / "home", fresh=True, **slow_disk(gate=gate)) as gateway,
        ThreadPoolExecutor(20) as pool,
    ):
        gate.touch()
        sent = [pool.submit(send, gateway, f"agent:main:dm:guest-{number}") for number in range(20)]
        with gateway.http() as http, gateway.rpc() as rpc:
            for _ in range(5):
                assert http.get("/healthz").status_code == 200
                assert http.get("/api/sessions").status_code == 200
                assert rpc.call("agents.list")["default_id"] == "main"
        assert not [one.result() for one in sent if one.done()], "acknowledged before it was on disk"
        gate.unlink()
        assert len({one.result() for one in sent}) == 20


@pytest.mark.parametrize("door", ["agents", "memory"])
def test_changes_on_threads_do_not_stop_turns_while_they_wait_for_the_disk(tmp_path: Path, door: str) -> None:
    gate = tmp_path / "gate"
    with (
        running(tmp_path / "home", fresh=True, **slow_disk(gate=gate)) as gateway,
        ThreadPoolExecutor(20) as pool,
    ):
        gate.touch()

        def change(number: int) -> int:
            with gateway.http() as http:
                if door == "agents":
                    return http.post(
                        "/api/agents", json={"id": f"a{number}", "label": f"A{number}"}
                    ).status_code
                return http.post("/api/memory/remember", json={"content": f"The {number}th."}).status_code

        changes = [pool.submit(change, number) for number in range(8)]
        with gateway.http() as http:
            for _ in range(5):
                assert http.get("/healthz").status_code == 200
                assert http.get("/api/sessions").status_code == 200
        assert not any(one.done() for one in changes)
        gate.unlink()
        assert {one.result() for one in changes} <= {200, 201}
