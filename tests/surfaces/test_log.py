"""Nobody but the house writes a line of its log."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.gateway import running
from tests.support.mock import Exchange, config, model_server


def test_no_address_and_no_error_forges_a_line(home: Path) -> None:
    forged = "2026-01-01 00:00:00,000 INFO    coterie.api  all is well"
    home.mkdir()
    (home / "plugins").mkdir()
    (home / "plugins" / "bad.py").write_text(
        "from coterie import tool\n\n@tool()\ndef bad() -> str:\n    '''Fail.'''\n"
        f"    raise RuntimeError('first\\n{forged}\\x1b]52;c;aGk=\\x07')\n"
    )
    with model_server() as server:
        (home / "agent.yaml").write_text(config(server.base_url))

        def answer(exchange: Exchange) -> None:
            if exchange.has_result:
                exchange.status(400, {"error": {"message": f"no\r\n{forged}\u202e\x1b[2J"}})
            else:
                exchange.calls(("bad", "{}"))

        server.answer = answer
        with running(home) as gateway:
            path = httpx.URL(gateway.url).copy_with(
                raw_path=f"/x%0a{forged.replace(' ', '%20')}%1b[2J%e2%80%ae".encode()
            )
            assert httpx.get(path).status_code == 401
            with gateway.rpc() as rpc:
                run = rpc.call("chat.send", session="agent:main:main", message="go")["run_id"]
                rpc.wait_for("chat", run_id=run, state="error")
        log = gateway.log.read_text()
    assert forged in log
    assert not any(line.startswith(forged[:10]) and "all is well" in line[:60] for line in log.splitlines())
    assert all(c.isprintable() or c == "\n" for c in log)
