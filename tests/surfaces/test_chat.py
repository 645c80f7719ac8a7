"""The terminal chat as people use it: in a real terminal, in a pipe, with a gateway and without."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.chat.conversation import Conversation, Unseen
from coterie.cli.chat.markdown import render, split_finished
from coterie.cli.chat.terminal import Terminal, last_lines
from coterie.cli.client import Event
from tests.support.gateway import GatewayProcess, coterie, environment, running
from tests.support.mock import Exchange, config, mock_model, model_server
from tests.support.terminal import Pane, chatting, in_terminal

OFFLINE = "offline demo, not a language model"
TWO_AGENTS = """agents:
  roster:
    - {name: dot, label: Dot, description: Runs the front desk, model: offline/demo}
    - {name: rose, label: Rose}
"""


@pytest.fixture(params=["alone", "gateway"])
def place(request: pytest.FixtureRequest, home: Path) -> Iterator[Path]:
    """A home with two more agents, once without a gateway and once with one that runs."""
    home.mkdir()
    (home / "agent.yaml").write_text(f"version: 1\n{TWO_AGENTS}")
    if request.param == "alone":
        yield home
        return
    with running(home):
        yield home


def test_a_first_conversation(place: Path) -> None:
    with chatting(place) as pane:
        seen = pane.wait("main · offline/demo · session main")
        assert "Welcome to Coterie" in seen
        assert "It is not a language model" in " ".join(seen.split())
        pane.say("what time is it")
        pane.wait("✓ system_time")
        pane.wait("I only pass this on")
        pane.say("/agents")
        seen = pane.wait("Dot (dot): Runs the front desk")
        assert "* main" in seen
        pane.say("/agent dot")
        pane.wait("Dot takes over")
        pane.wait("Dot · offline/demo · session main:main")
        pane.say("/agents")
        pane.wait("* Dot (dot)")
        pane.say("hello Dot")
        pane.wait("You said: “hello Dot”")
        pane.say("/agnt")
        pane.wait("Did you mean /agent?")
        pane.say("/model offline/other")
        pane.wait("the model is offline/other now")
        pane.say("/queue")
        pane.wait("steer-backlog: nothing waits")
        pane.say("/new")
        pane.wait("a new conversation")
        pane.say("/help")
        pane.wait("Ctrl-C stops the reply")
        pane.press("C-d")
        assert pane.ended() == 0
    with chatting(place) as pane:
        seen = pane.wait("Dot · offline/demo · session main:main")
        assert "Welcome" not in seen, "the welcome is said once"


def test_an_agent_takes_the_person_to_another(place: Path) -> None:
    with chatting(place) as pane:
        pane.wait("main · offline/demo · session main")
        pane.say("go to rose and discuss the roses")
        pane.wait("you are with Rose now")
        pane.wait("You said: “the roses”")
        pane.wait("Rose · offline/demo")
        pane.say("hello Rose")
        pane.wait("You said: “hello Rose”")


def test_lines_that_belong_together(place: Path) -> None:
    with chatting(place) as pane:
        pane.wait("session main")
        pane.type("one")
        pane.press("M-Enter")
        pane.type("two")
        pane.press("Enter")
        pane.wait("You said: “one two”")
        pane.paste("three\nfour\n")
        pane.wait("four")
        pane.press("Enter")
        pane.wait("You said: “three four”")
        pane.press("Up")
        pane.wait(lambda seen: seen.count("three") == 3)
    history = (place / "run" / "chat_history").read_text()
    assert "+one\n+two\n" in history


@pytest.mark.parametrize("attached", [False, True], ids=["alone", "gateway"])
def test_ctrl_c_stops_the_reply_and_not_the_program(home: Path, attached: bool) -> None:
    home.mkdir()
    with mock_model() as mock, ExitStack() as stack:
        (home / "agent.yaml").write_text(config(mock.base_url))
        if attached:
            stack.enter_context(running(home))
        pane = stack.enter_context(chatting(home))
        pane.wait("session main")
        pane.say("DELAY 600000 [t:slow]")
        mock.wait_for(lambda log: len(log) == 1)
        pane.press("C-c")
        pane.wait("stopped: DELAY 600000 [t:slow]")
        pane.say("and now [t:quick]")
        pane.wait("ok [t:quick]")
        pane.type("half a line")
        pane.wait("half a line")
        pane.press("C-c")
        pane.wait(lambda seen: "half a line" not in seen and "leaves" in seen)
        pane.press("C-c")
        assert pane.ended() == 0


def test_what_is_said_meanwhile_steers(home: Path) -> None:
    home.mkdir()
    with mock_model() as mock:
        (home / "agent.yaml").write_text(config(mock.base_url))
        with running(home), chatting(home) as pane:
            pane.wait("session main")
            pane.say("TOOLS 3 DELAY 1500 [t:long]")
            mock.wait_for(lambda log: len(log) == 1)
            pane.say("[t:short] in between")
            pane.wait("queued: [t:short] in between")
            pane.wait("interrupted: TOOLS 3 DELAY 1500 [t:long] (goes on afterwards)")
            pane.wait("ok [t:short]")
            pane.wait("goes on: TOOLS 3")
            seen = pane.wait("ok [t:long]")
            assert seen.count("✓ system_status") == 3


def test_a_reply_streams_and_ends_as_markdown(home: Path) -> None:
    home.mkdir()
    go_on = threading.Event()

    def answer(exchange: Exchange) -> None:
        exchange.begin()
        exchange.chunk({"role": "assistant", "content": "# Title\n\nfirst **bold** part\n\n- one\n- tw"})
        assert go_on.wait(60)
        exchange.chunk({"content": "o\n\x1b[2J\x1b[31mred?\n\n```python\nprint(1)\n```\n"})
        exchange.chunk({}, "stop")
        exchange.send(b"data: [DONE]\n\n")

    with model_server() as server:
        server.answer = answer
        (home / "agent.yaml").write_text(config(server.base_url))
        with running(home), chatting(home) as pane:
            pane.wait("session main")
            pane.say("hi")
            seen = pane.wait("- tw")
            assert "first bold part" in seen, "what is finished is Markdown already"
            with chatting(home) as other:
                seen = other.wait("a reply is under way")
                other.wait("- tw")
                go_on.set()
                other.wait("• two")
            seen = pane.wait(lambda seen: "print(1)" in seen and "```" not in seen)
            assert "• two" in seen and "- tw" not in seen and "**" not in seen
            assert "[2J[31mred?" in seen, "what a model says cannot move the cursor"


def test_a_reply_that_breaks_off_starts_over(home: Path) -> None:
    home.mkdir()

    def answer(exchange: Exchange) -> None:
        if exchange.number > 1:
            exchange.reply("the whole of it")
            return
        exchange.begin()
        exchange.chunk({"role": "assistant", "reasoning_content": "let me see\n"})
        exchange.chunk({"content": "the wh"})

    with model_server() as server:
        server.answer = answer
        (home / "agent.yaml").write_text(config(server.base_url))
        with chatting(home) as pane:
            pane.wait("session main")
            pane.say("hi")
            pane.wait("starts over")
            pane.wait("the whole of it")
            dimmed = r"\x1b\[(0;)?2m(\x1b\[[0-9;]+m)*let me see"
            assert re.search(dimmed, pane.text(escapes=True)), "thoughts are dim"


def test_a_gateway_that_does_not_know_us(gateway: GatewayProcess) -> None:
    with chatting(gateway.home, COTERIE_TOKEN="wrong") as pane:
        assert pane.ended() == 1
        assert "error: the token is not valid" in pane.text()
        assert "Traceback" not in pane.text()


def test_errors_are_one_line_and_the_chat_goes_on(home: Path) -> None:
    home.mkdir()
    with model_server() as server:
        server.answer = lambda exchange: exchange.status(401, {"error": {"message": "bad key"}})
        (home / "agent.yaml").write_text(config(server.base_url))
        with chatting(home) as pane:
            pane.wait("session main")
            pane.say("hi")
            pane.wait("error: ")
            server.answer = lambda exchange: exchange.reply("fine now")
            pane.say("again")
            pane.wait("fine now")
            pane.say("/agent nobody")
            pane.wait("nobody")
            pane.say("/model nonsense")
            pane.wait("<provider>/<model>")
            pane.press("C-d")
            assert pane.ended() == 0


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"NO_COLOR": "1"},
        {"LANG": "C"},
        {"TERM": "dumb"},
        {"TERM": "dumb", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["colour", "no colour", "no UTF-8", "dumb", "dumb and ASCII"],
)
@pytest.mark.parametrize("columns", [80, 20])
def test_any_terminal_will_do(home: Path, columns: int, env: dict[str, str]) -> None:
    with chatting(home, columns=columns, rows=24, **env) as pane:
        pane.wait("offline demo answers")
        pane.say("héllo “wörld” 世界 🦊")
        pane.wait("You said:")
        pane.wait(lambda seen: "llo" in seen.partition("You said:")[2])
        pane.say("/help")
        pane.wait(lambda seen: "leaves" in seen.partition("/quit")[2])
        seen = pane.text(escapes=True)
        pane.press("C-d")
        assert pane.ended() == 0
    assert "Traceback" not in seen
    if env.get("TERM") == "dumb":
        assert "\x1b" not in seen.replace("\x1b[39m", "").replace("\x1b[49m", "")
    if "NO_COLOR" in env:
        assert not any(f"\x1b[{code}" in seen for code in ("31", "32", "36", "90"))
    if "LANG" in env:
        ours = seen.partition("You said")[0]
        assert "Welcome" in ours and "›" not in seen and "…" not in seen


def until_idle(pane: Pane) -> None:
    """The last word of a reply is not yet the end of its turn."""
    asked = 0
    while True:
        pane.say("/queue")
        asked += 1
        seen = pane.wait(lambda seen, n=asked: seen.count("steer-backlog:") == n)  # type: ignore[misc]
        if " ".join(seen.split()).rpartition("steer-backlog:")[2].startswith(" nothing waits"):
            return


@pytest.mark.parametrize("columns", [80, 40])
def test_a_screen_reads_well(home: Path, columns: int) -> None:
    """Lines break between words, names stand above replies, calls have a line of their own."""
    with in_terminal(home, columns=columns, rows=60) as pane:
        pane.wait("main · offline/demo · session main")
        pane.say("show me around")
        pane.wait("Say “next” to go on.")
        until_idle(pane)
        pane.say("what time is it")
        pane.wait("go on with the tour")
        pane.say("/help")
        seen = pane.wait(lambda seen: "leaves" in seen.partition("/quit")[2])
    lines = [line.rstrip() for line in seen.splitlines()]
    assert max(map(len, lines)) <= columns
    flat = " ".join(seen.split())
    for sentence in (
        "each with its own character, files and model. Yours was made in ~/home: agent.yaml there is",
        "These words were written beforehand, but they reach you one by one, as every model's do, in every client",
        "I am Coterie's offline demo, not a language model. Step 1 of 5: streaming. These words",
        "What you send while a reply comes in is taken up at its next step.",
    ):
        assert sentence in flat
    # What was typed stood at the prompt before; the last one is where it was said.
    said = max(place for place, line in enumerate(lines) if line == "› what time is it")
    assert lines[said + 1] == "main"
    assert lines[said + 2].startswith("✓ system_time  ")


def test_the_gateway_is_killed_and_comes_back(home: Path) -> None:
    home.mkdir()
    with mock_model() as mock:
        (home / "agent.yaml").write_text(config(mock.base_url))
        first = GatewayProcess(home).wait()
        try:
            with chatting(home) as pane:
                pane.wait("session main")
                pane.say("hello [t:one]")
                pane.wait("ok [t:one]")
                pane.say("DELAY 3000 [t:two]")
                mock.wait_for(lambda log: len(log) == 2)
                first.kill()
                pane.wait("the gateway went away")
                pane.say("meanwhile [t:three]")
                pane.wait("› meanwhile")
                with running(home):
                    pane.wait("the gateway is back")
                    pane.wait("ok [t:two]")
                    seen = pane.wait("ok [t:three]")
                    assert seen.count("ok [t:two]") == 1
                    assert seen.count("ok [t:three]") == 1
                    pane.say("after [t:four]")
                    pane.wait("ok [t:four]")
                    history = coterie(home, "chat", "count [t:five]", "--json")
                    assert json.loads(history.stdout)["text"] == "ok [t:five]"
                pane.press("C-d")
                assert pane.ended() == 0
        finally:
            if first.process.poll() is None:
                first.stop()


class Gone:
    """A gateway that goes away right after it told that the session changed: the next call waits for its return."""

    in_process = False
    connected = False

    def __init__(self) -> None:
        self.told = asyncio.Queue[Event]()
        self.told.put_nowait(Event("session.changed", {"id": "1", "key": ""}))
        self.asked = asyncio.Event()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def next_event(self) -> Event:
        return await self.told.get()

    async def lost(self) -> None:
        await self.asked.wait()
        self.asked.clear()


class Notes(Unseen):
    def __init__(self) -> None:
        self.heard = asyncio.Queue[str]()

    async def note(self, text: str) -> None:
        self.heard.put_nowait(text)


def test_a_loss_is_told_also_while_an_answer_is_waited_for() -> None:
    async def scene() -> None:
        notes = Notes()
        following = asyncio.create_task(Conversation(Gone(), notes).follow())
        async with asyncio.timeout(30):
            assert "the gateway went away" in await notes.heard.get()
        following.cancel()

    asyncio.run(scene())


def test_one_message_on_the_command_line(place: Path) -> None:
    done = coterie(place, "chat", "hello there")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("You said: “hello there”\n")
    assert "\x1b" not in done.stdout
    done = coterie(place, "chat", "hello", "--agent", "dot", "--json")
    answer = json.loads(done.stdout)
    assert set(answer) == {"text", "run_id", "session", "agent_id"}
    assert (answer["session"], answer["agent_id"]) == ("agent:dot:main", "dot")
    done = coterie(place, "chat", "again", "--session", "agent:dot:main", "--agent", "rose")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "is with dot, not rose" in done.stderr
    done = coterie(place, "chat", "again", "--session", "no-such-session")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    done = coterie(place, "chat", "again", "--agent", "dot", "--model", "offline/other", "--json")
    assert json.loads(done.stdout)["session"] == "agent:dot:main"
    with chatting(place, "--agent", "dot") as pane:
        pane.wait("Dot · offline/other · session main")


def test_one_message_shown_on_a_terminal(home: Path) -> None:
    with chatting(home, "what time is it", columns=60) as pane:
        assert pane.ended() == 0
        seen = pane.text()
        assert "✓ system_time" in seen
        assert " ".join(seen.split()).count("I only pass this on") == 1


def test_in_a_pipe(place: Path) -> None:
    done = coterie(place, "chat", text="first line\nsecond line\n", FORCE_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("You said: “first line\nsecond line”\n")
    assert "\x1b" not in done.stdout
    nothing = coterie(place, "chat", text="")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "there is no message" in nothing.stderr


def test_an_error_in_a_pipe(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text("version: 1\ndefault_model: nowhere/none\n")
    done = coterie(home, "chat", "hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and "nowhere" in done.stderr


def test_help_loads_nothing_heavy(home: Path) -> None:
    check = (
        "import sys, coterie.cli\n"
        "try: coterie.cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'prompt_toolkit', 'rich.markdown', 'websockets', 'pydantic', 'sqlalchemy', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", check, "--help"],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


# The parts that decide what is final


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("one", ""),
        ("one\n", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", ""),
        ("one\n\ntwo\n", "one\n\n"),
        ("one\n#", ""),
        ("- a\n\n- b\n", ""),
        ("1. a\n\n   more\n\n2. b\n\nend\n", "1. a\n\n   more\n\n2. b\n\n"),
        ("```\na\n\nb\n", ""),
        ("a | b\n--|--\n1 | 2\n\nend\n", "a | b\n--|--\n1 | 2\n\n"),
    ],
)
def test_a_block_is_finished_when_the_next_has_begun(text: str, finished: str) -> None:
    assert split_finished(text) == (finished, text[len(finished) :])


def test_the_end_of_a_long_text_fits_the_window() -> None:
    lines = last_lines("word " * 1000 + "\nlast", 20, 5, len)
    assert len(lines) == 5
    assert lines[-1] == "last"
    assert all(len(line) <= 20 for line in lines)
    assert last_lines("世界" * 5, 10, 3, lambda _: 2) == ["世界世界世", "界世界世界"]


def test_text_is_made_fit_for_the_terminal() -> None:
    plain = Terminal(escapes=False, colour=False, unicode=False)
    assert plain.fit("“Grüße” …\x1b[2J\r\x07 世") == '"Grusse" ...[2J ?'.replace("ss", "?")
    assert plain.paint("x", "bold") == "x"
    assert "\x1b[3" not in render("# T\n\n`code` [a](http://b)", Terminal(True, False, True))
