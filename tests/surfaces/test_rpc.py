"""RPC over a real socket: what each method gives, who may call it, and what bad input gets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from coterie.api.methods import METHODS
from tests.support.gateway import GatewayProcess, Rpc, RpcError, running
from tests.support.traces import trace


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A household of four that the tests of this file share."""
    home = tmp_path_factory.mktemp("rpc") / "home"
    with running(home) as gateway:
        with gateway.rpc() as rpc:
            rpc.call("agents.create", id="base", spec={"tool_denylist": ["bash"]})
            rpc.call(
                "agents.create",
                id="dot",
                label="Dot",
                emoji="🦊",
                soul="Kind.\n",
                spec={"description": "Runs the front desk", "extends": "base"},
            )
            rpc.call("agents.create", id="rose")
        yield gateway


@pytest.fixture
def rpc(house: GatewayProcess) -> Iterator[Rpc]:
    with house.rpc() as client:
        yield client


@pytest.fixture(scope="module")
def reader(house: GatewayProcess) -> Iterator[Rpc]:
    yield from _with_scope(house, "read")


@pytest.fixture(scope="module")
def writer(house: GatewayProcess) -> Iterator[Rpc]:
    yield from _with_scope(house, "write")


def _with_scope(house: GatewayProcess, scope: str) -> Iterator[Rpc]:
    with house.rpc() as admin:
        token = admin.call("tokens.create", scope=scope)["token"]
    with house.rpc(token) as client:
        yield client


def refusal(client: Rpc, method: str, /, **params: Any) -> RpcError:
    with pytest.raises(RpcError) as refused:
        client.call(method, **params)
    return refused.value


def closing_code(client: Rpc) -> int | None:
    """Why the server ended a connection."""
    with suppress(ConnectionClosed):
        while True:
            client.receive(60)
    return client.socket.close_code


# Connecting


def test_the_server_speaks_first_and_says_hello(house: GatewayProcess) -> None:
    with house.socket() as socket:
        client = Rpc(socket)
        challenge = client.receive()
        assert challenge["type"] == "event" and challenge["event"] == "connect.challenge"
        assert set(challenge["payload"]) == {"nonce", "ts"} and isinstance(challenge["seq"], int)
        hello = client.call("connect", auth={"token": house.token}, client={"name": "test"})
        assert set(hello) == {"type", "protocol", "server", "features", "auth", "policy"}
        assert hello["type"] == "hello-ok"
        assert hello["auth"] == {"scopes": ["read", "write", "admin"]}
        assert set(hello["features"]) == {"methods", "events"}
        assert set(hello["features"]["methods"]) == set(METHODS)
        assert {"agents.changed", "config.changed", "tick"} <= set(hello["features"]["events"])


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (["read"], ["read"]),
        (["write", "read"], ["read", "write"]),
        (["admin"], ["read", "write", "admin"]),
        (None, ["read", "write", "admin"]),
    ],
)
def test_a_client_may_ask_for_less_than_its_token_allows(
    house: GatewayProcess, asked: list[str] | None, given: list[str]
) -> None:
    with house.socket() as socket:
        client = Rpc(socket)
        hello = client.call("connect", auth={"token": house.token}, **({"scopes": asked} if asked else {}))
        assert hello["auth"]["scopes"] == given
        if "admin" not in given:
            assert refusal(client, "tokens.list").code == "FORBIDDEN"


def test_a_client_cannot_ask_for_more_than_its_token_allows(house: GatewayProcess, rpc: Rpc) -> None:
    token = rpc.call("tokens.create", scope="read")["token"]
    with house.socket() as socket:
        client = Rpc(socket)
        hello = client.call("connect", auth={"token": token}, scopes=["admin"])
        assert hello["auth"]["scopes"] == ["read"]
        assert refusal(client, "agents.delete", agent_id="dot").code == "FORBIDDEN"


def request(method: str, params: Any = None, frame_id: Any = "1") -> str:
    return json.dumps({"type": "req", "id": frame_id, "method": method, "params": params})


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (request("agents.list", {}), "UNAUTHORIZED"),
        (request("no.such.method", {}), "UNAUTHORIZED"),
        (request("connect", {"auth": {"token": "cot_wrong_wrong"}}), "UNAUTHORIZED"),
        (request("connect", {"auth": {"token": "\ud800"}}), "INVALID_REQUEST"),
        (request("connect", {"auth": {"token": "cot_\x00_\x00"}}), "UNAUTHORIZED"),
        (request("connect", {"auth": {"token": ""}}), "UNAUTHORIZED"),
        (request("connect", {"auth": {"token": 5}}), "INVALID_REQUEST"),
        (request("connect", {"auth": {}}), "INVALID_REQUEST"),
        (request("connect", {}), "INVALID_REQUEST"),
        (request("connect", {"auth": {"token": "x"}, "scopes": []}), "INVALID_REQUEST"),
        (request("connect", {"auth": {"token": "x"}, "scopes": ["owner"]}), "INVALID_REQUEST"),
        (request("connect", []), "INVALID_REQUEST"),
        ("not json", "INVALID_REQUEST"),
        ("[" * 100_000, "INVALID_REQUEST"),
        ("x" * 10_000_000, "INVALID_REQUEST"),
        (b"\xff\xfe\x00", "INVALID_REQUEST"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) < 100 else "frame",
)
def test_before_connect_everything_else_is_answered_and_ends_the_connection(
    house: GatewayProcess, frame: str | bytes, code: str
) -> None:
    before = trace(house.home)
    with house.socket() as socket:
        assert json.loads(socket.recv())["event"] == "connect.challenge"
        socket.send(frame)
        answer = json.loads(socket.recv(30))
        assert answer["ok"] is False and answer["error"]["code"] == code
        assert closing_code(Rpc(socket)) == 1008
    assert trace(house.home) == before


