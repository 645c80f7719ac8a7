"""The household: agents come, change, leave and return, from the file and from elsewhere, and nothing is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from coterie.app import opened
from coterie.core.agent import Agent, AgentState
from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound
from coterie.engine.household.config_file import ConfigFile
from coterie.engine.household.home import Home
from coterie.engine.household.registry import Registry
from coterie.engine.household.workspace import TEMPLATES

COMMENTED = """\
# Our household.
version: 1

agents:
  # Who answers.
  default: main
  roster:
    # The front desk.
    - name: dot   # since May
      label: Dot
    - name: rose
      description: Reads   # a lot

# Nothing below.
gateway: {port: 0}
"""


class House:
    """One household in one process, and somebody who edits its file."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)

    @contextmanager
    def open(self) -> Iterator[Registry]:
        with opened(self.home) as gateway:
            yield gateway.registry

    @property
    def text(self) -> str:
        return self.home.config.read_text()

    def save(self, text: str, *, age: float = 10) -> None:
        """An editor saved the file some seconds ago."""
        self.home.path.mkdir(exist_ok=True)
        self.home.config.write_text(text)
        then = time.time() - age
        os.utime(self.home.config, (then, then))

    def swap(self, old: str, new: str, *, age: float = 10) -> None:
        assert old in self.text
        self.save(self.text.replace(old, new), age=age)

    def state(self, registry: Registry) -> dict[str, Any]:
        """Everything that a refused operation must leave alone."""
        with registry._store.read() as tx:
            rows = tx.agents.all()
        files = {
            str(p.relative_to(self.home.path)): p.read_bytes()
            for p in self.home.agents.rglob("*")
            if p.is_file()
        }
        return {"file": self.home.config.read_bytes(), "rows": rows, "files": files}


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "home")


@pytest.fixture
def registry(house: House) -> Iterator[Registry]:
    house.save(COMMENTED)
    with house.open() as registry:
        yield registry


def active(registry: Registry) -> list[str]:
    return [agent.id for agent in registry.agents() if agent.state is AgentState.ACTIVE]


def comments(text: str) -> list[str]:
    return [line[line.index("#") :] for line in text.splitlines() if "#" in line]


# Opening


def test_a_fresh_home_has_main_and_nothing_else(house: House) -> None:
    with house.open() as registry:
        assert [(a.id, a.is_default, a.state) for a in registry.agents()] == [("main", True, "active")]
        assert registry.get("default").id == "main"
        assert registry.sync.state.problems == ()
    assert "agents:" not in house.text, "one agent looks like a single-agent install"
    assert (house.home.agents / "main" / "SOUL.md").read_text() == TEMPLATES["SOUL.md"]


def test_a_roster_that_is_there_at_the_first_start_is_taken_over(registry: Registry, house: House) -> None:
    assert active(registry) == ["main", "dot", "rose"]
    assert registry.get("dot").label == "Dot"
    assert registry.spec(registry.get("rose")).description == "Reads"
    assert (house.home.agents / "rose" / "SOUL.md").exists()
    assert house.text == COMMENTED


def test_opening_again_changes_nothing(house: House, registry: Registry) -> None:
    before = house.state(registry)
    with house.open() as again:
        assert house.state(again) == before


# Creating


def test_create(registry: Registry, house: House) -> None:
    told: list[tuple[str, str]] = []
    registry.sync.listen(told.append)
    made = registry.create(
        "miles",
        label="Miles D.",
        spec={"model": "a/b", "toolAllowlist": ["x_*"]},
        identity={"emoji": "🎺"},
        soul="Cool.",
    )
    assert (made.id, made.label, made.is_default, made.state) == ("miles", "Miles D.", False, "active")
    assert made.spec == {"model": "a/b", "tool_allowlist": ["x_*"]}
    assert registry.identity(made) == {"emoji": "🎺"}
    assert registry.workspace(made).effective("SOUL.md") == ("own", "Cool.\n")
    assert (house.home.agents / "miles" / "MEMORY.md").read_text() == TEMPLATES["MEMORY.md"]
    assert told == [("created", "miles")]
    assert comments(house.text) == comments(COMMENTED)
    assert "    - name: miles\n      label: Miles D.\n      model: a/b\n" in house.text


