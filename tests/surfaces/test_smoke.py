"""The gateway starts, answers, and says no to strangers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx

from tests.support.gateway import GatewayProcess, environment, running


def test_health_needs_no_token_and_everything_else_does(gateway: GatewayProcess) -> None:
    assert httpx.get(f"{gateway.url}/healthz").json() == {"status": "ok"}
    refused = httpx.get(f"{gateway.url}/api/agents")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "UNAUTHORIZED"
    with gateway.http() as http:
        assert http.get("/api/agents").json()["defaultId"] == "main"


def test_hello_names_methods_and_scopes(gateway: GatewayProcess) -> None:
    with gateway.rpc() as rpc:
        assert rpc.call("agents.list")["default_id"] == "main"
        assert rpc.events[0]["event"] == "connect.challenge"


def test_a_fresh_interpreter_serves_answers_and_takes_commands(tmp_path: Path) -> None:
    """Others are forked from a process that has imported everything; here nothing was imported before."""
    home = tmp_path / "home"
    with running(home, fresh=True) as gateway, gateway.http() as http:
        said = {"model": "coterie/main", "messages": [{"role": "user", "content": "What time is it?"}]}
        assert http.post("/v1/chat/completions", json=said).json()["choices"][0]["message"]["content"]
        done = subprocess.run(
            [sys.executable, "-m", "coterie", "agent", "list", "--json"],
            env=environment(home),
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)["default_id"] == "main"
