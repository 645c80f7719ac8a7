"""Many processes, an editor in between, and kill -9 at random moments: the household stays whole."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from coterie.app import opened
from coterie.config import values
from coterie.core.agent import AgentState
from coterie.engine.household.home import Home
from tests.support.gateway import Command, coterie, running

COMMENTED = """\
# Our household: 0
version: 1

agents:
  # Who answers.
  default: main
  roster:
    # The front desk.
    - name: dot   # since May
      label: Dot
    - name: rose  # reads a lot

# Nothing below.
"""


def finish(command: Command, what: str) -> None:
    done = command.finish(240)
    assert done.returncode == 0, f"{what}: {done.stderr}"


def household(home: Path) -> dict[str, Any]:
    done = coterie(home, "agent", "list", "--all", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ids(found: dict[str, Any], state: str = "active") -> set[str]:
    return {agent["id"] for agent in found["agents"] if agent["state"] == state}


def roster(home: Path) -> set[str]:
    agents = values((home / "agent.yaml").read_text()).get("agents") or {}
    return {entry["name"] for entry in agents.get("roster") or []}


def comments(home: Path) -> list[str]:
    """All but the first line, which the editor changes."""
    lines = (home / "agent.yaml").read_text().splitlines()[1:]
    return [line[line.index("#") :] for line in lines if "#" in line]


KEPT = [line[line.index("#") :] for line in COMMENTED.splitlines()[1:] if "#" in line]


class Editor(threading.Thread):
    """Somebody who keeps saving the file, in place, with another comment and another label each time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.saved = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.save(self.saved + 1)
            self.saved += 1
            self.stopping.wait(0.5)

    def save(self, number: int) -> None:
        while True:
            with self.path.open("r+") as file:
                text = file.read()
                lines = text.splitlines(keepends=True)
                lines[0] = f"# Our household: {number:05}\n"
                label = next(i for i, line in enumerate(lines) if "label: Dot" in line)
                lines[label] = f"      label: Dot {number:05}\n"
                file.seek(0)
                file.write("".join(lines))
                file.truncate()
            if f"label: Dot {number:05}" in self.path.read_text():
                return

    def stop(self) -> None:
        self.stopping.set()
        self.join()


