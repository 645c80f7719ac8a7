"""The HTTP API on a real gateway: statuses, spelling, files, and who is let in from where."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.support.gateway import GatewayProcess, coterie, running
from tests.support.traces import trace


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A household that the tests of this file share."""
    with running(tmp_path_factory.mktemp("http") / "home") as gateway:
        with gateway.http() as http:
            body = {"id": "dot", "label": "Dot", "emoji": "🦊", "soul": "Kind.\n"}
            assert http.post("/api/agents", json=body).status_code == 201
            assert http.post("/api/agents", json={"id": "rose"}).status_code == 201
        yield gateway


@pytest.fixture(scope="module")
def http(house: GatewayProcess) -> Iterator[httpx.Client]:
    with house.http() as client:
        yield client


@pytest.fixture(scope="module")
def read_token(house: GatewayProcess) -> str:
    with house.rpc() as rpc:
        token: str = rpc.call("tokens.create", scope="read")["token"]
        return token


@pytest.fixture
def unchanged(house: GatewayProcess) -> Iterator[None]:
    """Whatever the test does, the household stays as it was."""
    before = trace(house.home)
    yield
    assert trace(house.home) == before


def code(answer: httpx.Response) -> str:
    """The code of a refusal, which has the same shape everywhere."""
    assert answer.headers["content-type"] == "application/json", answer.text[:300]
    body = answer.json()
    assert set(body) == {"error"}
    assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "details", "retryable"}
    found: str = body["error"]["code"]
    return found


# The story


def test_an_agents_life_over_http(http: httpx.Client) -> None:
    made = http.post("/api/agents", json={"id": "guest", "spec": {"toolAllowlist": ["lists_*"]}})
    assert made.status_code == 201
    assert made.json()["isDefault"] is False and made.json()["spec"] == {"toolAllowlist": ["lists_*"]}
    assert {"id", "label", "isDefault", "identity", "soul", "spec", "files"} <= set(made.json())

    changed = http.patch(
        "/api/agents/guest", json={"label": "Guest", "identity": {"vibe": "calm"}, "soul": "Hm."}
    )
    assert changed.status_code == 200
    assert changed.json()["identity"] == {"name": "Guest", "emoji": None, "creature": None, "vibe": "calm"}

    listed = http.get("/api/agents").json()
    assert listed["defaultId"] == "main" and {a["id"] for a in listed["agents"]} == {
        "main",
        "dot",
        "rose",
        "guest",
    }

    assert http.post("/api/agents/guest/default").json() == {"defaultId": "guest"}
    assert code(refused := http.delete("/api/agents/guest")) == "CONFLICT" and refused.status_code == 409
    assert http.post("/api/agents/main/default").json() == {"defaultId": "main"}

    gone = http.delete("/api/agents/guest")
    assert gone.status_code == 200 and gone.json()["deleted"] is True and gone.json()["defaultId"] == "main"
    assert http.delete("/api/agents/guest").status_code == 404
    assert "guest" not in {a["id"] for a in http.get("/api/agents").json()["agents"]}
    for spelling in ("includeArchived", "include_archived"):
        listed = http.get("/api/agents", params={spelling: "true"}).json()
        assert {a["id"]: a["state"] for a in listed["agents"]}["guest"] == "archived"
    assert http.post("/api/agents/guest/restore").json()["deleted"] is False
    assert http.get("/api/agents/guest").json()["soul"] == "Hm."
    assert http.get("/api/agents/default").json()["id"] == "main"
    assert http.delete("/api/agents/guest").status_code == 200


def test_files_over_http(house: GatewayProcess, http: httpx.Client) -> None:
    listed = http.get("/api/agents/rose/files").json()
    assert set(listed) == {"agentId", "files"}
    day = "/api/agents/rose/files/memory/2026-05-01.md"
    assert http.get(day).status_code == 404
    made = http.put(day, json={"content": "Rain.\n", "expectedHash": ""})
    assert made.status_code == 200 and set(made.json()) == {
        "agentId",
        "name",
        "state",
        "content",
        "size",
        "hash",
    }
    assert made.json()["name"] == "memory/2026-05-01.md"
    assert (house.home / "agents/rose/memory/2026-05-01.md").read_text() == "Rain.\n"
    assert http.get(day).json() == made.json()

    stale = http.put(day, json={"content": "x", "expected_hash": ""})
    assert stale.status_code == 409 and code(stale) == "CONFLICT"
    newer = http.put(day, json={"content": "Sun.\n", "expected_hash": made.json()["hash"]})
    assert newer.status_code == 200
    assert http.put(day, json={"content": "x", "expectedHash": made.json()["hash"]}).status_code == 409
    assert http.get(day).json()["content"] == "Sun.\n"