def test_a_second_connect_is_refused_and_the_first_one_stays(rpc: Rpc, house: GatewayProcess) -> None:
    assert refusal(rpc, "connect", auth={"token": house.token}).code in ("INVALID_REQUEST", "UNKNOWN_METHOD")
    assert rpc.call("status")["default_id"] == "main"


# Payloads


SUMMARY = {"id", "label", "is_default", "emoji", "description"}
INFO = {"id", "label", "is_default", "identity", "soul", "spec", "files"}
LATER = {
    "state",
    "created_at",
    "updated_at",
    "effective",
    "memories",
    "audiences",
    "folder",
    "origins",
    "warnings",
}
"""May stand beside those, now or once there is something to say."""


def check_info(info: dict[str, Any]) -> None:
    assert set(info) >= INFO and set(info) <= INFO | LATER
    assert set(info["identity"]) == {"name", "emoji", "creature", "vibe"}
    assert isinstance(info["soul"], str) and isinstance(info["spec"], dict)
    for file in info["files"]:
        assert set(file) == {"name", "state", "size"}
        assert file["state"] in ("own", "inherited", "missing")


def test_agents_list(rpc: Rpc) -> None:
    found = rpc.call("agents.list")
    assert set(found) == {"default_id", "agents"}
    assert found["default_id"] == "main"
    by_id = {a["id"]: a for a in found["agents"]}
    assert {"main", "base", "dot", "rose"} <= set(by_id)
    assert all(set(a) >= SUMMARY for a in found["agents"])
    assert by_id["dot"]["emoji"] == "🦊" and by_id["dot"]["description"] == "Runs the front desk"
    assert [a["id"] for a in found["agents"] if a["is_default"]] == ["main"]


def test_agents_get(rpc: Rpc) -> None:
    dot = rpc.call("agents.get", agent_id="dot")
    check_info(dot)
    assert dot["identity"] == {"name": "Dot", "emoji": "🦊", "creature": None, "vibe": None}
    assert dot["soul"] == "Kind.\n"
    assert dot["spec"] == {"description": "Runs the front desk", "extends": "base"}
    states = {file["name"]: file["state"] for file in dot["files"]}
    assert states["SOUL.md"] == "own" and states["MEMORY.md"] == "missing" and states["USER.md"] == "missing"
    assert rpc.call("agents.get", agent_id="default")["id"] == "main"


def test_agents_create_update_delete_restore_purge(rpc: Rpc) -> None:
    made = rpc.call("agents.create", id="guest", label="Guest", emoji="🐸", soul="Quiet.")
    check_info(made)
    assert made["label"] == "Guest" and made["soul"].strip() == "Quiet."

    changed = rpc.call(
        "agents.update",
        agent_id="guest",
        label="Visitor",
        identity={"creature": "frog", "vibe": "calm"},
        soul="Loud.",
        spec={"temperature": 0.5},
    )
    check_info(changed)
    assert changed["identity"] == {"name": "Visitor", "emoji": "🐸", "creature": "frog", "vibe": "calm"}
    assert changed["soul"] == "Loud." and changed["spec"] == {"temperature": 0.5}
    assert rpc.call("agents.update", agent_id="guest", spec={"temperature": None})["spec"] == {}
    assert rpc.call("agents.update", agent_id="guest")["label"] == "Visitor"

    ended = {"deleted", "reassigned_sessions", "default_id", "backups", "traces_left"}
    gone = rpc.call("agents.delete", agent_id="guest")
    assert {"deleted", "default_id"} <= set(gone) <= ended
    assert gone["deleted"] is True and gone["default_id"] == "main"
    assert "guest" not in [a["id"] for a in rpc.call("agents.list")["agents"]]
    assert refusal(rpc, "agents.delete", agent_id="guest").code == "NOT_FOUND"
    assert refusal(rpc, "agents.create", id="guest").code == "CONFLICT"

    back = rpc.call("agents.restore", agent_id="guest")
    assert {"deleted", "default_id"} <= set(back) <= ended and back["deleted"] is False
    assert rpc.call("agents.get", agent_id="guest")["soul"] == "Loud."
    assert refusal(rpc, "agents.restore", agent_id="guest").code == "CONFLICT"

    purged = rpc.call("agents.purge", agent_id="guest")
    assert {"deleted", "default_id"} <= set(purged) <= ended and purged["deleted"] is True
    assert refusal(rpc, "agents.get", agent_id="guest").code == "NOT_FOUND"