def test_a_discovered_folder_is_listed_and_can_be_adopted(registry: Registry, house: House) -> None:
    folder = house.home.agents / "stray"
    folder.mkdir()
    (folder / "SOUL.md").write_text("I was here before.")
    (house.home.agents / "Not An Id").mkdir()
    (house.home.agents / "default").mkdir()
    (house.home.agents / "afile").write_text("")
    (house.home.agents / "alink").symlink_to(folder)
    found = registry.get("stray")
    assert found.state is AgentState.DISCOVERED
    assert [a.id for a in registry.agents() if a.state is AgentState.DISCOVERED] == ["stray"]
    before = house.state(registry)
    with pytest.raises(Conflict, match="only a folder"):
        registry.delete("stray")
    with pytest.raises(Conflict, match="only a folder"):
        registry.set_default("stray")
    with pytest.raises(Conflict, match="only a folder"):
        registry.update("stray", label="X")
    assert house.state(registry) == before
    registry.create("stray")
    assert registry.get("stray").state is AgentState.ACTIVE
    assert (folder / "SOUL.md").read_text() == "I was here before."


def test_purging_a_discovered_folder_deletes_it(registry: Registry, house: House) -> None:
    (house.home.agents / "stray").mkdir()
    registry.purge("stray")
    assert not (house.home.agents / "stray").exists()
    with pytest.raises(NotFound):
        registry.get("stray")


# Refusals


def refusals() -> list[Any]:
    def case(name: str, error: type[CoterieError], attempt: Callable[[Registry], object]) -> Any:
        return pytest.param(error, attempt, id=name)

    bad_ids = ["", "../x", "a/b", "Main", "default", "subagents", "a" * 51, "🦊", "a\x00", "."]
    return [
        *(case(f"create {bad!r}", InvalidRequest, methodcaller("create", bad)) for bad in bad_ids),
        case("create main", Conflict, lambda r: r.create("main")),
        case("create twice", Conflict, lambda r: r.create("dot")),
        case("create archived", Conflict, lambda r: r.create("gone")),
        case("label of another", InvalidRequest, lambda r: r.create("new", label="dOT")),
        case("label of an archived one", InvalidRequest, lambda r: r.create("new", label="Gone G.")),
        case("id is a label", InvalidRequest, lambda r: r.create("chef")),
        case("label of main", InvalidRequest, lambda r: r.create("new", label="Main")),
        case("bad label", InvalidRequest, lambda r: r.create("new", label="a#b")),
        case("unknown key", InvalidRequest, lambda r: r.create("new", spec={"modle": "a/b"})),
        case("bad value", InvalidRequest, lambda r: r.create("new", spec={"temperature": 9})),
        case("unknown template", InvalidRequest, lambda r: r.create("new", spec={"extends": "nobody"})),
        case("template default", InvalidRequest, lambda r: r.create("new", spec={"extends": "default"})),
        case("own template", InvalidRequest, lambda r: r.create("new", spec={"extends": "new"})),
        case("missing skill", InvalidRequest, lambda r: r.create("new", spec={"skills": ["nope"]})),
        case("bad soul", InvalidRequest, lambda r: r.create("new", soul="a\x00")),
        case("bad emoji", InvalidRequest, lambda r: r.create("new", identity={"emoji": "a\nb"})),
        case("name in spec", InvalidRequest, lambda r: r.create("new", spec={"name": "other"})),
        case("update nobody", NotFound, lambda r: r.update("nobody", label="X")),
        case("update archived", NotFound, lambda r: r.update("gone", label="X")),
        case("files of archived", NotFound, lambda r: r.update("gone", soul="X")),
        case("identity of archived", NotFound, lambda r: r.update("gone", identity={"vibe": "X"})),
        case("cycle", InvalidRequest, lambda r: r.update("rose", spec={"extends": "chef"})),
        case("update to a taken label", InvalidRequest, lambda r: r.update("rose", label="Dot")),
        case("label and bad soul", InvalidRequest, lambda r: r.update("rose", label="R", soul="\x00")),
        case("delete main", Conflict, lambda r: r.delete("main")),
        case("delete default", Conflict, lambda r: r.delete("default")),
        case("delete nobody", NotFound, lambda r: r.delete("nobody")),
        case("delete archived", NotFound, lambda r: r.delete("gone")),
        case("default archived", Conflict, lambda r: r.set_default("gone")),
        case("default nobody", NotFound, lambda r: r.set_default("nobody")),
        case("restore active", Conflict, lambda r: r.restore("dot")),
        case("restore nobody", NotFound, lambda r: r.restore("nobody")),
        case("restore bad id", InvalidRequest, lambda r: r.restore("../x")),
        case("purge main", Conflict, lambda r: r.purge("main")),
        case("purge default", Conflict, lambda r: r.purge("default")),
        case("purge nobody", NotFound, lambda r: r.purge("nobody")),
        case("purge a path", NotFound, lambda r: r.purge("../home")),
        case("file of nobody", NotFound, lambda r: r.set_file("nobody", "SOUL.md", "x", None)),
        case("file name", InvalidRequest, lambda r: r.set_file("dot", "../rose/SOUL.md", "x", None)),
        case("file hash", Conflict, lambda r: r.set_file("dot", "SOUL.md", "x", "0" * 64)),
    ]