# Refusals


BAD_IDS = [
    "..%2Fx",
    "a%2Fb",
    "Main",
    "a" * 51,
    "a" * 5000,
    "%F0%9F%A6%8A",
    "a%00b",
    "%00",
    "-a",
    "%ff",
    "dot%0A",
    "..%5Cx",
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("bad", BAD_IDS, ids=lambda value: value[:20])
def test_a_path_that_names_no_agent_is_refused(http: httpx.Client, bad: str) -> None:
    for method, path, body in [
        ("GET", "", None),
        ("PATCH", "", {"label": "x"}),
        ("DELETE", "", None),
        ("POST", "/default", None),
        ("POST", "/restore", None),
        ("GET", "/files", None),
        ("GET", "/files/SOUL.md", None),
        ("PUT", "/files/SOUL.md", {"content": "x"}),
    ]:
        answer = http.request(method, f"/api/agents/{bad}{path}", json=body)
        assert answer.status_code in (400, 404, 405), (method, path)
        assert code(answer) in ("INVALID_REQUEST", "NOT_FOUND")


BAD_NAMES = [
    "..%2F..%2Fagent.yaml", "%2Fetc%2Fpasswd", "//etc/passwd", "SOUL.md%00", "memory%5Cx.md", "memory%2F..%2F..%2Frose%2FSOUL.md",
    "agent.yaml", "soul.md", "workspace/x.md", "memory/" + "a" * 300 + ".md", "memory/x.txt", "%ED%A0%80", "SOUL.md/",
]  # fmt: skip


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("bad", BAD_NAMES, ids=lambda value: value[:24])
def test_a_file_name_that_leads_elsewhere_is_refused(http: httpx.Client, bad: str) -> None:
    url = f"/api/agents/dot/files/{bad}"
    assert http.get(url).status_code in (400, 404)
    refused = http.put(url, json={"content": "mine"})
    assert refused.status_code == 400 and code(refused) == "INVALID_REQUEST"


BAD_BODIES: list[bytes] = [
    b"", b"not json", b"[]", b"null", b"1", b'"x"', b"{}", b"{", b"\xff\xfe", b'{"id":null}', b'{"id":5}',
    b'{"id":"../x"}', b'{"id":"Main"}', b'{"id":"default"}', b'{"id":"subagents"}', b'{"id":""}', b'{"id":"\\ud800"}',
    b'{"id":"new","\\ud800":1}', b'{"id":"new","spec":{"\\ud800":1}}', b'{"id":"new","spec":{"description":"\\ud800"}}',
    b'{"id":"new","soul":"\\ud800"}', b'{"id":"new","soul":"a\\u0000b"}', b'{"id":"new","label":"a\\u0000b"}',
    b'{"id":"new","emoji":"\\ud800"}', b'{"id":"new","unknown":1}', b'{"id":"new","spec":[]}', b'{"id":"new","label":""}',
    b'{"id":"new","spec":{"temperature":' + b"9" * 5000 + b"}}", b'{"id":"new","spec":{"max_tokens":1e400}}',
    b'{"id":"new","spec":{"limits":{"costPerDay":Infinity}}}', b'{"id":"new","spec":{"limits":{"costPerDay":NaN}}}',
    b'{"id":"new","spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"id":"new","spec":{"x":' + b"[" * 900 + b"]" * 900 + b"}}",
    b'{"id":"new","idempotencyKey":"k","spec":{"x":' + b"[" * 300 + b"]" * 300 + b"}}",
    b'{"id":"new","' + b"x" * 1_000_000 + b'":1}',
    b'{"id":"' + b"x" * 1_000_000 + b'"}',
]  # fmt: skip


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda value: ascii(value)[:40])
def test_a_body_that_makes_no_sense_is_400_and_never_422(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/api/agents", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text[:300]
    assert code(answer) == "INVALID_REQUEST"
    assert len(answer.content) < 10_000, "a refusal does not send the rubbish back"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": ""},
    ],
    ids=str,
)
def test_only_json_is_read(http: httpx.Client, headers: dict[str, str]) -> None:
    """A page of another site can send plain text without asking, but not JSON."""
    body = b'{"id":"intruder"}'.decode().encode("utf-16" if "utf-16" in str(headers) else "utf-8")
    if "utf-16" in str(headers):
        assert http.post("/api/agents", content=b"\xff\xfe{", headers=headers).status_code == 400
        return
    answer = http.post("/api/agents", content=body, headers=headers)
    assert answer.status_code in (400, 415) and code(answer) == "INVALID_REQUEST"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("query", ["includeArchived=maybe", "includeArchived=", "no_such=1"])