def test_agents_set_default(rpc: Rpc) -> None:
    assert rpc.call("agents.set_default", agent_id="rose") == {"default_id": "rose"}
    assert refusal(rpc, "agents.delete", agent_id="rose").code == "CONFLICT"
    assert refusal(rpc, "agents.delete", agent_id="default").code == "CONFLICT"
    assert refusal(rpc, "agents.purge", agent_id="default").code == "CONFLICT"
    assert rpc.call("agents.get", agent_id="default")["id"] == "rose"
    assert rpc.call("agents.set_default", agent_id="main") == {"default_id": "main"}
    assert refusal(rpc, "agents.delete", agent_id="main").code == "CONFLICT"
    assert refusal(rpc, "agents.purge", agent_id="main").code == "CONFLICT"


def test_agents_files(rpc: Rpc, house: GatewayProcess) -> None:
    listed = rpc.call("agents.files.list", agent_id="rose")
    assert set(listed) == {"agent_id", "files"}
    assert all(set(file) == {"name", "state", "size"} for file in listed["files"])

    written = rpc.call("agents.files.set", agent_id="rose", name="MEMORY.md", content="Tea at four.\n")
    keys = {"agent_id", "name", "state", "content", "size", "hash"}
    assert set(written) == keys
    assert rpc.call("agents.files.get", agent_id="rose", name="MEMORY.md") == written
    assert (house.home / "agents/rose/MEMORY.md").read_text() == "Tea at four.\n"

    stale = refusal(
        rpc, "agents.files.set", agent_id="rose", name="MEMORY.md", content="x", expected_hash="0" * 64
    )
    assert stale.code == "CONFLICT"
    assert rpc.call("agents.files.get", agent_id="rose", name="MEMORY.md") == written
    newer = rpc.call(
        "agents.files.set",
        agent_id="rose",
        name="MEMORY.md",
        content="Tea at five.\n",
        expected_hash=written["hash"],
    )
    assert newer["hash"] != written["hash"]

    day = rpc.call(
        "agents.files.set", agent_id="rose", name="memory/2026-05-01.md", content="Rain.\n", expected_hash=""
    )
    assert set(day) == keys and day["state"] == "own"
    assert "memory/2026-05-01.md" in [
        f["name"] for f in rpc.call("agents.files.list", agent_id="rose")["files"]
    ]
    again = {"agent_id": "rose", "name": "memory/2026-05-01.md", "content": "Sun.\n", "expected_hash": ""}
    assert refusal(rpc, "agents.files.set", **again).code == "CONFLICT"


def test_agent_identity_acts_on_the_default_agent(rpc: Rpc) -> None:
    keys = {"name", "emoji", "creature", "vibe", "soul"}
    rpc.call("agents.create", id="host")
    rpc.call("agents.set_default", agent_id="host")
    assert set(rpc.call("agent.identity.get")) == keys
    changed = rpc.call("agent.identity.update", name="Host", emoji="🦉", creature="owl", vibe="awake")
    assert set(changed) == keys
    assert changed == {**changed, "name": "Host", "emoji": "🦉", "creature": "owl", "vibe": "awake"}
    assert rpc.call("agent.identity.update_soul", soul="Watchful.")["soul"] == "Watchful."
    assert rpc.call("agent.identity.get")["soul"] == "Watchful."
    assert rpc.call("agents.get", agent_id="host")["label"] == "Host"
    assert refusal(rpc, "agent.identity.get", session="no-such-session").code == "NOT_FOUND"
    rpc.call("agents.set_default", agent_id="main")
    rpc.call("agents.purge", agent_id="host")


def test_either_spelling_is_read(rpc: Rpc) -> None:
    assert rpc.call("agents.get", agentId="dot")["id"] == "dot"
    made = rpc.call(
        "agents.create", id="camel", spec={"toolAllowlist": ["a_*"], "memory": {"readPolicy": "isolated"}}
    )
    assert made["spec"] == {"tool_allowlist": ["a_*"], "memory": {"read_policy": "isolated"}}
    rpc.call("agents.purge", agentId="camel")


# Scopes


CHANGES = [name for name, method in METHODS.items() if method.scope != "read"]
READS = (
    ".list",
    ".export",
    ".get",
    ".history",
    ".effective",
    ".recall",
    ".search",
    ".stats",
    ".preview",
    ".explain",
)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_method_needs_the_scope_that_its_name_promises(name: str) -> None:
    if name.startswith("tokens."):
        assert METHODS[name].scope == "admin"
    elif name.endswith(READS) or name in ("status", "sessions.watch", "sessions.unwatch"):
        assert METHODS[name].scope == "read"
    elif name.startswith(("agents.", "agent.", "config.", "schedules.")):
        assert METHODS[name].scope == "admin"
    elif name.startswith(("chat.", "sessions.", "memory.", "subagents.")) and name != "chat.queue":
        assert METHODS[name].scope == "write"


GARBAGE: list[dict[str, Any]] = [
    {},
    {"agent_id": "dot"},
    {"id": "intruder", "agent_id": "dot", "name": "SOUL.md", "content": "mine", "soul": "mine"},
    {"agent_id": ["dot"], "no_such_key": {"deep": [1, 2, None]}, "idempotency_key": "k"},
]