@pytest.fixture
def full(house: House) -> Iterator[Registry]:
    """dot, rose, chef (extends rose, is the default) and the archived gone."""
    house.save(COMMENTED)
    with house.open() as registry:
        registry.create("kitchen", label="Chef", spec={"extends": "rose"})
        registry.create("gone", label="Gone G.")
        registry.delete("gone")
        registry.set_default("kitchen")
        yield registry


@pytest.mark.parametrize(("error", "attempt"), refusals())
def test_a_refused_operation_changes_nothing(
    full: Registry, house: House, error: type[CoterieError], attempt: Callable[[Registry], object]
) -> None:
    before = house.state(full)
    told: list[tuple[str, str]] = []
    full.sync.listen(told.append)
    with pytest.raises(error):
        attempt(full)
    assert house.state(full) == before
    assert told == []
    assert full.sync.state.problems == ()


# Changing


def test_update_changes_what_is_given(registry: Registry, house: House) -> None:
    registry.update("dot", spec={"model": "a/b", "description": "Desk"})
    after = registry.update(
        "dot", label="Dorothy", spec={"maxTokens": 5}, identity={"vibe": "dry"}, soul="New.\n"
    )
    assert after.label == "Dorothy"
    assert after.spec == {"model": "a/b", "description": "Desk", "max_tokens": 5}
    assert registry.identity(after) == {"vibe": "dry"}
    assert registry.workspace(after).effective("SOUL.md") == ("own", "New.\n")
    assert comments(house.text) == comments(COMMENTED)
    assert "- name: dot   # since May\n      label: Dorothy\n" in house.text


def test_update_with_null_takes_a_key_back(registry: Registry, house: House) -> None:
    registry.update("rose", spec={"model": "a/b"})
    after = registry.update("rose", spec={"description": None, "model": None})
    assert after.spec == {}
    assert "description" not in house.text and "model" not in house.text


def test_null_takes_back_keys_that_have_no_null_of_their_own(registry: Registry) -> None:
    given = {
        "ui_visible": False,
        "tool_exposure": "mixed",
        "memory": {"recall": False},
        "limits": {"concurrency": 1},
    }
    registry.update("rose", spec=given)
    registry.create("kid", spec={"extends": "rose", **given})
    for agent in ("rose", "kid"):
        after = registry.update(agent, spec={"uiVisible": None, "tool_exposure": None, "memory": None})
        assert after.spec.keys() <= {"description", "extends", "limits"}
        after = registry.update(agent, spec={"limits": {"concurrency": None}})
        assert after.spec["limits"] == {}
        assert registry.spec(after).memory.recall is True


def test_a_patch_is_checked_together_with_what_it_changes(registry: Registry) -> None:
    registry.update("rose", spec={"input_url": "https://ci.invalid/in"})
    assert registry.update("rose", spec={"type": "external"}).spec["type"] == "external"
    with pytest.raises(InvalidRequest, match="input_url"):
        registry.update("rose", spec={"input_url": None})


def test_null_under_a_template_brings_back_what_it_says(registry: Registry, house: House) -> None:
    registry.update("rose", spec={"tool_allowlist": ["x"], "model": "a/b"})
    registry.create("kid", spec={"extends": "rose", "tool_allowlist": ["y"], "model": "c/d"})
    after = registry.update("kid", spec={"tool_allowlist": None, "model": None})
    assert after.spec == {"extends": "rose"}
    spec = registry.spec(after)
    assert spec.tool_allowlist == ["x"] and spec.model is not None and spec.model.primary == "a/b"
    # In the file, null is a word of its own: no restriction, whatever the template says.
    house.save(house.text.replace("extends: rose", "extends: rose\n      tool_allowlist: null"))
    registry.sync.refresh()
    assert registry.spec(registry.get("kid")).tool_allowlist is None


