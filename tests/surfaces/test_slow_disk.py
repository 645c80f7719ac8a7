"""A disk that does not answer: nobody is told what is not on it, and nobody else waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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


def test_whatever_is_changed_waits_for_the_disk_by_itself(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running(tmp_path / "home", fresh=True, **slow_disk(gate=gate)) as gateway:
        with gateway.rpc() as rpc:
            for name in ("dot", "rose", "miles"):
                rpc.call("agents.create", id=name, label=name.title())
            rpc.call("agents.delete", agent_id="miles")
            sessions = [rpc.call("sessions.create", agent_id="dot")["id"] for _ in range(7)]
            kept = rpc.call("memory.remember", content="The key is behind the clock.")["id"]
        changes: list[tuple[str, dict[str, Any]]] = [
            ("agents.create", {"id": "new", "label": "New"}),
            ("agents.update", {"agent_id": "dot", "label": "Dorothy"}),
            ("agents.restore", {"agent_id": "miles"}),
            ("agents.set_default", {"agent_id": "rose"}),
            ("agents.files.set", {"agent_id": "dot", "name": "TOOLS.md", "content": "A hammer."}),
            ("agent.identity.update_soul", {"soul": "Kind."}),
            ("memory.remember", {"content": "The spare one, too."}),
            ("memory.update", {"id": kept, "content": "The key is under the mat."}),
            ("sessions.create", {"agent_id": "dot"}),
            ("sessions.rename", {"session": sessions[0], "name": "First"}),
            ("sessions.pin", {"session": sessions[1], "pinned": True}),
            ("sessions.patch", {"session": sessions[2], "attributes": {"colour": "red"}}),
            ("sessions.set_agent", {"session": sessions[3], "agent_id": "rose"}),
            ("sessions.clear", {"session": sessions[4]}),
            ("sessions.delete", {"session": sessions[5]}),
            ("sessions.renew", {"session": sessions[6]}),
            ("chat.send", {"session": sessions[0], "message": "Hello."}),
            ("tokens.create", {"scope": "read"}),
        ]

        def change(method: str, params: dict[str, Any]) -> None:
            with gateway.rpc() as rpc:
                rpc.call(method, **params)

        gate.touch()
        with ThreadPoolExecutor(len(changes)) as pool, gateway.http() as http:
            begun = []
            for method, params in changes:
                begun.append(pool.submit(change, method, params))
                assert http.get("/healthz").status_code == 200, method
            for _ in range(5):
                assert http.get("/healthz").status_code == 200
            gate.unlink()
            for (method, _), one in zip(changes, begun, strict=True):
                assert one.result() is None, method