def test_a_wrong_query_is_400(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/api/agents?{query}")
    assert answer.status_code == 400 and code(answer) == "INVALID_REQUEST"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_ten_megabytes_are_413(house: GatewayProcess, declared: bool) -> None:
    body = json.dumps({"content": "x" * 10_000_000}).encode()
    chunks = (body[start : start + 65536] for start in range(0, len(body), 65536))
    with house.http() as http:
        answer = http.put(
            "/api/agents/dot/files/SOUL.md",
            content=body if declared else chunks,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 413 and code(answer) == "INVALID_REQUEST"
        assert http.get("/api/agents").status_code == 200


@pytest.mark.usefixtures("unchanged")
def test_a_file_over_a_megabyte_is_413(http: httpx.Client) -> None:
    answer = http.put("/api/agents/dot/files/SOUL.md", json={"content": "x" * 1_100_000})
    assert answer.status_code == 413 and code(answer) == "INVALID_REQUEST"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/agents"),
        ("DELETE", "/api/agents"),
        ("PUT", "/api/agents/dot"),
        ("GET", "/api/agents/dot/default"),
        ("DELETE", "/api/agents/dot/files/SOUL.md"),
        ("POST", "/healthz"),
        ("OPTIONS", "/api/agents"),
        ("BREW", "/api/agents"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_405(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path)
    if method == "BREW" and answer.status_code == 400:
        return  # the parser knows no such word
    assert answer.status_code == 405 and code(answer) == "INVALID_REQUEST"
    assert answer.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/api", "/api/nothing", "/nothing", "/api/agents/dot/nothing", "/api//agents", "/%00"]
)
def test_a_path_that_is_not_there_is_404(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 404 and code(answer) == "NOT_FOUND"


def test_conflicts_are_409(http: httpx.Client) -> None:
    for body in ({"id": "dot"}, {"id": "main"}, {"id": "other", "label": "DOT"}):
        answer = http.post("/api/agents", json=body)
        assert answer.status_code in (400, 409) and code(answer) in ("CONFLICT", "INVALID_REQUEST")
    assert http.post("/api/agents", json={"id": "dot"}).status_code == 409
    assert http.delete("/api/agents/main").status_code == 409


# Tokens


PROTECTED = [
    "/api/agents",
    "/api/agents/dot",
    "/openapi.json",
    "/readyz",
    "/nothing",
    "/api/agents/dot/files/SOUL.md",
]


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Basic eDp5", "Bearer wrong", "Token x", "Bearer cot_owner_x"],
)
def test_without_a_valid_token_nothing_is_told(
    strangers: GatewayProcess, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    answer = httpx.get(f"{strangers.url}{path}", headers=headers)
    assert answer.status_code in (401, 429)
    assert code(answer) in ("UNAUTHORIZED", "UNAVAILABLE")
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of their own for tests that fail to come in, as failures slow down those that follow."""
    with running(tmp_path_factory.mktemp("strangers") / "home") as gateway:
        yield gateway


def test_a_token_in_the_address_is_not_read(house: GatewayProcess) -> None:
    """Addresses end up in logs and histories."""
    for name in ("token", "access_token", "key"):
        assert httpx.get(f"{house.url}/api/agents", params={name: house.token}).status_code == 401


def test_what_needs_no_token(house: GatewayProcess) -> None:
    assert httpx.get(f"{house.url}/healthz").json() == {"status": "ok"}
    page = httpx.get(f"{house.url}/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"


CHANGES: list[tuple[str, str]] = [
    ("POST", "/api/agents"),
    ("PATCH", "/api/agents/dot"),
    ("DELETE", "/api/agents/dot"),
    ("POST", "/api/agents/dot/default"),
    ("POST", "/api/agents/dot/restore"),
    ("PUT", "/api/agents/dot/files/SOUL.md"),
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b'{"id":"x","label":"x","content":"x"}', b"[" * 100_000],
    ids=["none", "junk", "fair", "deep"],
)
def test_a_read_token_is_forbidden_to_change_whatever_it_sends(
    house: GatewayProcess, read_token: str, method: str, path: str, body: bytes
) -> None:
    with house.http(read_token) as http:
        answer = http.request(method, path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 403 and code(answer) == "FORBIDDEN"


def test_every_documented_change_is_closed_to_a_read_token(
    house: GatewayProcess, http: httpx.Client, read_token: str
) -> None:
    before = trace(house.home)
    reading = {"/api/memory/recall"}
    with house.http(read_token) as reader:
        for path, operations in http.get("/openapi.json").json()["paths"].items():
            for method in set(operations) & {"post", "put", "patch", "delete"}:
                if path in reading or path.startswith(("/hooks", "/external", "/v1", "/mcp")):
                    continue
                answer = reader.request(method, path.replace("{id}", "dot"), content=b"{")
                assert answer.status_code == 403, (method, path)
    assert trace(house.home) == before


def test_a_read_token_reads(house: GatewayProcess, read_token: str) -> None:
    with house.http(read_token) as reader:
        for path in ("/api/agents", "/api/agents/dot", "/api/agents/dot/files", "/openapi.json", "/readyz"):
            assert reader.get(path).status_code == 200


# Where requests come from


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example#localhost",
        "evil.example/localhost",
        "user@evil.example",
        "10.0.0.5",
        "",
        "[::1",
        "[",
        "a" * 5000,
    ],
    ids=lambda value: value[:20],
)
def test_a_name_that_points_here_by_trickery_gets_nothing(house: GatewayProcess, host: str) -> None:
    """DNS rebinding: the browser believes that this is evil.example."""
    for path in ("/api/agents", "/healthz", "/docs"):
        answer = httpx.get(
            f"{house.url}{path}", headers={"host": host, "authorization": f"Bearer {house.token}"}
        )
        assert answer.status_code in (400, 403)
        if answer.status_code == 403:
            assert code(answer) == "FORBIDDEN"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "127.0.0.2", "LOCALHOST"])
def test_names_of_this_machine_are_fine(house: GatewayProcess, host: str) -> None:
    port = house.url.rpartition(":")[2]
    for shown in (host, f"{host}:{port}"):
        assert httpx.get(f"{house.url}/healthz", headers={"host": shown}).status_code == 200


ORIGINS = [
    "http://evil.example", "https://evil.example:443", "null", "", "http://localhost", "http://localhost:1",
    "http://[", "http://[::1", "file://", "http://127.0.0.1:1", "x" * 5000, "http://evil.example#http://127.0.0.1",
]  # fmt: skip


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("origin", ORIGINS, ids=lambda value: value[:30])
def test_a_page_of_another_site_gets_nothing(house: GatewayProcess, http: httpx.Client, origin: str) -> None:
    answer = http.post("/api/agents", json={"id": "intruder"}, headers={"origin": origin})
    assert answer.status_code == 403 and code(answer) == "FORBIDDEN"
    with pytest.raises(InvalidStatus) as refused, house.socket(additional_headers={"Origin": origin}):
        pass
    assert refused.value.response.status_code == 403


def test_our_own_page_is_let_in(house: GatewayProcess, http: httpx.Client) -> None:
    assert http.get("/api/agents", headers={"origin": house.url}).status_code == 200
    with house.socket(additional_headers={"Origin": house.url}) as own:
        assert json.loads(own.recv(30))["event"] == "connect.challenge"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "["])
def test_a_socket_to_another_name_is_refused(house: GatewayProcess, host: str) -> None:
    """The address is right, the name in the request is not."""
    port = int(house.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        raw.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert raw.recv(4096).split(b" ")[1] in (b"400", b"403")


def test_configured_names_and_pages_are_let_in(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(
        "gateway: {allowed_hosts: [coterie.lan], allowed_origins: ['https://app.example']}\n"
    )
    with running(home) as gateway, gateway.http() as http:
        assert http.get("/api/agents", headers={"host": "coterie.lan"}).status_code == 200
        assert http.get("/api/agents", headers={"origin": "https://app.example"}).status_code == 200
        assert http.get("/api/agents", headers={"origin": "http://app.example"}).status_code == 403
        assert http.get("/api/agents", headers={"host": "other.lan"}).status_code == 403


def test_another_address_needs_a_token_first(home: Path) -> None:
    refused = coterie(home, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 1
    assert "COTERIE_TOKEN" in refused.stderr and "Traceback" not in refused.stderr
    assert not (home / "token").exists() and not (home / "run" / "gateway.json").exists()
    blank = coterie(home, "serve", "--host", "0.0.0.0", "--port", "0", COTERIE_TOKEN="  ")
    assert blank.returncode == 1 and "COTERIE_TOKEN" in blank.stderr


def test_the_address_that_was_asked_for_is_answered(home: Path) -> None:
    with running(home, "--host", "0.0.0.0", COTERIE_TOKEN="chosen by the owner\n") as gateway:
        assert not (home / "token").exists()
        headers = {"authorization": "Bearer chosen by the owner"}
        port = gateway.url.rpartition(":")[2]
        for host in (f"127.0.0.1:{port}", f"0.0.0.0:{port}"):
            answer = httpx.get(f"{gateway.url}/api/agents", headers={**headers, "host": host})
            assert answer.status_code == 200
        assert (
            httpx.get(f"{gateway.url}/api/agents", headers={**headers, "host": "evil.example"}).status_code
            == 403
        )


# Raw bytes


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /api/agents HTTP/1.0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 100,
        b"POST /api/agents HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /api/agents HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/agents HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/agents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_bytes_that_are_no_proper_request_hurt_nobody(
    house: GatewayProcess, http: httpx.Client, sent: bytes
) -> None:
    port = int(house.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := raw.recv(65536):
            answer += chunk
    assert b" 500 " not in answer[:20] and b"Traceback" not in answer
    assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("line_break", [b"\r\nX-More: ", b""], ids=["many headers", "one header"])
def test_headers_without_end_are_refused_early(
    house: GatewayProcess, http: httpx.Client, line_break: bytes
) -> None:
    """Before any token is looked at, and long before they fill the memory."""
    port = int(house.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-More: ")
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < 50_000_000:
                sent += raw.send(line_break + b"x" * 8000)
    assert sent < 5_000_000  # what the two ends hold of it on the way
    big = {"X-Big": "x" * 60_000}
    assert http.get("/healthz", headers=big).status_code == 200
    assert http.post("/api/sessions", content=b"x" * 200_000).status_code == 400


@pytest.mark.parametrize("behind", [b"\x00 nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b""])
def test_a_connection_that_ends_before_its_requests_do(
    house: GatewayProcess, http: httpx.Client, behind: bytes
) -> None:
    """Several at once, and then something that ends it, or nobody who listens: their answers have nowhere to go."""
    port = int(house.url.rpartition(":")[2])
    body = b'{"model": "coterie/main", "messages": [{"role": "user", "content": "hello"}]}'
    asked = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        + house.token.encode()
        + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
            raw.sendall(asked * 3 + behind)
            if behind:
                with contextlib.suppress(ConnectionResetError):
                    while raw.recv(65536):
                        pass
    while any(session["running"] for session in http.get("/api/sessions?kinds=once").json()["sessions"]):
        pass
    assert "Traceback" not in house.log.read_text()


def test_the_log_holds_no_traceback(house: GatewayProcess, http: httpx.Client) -> None:
    """Given everything above, nothing of it was unexpected."""
    assert http.get("/healthz").status_code == 200
    assert "Traceback" not in house.log.read_text()