def test_a_template_given_up_takes_its_nulls_along(registry: Registry) -> None:
    registry.create("kid", spec={"extends": "rose", "description": "Own"})
    after = registry.update("kid", spec={"extends": None, "description": None})
    assert after.spec == {}


def test_templates_reach_through_archived_agents_and_follow_changes(registry: Registry) -> None:
    registry.create("base", spec={"temperature": 0.1, "tool_denylist": ["t"]})
    registry.create("mid", spec={"extends": "base", "temperature": 0.2})
    registry.create("kid", spec={"extends": "mid"})
    registry.delete("mid")
    assert registry.spec(registry.get("kid")).temperature == 0.2
    registry.update("base", spec={"tool_denylist": ["u"]})
    assert registry.spec(registry.get("kid")).tool_denylist == ["u"]


def test_an_update_that_changes_nothing_tells_nobody(registry: Registry, house: House) -> None:
    told: list[tuple[str, str]] = []
    registry.sync.listen(told.append)
    before = house.state(registry)
    registry.update("dot", label="Dot", spec={})
    assert told == []
    assert house.state(registry) == before


def test_one_default_always(registry: Registry, house: House) -> None:
    registry.set_default("rose")
    assert registry.default().id == "rose"
    assert [a.id for a in registry.agents() if a.is_default] == ["rose"]
    assert "  default: rose\n" in house.text
    with pytest.raises(Conflict, match="default agent"):
        registry.delete("rose")
    registry.set_default("default")
    registry.set_default("main")
    registry.delete("rose")
    assert registry.default().id == "main"
    assert comments(house.text)[:3] == comments(COMMENTED)[:3]


# Leaving and returning


def test_delete_archives_and_restore_brings_everything_back(registry: Registry, house: House) -> None:
    registry.update("dot", spec={"model": "a/b"}, soul="Deep.")
    before = registry.get("dot")
    registry.delete("dot")
    assert "dot" not in active(registry)
    assert [a.id for a in registry.agents(archived=True) if a.state is AgentState.ARCHIVED] == ["dot"]
    assert "name: dot" not in house.text
    assert (house.home.agents / "dot" / "SOUL.md").read_text() == "Deep."
    back = registry.restore("dot")
    assert (back.label, back.spec, back.state, back.created_at) == (
        before.label,
        before.spec,
        AgentState.ACTIVE,
        before.created_at,
    )
    assert "- name: dot\n      label: Dot\n      model: a/b\n" in house.text
    assert registry.workspace(back).effective("SOUL.md") == ("own", "Deep.")


def test_purge_leaves_nothing(registry: Registry, house: House) -> None:
    registry.delete("dot")
    registry.purge("dot")
    registry.purge("rose")
    assert active(registry) == ["main"]
    assert sorted(p.name for p in house.home.agents.iterdir()) == ["main"]
    assert list(house.home.run.glob("trash-*")) == []
    with pytest.raises(NotFound):
        registry.get("dot")
    registry.create("dot", label="Dot")
    assert registry.get("dot").spec == {}


def test_a_purge_cut_short_is_finished_at_the_next_start(house: House) -> None:
    house.save(COMMENTED)
    with house.open() as registry:
        registry.delete("dot")
        with registry._store.write() as tx:
            row = tx.agents.get("dot")
            assert row is not None
            tx.agents.save(
                [
                    Agent(
                        row.id, row.label, False, AgentState.PURGING, row.spec, row.created_at, row.updated_at
                    )
                ]
            )
        with pytest.raises(NotFound):
            registry.get("dot")
        assert "dot" not in [a.id for a in registry.agents(archived=True)]
    (house.home.run / "trash-0").mkdir()
    (house.home.run / "trash-0" / "SOUL.md").write_text("half deleted")
    with house.open() as registry:
        assert not (house.home.agents / "dot").exists()
        assert list(house.home.run.glob("trash-*")) == []
        with pytest.raises(NotFound):
            registry.get("dot")
        registry.create("dot")


def test_purging_a_link_leaves_its_target(registry: Registry, house: House, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "SOUL.md").write_text("not yours")
    folder = house.home.agents / "dot"
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()
    folder.symlink_to(outside)
    registry.purge("dot")
    assert not folder.is_symlink()
    assert (outside / "SOUL.md").read_text() == "not yours"