@pytest.mark.parametrize("name", CHANGES)
def test_a_read_token_changes_nothing(house: GatewayProcess, reader: Rpc, name: str) -> None:
    before = trace(house.home)
    for params in GARBAGE:
        assert refusal(reader, name, **params).code == "FORBIDDEN"
    assert trace(house.home) == before


@pytest.mark.parametrize("name", [n for n in CHANGES if METHODS[n].scope == "admin"])
def test_a_write_token_administers_nothing(house: GatewayProcess, writer: Rpc, name: str) -> None:
    before = trace(house.home)
    for params in GARBAGE:
        assert refusal(writer, name, **params).code == "FORBIDDEN"
    assert trace(house.home) == before


def test_a_read_token_reads(reader: Rpc) -> None:
    assert reader.call("agents.list")["default_id"] == "main"
    assert reader.call("agents.get", agent_id="dot")["label"] == "Dot"
    assert reader.call("agents.files.get", agent_id="dot", name="SOUL.md")["content"] == "Kind.\n"
    assert reader.call("agent.identity.get")["name"] == "main"


# Bad input


BAD_IDS = [
    "../x", "a/b", "", "Main", "MAIN", "subagents", "a" * 51, "🦊", "a\x00b", "-a", "a b", " a", "dot\n", "ａ",
    "é", "a.b", "..", ".", "/etc", "C:\\", "%2e%2e", "a" * 100_000, "\ud800", "\u202e", "dot\x00",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_IDS, ids=lambda value: ascii(value)[:20])
def test_an_id_that_is_none_is_refused_everywhere(house: GatewayProcess, rpc: Rpc, bad: str) -> None:
    before = trace(house.home)
    assert refusal(rpc, "agents.create", id=bad).code == "INVALID_REQUEST"
    for name in ("agents.get", "agents.files.list"):
        assert refusal(rpc, name, agent_id=bad).code in ("INVALID_REQUEST", "NOT_FOUND")
    for name in ("agents.update", "agents.delete", "agents.restore", "agents.purge", "agents.set_default"):
        assert refusal(rpc, name, agent_id=bad).code in ("INVALID_REQUEST", "NOT_FOUND")
    for name, more in (("agents.files.get", {}), ("agents.files.set", {"content": "x"})):
        code = refusal(rpc, name, agent_id=bad, name="SOUL.md", **more).code
        assert code in ("INVALID_REQUEST", "NOT_FOUND")
    assert trace(house.home) == before


@pytest.mark.parametrize(
    ("reserved", "code"),
    [("main", "CONFLICT"), ("default", "INVALID_REQUEST"), ("subagents", "INVALID_REQUEST")],
)
def test_reserved_ids_cannot_be_created(house: GatewayProcess, rpc: Rpc, reserved: str, code: str) -> None:
    before = trace(house.home)
    refused = refusal(rpc, "agents.create", id=reserved)
    assert refused.code == code and reserved in refused.message
    assert trace(house.home) == before


def test_the_rule_for_ids_is_in_the_message(rpc: Rpc) -> None:
    for bad in ("../x", "Main", ""):
        assert "a-z, 0-9 and '-'" in refusal(rpc, "agents.create", id=bad).message


BAD_NAMES = [
    "", ".", "..", "../SOUL.md", "../rose/SOUL.md", "memory/../../rose/SOUL.md", "/etc/passwd", "/SOUL.md",
    "SOUL.md\x00", "\x00", "memory\\x.md", "..\\..\\agent.yaml", "memory//x.md", "memory/./x.md", "memory/", "memory",
    "agent.yaml", "../../agent.yaml", "../../token", "soul.md", "SOUL.md/", "SOUL.md/x", "memory/x.txt", "workspace/x.md",
    "memory/a/b.md", "memory/\n.md", "memory/" + "a" * 300 + ".md", "x" * 100_000, "\ud800.md", "memory/\ud800.md", "🦊",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_NAMES, ids=lambda value: ascii(value)[:24])
def test_a_file_name_that_leads_elsewhere_is_refused(house: GatewayProcess, rpc: Rpc, bad: str) -> None:
    before = trace(house.home)
    assert refusal(rpc, "agents.files.get", agent_id="dot", name=bad).code in ("INVALID_REQUEST", "NOT_FOUND")
    assert refusal(rpc, "agents.files.set", agent_id="dot", name=bad, content="x").code == "INVALID_REQUEST"
    assert trace(house.home) == before


@pytest.mark.parametrize(
    "content", ["\x00", "a\x00b", "\ud800", "x" * 3_000_000], ids=["nul", "inner nul", "surrogate", "3 MB"]
)
def test_content_that_is_no_text_is_refused(house: GatewayProcess, rpc: Rpc, content: str) -> None:
    before = trace(house.home)
    asked = {"agent_id": "dot", "name": "SOUL.md", "content": content}
    assert refusal(rpc, "agents.files.set", **asked).code == "INVALID_REQUEST"
    assert refusal(rpc, "agents.update", agent_id="dot", soul=content).code == "INVALID_REQUEST"
    assert refusal(rpc, "agents.create", id="new", soul=content).code == "INVALID_REQUEST"
    assert refusal(rpc, "agent.identity.update_soul", soul=content).code == "INVALID_REQUEST"
    assert trace(house.home) == before