def test_fifty_processes_add_fifty_agents_at_once(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(COMMENTED)
    adding = [Command(home, "agent", "add", f"a{number}") for number in range(50)]
    for number, process in enumerate(adding):
        finish(process, f"adding a{number}")
    everyone = {f"a{number}" for number in range(50)} | {"dot", "rose"}
    found = household(home)
    assert ids(found) == everyone | {"main"}
    assert [a["id"] for a in found["agents"] if a["is_default"]] == ["main"]
    assert roster(home) == everyone
    text = (home / "agent.yaml").read_text()
    assert text.startswith(COMMENTED[: COMMENTED.index("\n# Nothing below.")])
    assert comments(home) == KEPT
    assert all((home / "agents" / name / "SOUL.md").is_file() for name in everyone)


def test_twenty_processes_and_an_editor_beside_a_running_gateway(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(COMMENTED)
    with running(home) as gateway:
        editor = Editor(home / "agent.yaml")
        editor.start()
        try:
            adding = [Command(home, "agent", "add", f"a{number}") for number in range(20)]
            for number, process in enumerate(adding):
                finish(process, f"adding a{number}")
        finally:
            editor.stop()
        everyone = {f"a{number}" for number in range(20)} | {"dot", "rose"}
        with gateway.rpc() as rpc:
            wait_until(lambda: rpc.call("agents.get", agent_id="dot")["label"] == f"Dot {editor.saved:05}")
            assert ids(rpc.call("agents.list", include_archived=True)) == everyone | {"main"}
        wait_until(lambda: roster(home) == everyone)
        assert (home / "agent.yaml").read_text().startswith(f"# Our household: {editor.saved:05}\n")
        assert comments(home) == KEPT
    found = household(home)
    assert ids(found) == everyone | {"main"}
    assert ids(found, "archived") == set()


def wait_until(true: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.1)


def half_write(path: Path, text: str, pause: float) -> None:
    """As an editor does that truncates the file, writes a part, is held up, and writes the rest."""
    with path.open("w") as file:
        file.flush()
        time.sleep(pause)
        cut = text.index("- name: rose")
        file.write(text[:cut])
        file.flush()
        time.sleep(pause)
        file.write(text[cut:])


def test_a_half_written_file_archives_nobody_while_a_gateway_runs(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(COMMENTED)
    with running(home) as gateway, gateway.rpc() as rpc:
        before = rpc.call("agents.list", include_archived=True)
        half_write(home / "agent.yaml", COMMENTED.replace("label: Dot", "label: Dorothy"), 1.0)
        rpc.wait_for("agents.changed", agent_id="dot", change="updated")
        time.sleep(3)
        after = rpc.call("agents.list", include_archived=True)
        assert ids(after) == ids(before) == {"main", "dot", "rose"}
        assert not [
            e for e in rpc.events if e["payload"].get("change") in ("archived", "restored", "created")
        ]
    assert comments(home) == KEPT


def test_a_half_written_file_archives_nobody_while_commands_run(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(COMMENTED)
    everyone = {"main", "dot", "rose"}
    assert ids(household(home)) == everyone
    writer = threading.Thread(target=half_write, args=(home / "agent.yaml", COMMENTED, 1.5))
    writer.start()
    while writer.is_alive():
        assert ids(household(home)) == everyone
        refused_or_done = coterie(home, "agent", "edit", "dot", "--description", "At the desk")
        assert refused_or_done.returncode in (0, 1)
    writer.join()
    found = household(home)
    assert ids(found) == everyone
    assert ids(found, "archived") == set()


# The first start


ODD_NAMES = [
    "2026-05-01.md",
    "deep/er/notes.md",
    "naïve 🦊 name.md",
    ".hidden.md",
    "no-extension",
    "empty.md",
    "-rf",
]


def single_agent_folder(home: Path) -> None:
    """What a person had before: one agent's files in the root."""
    home.mkdir()
    (home / "IDENTITY.md").write_text("# Ada\n\nEmoji: 🦉\n")
    (home / "SOUL.md").write_text("Curious.\r\nPatient.\r\n", newline="")
    (home / "MEMORY.md").write_bytes(b"Likes \xff tea\n" * 20_000)
    (home / "USER.md").write_text("She sails.\n")
    (home / "notes.txt").write_text("not ours\n")
    names = ODD_NAMES + [f"log-{number}.md" for number in range(150)]
    for name in names:
        file = home / "memory" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("" if name == "empty.md" else f"{name}: bought a boat\n")
    (home / "memory" / "link.md").symlink_to(home.parent / "elsewhere.md")
    for number, path in enumerate(sorted(home.rglob("*"))):
        if path.is_file() and not path.is_symlink():
            os.utime(path, ns=(10**18 + number, 10**18 + number))


def originals(home: Path) -> dict[str, tuple[bytes, int]]:
    files = [home / name for name in ("IDENTITY.md", "SOUL.md", "MEMORY.md", "USER.md", "notes.txt")]
    files += [p for p in (home / "memory").rglob("*") if p.is_file()]
    return {str(p.relative_to(home)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def tree(home: Path) -> dict[str, str]:
    """Every file with its hash, its time and its place on disk; what only running processes use aside."""
    return {
        str(
            p.relative_to(home)
        ): f"{hashlib.sha256(p.read_bytes()).hexdigest()} {p.stat().st_mtime_ns} {p.stat().st_ino}"
        for p in sorted(home.rglob("*"))
        if p.is_file() and not p.name.endswith(("-wal", "-shm", ".lock"))
    }


def check_migrated(home: Path, before: dict[str, tuple[bytes, int]]) -> None:
    assert originals(home) == before, "the originals stay as they were"
    main = home / "agents" / "main"
    copied = {name: content for name, (content, _) in before.items() if name not in ("USER.md", "notes.txt")}
    found = {str(p.relative_to(main)): p.read_bytes() for p in main.rglob("*") if p.is_file()}
    assert found == copied


def test_a_single_agent_folder_becomes_main_by_copies(home: Path) -> None:
    single_agent_folder(home)
    before = originals(home)
    found = household(home)
    assert [(a["id"], a["emoji"], a["is_default"]) for a in found["agents"]] == [("main", "🦉", True)]
    check_migrated(home, before)
    settled = tree(home)
    assert household(home) == found
    assert coterie(home, "agent", "info", "main", "--json").returncode == 0
    assert tree(home) == settled, "a second start changes nothing"
    (home / "agents" / "main" / "SOUL.md").write_text("Changed by its owner.\n")
    (home / "memory" / "later.md").write_text("came later\n")
    household(home)
    assert (home / "agents" / "main" / "SOUL.md").read_text() == "Changed by its owner.\n"
    assert not (home / "agents" / "main" / "memory" / "later.md").exists()


def ran(home: Path, *words: str, kill_after: float | None = None) -> tuple[float, bool]:
    """How long a command ran, and whether it came to its own end."""
    command = Command(home, *words)
    began = time.monotonic()
    if kill_after is not None:
        time.sleep(kill_after)
        command.process.kill()
    done = command.finish()
    return time.monotonic() - began, done.returncode == 0


@pytest.fixture
def moments() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def test_kill_at_any_moment_of_the_first_start_is_finished_by_the_next(
    tmp_path: Path, moments: random.Random
) -> None:
    single_agent_folder(tmp_path / "timing")
    whole, _ = ran(tmp_path / "timing", "agent", "list")
    cut_short = 0
    for number in range(15):
        home = tmp_path / f"home{number}"
        single_agent_folder(home)
        before = originals(home)
        _, ended = ran(home, "agent", "list", kill_after=moments.uniform(0, whole))
        cut_short += not ended
        if number % 5 == 0:
            assert ids(household(home)) == {"main"}
        else:
            assert ran(home, "agent", "list")[1]
        check_migrated(home, before)
        assert "version: 1" in (home / "agent.yaml").read_text()
        assert list(home.rglob(".coterie-tmp-*")) == []
    print(f"{cut_short} of 15 were cut short")
    assert cut_short


def test_kill_at_any_moment_of_an_addition_leaves_all_or_nothing(home: Path, moments: random.Random) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(COMMENTED)
    ran(home, "agent", "list")
    whole, _ = ran(home, "agent", "add", "first")
    made = cut_short = 0
    for number in range(30):
        name = f"a{number}"
        words = ("agent", "add", name, "--label", f"Agent-{number}", "--personality", "Brief.")
        _, ended = ran(home, *words, kill_after=moments.uniform(0, whole))
        cut_short += not ended
        if number % 10 == 0:
            present = ids(household(home))
            assert ids(household(home), "archived") == set()
        else:
            with opened(Home(home)) as gateway:
                found = gateway.registry.agents(archived=True)
            present = {agent.id for agent in found if agent.state is AgentState.ACTIVE}
            assert len(found) == len(present), "nobody is archived, and no folder is without its agent"
        assert roster(home) == present - {"main"}, "the registry and the file agree"
        assert comments(home) == KEPT
        if name in present:
            made += 1
            with opened(Home(home)) as gateway:
                assert gateway.registry.get(name).label == f"Agent-{number}"
        else:
            assert not (home / "agents" / name).exists()
    print(f"{cut_short} of 30 were cut short, {made} were made")
    assert cut_short
    doctor = coterie(home, "doctor", "--fix", "--json")
    assert doctor.returncode == 0, doctor.stdout
    assert list(home.rglob(".coterie-tmp-*")) == []