# The file


def test_an_entry_added_in_the_file_becomes_an_agent(registry: Registry, house: House) -> None:
    house.swap("    - name: rose", "    - {name: miles, label: M}\n    - name: rose", age=0)
    sync = registry.sync.refresh()
    assert sync.changes == (("created", "miles"),)
    assert registry.get("miles").label == "M"
    assert (house.home.agents / "miles" / "SOUL.md").exists()


def test_a_changed_entry_is_followed(registry: Registry, house: House) -> None:
    house.swap("label: Dot", "label: Dorothy\n      model: a/b", age=0)
    assert registry.sync.refresh().changes == (("updated", "dot"),)
    assert (registry.get("dot").label, registry.get("dot").spec) == ("Dorothy", {"model": "a/b"})
    assert registry.sync.refresh().changes == (), "once"


def test_labels_may_change_places(registry: Registry, house: House) -> None:
    house.save("agents:\n  roster:\n    - {name: dot, label: rose}\n    - {name: rose, label: dot}\n")
    assert registry.sync.refresh().problems == ()
    assert (registry.get("dot").label, registry.get("rose").label) == ("rose", "dot")


def test_main_may_be_described_and_forgotten(registry: Registry, house: House) -> None:
    house.swap("    # The front desk.", "    - {name: main, label: Boss}\n    # The front desk.")
    registry.sync.refresh()
    assert registry.get("main").label == "Boss"
    house.swap("    - {name: main, label: Boss}\n", "")
    registry.sync.refresh()
    assert registry.get("main").label == "main"
    assert registry.get("main").state is AgentState.ACTIVE


ROSE = "    - name: rose\n      description: Reads   # a lot\n"


def test_a_vanished_entry_is_archived_only_after_two_quiet_seconds(registry: Registry, house: House) -> None:
    house.swap(ROSE, "", age=0.5)
    sync = registry.sync.refresh()
    assert sync.settling
    assert "rose" in active(registry)
    assert ROSE not in house.text, "what the person just cut out is not written back"
    house.save(house.text, age=1.5)
    assert registry.sync.refresh().settling
    assert "rose" in active(registry)
    house.save(house.text, age=2.5)
    assert registry.sync.refresh().changes == (("archived", "rose"),)
    assert registry.get("rose").state is AgentState.ARCHIVED


def test_an_entry_that_comes_back_in_time_was_never_gone(registry: Registry, house: House) -> None:
    text = house.text
    before = registry.get("rose")
    house.swap(ROSE, "", age=0.5)
    registry.sync.refresh()
    house.save(text, age=0.5)
    assert not registry.sync.refresh().settling
    assert registry.get("rose") == before
    house.save(text, age=5)
    assert registry.sync.refresh().changes == ()


def test_a_change_elsewhere_waits_until_it_is_clear_what_the_file_means(
    registry: Registry, house: House
) -> None:
    """An editor may have written only half: a change on top of that would take the other half away."""
    house.swap(ROSE, "", age=0.5)
    registry.create("miles")
    assert registry.get("rose").state is AgentState.ARCHIVED, "two seconds have passed by now"
    assert "name: rose" not in house.text
    assert "name: miles" in house.text


def test_a_change_elsewhere_never_lands_on_half_a_file(registry: Registry, house: House) -> None:
    whole = house.text
    house.save(whole.replace(ROSE, ""), age=0)

    def finish() -> None:
        time.sleep(1)
        house.home.config.write_text(whole)

    editor = threading.Thread(target=finish)
    editor.start()
    registry.create("miles")
    editor.join()
    assert {"rose", "miles"} <= set(active(registry))
    assert "rose" in house.text
    assert "name: miles" in house.text


def test_an_agent_named_again_is_restored(registry: Registry, house: House) -> None:
    registry.update("rose", soul="Kept.")
    registry.delete("rose")
    house.swap("# Nothing below.", "# Nothing below.\n", age=5)
    house.save(
        house.text.replace("      label: Dot\n", "      label: Dot\n    - {name: rose, label: Rosie}\n")
    )
    assert registry.sync.refresh().changes == (("restored", "rose"),)
    assert registry.get("rose").label == "Rosie"
    assert registry.workspace(registry.get("rose")).effective("SOUL.md")[1] == "Kept."


