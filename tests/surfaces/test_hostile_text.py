"""Text that would move the cursor, fill the clipboard or run backwards, in every field that a command prints."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from coterie.cli import app
from coterie.cli.clean import clean, escaped, one_line
from tests.support.gateway import GatewayProcess, coterie, running
from tests.support.mock import Exchange, ModelServer, config, model_server
from tests.support.terminal import chatting, on_terminal

BAD = (
    "\x1b]52;c;aGFjaw==\x07\x1b[2J\x1b[31337;7H\x1b]0;title\x1b\\\x9b31337m\x9d52;c;aGFjaw==\x9c"
    "\u202eevil\u202c\u2066x\u2069\u200b\u2060\ufeff\u2028\u061c\r\x08\x7f\xad\U000e0041"
)
ONE_LINE = "".join(c for c in BAD if unicodedata.category(c) in ("Cf", "Ll", "Ps", "Nd"))
"""What fields take that refuse controls."""
DRAWN = (
    "\x1b]52",
    "\x1b]0;",
    "\x1b[31337",
    "\x9b",
    "\x9d",
    "\x9c",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u061c",
    "\U000e0041",
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def check_clean(text: str) -> None:
    """Nothing but letters, lines and our own colours."""
    plain = COLOUR.sub("", text)
    bad = {c for c in plain if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n", "\t"}
    assert not bad, f"{bad} in {plain!r}"


def check_drawn(text: str) -> None:
    """For what moves the cursor itself: none of the sequences that were stored."""
    assert not [bad for bad in DRAWN if bad in text], repr(text)


@dataclass
class Place:
    gateway: GatewayProcess
    folder: Path
    server: ModelServer
    memory: str
    run: str
    token: str

    @property
    def home(self) -> Path:
        return self.gateway.home


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A household in which everybody and everything has such a name."""
    folder = tmp_path_factory.mktemp("hostile")
    home = folder / "home"
    home.mkdir()
    (home / "skills" / ONE_LINE).mkdir(parents=True)
    (home / "skills" / ONE_LINE / "SKILL.md").write_text(f"# {BAD}\n{BAD}")
    (home / "plugins").mkdir()
    (home / "plugins" / "bad.py").write_text(
        f"from coterie import tool\n\n\n@tool()\ndef bad_tool(x: str) -> str:\n    {BAD!r}\n    return x\n"
    )

    def answer(exchange: Exchange) -> None:
        said = [m["content"] for m in exchange.body["messages"] if m["role"] == "user"]
        if any(str(content).startswith("fail") for content in said[-2:]):
            exchange.status(400, {"error": {"message": f"{BAD}\nerror: forged"}})
        else:
            exchange.reply(f"a reply {BAD}\nand more {BAD}")

    with model_server() as server:
        server.answer = answer
        (home / "agent.yaml").write_text(config(server.base_url))
        with running(home) as gateway, gateway.rpc() as rpc:
            memory, run = store(rpc)
            token = rpc.call("tokens.create", scope="read", label="phone")["id"]
            (home / "agents" / "main" / "memory").mkdir(exist_ok=True)
            (home / "agents" / "main" / "memory" / "2026-05-01.md").write_text(f"the boat {BAD}\n")
            yield Place(gateway, folder, server, memory, run, token)


def store(rpc: Any) -> tuple[str, str]:
    """Through the API, wherever it takes it."""
    spec = {"description": f"line one {BAD}\nstate  forged", "system_prompt": BAD, "temperature": 0.5}
    rpc.call("agents.create", id="rose", label="Ro\u200dse", soul=f"soul {BAD}", spec=spec)
    rpc.call(
        "agents.files.set",
        agent_id="rose",
        name="IDENTITY.md",
        content=f"Emoji: {BAD}\nVibe: {BAD}\nCreature: {BAD}\n",
    )
    rpc.call("agents.create", id="gone", label="Gone", soul=BAD)
    rpc.call("agents.delete", agent_id="gone")
    rpc.call("agents.create", id="lost", label="Lost")
    memory = rpc.call("memory.remember", content=f"the boat {BAD}\n{BAD}", tags=[ONE_LINE], source_ref=BAD)[
        "id"
    ]
    for said in ("hello", "fail"):
        rpc.call("chat.send", session="agent:rose:main", message=f"{said} {BAD}")
    rpc.wait_for("chat", state="error")
    run = rpc.call("subagents.spawn", task=f"count {BAD}", label=BAD, agent_id="rose")["run_id"]
    rpc.wait_for("subagent.changed", run_id=run, status="completed")
    return str(memory), str(run)


