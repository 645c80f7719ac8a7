"""The gateway starts, answers, and says no to strangers."""

from __future__ import annotations

import httpx

from tests.support.gateway import GatewayProcess


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
