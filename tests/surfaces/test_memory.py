"""Memories from outside: the command line with and without a gateway, HTTP, RPC, and files under an editor."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import Command, GatewayProcess, RpcError, coterie, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("memory") / "home"
    with running(home) as gateway, gateway.http() as client:
        for agent in ("dot", "rose"):
            client.post("/api/agents", json={"id": agent}).raise_for_status()
        yield gateway


def contents(answer: dict[str, Any]) -> list[str]:
    return [memory["content"] for memory in answer["memories"]]


@pytest.mark.parametrize("with_gateway", [False, True])
def test_the_story_of_dot(home: Path, with_gateway: bool) -> None:
    def say(*arguments: str, fails: bool = False) -> str:
        done = coterie(home, *arguments)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout

    def recall(*who: str) -> set[str]:
        return {
            m["content"] for m in json.loads(say("recall", "test private note", "--json", *who))["memories"]
        }

    def story() -> None:
        say("agent", "add", "dot", "--personality", "x")
        say("agent", "add", "rose", "--personality", "y")
        say("remember", "test", "--agent", "dot", "--tag", "one")
        say("remember", "private note", "--agent", "dot", "--private")
        say("remember", "nobody's", "--private", fails=True)
        assert recall("--agent", "dot") == {"test", "private note"}
        assert recall("--agent", "rose") == {"test"}
        assert recall() == {"test"}
        assert json.loads(say("agent", "info", "dot", "--json"))["memories"]["private"] == 1
        say("agent", "remove", "dot")
        assert recall("--agent", "rose") == set() and recall() == set()
        say("agent", "restore", "dot")
        assert recall("--agent", "dot") == {"test", "private note"}
        say("memory", "export", str(home.parent / "out.md"), "--agent", "dot")
        say("agent", "remove", "dot")
        say("agent", "purge", "dot", "--yes")
        assert recall() == set()
        say("agent", "add", "dot", "--personality", "x")
        assert recall("--agent", "dot") == set()
        assert json.loads(say("memory", "import", str(home.parent / "out.md"), "--json"))["added"] == 2
        assert recall("--agent", "dot") == {"test", "private note"}
        assert json.loads(say("memory", "reindex", "--json"))["pending"] == 0

    if with_gateway:
        with running(home):
            story()
    else:
        story()


def test_a_search_over_http_reads_every_script_and_the_end_of_a_long_question(
    gateway: GatewayProcess,
) -> None:
    with gateway.http() as client:
        said = [
            "лодка Марии зелёная",
            "我们在上海买了一条船",
            "Rose writes C++ and R",
            "서울에서 김치를 샀어요",
        ]
        for content in said:
            client.post("/api/memory/remember", json={"content": content}).raise_for_status()
        asked = [
            "Лодки",
            "上海",
            "C++",
            "김치",
            "the minutes of a meeting: " + "; ".join(map(str, range(90))) + ". Лодки?",
        ]
        for query, content in zip(asked, [*said, said[0]], strict=True):
            answer = client.get("/memory/search", params={"q": query}).json()
            assert contents(answer)[0] == content
            assert "text" in answer["memories"][0]["via"]


def test_http_remembers_recalls_changes_and_forgets(gateway: GatewayProcess) -> None:
    with gateway.http() as client:
        made = client.post(
            "/api/memory/remember",
            json={
                "content": "the kayak is red",
                "agentId": "dot",
                "occurredAt": "2026-05-01",
                "sourceRef": "s:1",
            },
        )
        assert made.status_code == 201 and made.json()["scope"] == "global"
        hit = client.post("/api/memory/recall", json={"query": "kayak"}).json()["memories"][0]
        assert hit["sourceRef"] == "s:1" and hit["occurredAt"] == "2026-05-01T00:00:00Z"
        assert hit["agentId"] == "dot" and "text" in hit["via"] and hit["score"] > 0
        memory_id = made.json()["id"]
        assert client.get("/memory/search", params={"q": "kayak", "agentId": "rose"}).json()["memories"]
        changed = client.patch(f"/api/memories/{memory_id}", json={"pinned": True, "tags": ["sea"]}).json()
        assert changed["pinnedAt"] and changed["tags"] == ["sea"]
        assert memory_id in [m["id"] for m in client.get("/api/memories?tags=sea").json()["memories"]]
        assert client.delete(f"/api/memories/{memory_id}").json() == {"forgotten": True, "id": memory_id}
        assert client.delete(f"/api/memories/{memory_id}").status_code == 404


@pytest.mark.parametrize("with_gateway", [False, True])
def test_an_agent_that_is_named_limits_a_change_to_its_own(home: Path, with_gateway: bool) -> None:
    def story() -> None:
        for agent in ("dot", "rose"):
            assert coterie(home, "agent", "add", agent, "--personality", "x").returncode == 0
        made = json.loads(coterie(home, "remember", "the kayak is red", "--agent", "dot", "--json").stdout)[
            "id"
        ]
        for command in (
            ("memory", "forget", made, "--agent", "rose"),
            ("memory", "edit", made, "--agent", "rose", "--text", "no"),
            ("memory", "edit", made, "--agent", "rose", "--pin"),
            ("remember", "there is no kayak", "--agent", "rose", "--supersedes", made),
        ):
            done = coterie(home, *command)
            assert done.returncode != 0 and "belongs to another agent: dot" in done.stderr, command
        file = home.parent / "theirs.jsonl"
        file.write_text(json.dumps({"content": "not rose's", "agent_id": "dot"}) + "\n")
        done = coterie(home, "memory", "import", str(file), "--agent", "rose")
        assert done.returncode != 0 and "belongs to dot" in done.stderr
        listed = json.loads(coterie(home, "memory", "list", "--agent", "dot", "--json").stdout)["memories"]
        assert [(m["id"], m["content"], m["pinned_at"]) for m in listed] == [(made, "the kayak is red", None)]
        done = coterie(home, "memory", "forget", made[:12], "--agent", "dot")
        assert done.returncode == 0 and made in done.stdout

    if with_gateway:
        with running(home):
            story()
    else:
        story()


def test_http_shortens_ids_and_supersedes_once(gateway: GatewayProcess) -> None:
    with gateway.http() as client:

        def tell(content: str, **more: str) -> httpx.Response:
            return client.post("/api/memory/remember", json={"content": content, **more})

        lines = "".join(
            json.dumps({"id": f"cafe{n}", "content": f"tender {n}", "agentId": "dot"}) + "\n"
            for n in range(3)
        )
        assert client.post("/api/memory/import", content=lines.encode()).json()["added"] == 3
        many = client.get("/api/memories/caf")
        assert many.status_code == 409 and "3 memories" in many.json()["error"]["message"]
        assert client.get("/api/memories/cafe1").json()["id"] == "cafe1"
        hidden = tell("nobody else sees this", agentId="dot", scope="private").json()["id"]
        assert client.get(f"/api/memories/{hidden[:20]}").status_code == 404
        assert client.get(f"/api/memories/{hidden[:20]}?agentId=dot").json()["id"] == hidden
        refused = tell("there is no tender", agentId="rose", supersedes="cafe1")
        assert refused.status_code == 409 and "another agent" in refused.json()["error"]["message"]
        newer = tell("tender 1 sank", agentId="dot", supersedes="cafe1").json()["id"]
        again = tell("tender 1 floats", agentId="dot", supersedes="cafe1")
        assert again.status_code == 409 and newer in again.json()["error"]["message"]
        assert client.patch("/api/memories/cafe2?agentId=dot", json={"tags": ["x"]}).json()["id"] == "cafe2"
        assert client.delete(f"/api/memories/{newer[:20]}?agentId=dot").json()["id"] == newer
        assert client.get("/api/memories/cafe1").status_code == 404, "what it took the place of goes with it"


def test_of_two_processes_that_supersede_one_memory_one_does(home: Path) -> None:
    first = json.loads(coterie(home, "remember", "the ferry leaves at seven", "--json").stdout)["id"]
    commands = [
        Command(home, "remember", f"it leaves at {hour}", "--supersedes", first) for hour in (8, 9, 10)
    ]
    done = [command.finish(240) for command in commands]
    assert sorted(one.returncode != 0 for one in done) == [False, True, True]
    assert all("superseded already" in one.stderr for one in done if one.returncode)
    listed = json.loads(coterie(home, "memory", "list", "--json").stdout)["memories"]
    assert len(listed) == 1 and listed[0]["content"].startswith("it leaves at ")


def test_http_refuses_what_is_wrong(gateway: GatewayProcess) -> None:
    with gateway.http() as client:
        for body in (
            {"content": ""},
            {"content": "x", "scope": "archived"},
            {"content": "x", "scope": "private"},
            {"content": "x", "occurredAt": "soon"},
            {"content": "x", "unknown": 1},
            {},
        ):
            assert client.post("/api/memory/remember", json=body).status_code == 400, body
        assert client.post("/api/memory/remember", json={"content": "x", "agentId": "who"}).status_code == 404
        assert client.post("/api/memory/recall", json={"query": "x", "limit": 0}).status_code == 400
        assert client.post("/api/memory/recall", json={"query": "x", "scope": "archived"}).status_code == 400
        for lines in (b"{", b"[]", b'{"content": 1}', b'{"text": "x"}', b"\xff"):
            assert client.post("/api/memory/import", content=lines).status_code == 400, lines


def test_scopes_are_asked_for_first(gateway: GatewayProcess) -> None:
    with gateway.rpc() as rpc:
        token = rpc.call("tokens.create", scope="read")["token"]
        rpc.call("memory.remember", content="readable by all", idempotency_key="k1")
        first = rpc.call("memory.remember", content="once", idempotency_key="k2")
        assert rpc.call("memory.remember", content="once", idempotency_key="k2") == first
    with gateway.rpc(token) as rpc:
        assert "readable by all" in contents(rpc.call("memory.recall", query="readable"))
        rpc.call("memory.stats")
        for method in (
            "memory.remember",
            "memory.update",
            "memory.forget",
            "memory.import",
            "memory.reindex",
        ):
            with pytest.raises(RpcError) as refused:
                rpc.call(method, nonsense=1)
            assert refused.value.code == "FORBIDDEN"
    with gateway.rpc() as rpc, pytest.raises(RpcError) as wrong:
        rpc.call("memory.export", agent_id="nobody")
    assert wrong.value.code == "NOT_FOUND"


def test_an_edit_is_found_at_once_by_its_agent_and_never_by_another(gateway: GatewayProcess) -> None:
    folder = gateway.home / "agents" / "dot"
    with gateway.rpc() as rpc:
        for word in ("quokka", "wombat", "numbat"):
            (folder / "MEMORY.md").write_text(f"# Animals\n\nThe {word} likes tea.\n")
            found = rpc.call("memory.recall", query=word, agent_id="dot")
            assert found["memories"][0]["source_ref"] == "MEMORY.md#Animals"
            assert word in found["memories"][0]["content"]
            for other in ({"agent_id": "rose"}, {}):
                assert not any(word in c for c in contents(rpc.call("memory.recall", query=word, **other)))


def test_changes_are_told_to_those_who_listen(gateway: GatewayProcess) -> None:
    with gateway.rpc() as listener, gateway.rpc() as rpc:
        made = rpc.call("memory.remember", content="news", agent_id="rose")
        told = listener.wait_for("memory.changed", change="remembered", id=made["id"])
        assert told["agent_id"] == "rose" and "news" not in json.dumps(told)


def lines(prefix: str, count: int) -> str:
    return "".join(json.dumps({"content": f"{prefix} number{n} of the fleet"}) + "\n" for n in range(count))


def test_two_processes_write_at_once_and_everything_is_found(home: Path) -> None:
    assert coterie(home, "agent", "list").returncode == 0
    writers = []
    for name in ("alpha", "beta"):
        file = home.parent / f"{name}.jsonl"
        file.write_text(lines(name, 5_000))
        writers.append(Command(home, "memory", "import", str(file)))
    for writer in writers:
        done = writer.finish(240)
        assert done.returncode == 0, done.stderr
    stats = json.loads(coterie(home, "memory", "stats", "--json").stdout)
    assert stats["total"] == 10_000 and stats["vectors"]["pending"] == 0
    for name in ("alpha", "beta"):
        for number in (0, 2_500, 4_999):
            found = json.loads(coterie(home, "recall", f"{name} number{number}", "--json").stdout)
            assert found["memories"][0]["content"] == f"{name} number{number} of the fleet"


@pytest.mark.parametrize("command", ["import", "reindex"])
def test_killed_in_the_middle_rows_and_search_agree(home: Path, command: str) -> None:
    file = home.parent / "many.jsonl"
    file.write_text(lines("gamma", 6_000))
    if command == "reindex":
        assert coterie(home, "memory", "import", str(file)).returncode == 0
    for delay in (0.05, 0.4, 1.2):
        writing = Command(home, "memory", command, *([str(file)] if command == "import" else []))
        # From when the store can be seen to be at work.
        deadline = time.monotonic() + 60
        while (
            time.monotonic() < deadline
            and not (home / "coterie.db-wal").exists()
            and writing.process.poll() is None
        ):
            time.sleep(0.01)
        time.sleep(delay)
        writing.process.kill()
        writing.finish()
    from coterie.app import opened
    from coterie.engine.household.home import Home

    with opened(Home(home)) as gateway:
        with gateway.store.read() as tx:
            query = tx.connection.exec_driver_sql
            rows = {row[0] for row in query("SELECT id FROM memories")}
            indexed = {row[0]: row[1] for row in query("SELECT memory_id, number FROM memory_index")}
            words = {row[0] for row in query("SELECT rowid FROM memories_fts")}
            query("SELECT count(*) FROM memories_fts WHERE memories_fts MATCH 'fleet'").scalar()
        assert rows == set(indexed)
        assert set(indexed.values()) == words
        assert command == "import" or len(rows) == 6_000
        while gateway.memories.reindex_some().pending:
            pass
        if rows:
            some = gateway.memories.as_(None).page(limit=1)[0][0]
            assert gateway.memories.as_(None).recall(some.content)[0].memory.content == some.content