@pytest.mark.parametrize(
    "spec",
    [
        {"no_such_key": 1},
        {"\ud800": 1},
        {"description": "\ud800"},
        {"description": "a\x00b"},
        {"description": "x" * 100_000},
        {"temperature": 10**400},
        {"temperature": "warm"},
        {"max_tokens": 2**80},
        {"max_tokens": -1},
        {"extends": "nobody"},
        {"extends": "dot"},
        {"extends": "\ud800"},
        {"tool_allowlist": ["["]},
        {"tool_allowlist": "a"},
        {"skills": ["no-such-skill"]},
        {"model": "no-slash"},
        {"model": {"primary": "a/b", "fallbacks": ["\ud800/x"]}},
        {"personality": "../outside.md"},
        {"personality": "/etc/passwd"},
        {"personality": "token"},
        {"personality": "agents/rose/MEMORY.md"},
        {"memory": {"group": ["\ud800"]}},
        {"limits": {"cost_per_day": float("inf")}},
        {"limits": {"cost_per_day": float("nan")}},
        {"limits": {"concurrency": 10**30}},
        {"name": "other"},
        {"id": "other"},
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_specification_that_makes_no_sense_is_refused(
    house: GatewayProcess, rpc: Rpc, spec: dict[str, Any]
) -> None:
    before = trace(house.home)
    assert refusal(rpc, "agents.update", agent_id="dot", spec=spec).code in ("INVALID_REQUEST", "CONFLICT")
    assert trace(house.home) == before


@pytest.mark.parametrize(
    "change",
    [
        {"label": ""},
        {"label": " "},
        {"label": "a\nb"},
        {"label": "a[b]"},
        {"label": "#1"},
        {"label": "x" * 101},
        {"label": "x" * 1_000_000},
        {"label": "\ud800"},
        {"label": "a\x00"},
        {"label": "rose"},
        {"label": 5},
        {"identity": {"emoji": "a\nb"}},
        {"identity": {"vibe": "\x1b[31m"}},
        {"identity": {"creature": "\ud800"}},
        {"identity": {"creature": "x" * 501}},
        {"identity": {"mood": "x"}},
        {"identity": {"name": "a]"}},
        {"identity": {"name": "One"}, "label": "Two"},
        {"identity": []},
        {"colour": "red"},
        {"\ud800": "red"},
        {"x" * 100_000: "red"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 201},
        {"idempotency_key": "\ud800", "label": "Fine"},
        {"idempotency_key": "k", "spec": {"x": float("nan")}},
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_change_that_makes_no_sense_is_refused(
    house: GatewayProcess, rpc: Rpc, change: dict[str, Any]
) -> None:
    before = trace(house.home)
    refused = refusal(rpc, "agents.update", agent_id="dot", **change)
    assert refused.code in ("INVALID_REQUEST", "CONFLICT")
    assert len(refused.message) < 1000, "a refusal does not send the rubbish back"
    assert trace(house.home) == before


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


FRAMES: list[str | bytes] = [
    "", " ", "not json", "{", "[]", "null", "1", '"req"', "NaN", "{}", "\ufeff{}",
    '{"type":"req"}', '{"type":"req","id":"1"}', '{"type":"req","id":null,"method":"status"}',
    '{"type":"req","id":{},"method":"status"}', '{"type":"req","id":true,"method":"status"}',
    '{"type":"req","id":"1","method":5}', '{"type":"req","id":"1","method":"status","params":[]}',
    '{"type":"req","id":"1","method":"status","params":"x"}', '{"type":"res","id":"1","ok":true}',
    '{"type":"event","event":"tick"}', '{"id":"1","method":"status"}',
    '{"type":"req","id":"' + "x" * 1000 + '","method":"status"}',
    '{"type":"req","id":' + "9" * 5000 + ',"method":"status"}',
    '{"type":"req","id":1e999,"method":"status"}',
    '{"type":"req","id":"\\ud800","method":"status"}',
    '{"type":"req","id":"1","method":"status","params":{"\\ud800":1}}',
    '{"type":"req","id":"1","method":"agents.get","params":{"agent_id":' + "9" * 5000 + "}}",
    '{"type":"req","id":"1","method":"agents.get","params":{"agent_id":' + nested(100_000) + "}}",
    '{"type":"req","id":"1","method":"agents.get","params":{"agent_id":' + nested(900) + "}}",
    '{"type":"req","id":"1","method":"agents.update","params":{"agent_id":"dot","spec":{"x":' + nested(300) + "}}}",
    '{"type":"req","id":"1","method":"agents.update","params":{"agent_id":"dot","spec":{"x":' + nested(900) + "}}}",
    '{"type":"req","id":"1","method":"agents.update","params":{"agent_id":"dot","idempotency_key":"k","spec":{"x":'
    + nested(300) + "}}}",
    '{"type":"req","id":"1","method":"agents.update","params":{"agent_id":"dot","idempotency_key":"k","spec":{"x":'
    + nested(900) + "}}}",
    "x" * 10_000_000,
    '{"type":"req","id":"1","method":"status","params":{"x":"' + "x" * 10_000_000 + '"}}',
    nested(1_000_000),
    b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"not json", b"\x80" * 1_000_000,
]  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES, ids=lambda value: ascii(value)[:50])
def test_a_frame_that_is_no_request_gets_a_typed_error_and_the_connection_lives(
    house: GatewayProcess, rpc: Rpc, frame: str | bytes
) -> None:
    before = trace(house.home)
    rpc.socket.send(frame)
    answer = rpc.receive()
    while answer["type"] == "event":
        answer = rpc.receive()
    assert answer["type"] == "res" and answer["ok"] is False
    assert answer["error"]["code"] == "INVALID_REQUEST"
    assert len(json.dumps(answer)) < 10_000
    assert rpc.call("status")["default_id"] == "main"
    assert trace(house.home) == before


@pytest.mark.parametrize(
    "name", ["", "agents", "agents.no", "AGENTS.LIST", "__init__", "connect.x", "\ud800", "x" * 1_000_000]
)
def test_an_unknown_method_is_named_as_such(rpc: Rpc, name: str) -> None:
    rpc.socket.send(request(name, {"any": "thing"}))
    answer = rpc.receive()
    assert answer["error"]["code"] == ("INVALID_REQUEST" if name == "\ud800" else "UNKNOWN_METHOD")
    assert len(json.dumps(answer)) < 10_000
    assert rpc.call("status")


def test_a_frame_beyond_every_limit_ends_only_its_own_connection(house: GatewayProcess, rpc: Rpc) -> None:
    with house.rpc() as greedy:
        with suppress(ConnectionClosed):
            greedy.socket.send("x" * 20_000_000)
        assert closing_code(greedy) == 1009
    assert rpc.call("status")


def test_a_binary_frame_with_a_request_is_a_request(rpc: Rpc) -> None:
    rpc.socket.send(request("agents.list", {}, "b").encode())
    answer = rpc.receive()
    assert answer["id"] == "b" and answer["ok"] is True


def test_numbers_serve_as_request_ids(rpc: Rpc) -> None:
    for frame_id in (0, -1, 2**53, "ünï"):
        rpc.socket.send(request("status", None, frame_id))
        assert rpc.receive()["id"] == frame_id


# Links


def test_links_out_of_an_agents_folder_are_never_followed(
    house: GatewayProcess, rpc: Rpc, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("the secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside.md").write_text("the secret")
    rpc.call("agents.create", id="trap")
    trap = house.home / "agents" / "trap"
    for name in ("SOUL.md", "MEMORY.md", "IDENTITY.md"):
        (trap / name).unlink()
        (trap / name).symlink_to(secret)
    (trap / "memory" / "link.md").symlink_to(secret)
    before = trace(house.home)

    shown = json.dumps(rpc.call("agents.get", agent_id="trap")) + json.dumps(rpc.call("agents.list"))
    assert "the secret" not in shown and "link.md" not in shown
    for name in ("SOUL.md", "MEMORY.md", "IDENTITY.md", "memory/link.md"):
        with suppress(RpcError):
            assert "secret" not in rpc.call("agents.files.get", agent_id="trap", name=name)["content"]
        refused = refusal(rpc, "agents.files.set", agent_id="trap", name=name, content="overwritten")
        assert refused.code == "INVALID_REQUEST"
    assert refusal(rpc, "agents.update", agent_id="trap", soul="overwritten").code == "INVALID_REQUEST"
    assert refusal(rpc, "agents.update", agent_id="trap", identity={"vibe": "x"}).code == "INVALID_REQUEST"
    assert trace(house.home) == before

    (trap / "memory" / "link.md").unlink()
    (trap / "memory").rmdir()
    (trap / "memory").symlink_to(tmp_path / "folder")
    assert "inside" not in json.dumps(rpc.call("agents.files.list", agent_id="trap"))
    for name in ("memory/inside.md", "memory/new.md"):
        code = refusal(rpc, "agents.files.set", agent_id="trap", name=name, content="overwritten").code
        assert code == "INVALID_REQUEST"
    assert refusal(rpc, "agents.files.get", agent_id="trap", name="memory/inside.md").code in (
        "INVALID_REQUEST",
        "NOT_FOUND",
    )

    rpc.call("agents.purge", agent_id="trap")
    assert secret.read_text() == "the secret"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["inside.md"]


def test_a_linked_folder_is_not_an_agent(house: GatewayProcess, rpc: Rpc, tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("the secret")
    link = house.home / "agents" / "linked"
    link.symlink_to(tmp_path)
    try:
        assert "linked" not in [a["id"] for a in rpc.call("agents.list")["agents"]]
        assert refusal(rpc, "agents.get", agent_id="linked").code == "NOT_FOUND"
        assert refusal(rpc, "agents.files.get", agent_id="linked", name="SOUL.md").code == "NOT_FOUND"
        assert refusal(rpc, "agents.purge", agent_id="linked").code == "NOT_FOUND"
        with suppress(RpcError):
            assert "secret" not in json.dumps(rpc.call("agents.create", id="linked", soul="overwritten"))
        assert (tmp_path / "SOUL.md").read_text() == "the secret"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["SOUL.md"]
    finally:
        link.unlink()
        with suppress(RpcError):
            rpc.call("agents.purge", agent_id="linked")


def test_a_pipe_in_place_of_a_file_holds_nobody_up(house: GatewayProcess, rpc: Rpc) -> None:
    import os

    rpc.call("agents.create", id="piped")
    soul = house.home / "agents" / "piped" / "SOUL.md"
    soul.unlink()
    os.mkfifo(soul)
    assert rpc.call("agents.get", agent_id="piped")["soul"] == ""
    asked = {"agent_id": "piped", "name": "SOUL.md", "content": "x"}
    assert refusal(rpc, "agents.files.set", **asked).code == "INVALID_REQUEST"
    rpc.call("agents.purge", agent_id="piped")


# Repeats


def test_a_repeat_under_the_same_key_gets_the_first_answer(rpc: Rpc) -> None:
    asked: dict[str, Any] = {"id": "once", "label": "Once", "soul": "Hm.", "idempotency_key": "make-once"}
    asked["spec"] = {"extends": "base", "tool_denylist": None, "description": "x"}
    first = rpc.call("agents.create", **asked)
    rpc.call("agents.update", agent_id="once", label="Changed since")
    assert rpc.call("agents.create", **asked) == first
    assert refusal(rpc, "agents.create", **{**asked, "label": "Other"}).code == "CONFLICT"
    assert refusal(rpc, "agents.create", **{**asked, "id": "twice"}).code == "CONFLICT"

    gone = rpc.call("agents.delete", agent_id="once", idempotency_key="make-once")
    assert rpc.call("agents.delete", agent_id="once", idempotency_key="make-once") == gone
    rpc.call("agents.purge", agent_id="once", idempotency_key="purge-once")
    rpc.call("agents.purge", agent_id="once", idempotency_key="purge-once")
    assert refusal(rpc, "agents.get", agent_id="once").code == "NOT_FOUND"


def test_a_repeat_gets_every_field_of_the_first_answer(rpc: Rpc) -> None:
    """Also those that hold nothing."""
    asked = {"agent_id": "dot", "idempotency_key": "one-session"}
    first = rpc.call("sessions.create", **asked)
    assert None in first.values()
    assert rpc.call("sessions.create", **asked) == first


def test_keys_of_two_tokens_do_not_meet(house: GatewayProcess, rpc: Rpc) -> None:
    other = rpc.call("tokens.create", scope="admin")["token"]
    rpc.call("agents.create", id="mine", idempotency_key="same")
    with house.rpc(other) as second:
        second.call("agents.create", id="theirs", idempotency_key="same")
        second.call("agents.purge", agent_id="mine")
        second.call("agents.purge", agent_id="theirs")


def test_a_refusal_is_not_kept_as_the_answer(rpc: Rpc) -> None:
    asked = {"agent_id": "later", "label": "Later", "idempotency_key": "when-there"}
    assert refusal(rpc, "agents.update", **asked).code == "NOT_FOUND"
    rpc.call("agents.create", id="later")
    assert rpc.call("agents.update", **asked)["label"] == "Later"
    rpc.call("agents.purge", agent_id="later")


# Events


def test_changes_reach_everyone_who_listens(house: GatewayProcess, rpc: Rpc, reader: Rpc) -> None:
    with house.rpc() as other:
        rpc.call("agents.create", id="newcomer")
        assert other.wait_for("agents.changed", agent_id="newcomer")["change"] == "created"
        rpc.call("agents.update", agent_id="newcomer", label="Newcomer")
        other.wait_for("agents.changed", agent_id="newcomer", change="updated")
        rpc.call("agents.set_default", agent_id="newcomer")
        other.wait_for("agents.changed", agent_id="newcomer", change="default")
        rpc.call("agents.set_default", agent_id="main")
        rpc.call("agents.delete", agent_id="newcomer")
        other.wait_for("agents.changed", agent_id="newcomer", change="archived")
        rpc.call("agents.restore", agent_id="newcomer")
        other.wait_for("agents.changed", agent_id="newcomer", change="restored")
        rpc.call("agents.purge", agent_id="newcomer")
        other.wait_for("agents.changed", agent_id="newcomer", change="purged")
        numbers = [frame["seq"] for frame in other.events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    reader.wait_for("agents.changed", agent_id="newcomer", change="purged")


def test_an_editor_that_saves_a_soul_is_heard_for_that_agent_alone(house: GatewayProcess) -> None:
    with house.rpc() as listener:
        time.sleep(1.5)  # what earlier tests wrote is reported before
        listener.call("status")
        listener.events.clear()
        (house.home / "agents" / "dot" / "SOUL.md").write_text("Kinder.\n")
        listener.wait_for("agents.changed", agent_id="dot")
        assert listener.call("agents.get", agent_id="dot")["soul"] == "Kinder.\n"
        temporary = house.home / "agents" / "rose" / ".SOUL.md.swp"
        temporary.write_text("Calm.\n")
        temporary.rename(house.home / "agents" / "rose" / "SOUL.md")
        listener.wait_for("agents.changed", agent_id="rose")
        heard = [
            frame["payload"]["agent_id"] for frame in listener.events if frame["event"] == "agents.changed"
        ]
        assert set(heard) == {"dot", "rose"} and heard[0] == "dot"
    (house.home / "agents" / "dot" / "SOUL.md").write_text("Kind.\n")


def test_an_edit_of_a_shared_file_is_heard(house: GatewayProcess, rpc: Rpc) -> None:
    (house.home / "TOOLS.md").write_text("Use them.\n")
    assert rpc.wait_for("agents.changed", change="shared_files")["agent_id"] is None
    states = {f["name"]: f["state"] for f in rpc.call("agents.files.list", agent_id="rose")["files"]}
    assert states["TOOLS.md"] == "inherited"


# Tokens


def test_a_revoked_token_is_out_at_once(house: GatewayProcess, rpc: Rpc) -> None:
    made = rpc.call("tokens.create", scope="write", label="phone")
    assert set(made) == {"token", "scope", "id"} and made["scope"] == "write"
    with house.rpc(made["token"]) as phone, house.rpc(made["token"]) as tablet:
        assert phone.call("status")
        listed = rpc.call("tokens.list")["tokens"]
        assert made["token"] not in json.dumps(listed)
        [shown] = [token for token in listed if token["id"] == made["id"]]
        assert (
            set(shown) == {"id", "scope", "label", "created_at", "revoked_at"} and shown["revoked_at"] is None
        )
        assert rpc.call("tokens.revoke", id=made["id"]) == {"revoked": True, "id": made["id"]}
        for client in (phone, tablet):
            assert closing_code(client) == 1008
    assert rpc.call("status"), "others are not disturbed"
    with pytest.raises(RpcError) as refused, house.rpc(made["token"]):
        pass
    assert refused.value.code == "UNAUTHORIZED"
    assert refusal(rpc, "tokens.revoke", id=made["id"]).code == "NOT_FOUND"


@pytest.mark.parametrize("bad", ["", "nobody", "\x00", "\ud800", "owner", "x" * 100_000], ids=ascii)
def test_a_token_that_is_not_there_cannot_be_revoked(rpc: Rpc, bad: str) -> None:
    assert refusal(rpc, "tokens.revoke", id=bad).code in ("NOT_FOUND", "INVALID_REQUEST")


@pytest.mark.parametrize(
    "params",
    [{}, {"scope": "owner"}, {"scope": ["admin"]}, {"scope": "read", "label": "\x00\x1b[2J"}],
    ids=str,
)
def test_a_token_is_made_only_from_a_scope_and_a_plain_label(
    house: GatewayProcess, rpc: Rpc, params: dict[str, Any]
) -> None:
    before = trace(house.home)
    assert refusal(rpc, "tokens.create", **params).code == "INVALID_REQUEST"
    assert trace(house.home) == before


def test_no_secret_is_kept_in_the_clear(house: GatewayProcess, rpc: Rpc) -> None:
    token = rpc.call("tokens.create", scope="read")["token"]
    secret = token.split("_", 2)[2]
    for path in house.home.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path.name
    assert secret not in house.log.read_text()
    assert (house.home / "token").stat().st_mode & 0o077 == 0


def test_guessing_is_slowed_down_but_locks_nobody_out_who_has_the_right_token(home: Path) -> None:
    with running(home) as gateway:
        with gateway.rpc() as admin:
            unused = admin.call("tokens.create", scope="read")["token"]
            gone = admin.call("tokens.create", scope="read")
            admin.call("tokens.revoke", id=gone["id"])
        codes = []
        for number in range(30):
            with pytest.raises(RpcError) as refused, gateway.rpc(f"cot_{number}_guess"):
                pass
            codes.append(refused.value.code)
        assert codes[0] == "UNAUTHORIZED" and codes[-1] == "UNAVAILABLE"
        with gateway.http("another guess") as http:
            braked = http.get("/api/agents")
        assert braked.status_code == 429 and int(braked.headers["retry-after"]) > 0
        assert braked.json()["error"]["code"] == "UNAVAILABLE" and braked.json()["error"]["retryable"] is True
        # Guesses at one token are not held against whoever has mistaken another.
        with pytest.raises(RpcError) as refused, gateway.rpc(gone["token"]):
            pass
        assert refused.value.code == "UNAUTHORIZED"
        with gateway.http(f"{unused}x") as http:
            for _ in range(30):
                http.get("/api/agents")
        for token in (unused, None):
            with gateway.rpc(token) as client:
                assert client.call("agents.list")
            with gateway.http(token) as http:
                assert http.get("/api/agents").status_code == 200


def test_a_text_frame_that_is_no_text_ends_the_connection(house: GatewayProcess) -> None:
    """Also one behind a close, or in pieces. Nothing of it is unexpected."""
    for pieces in (
        [b"\x81\x84\0\0\0\0\xff\xfe\xed\xa0"],
        [b"\x01\x82\0\0\0\0\xed\xa0", b"\x80\x82\0\0\0\0\x80x"],
        [b"\x88\x82\0\0\0\0\x03\xe8", b"\x81\x82\0\0\0\0\xff\xfe"],
        [b"\x81\x82\0\0\0\0\xff\xfe"] * 3,
    ):
        with house.rpc() as client:
            client.socket.socket.sendall(b"".join(pieces))
            assert closing_code(client) in (1000, 1007)
    assert "Traceback" not in house.log.read_text()