EVERY = {
    "serve": [["serve", "--port", "0"]],  # refused: another one runs
    "chat": [["chat", "hello"], ["chat", "hello", "--json"], ["chat", "fail", "--agent", "rose"]],
    "agent list": [["agent", "list", "--all"], ["agent", "list", "--all", "--json"]],
    "agent info": [["agent", "info", "rose"], ["agent", "info", "rose", "--json"], ["agent", "info", f"x{BAD}"]],
    "agent add": [["agent", "add", "miles", "--label", f"x{BAD}"]],
    "agent edit": [["agent", "edit", "rose", "--vibe", BAD], ["agent", "edit", "rose", "--set", f"{BAD}=1"]],
    "agent default": [["agent", "default", f"x{BAD}"]],
    "agent remove": [["agent", "remove", f"x{BAD}"]],
    "agent restore": [["agent", "restore", f"x{BAD}"], ["agent", "restore", "rose"]],
    "agent purge": [["agent", "purge", f"x{BAD}", "--yes"]],
    "agent apply": [["agent", "apply"], ["agent", "apply", "--json"]],
    "subagent list": [["subagent", "list"], ["subagent", "list", "--json"]],
    "subagent show": [["subagent", "show", "RUN"], ["subagent", "show", "RUN", "--json"], ["subagent", "show", BAD]],
    "subagent cancel": [["subagent", "cancel", "RUN"]],
    "subagent retry": [["subagent", "retry", "RUN"]],
    "remember": [["remember", f"something {BAD}"], ["remember", "x", "--agent", BAD]],
    "recall": [["recall", "boat", "--agent", "main"], ["recall", "boat", "--agent", "main", "--json"]],
    "memory list": [["memory", "list", "--agent", "main"], ["memory", "list", "--agent", "main", "--json"]],
    "memory edit": [["memory", "edit", "MEMORY", "--text", f"boat {BAD}"], ["memory", "edit", BAD, "--pin"]],
    "memory forget": [["memory", "forget", BAD]],
    "memory export": [["memory", "export", "-"], ["memory", "export", "FILE"]],
    "memory import": [["memory", "import", "FILE"]],
    "memory stats": [["memory", "stats"], ["memory", "stats", "--json"]],
    "memory reindex": [["memory", "reindex"]],
    "token create": [["token", "create", "--scope", BAD], ["token", "create", "--scope", "read", "--label", BAD]],
    "token list": [["token", "list"], ["token", "list", "--json"]],
    "token revoke": [["token", "revoke", BAD]],
    "model list": [["model", "list"], ["model", "list", "--all", "--json"]],
    "model test": [["model", "test"], ["model", "test", f"mock/fail{BAD}"], ["model", "test", f"x{BAD}/y"]],
    "prompt show": [["prompt", "show", "--agent", "rose"], ["prompt", "show", "--agent", "rose", "--json"]],
    "usage": [["usage"], ["usage", "--by", "model,session"], ["usage", "--json"], ["usage", "--by", BAD]],
    "doctor": [["doctor"], ["doctor", "--json"]],
    "backup": [["backup", f"x{BAD}/y"], ["backup", "/dev/null"]],
    "restore": [["restore", f"x{BAD}"]],
}  # fmt: skip
MOVING = ("chat", "memory import", "memory reindex")
"""What draws on a terminal, and moves its cursor for that."""


def test_every_command_is_tried() -> None:
    def leaves(command: Any, *names: str) -> Iterator[str]:
        below = getattr(command, "commands", None)
        if not below:
            yield " ".join(names)
        for name, one in (below or {}).items():
            yield from leaves(one, *names, name)

    assert sorted(EVERY) == sorted(leaves(get_command(app)))


@pytest.mark.parametrize("command", EVERY)
def test_nothing_gets_through(place: Place, command: str) -> None:
    ways = {"RUN": place.run, "MEMORY": place.memory, "FILE": str(place.folder / "memories.jsonl")}
    if command == "memory import":
        coterie(place.home, "memory", "export", ways["FILE"])
    for words in EVERY[command]:
        given = [ways.get(word, word) for word in words]
        piped = coterie(place.home, *given)
        assert "Traceback" not in piped.stderr
        for text in (piped.stdout, piped.stderr):
            check_clean(text)
        if "--json" in words and piped.returncode == 0:
            json.loads(piped.stdout)
        shown = on_terminal(place.home, *given, typed="\n")
        assert shown.returncode == piped.returncode or command == "memory edit"
        (check_drawn if command in MOVING else check_clean)(shown.stdout)