def test_a_save_that_removes_most_of_the_household_is_held(registry: Registry, house: House) -> None:
    registry.create("miles")
    everyone = active(registry)
    house.save("version: 1\n")
    sync = registry.sync.refresh()
    assert len(sync.held) == 3
    assert all("agent apply --yes" in reason for reason in sync.held)
    assert active(registry) == everyone
    with house.open() as again:
        assert active(again) == everyone, "also after a restart"
        assert len(again.sync.state.held) == 3
    assert registry.sync.apply().changes == ()
    assert {agent for _, agent in registry.sync.apply(yes=True).changes} == {"dot", "rose", "miles"}
    assert active(registry) == ["main"]
    assert registry.sync.state.held == ()


def test_held_agents_can_be_put_back_or_let_go_one_by_one(registry: Registry, house: House) -> None:
    registry.create("miles")
    house.save("agents:\n  roster:\n")
    assert len(registry.sync.refresh().held) == 3
    house.save("agents:\n  roster:\n    - {name: dot, label: Dot}\n    - name: rose\n")
    assert registry.sync.refresh().held == ()
    assert active(registry) == ["main", "dot", "rose"]
    assert registry.get("miles").state is AgentState.ARCHIVED


def test_a_vanished_default_agent_is_held(registry: Registry, house: House) -> None:
    registry.set_default("rose")
    house.save(house.text.replace(ROSE, ""))
    assert registry.sync.refresh().problems, "agents.default names nobody"
    house.save(house.text.replace("default: rose", "default: main"))
    registry.sync.refresh()
    assert registry.default().id == "main"
    assert registry.get("rose").state is AgentState.ARCHIVED


def test_a_vanished_default_line_waits_as_well(registry: Registry, house: House) -> None:
    registry.set_default("rose")
    house.swap("  default: rose\n", "", age=0.5)
    assert registry.sync.refresh().settling
    assert registry.default().id == "rose"
    house.save(house.text, age=5)
    registry.sync.refresh()
    assert registry.default().id == "main"


def test_the_default_in_the_file_is_followed_and_an_archived_one_is_held(
    registry: Registry, house: House
) -> None:
    house.swap("default: main", "default: dot", age=0.5)
    registry.sync.refresh()
    assert registry.default().id == "dot"
    registry.set_default("main")
    registry.delete("rose")
    house.swap("default: main", "default: rose")
    sync = registry.sync.refresh()
    assert any("rose is not active" in reason for reason in sync.held)
    assert registry.default().id == "main"


@pytest.mark.parametrize("how", ["empty", "blank", "missing"])
def test_an_emptied_file_archives_nobody_and_stops_changes(
    registry: Registry, house: House, how: str
) -> None:
    everyone = active(registry)
    if how == "missing":
        house.home.config.unlink()
    else:
        house.save("" if how == "empty" else " \n\n")
    sync = registry.sync.refresh()
    assert "empty or missing" in sync.problems[0].message
    assert active(registry) == everyone
    with pytest.raises(Conflict, match="empty or missing"):
        registry.create("miles")
    with house.open() as again:
        assert active(again) == everyone
        assert again.sync.state.problems
    registry.sync.apply(yes=True)
    assert registry.sync.state.problems == ()
    assert house.text == COMMENTED
    assert active(registry) == everyone
    registry.create("miles")


def test_while_the_file_is_invalid_the_last_good_one_is_in_force(registry: Registry, house: House) -> None:
    house.swap("port: 0", "port: 4321")
    registry.sync.refresh()
    house.swap("label: Dot", "lable: Dot")
    broken = house.text
    before = house.state(registry)
    sync = registry.sync.refresh()
    assert [(p.line, p.key) for p in sync.problems] == [(10, "agents.roster[0].lable")]
    attempts: list[Callable[[], object]] = [
        lambda: registry.create("miles"),
        lambda: registry.update("dot", label="X"),
        lambda: registry.delete("dot"),
        lambda: registry.set_default("dot"),
        lambda: registry.purge("dot"),
    ]
    for attempt in attempts:
        with pytest.raises(Conflict, match=r"line 10: agents\.roster\[0\]\.lable: unknown key") as refused:
            attempt()
        assert "did you mean 'label'" in refused.value.message
        assert refused.value.details is not None and refused.value.details["problems"]
    assert house.state(registry) == before
    assert registry.sync.config.gateway.port == 4321
    with house.open() as again:
        assert again.sync.config.gateway.port == 4321
        assert active(again) == ["main", "dot", "rose"]
        assert house.text == broken
    house.swap("lable: Dot", "label: Mended")
    assert registry.sync.refresh().problems == ()
    assert registry.get("dot").label == "Mended"
    registry.create("miles")


