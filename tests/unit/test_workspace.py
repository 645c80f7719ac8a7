"""An agent's files: whose they are, and that nothing outside can be reached through them."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound, TooLarge
from coterie.engine.household.home import Home
from coterie.engine.household.workspace import NAMED, TEMPLATES, Workspace, answered

SECRET = "the neighbour's diary"


@pytest.fixture
def house(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    (tmp_path / "outside").mkdir()
    for name in (*NAMED, "secret.md"):
        (tmp_path / "outside" / name).write_text(SECRET)
    return home


@pytest.fixture
def dot(house: Home) -> Workspace:
    workspace = Workspace(house, "dot")
    workspace.scaffold()
    return workspace


def states(workspace: Workspace) -> dict[str, str]:
    return {file.name: file.state for file in workspace.files()}


# Whose file it is


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("IDENTITY.md", TEMPLATES["IDENTITY.md"].replace("\n", "\r\n")),
        ("IDENTITY.md", "# Identity\n- **Creature:** _(what kind of being is it?)_   \n"),
        ("IDENTITY.md", "- **Name:** _(pick something)_\n"),
        ("SOUL.md", "# Soul\n"),
        ("SOUL.md", "\n\n" + TEMPLATES["SOUL.md"] + "\n\n"),
    ],
)
def test_a_template_without_an_answer_counts_as_missing(dot: Workspace, name: str, text: str) -> None:
    (dot.path / name).write_bytes(text.encode())
    assert dot.effective(name) == ("missing", "")


@pytest.mark.parametrize("line", ["She says _(quietly)_ hello", "- a list: of (things)", "_(x)_ and more"])
def test_what_somebody_wrote_is_no_placeholder(line: str) -> None:
    assert answered("IDENTITY.md", line) == line


def test_a_scaffolded_agent_has_nothing_of_its_own_yet(dot: Workspace) -> None:
    assert (dot.path / "SOUL.md").read_text() == TEMPLATES["SOUL.md"]
    assert states(dot) == dict.fromkeys(NAMED, "missing")
    assert [file.size for file in dot.files()] == [0] * len(NAMED)


@pytest.mark.parametrize("name", ["IDENTITY.md", "SOUL.md", "AGENTS.md", "TOOLS.md"])
def test_own_else_the_households_else_missing(house: Home, dot: Workspace, name: str) -> None:
    assert dot.effective(name) == ("missing", "")
    (house.path / name).write_text("everyone's\n")
    assert dot.effective(name) == ("inherited", "everyone's\n")
    (dot.path / name).write_text("mine\n")
    assert dot.effective(name) == ("own", "mine\n")
    (dot.path / name).write_text("  \n")
    assert dot.effective(name) == ("inherited", "everyone's\n"), "an empty file says nothing"
    (house.path / name).unlink()
    assert states(dot)[name] == "missing"


@pytest.mark.parametrize(
    "change", [str, str.strip, lambda t: t.replace("\n", "\r\n"), lambda t: f"\n{t}\n\n"]
)
def test_a_template_that_nobody_touched_counts_as_missing(
    house: Home, dot: Workspace, change: object
) -> None:
    assert callable(change)
    (house.path / "SOUL.md").write_text("everyone's")
    (dot.path / "SOUL.md").write_bytes(change(TEMPLATES["SOUL.md"]).encode())
    assert dot.effective("SOUL.md") == ("inherited", "everyone's")
    (dot.path / "SOUL.md").write_text(TEMPLATES["SOUL.md"] + "I am Dot.\n")
    assert dot.effective("SOUL.md")[0] == "own"


def test_memory_is_never_inherited(house: Home, dot: Workspace) -> None:
    (house.path / "MEMORY.md").write_text("the household's")
    (house.path / "memory").mkdir()
    (house.path / "memory" / "2026-05-01.md").write_text("the household's")
    assert dot.effective("MEMORY.md") == ("missing", "")
    with pytest.raises(NotFound):
        dot.get("memory/2026-05-01.md")
    dot.set("MEMORY.md", "mine")
    assert dot.effective("MEMORY.md") == ("own", "mine")


def test_user_md_is_the_households_alone(house: Home, dot: Workspace) -> None:
    (dot.path / "USER.md").write_text("planted here")
    assert dot.effective("USER.md") == ("missing", "")
    assert dot.get("USER.md").hash is None
    (house.path / "USER.md").write_text("She likes tea.")
    assert dot.effective("USER.md") == ("inherited", "She likes tea.")
    known = dot.get("USER.md").hash
    assert dot.set("USER.md", "She likes coffee.", known).state == "inherited"
    assert (house.path / "USER.md").read_text() == "She likes coffee."
    assert (dot.path / "USER.md").read_text() == "planted here"
    with pytest.raises(Conflict, match="changed by someone else"):
        dot.set("USER.md", "She likes water.", known)


def test_a_personality_path_serves_as_soul(house: Home) -> None:
    (house.path / "souls").mkdir()
    (house.path / "souls" / "dry.md").write_text("Dry wit.")
    dot = Workspace(house, "dot", soul="souls/dry.md")
    dot.scaffold()
    (dot.path / "SOUL.md").write_text("not this one")
    assert dot.effective("SOUL.md") == ("own", "Dry wit.")
    written = dot.set("SOUL.md", "Drier.", dot.get("SOUL.md").hash)
    assert written.content == "Drier."
    assert (house.path / "souls" / "dry.md").read_text() == "Drier."
    assert (dot.path / "SOUL.md").read_text() == "not this one"


def test_scaffolding_never_overwrites(dot: Workspace) -> None:
    (dot.path / "SOUL.md").write_text("mine")
    (dot.path / "MEMORY.md").write_text("")
    dot.scaffold()
    assert (dot.path / "SOUL.md").read_text() == "mine"
    assert (dot.path / "MEMORY.md").read_text() == ""


def test_daily_logs_are_listed_and_read(dot: Workspace) -> None:
    dot.set("memory/2026-05-01.md", "Bought a boat.\n")
    (dot.path / "memory" / "notes.txt").write_text("not a log")
    (dot.path / "memory" / "folder.md").mkdir()
    logs = [file for file in dot.files() if file.name.startswith("memory/")]
    assert [(f.name, f.state, f.size) for f in logs] == [("memory/2026-05-01.md", "own", 15)]
    assert dot.get("memory/2026-05-01.md").content == "Bought a boat.\n"


def test_a_write_can_insist_on_what_it_read(dot: Workspace) -> None:
    first = dot.set("SOUL.md", "one", dot.get("SOUL.md").hash)
    (dot.path / "SOUL.md").write_text("an editor was here")
    with pytest.raises(Conflict, match="changed by someone else"):
        dot.set("SOUL.md", "two", first.hash)
    assert (dot.path / "SOUL.md").read_text() == "an editor was here"
    dot.set("AGENTS.md", "new", "")
    with pytest.raises(Conflict):
        dot.set("AGENTS.md", "again", "")


def test_identity_fields_of_a_household_are_copied_before_they_change(house: Home, dot: Workspace) -> None:
    (house.path / "IDENTITY.md").write_text("# We\n\nEmoji: 🏠\nVibe: calm\n")
    assert dot.identity_fields() == {"emoji": "🏠", "vibe": "calm"}
    dot.set_identity_fields({"emoji": "🦊"})
    assert dot.identity_fields() == {"emoji": "🦊", "vibe": "calm"}
    assert (house.path / "IDENTITY.md").read_text() == "# We\n\nEmoji: 🏠\nVibe: calm\n"


def test_bytes_that_are_not_text_do_not_stop_an_agent(dot: Workspace) -> None:
    (dot.path / "SOUL.md").write_bytes(b"\xff\xfe soul")
    assert dot.effective("SOUL.md") == ("own", "\ufffd\ufffd soul")


# What must not get in or out

HOSTILE = [
    "",
    ".",
    "..",
    "/etc/passwd",
    "../rose/SOUL.md",
    "../../outside/secret.md",
    "memory/../SOUL.md",
    "memory/../../rose/SOUL.md",
    "memory//x.md",
    "./SOUL.md",
    "SOUL.md/",
    "memory/./x.md",
    "SOUL.md\x00.txt",
    "SOUL\n.md",
    "..\\rose\\SOUL.md",
    "memory\\x.md",
    "memory/.hidden.md",
    "memory/a/b.md",
    "memory/x.txt",
    "soul.md",
    "SOUL.MD",
    "workspace/x.md",
    "🦊.md",
    "memory/\u202e.md",
    "memory/" + "x" * 300 + ".md",
    "x" * 2000,
    "~/SOUL.md",
    "\ud800",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_and_nothing_is_made(house: Home, dot: Workspace, name: str) -> None:
    before = sorted(house.path.rglob("*"))
    with pytest.raises(InvalidRequest):
        dot.get(name)
    with pytest.raises(InvalidRequest):
        dot.set(name, "x")
    assert sorted(house.path.rglob("*")) == before


@settings(max_examples=200)
@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["..", ".", "memory", "SOUL.md", "", "/", "a.md"])).map("/".join)
)
def test_any_name_is_one_of_the_agents_files_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    dot = Workspace(Home(tmp_path_factory.getbasetemp() / "nobody-home"), "dot")
    try:
        found = dot.get(name)
    except (InvalidRequest, NotFound):
        return
    assert found.name in NAMED and found.content == ""


@pytest.mark.parametrize("content", ["a\x00b", "\ud800"])
def test_content_that_is_not_text_is_refused(dot: Workspace, content: str) -> None:
    with pytest.raises(InvalidRequest):
        dot.set("SOUL.md", content)


def test_content_that_is_too_large_is_refused(dot: Workspace) -> None:
    with pytest.raises(TooLarge):
        dot.set("SOUL.md", "é" * 600_000)
    assert (dot.path / "SOUL.md").read_text() == TEMPLATES["SOUL.md"]


@pytest.mark.parametrize("name", ["SOUL.md", "MEMORY.md", "memory/log.md"])
def test_a_link_for_a_file_is_neither_read_nor_written(house: Home, dot: Workspace, name: str) -> None:
    target = house.path.parent / "outside" / "secret.md"
    (dot.path / name).unlink(missing_ok=True)
    (dot.path / name).symlink_to(target)
    assert dot.effective(name) == ("missing", "")
    assert f"memory/{name}" not in states(dot)
    with pytest.raises(InvalidRequest, match="link"):
        dot.set(name, "mine")
    assert target.read_text() == SECRET
    dot.scaffold()
    assert (dot.path / name).is_symlink()


def test_a_link_for_the_memory_folder_is_not_followed(house: Home, dot: Workspace) -> None:
    (dot.path / "memory").rmdir()
    (dot.path / "memory").symlink_to(house.path.parent / "outside")
    assert [f for f in states(dot) if f.startswith("memory/")] == []
    with pytest.raises(CoterieError):
        dot.get("memory/secret.md")
    with pytest.raises(InvalidRequest, match="link"):
        dot.set("memory/secret.md", "mine")
    assert (house.path.parent / "outside" / "secret.md").read_text() == SECRET


def test_a_link_for_the_agents_own_folder_is_not_followed(house: Home) -> None:
    (house.agents / "dot").symlink_to(house.path.parent / "outside")
    dot = Workspace(house, "dot")
    assert states(dot) == dict.fromkeys(NAMED, "missing")
    for attempt in (
        lambda: dot.set("SOUL.md", "mine"),
        dot.scaffold,
        lambda: dot.set_identity_fields({"vibe": "x"}),
    ):
        with pytest.raises(CoterieError):
            attempt()
    assert {p.read_text() for p in (house.path.parent / "outside").iterdir()} == {SECRET}


def test_a_link_among_the_households_files_is_not_followed(house: Home, dot: Workspace) -> None:
    (house.path / "SOUL.md").symlink_to(house.path.parent / "outside" / "secret.md")
    assert dot.effective("SOUL.md") == ("missing", "")


def test_a_personality_path_through_a_link_is_not_followed(house: Home) -> None:
    (house.path / "souls").symlink_to(house.path.parent / "outside")
    dot = Workspace(house, "dot", soul="souls/secret.md")
    assert dot.effective("SOUL.md") == ("missing", "")
    with pytest.raises(InvalidRequest):
        dot.set("SOUL.md", "mine")


@pytest.mark.parametrize("name", ["SOUL.md", "memory/log.md"])
def test_pipes_and_folders_in_place_of_a_file_neither_hang_nor_break(dot: Workspace, name: str) -> None:
    (dot.path / name).unlink(missing_ok=True)
    os.mkfifo(dot.path / name)
    assert dot.effective(name) == ("missing", "")
    with pytest.raises(InvalidRequest, match="not a file"):
        dot.set(name, "x")
    (dot.path / name).unlink()
    (dot.path / name).mkdir()
    assert dot.effective(name) == ("missing", "")
    with pytest.raises(InvalidRequest, match="not a file"):
        dot.set(name, "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device file")
def test_a_device_is_not_read(dot: Workspace) -> None:
    (dot.path / "SOUL.md").unlink()
    try:
        os.mknod(dot.path / "SOUL.md", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this machine makes no device files")
    assert dot.effective("SOUL.md") == ("missing", "")


def test_a_folder_swapped_for_a_link_in_mid_read_never_leads_outside(house: Home, dot: Workspace) -> None:
    """Somebody swaps memory/ and the agent's folder for links while we read and write as fast as we can."""
    outside = house.path.parent / "outside"
    (outside / "log.md").write_text(SECRET)
    dot.set("memory/log.md", "mine")
    stop = threading.Event()

    def swap(folder: Path) -> None:
        aside = folder.with_name(folder.name + "-aside")
        while not stop.is_set():
            folder.rename(aside)
            with suppress(FileExistsError):  # somebody made a new folder meanwhile
                folder.symlink_to(outside)
                folder.unlink()
            while aside.exists():
                try:
                    aside.rename(folder)
                except OSError:
                    shutil.rmtree(folder, ignore_errors=True)

    swappers = [threading.Thread(target=swap, args=(folder,)) for folder in (dot.path / "memory", dot.path)]
    seen: set[str] = set()
    refused = 0
    for swapper in swappers:
        swapper.start()
        for number in range(1500):
            try:
                seen.add(dot.get("memory/log.md").content)
                if number % 5 == 0:
                    dot.set("memory/log.md", "mine")
                    dot.set("SOUL.md", "mine")
            except CoterieError:
                refused += 1
        stop.set()
        swapper.join()
        stop.clear()
    assert seen <= {"mine"}
    assert refused, "the race never happened"
    assert {p.read_text() for p in outside.iterdir()} == {SECRET}