def test_what_is_exact_in_a_pipe_is_clean_on_a_terminal(place: Place) -> None:
    for words in (
        ("memory", "export", "-", "--format", "markdown"),
        ("prompt", "show", "--agent", "rose", "--raw"),
    ):
        check_clean(on_terminal(place.home, *words).stdout)
    exact = coterie(place.home, "prompt", "show", "--agent", "rose", "--raw").stdout
    assert "\u202eevil" in json.loads(exact)["messages"][0]["content"]


def test_json_says_exactly_what_was_stored(place: Place) -> None:
    found = json.loads(coterie(place.home, "memory", "list", "--agent", "main", "--json").stdout)
    with place.gateway.rpc() as rpc:
        assert found == rpc.call("memory.list", agent_id="main", limit=200)
    assert any(
        "\x1b]52;c;" in memory["content"] and "\x9b" in memory["content"] for memory in found["memories"]
    )


@pytest.mark.parametrize("attached", [True, False], ids=["at a gateway", "alone"])
@pytest.mark.parametrize("term", ["screen-256color", "dumb"])
def test_a_conversation(place: Place, tmp_path: Path, term: str, attached: bool) -> None:
    home = place.home
    if not attached:
        home = tmp_path / "alone"
        home.mkdir()
        (home / "agent.yaml").write_text(config(place.server.base_url))
        made = coterie(home, "agent", "add", "rose", "--set", f"description={json.dumps(BAD[:-1])}")
        assert made.returncode == 0, made.stderr
        (home / "agents" / "rose" / "IDENTITY.md").write_text(f"Emoji: {BAD}\nVibe: {BAD}\n")
    raw = tmp_path / "raw"
    with chatting(home, "--agent", "rose", TERM=term) as pane:
        pane.record(raw)
        pane.say("hello there")
        pane.wait(lambda seen: "and more" in seen.partition("hello there")[2])
        pane.say("/agents")
        pane.wait("* ")
        pane.type("/model m")
        pane.press("C-u")
        pane.say("fail now")
        pane.wait("error: ")
        pane.say("/quit")
        pane.ended()
    check_drawn(raw.read_bytes().decode())


@pytest.mark.parametrize(
    "text", ["unknown{}: 1", "agents: {{roster: [{{name: rose, model: 'x{}'}}]}}", "- {}"]
)
def test_a_file_that_is_wrong(home: Path, text: str) -> None:
    coterie(home, "agent", "list")
    (home / "agent.yaml").write_text(
        "version: 1\n" + text.format(json.dumps(BAD)[1:-1].replace("\\u", "\\u"))
    )
    (home / "agents" / f"x{BAD.replace('/', '')}").mkdir()
    for words in (("agent", "list"), ("agent", "add", "rose"), ("agent", "apply"), ("doctor",)):
        piped = coterie(home, *words)
        check_clean(piped.stdout + piped.stderr)
        check_clean(on_terminal(home, *words, typed="\n").stdout)


def test_the_log_of_a_gateway_on_a_terminal_is_clean(place: Place) -> None:
    assert "agents" in place.gateway.log.read_text() or place.gateway.log.exists()
    check_clean(place.gateway.log.read_text())


# The cleaning itself


@pytest.mark.parametrize(
    "text",
    [
        "👨\u200d👩\u200d👧",
        "❤️\u200d🔥",
        "☕\ufe0f",
        "نمی\u200cخواهم",
        "क्\u200dष",
        "Grüße, 世界\tx\n",
    ],
)
def test_what_belongs_to_a_text_stays(text: str) -> None:
    assert clean(text) == text
    assert clean(text[:2]) + clean(text[2:]) == text, "also where a stream cuts it"


@pytest.mark.parametrize(
    "name",
    [
        "Ro\u200dse",
        "Ro\u200bse",
        "\u200dRose",
        "Rose\ufe0f",
        "Ro\u2060se",
        "R\u034fose",
        "Ros\U000e0065e",
        "Rose\u3164",
    ],
)
def test_a_name_cannot_hide_that_it_is_another(name: str) -> None:
    assert one_line(name) == "Rose"


def test_a_lone_half_of_a_character_can_be_printed() -> None:
    assert clean("a\ud800b").encode() == "a\ufffdb".encode()
    for value in ("a\ud800b", BAD, "\U000e0041", "a\\\u009b"):
        text = escaped(json.dumps(value, ensure_ascii=False))
        assert json.loads(text) == value
        check_clean(text)


def test_cleaning_takes_no_longer_for_a_hostile_text() -> None:
    for piece in ("\u200d", "\x1b[", "👩\u200d", "\ufe0f", "\u202e", "a\ufe0f"):
        assert len(clean(piece * 500_000)) <= 500_000 * len(piece)
