"""What the documents show is what happens: their console blocks and plug-ins are run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import coterie, running

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def examples(block: str) -> list[tuple[str, str]]:
    """Commands and what they print."""
    found = re.split(r"^\$ ", block, flags=re.M)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in found)]


def fits(shown: str, printed: str) -> bool:
    """A line `…` stands for any lines."""
    pattern = "".join("(?:.*\n)*" if line == "…" else re.escape(line) + "\n" for line in shown.splitlines())
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=lambda p: p.name)
@pytest.mark.parametrize("with_gateway", [False, True])
def test_commands_print_what_the_page_shows(page: Path, with_gateway: bool, home: Path) -> None:
    def follow() -> None:
        for block in blocks(page, "console"):
            for command, shown in examples(block):
                program, *arguments = shlex.split(command)
                assert program in ("coterie", "./coterie")
                done = coterie(home, *arguments)
                assert done.returncode == 0, done.stderr
                assert fits(shown, done.stdout), f"{command} printed:\n{done.stdout}"

    if with_gateway:
        with running(home):
            follow()
    else:
        follow()


def test_the_client_of_the_rpc_reference_talks_to_a_gateway(home: Path) -> None:
    [source] = blocks(ROOT / "docs" / "reference" / "rpc.md", "python")
    client = home.parent / "client.py"
    client.write_text(source)
    with running(home) as gateway:
        address = gateway.url.replace("http", "ws") + "/ws"

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, str(client), address, *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)

        said = run(gateway.token, "agent:main:dm:reader", "What time is it?")
        assert said.returncode == 0, said.stderr
        with gateway.http() as http:
            history = http.get("/api/sessions/agent:main:dm:reader/messages").json()["messages"]
        assert history[0]["text"] == "What time is it?"
        assert said.stdout.endswith(f"{history[-1]['text']}\n") and "(system_time)" in said.stdout
        assert "UNAUTHORIZED" in run("wrong", "agent:main:main", "hello").stderr
        assert "INVALID_REQUEST" in run(gateway.token, "agent:main:nonsense", "hello").stderr


def test_the_plug_in_of_the_guide_loads_and_is_offered(home: Path) -> None:
    [source] = blocks(ROOT / "docs" / "guides" / "plugins.md", "python")
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "dice.py").write_text(source)
    with running(home) as gateway, gateway.rpc() as rpc:
        tools = {tool["name"]: tool for tool in rpc.call("tools.list")["tools"]}
        assert tools["dice_roll"]["capabilities"] == ["games.play"]
        assert tools["dice_roll"]["safe_to_repeat"] is True