@pytest.mark.parametrize(
    "broken",
    [
        "agents:\n  roster:\n    - name: a\n    - name: a\n",
        "agents:\n  roster:\n    - {name: a, extends: b}\n    - {name: b, extends: a}\n",
        "agents:\n  roster:\n    - {name: a, skills: [nope]}\n",
        "agents:\n  roster:\n    - {name: a, label: Main}\n",
        "agents:\n  roster:\n    - {name: default}\n",
        "agents: [\n",
        "\x00",
        "- a\n",
        "agents:\n  roster:\n    - {name: ../x}\n",
        "!!bool x: 1\n",
    ],
)
def test_no_broken_file_keeps_a_household_from_opening(house: House, broken: str) -> None:
    house.save(COMMENTED)
    with house.open():
        pass
    house.save(broken)
    with house.open() as registry:
        assert registry.sync.state.problems
        assert active(registry) == ["main", "dot", "rose"]
        assert house.text == broken


def test_a_file_that_cannot_be_edited_does_not_keep_a_household_from_opening(house: House) -> None:
    """An addition was cut short before the file got it, and then somebody put an anchor on the roster."""
    house.save(COMMENTED)
    with house.open() as registry:
        with registry._store.read() as tx:
            agreed = tx.meta.get("agreed")
        assert agreed is not None
        registry.create("miles")
        with registry._store.write() as tx:
            tx.meta.set("agreed", agreed)
    house.save("agents:\n  roster: &all\n    - {name: dot, label: Dot}\n    - {name: rose}\n")
    with house.open() as registry:
        assert "in the file" in registry.sync.state.problems[0].message
        assert set(active(registry)) == {"main", "dot", "rose", "miles"}
        house.save("agents: {roster: [{name: dot, label: Dot}, {name: rose}]}\n")
        assert registry.sync.refresh().problems == ()
        assert "name: miles" in house.text


def test_a_first_start_on_a_broken_file_still_opens(house: House) -> None:
    house.save("agents: [\n")
    with house.open() as registry:
        assert active(registry) == ["main"]
        assert registry.sync.state.problems
        house.save(COMMENTED)
        registry.sync.refresh()
        assert active(registry) == ["main", "dot", "rose"]


def test_warnings_are_told_and_stay_after_a_restart(registry: Registry, house: House) -> None:
    house.swap("label: Dot", "label: Dot\n      agent_allowlist: [nobody]")
    assert ["matches nothing" in w.message for w in registry.sync.refresh().warnings] == [True]
    with house.open() as again:
        assert [str(w) for w in again.sync.state.warnings] == [str(w) for w in registry.sync.state.warnings]


