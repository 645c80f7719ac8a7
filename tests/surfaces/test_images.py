"""Images come in through every door, reach the model, and are kept like words."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import GatewayProcess, Rpc, RpcError, running
from tests.support.mock import ModelServer, config, model_server


def picture(width: int = 2) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = zlib.compress((b"\0" + b"\x10\x20\x30" * width) * 3)
    header = struct.pack(">IIBBBBB", width, 3, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


PNG = picture()
ENCODED = base64.b64encode(PNG).decode()
DATA_URL = f"data:image/png;base64,{ENCODED}"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("images") / "home"
    home.mkdir()
    (home / "agent.yaml").write_text(config(server.base_url))
    with running(home) as gateway:
        yield gateway


@pytest.fixture
def rpc(served: GatewayProcess) -> Iterator[Rpc]:
    with served.rpc() as client:
        yield client


@pytest.fixture
def http(served: GatewayProcess) -> Iterator[httpx.Client]:
    with served.http() as client:
        yield client


def shown(server: ModelServer) -> list[str]:
    """The images of the newest request."""
    contents = [m["content"] for m in server.bodies[-1]["messages"] if isinstance(m["content"], list)]
    return [p["image_url"]["url"] for parts in contents for p in parts if p["type"] == "image_url"]


def stored(served: GatewayProcess) -> str:
    """Everything that a refused request could have changed."""
    with served.rpc() as rpc:
        sessions = rpc.call("sessions.list")["sessions"]
        pages = [rpc.call("chat.history", session=s["id"])["messages"] for s in sessions]
    return hashlib.sha256(json.dumps([sessions, pages], sort_keys=True).encode()).hexdigest()


def test_chat_send_takes_attachments_and_history_tells_of_them(rpc: Rpc, server: ModelServer) -> None:
    session = "agent:main:dm:rpc"
    attachment = {"media_type": "image/png", "data": ENCODED, "name": "cat.png"}
    run = rpc.call("chat.send", session=session, message="what is this?", attachments=[attachment])
    rpc.wait_for("chat", run_id=run["run_id"], state="final")
    assert shown(server) == [DATA_URL]
    said = rpc.call("chat.history", session=session)["messages"][0]
    assert said["text"] == "what is this?"
    [part] = said["parts"]
    assert part == {
        "type": "image",
        "media_type": "image/png",
        "size": len(PNG),
        "name": "cat.png",
        "data": None,
    }
    said = rpc.call("chat.history", session=session, with_data=True)["messages"][0]
    assert base64.b64decode(said["parts"][0]["data"]) == PNG
    # It stays in the conversation, the same bytes in every later request.
    run = rpc.call("chat.send", session=session, message="and now?")
    rpc.wait_for("chat", run_id=run["run_id"], state="final")
    assert shown(server) == [DATA_URL]
    exported = rpc.call("sessions.export", session=session, format="jsonl")["content"].splitlines()
    assert base64.b64decode(json.loads(exported[0])["parts"][0]["data"]) == PNG


def test_an_image_needs_no_words(rpc: Rpc, server: ModelServer) -> None:
    run = rpc.call("chat.send", session="agent:main:dm:mute", message="", attachments=[{"data": ENCODED}])
    rpc.wait_for("chat", run_id=run["run_id"], state="final")
    assert shown(server) == [DATA_URL]
    with pytest.raises(RpcError, match="empty"):
        rpc.call("chat.send", session="agent:main:dm:mute", message="", attachments=[])


def test_over_http(http: httpx.Client, rpc: Rpc, server: ModelServer) -> None:
    session = "agent:main:dm:http"
    rpc.call("sessions.watch", session=session)
    body = {"message": "look", "attachments": [{"mediaType": "image/png", "data": ENCODED}]}
    run = http.post(f"/api/sessions/{session}/messages", json=body)
    assert run.status_code == 202
    rpc.wait_for("chat", run_id=run.json()["runId"], state="final")
    assert shown(server) == [DATA_URL]
    found = http.get(f"/api/sessions/{session}/messages", params={"withData": "true"}).json()
    assert found["messages"][0]["parts"][0]["mediaType"] == "image/png"
    assert found["messages"][0]["parts"][0]["data"] == ENCODED


def completion(http: httpx.Client, image: str, **more: Any) -> httpx.Response:
    content = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": image}},
    ]
    body = {"model": "coterie/main", "messages": [{"role": "user", "content": content}], **more}
    return http.post("/v1/chat/completions", json=body)


def response(http: httpx.Client, image: str, **more: Any) -> httpx.Response:
    content = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": image},
    ]
    body = {"model": "coterie/main", "input": [{"role": "user", "content": content}], **more}
    return http.post("/v1/responses", json=body)


def gateway_chat(http: httpx.Client, image: str) -> httpx.Response:
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": image}}]
    body = {"channel": "zulip", "peerId": "7", "messages": [{"role": "user", "content": content}]}
    return http.post("/api/gateway/chat", json=body)


def attached(http: httpx.Client, image: str) -> httpx.Response:
    body = {"channel": "zulip", "peerId": "8", "text": "look"}
    data = image.partition(",")[2] or image
    return http.post("/api/gateway/chat", json={**body, "attachments": [{"data": data}]})


Door = Callable[[httpx.Client, str], httpx.Response]
DOORS: list[Door] = [completion, response, gateway_chat, attached]


@pytest.mark.parametrize("door", DOORS)
def test_programs_send_images(http: httpx.Client, server: ModelServer, door: Door) -> None:
    answer = door(http, DATA_URL)
    assert answer.status_code == 200, answer.text
    assert shown(server)[-1] == DATA_URL


def test_earlier_images_of_a_one_off_request_are_shown_too(http: httpx.Client, server: ModelServer) -> None:
    first = [{"type": "image_url", "image_url": {"url": DATA_URL}}]
    messages = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Sure?"},
    ]
    answer = http.post("/v1/chat/completions", json={"model": "coterie/main", "messages": messages})
    assert answer.status_code == 200, answer.text
    assert shown(server) == [DATA_URL]


def encoded(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


BAD = {
    "not an image": encoded(b"hello"),
    "a page that says it is an image": encoded(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
    "0 bytes": "data:image/png;base64,",
    "cut off": encoded(PNG[:20]),
    "not base64": "data:image/png;base64,%%%%",
    "half of base64": DATA_URL[:-5],
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_image_is_refused_and_changes_nothing(
    served: GatewayProcess, http: httpx.Client, door: Door, what: str
) -> None:
    before = stored(served)
    answer = door(http, BAD[what])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST"), answer.text
    assert "image" in answer.json()["error"]["message"]
    assert stored(served) == before


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/cat.png", "file:///etc/passwd", "cat.png", ""])
@pytest.mark.parametrize("door", [completion, response, gateway_chat])
def test_nothing_is_fetched_for_a_message(
    served: GatewayProcess, http: httpx.Client, door: Door, url: str
) -> None:
    before = stored(served)
    answer = door(http, url)
    assert answer.status_code == 400
    assert "data:image" in answer.json()["error"]["message"]
    assert stored(served) == before


@pytest.mark.parametrize("door", DOORS)
def test_fifty_megabytes_are_too_large(served: GatewayProcess, http: httpx.Client, door: Door) -> None:
    before = stored(served)
    answer = door(http, encoded(PNG.ljust(50_000_000, b"\0")))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "INVALID_REQUEST")
    assert stored(served) == before


def test_bad_attachments_over_rpc(served: GatewayProcess, rpc: Rpc) -> None:
    before = stored(served)
    for attachments, said in (
        ([{"data": ""}], "0 bytes"),
        ([{"data": ENCODED}, {"data": "aGVsbG8="}], "not an image"),
        ([{"data": "é"}], "base64"),
        ([{"data": ENCODED, "url": "x"}], "attachments"),
        ([{"data": ENCODED, "name": "\0"}], "attachments"),
        ([{"data": ENCODED}] * 21, "at most 20"),
        ("cat.png", "attachments"),
    ):
        with pytest.raises(RpcError, match=said) as caught:
            rpc.call("chat.send", session="agent:main:dm:bad", message="see", attachments=attachments)
        assert caught.value.code == "INVALID_REQUEST"
    assert stored(served) == before


def test_a_key_stands_for_the_images_too(rpc: Rpc) -> None:
    def send(data: bytes) -> str:
        attachment = {"data": base64.b64encode(data).decode()}
        run = rpc.call(
            "chat.send",
            session="agent:main:dm:key",
            message="look",
            attachments=[attachment],
            idempotency_key="k",
        )
        return str(run["run_id"])

    first = send(PNG)
    assert send(PNG) == first
    with pytest.raises(RpcError) as caught:
        send(picture(3))
    assert caught.value.code == "CONFLICT"


def test_an_image_outlives_a_kill_before_any_model_saw_it(home: Path, server: ModelServer) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(config(server.base_url))
    server.answer = lambda exchange: exchange.hang()
    try:
        with running(home) as gateway, gateway.rpc() as rpc:
            rpc.call("chat.send", session="agent:main:main", message="first")
            run = rpc.call(
                "chat.send", session="agent:main:main", message="see", attachments=[{"data": ENCODED}]
            )
            waiting = rpc.call("chat.history", session="agent:main:main")["messages"][-1]
            assert waiting["seq"] is None and waiting["parts"][0]["size"] == len(PNG)
            gateway.kill()
    finally:
        server.answer = lambda exchange: exchange.reply("ok")
    with running(home) as gateway, gateway.rpc() as rpc:
        while rpc.call("chat.queue", session="agent:main:main")["entries"]:
            time.sleep(0.02)
        answered = rpc.call("chat.history", session="agent:main:main", with_data=True)
        said = next(m for m in answered["messages"] if m["run_id"] == run["run_id"])
        assert base64.b64decode(said["parts"][0]["data"]) == PNG
        assert answered["messages"][-1]["text"] == "ok"
    assert shown(server) == [DATA_URL]