def test_the_file_may_be_a_link_and_keeps_its_permissions(house: House, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "agent.yaml"
    real.parent.mkdir()
    real.write_text(COMMENTED)
    real.chmod(0o640)
    house.home.path.mkdir()
    house.home.config.symlink_to(real)
    with house.open() as registry:
        registry.create("miles")
    assert house.home.config.is_symlink()
    assert "miles" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640


def test_windows_line_ends_stay(house: House) -> None:
    house.home.path.mkdir()
    house.home.config.write_bytes(COMMENTED.replace("\n", "\r\n").encode())
    with house.open() as registry:
        registry.create("miles", label="M")
    data = house.home.config.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") == COMMENTED.count("\n") + 2


# Both at once


def test_a_change_in_the_file_and_one_elsewhere_both_survive(registry: Registry, house: House) -> None:
    house.swap("label: Dot", "label: Dorothy   # renamed", age=5)
    registry.update("dot", spec={"model": "a/b"})
    registry.create("miles")
    dot = registry.get("dot")
    assert (dot.label, dot.spec) == ("Dorothy", {"model": "a/b"})
    assert "label: Dorothy   # renamed" in house.text
    assert "model: a/b" in house.text and "name: miles" in house.text


def test_edits_of_two_parts_of_one_section_both_survive(registry: Registry, house: House) -> None:
    registry.update("dot", spec={"memory": {"recall": True, "recall_tokens": 5}})
    house.swap("recall: true", "recall: false")
    registry.update("dot", spec={"memory": {"recallTokens": 9}})
    assert registry.get("dot").spec["memory"] == {"recall": False, "recall_tokens": 9}


def test_an_edit_of_an_agent_that_was_archived_meanwhile_is_kept_for_its_return(
    registry: Registry, house: House
) -> None:
    house.swap("description: Reads ", "description: Writes ")
    registry.delete("rose")
    assert registry.get("rose").state is AgentState.ARCHIVED
    assert registry.restore("rose").spec == {"description": "Writes"}


@pytest.mark.parametrize("way", ["in place", "by rename"])
def test_an_editor_and_the_registry_at_the_same_moment(registry: Registry, house: House, way: str) -> None:
    """One side keeps saving the file, the other keeps adding agents: nobody is lost, and no comment."""
    path = house.home.config
    done = threading.Event()
    saves = 0

    def save(text: str, new: str) -> None:
        """As an editor does that looks whether the file changed on disk before it saves."""
        if way == "in place":
            with path.open("r+") as file:
                if file.read() == text:
                    file.seek(0)
                    file.write(new)
                    file.truncate()
        else:
            temporary = path.with_suffix(".new")
            temporary.write_text(new)
            if path.read_text() == text:
                temporary.rename(path)

    def edit() -> None:
        nonlocal saves
        while not done.is_set():
            text = path.read_text()
            first, rest = text.split("\n", 1)
            save(text, f"{first}.\n{rest}")
            saves += 1
            time.sleep((0.05, 0.4, 0.6)[saves % 3])

    editor = threading.Thread(target=edit)
    editor.start()
    everyone = {"main", "dot", "rose"}
    try:
        while saves <= 3 or len(everyone) < 9:
            name = f"a{len(everyone)}"
            registry.create(name)
            everyone.add(name)
    finally:
        done.set()
        editor.join()
    sync = registry.sync.refresh()
    assert set(active(registry)) == everyone
    assert house.text.startswith("# Our household..")
    assert comments(house.text)[1:] == comments(COMMENTED)[1:]
    # An editor that saved in the one instant between looking and saving may have cut somebody out again:
    # then they wait, as anybody does who vanished from the file.
    assert sync.settling or all(f"name: {agent}" in house.text for agent in everyone - {"main"})


def test_a_file_that_never_rests_does_not_hold_up_the_registry(registry: Registry, house: House) -> None:
    done = threading.Event()

    def scribble() -> None:
        number = 0
        while not done.is_set():
            number += 1
            house.home.config.write_text(f"{COMMENTED}# {number}\n")
            time.sleep(0.002)

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        registry.create("miles")
    except Conflict:
        pass  # the file happened to be empty just then
    finally:
        done.set()
        scribbler.join()
    made = "miles" in active(registry)
    house.save(COMMENTED)
    registry.sync.refresh()
    assert ("name: miles" in house.text) == made


class Meanwhile(ConfigFile):
    """A file that somebody changes just after it was looked at."""

    def __init__(self, path: Path, change: Callable[[], object]) -> None:
        super().__init__(path)
        self._change: Callable[[], object] | None = change

    def read(self) -> str | None:
        text = super().read()
        change, self._change = self._change, None
        if change is not None:
            change()
        return text


def test_a_save_that_lands_just_before_the_replacement_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("old")
    file = Meanwhile(path, lambda: path.write_text("the editor's"))
    assert file.replace("old", "ours") is False
    assert path.read_text() == "the editor's"
    assert [p.name for p in tmp_path.iterdir()] == ["agent.yaml"]


def test_a_file_that_changed_before_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("the editor's")
    assert ConfigFile(path).replace("old", "ours") is False
    assert ConfigFile(path).replace(None, "ours") is False
    assert path.read_text() == "the editor's"
    path.unlink()
    assert ConfigFile(path).replace(None, "ours") is True
    assert path.read_text() == "ours"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["agent.yaml"]


def test_many_threads_change_one_household(registry: Registry, house: House) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            registry.create(f"t{number}")
            registry.update(f"t{number}", label=f"Thread {number}")
            if number % 3 == 0:
                registry.delete(f"t{number}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(active(registry)) == {"main", "dot", "rose", *(f"t{n}" for n in range(12) if n % 3)}
    assert registry.get("t1").label == "Thread 1"
    assert comments(house.text) == comments(COMMENTED)
