"""Loading tools: built-in ones, installed packages, drop-in files; and what a bad plug-in costs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from coterie.core.tool import ToolContext, result_text
from coterie.tools.loader import load_tools

BUILT_IN = {
    "system_time",
    "system_status",
    "files_read",
    "files_write",
    "files_edit",
    "files_list",
    "results_read",
    "agents_list",
    "agents_message",
    "agents_switch",
    "subagents_spawn",
    "subagents_list",
    "subagents_status",
    "subagents_cancel",
    "memory_remember",
    "memory_recall",
    "memory_forget",
    "memory_log",
    "memory_edit",
}

DICE = """
from coterie import tool

@tool(capabilities=["games.play"], safe_to_repeat=True)
def dice_roll(sides: int = 6) -> str:
    \"\"\"Roll one die.\"\"\"
    return f"{sides} of {sides}"
"""


class NoFiles:
    def read_text(self, path: str) -> str:
        raise AssertionError

    def write_text(self, path: str, content: str) -> None:
        raise AssertionError

    def entries(self, path: str = "") -> list[tuple[str, int | None]]:
        raise AssertionError


CONTEXT = ToolContext(agent_id="a", session_key="s", run_id="r", call_id="c", workspace=NoFiles())


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins"
    folder.mkdir()
    return folder


def test_without_plugins_there_are_the_built_in_tools(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "absent"):
        loaded = load_tools(folder)
        assert set(loaded.tools) == BUILT_IN
        assert loaded.problems == []
    assert {tool.source for tool in loaded.tools.values()} == {
        "system",
        "files",
        "memory",
        "results",
        "agents",
        "subagents",
    }


def test_a_drop_in_file_adds_its_tools_under_its_own_name(plugins: Path) -> None:
    (plugins / "dice.py").write_text(DICE)
    (plugins / "_draft.py").write_text("raise RuntimeError")
    (plugins / "notes.txt").write_text("not a plug-in")
    loaded = load_tools(plugins)
    assert loaded.problems == []
    assert set(loaded.tools) == BUILT_IN | {"dice_roll"}
    dice = loaded.tools["dice_roll"]
    assert (dice.source, dice.capabilities, dice.safe_to_repeat) == ("dice", ("games.play",), True)
    assert result_text(asyncio.run(dice.call(CONTEXT, '{"sides": 20}'))) == "20 of 20"


def test_a_drop_in_file_hides_no_module_of_the_same_name(plugins: Path) -> None:
    (plugins / "json.py").write_text(DICE)
    loaded = load_tools(plugins)
    assert loaded.tools["dice_roll"].source == "json"
    assert "loads" in vars(sys.modules["json"])


def test_two_homes_can_have_a_plugin_of_the_same_name(tmp_path: Path) -> None:
    for home, sides in (("one", "6"), ("two", "8")):
        (tmp_path / home).mkdir()
        (tmp_path / home / "dice.py").write_text(DICE.replace("int = 6", f"int = {sides}"))
    first, second = load_tools(tmp_path / "one"), load_tools(tmp_path / "two")
    assert result_text(asyncio.run(first.tools["dice_roll"].call(CONTEXT, ""))) == "6 of 6"
    assert result_text(asyncio.run(second.tools["dice_roll"].call(CONTEXT, ""))) == "8 of 8"


def test_a_tool_that_a_plugin_only_imports_is_not_its_own(plugins: Path) -> None:
    (plugins / "dice.py").write_text("from coterie.tools.time import system_time\n" + DICE)
    loaded = load_tools(plugins)
    assert loaded.problems == []
    assert (loaded.tools["system_time"].source, loaded.tools["dice_roll"].source) == ("system", "dice")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import os\nraise ValueError('no luck')\n", "plugins/bad.py:2: ValueError: no luck"),
        ("x = 1\ny = = 2\n", "plugins/bad.py:2: SyntaxError: invalid syntax"),
        (
            "import no_such_module\n",
            "plugins/bad.py:1: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("import sys\n\nsys.exit(1)\n", "plugins/bad.py:3: SystemExit: 1"),
        ("raise GeneratorExit\n", "plugins/bad.py:1: GeneratorExit"),
        ("import json\n\n\njson.loads('{')\n", "plugins/bad.py:4: json.decoder.JSONDecodeError"),
        (
            "from coterie import tool\n\n@tool(name='has space')\ndef f() -> str:\n    return ''\n",
            "plugins/bad.py:3: ValueError: 'has space' is no name for a tool",
        ),
        (
            DICE + "\n\n@tool(name='files_read')\ndef g() -> str:\n    return ''\n",
            "plugins/bad.py: line 10: there is a tool 'files_read' already, of plug-in files",
        ),
        (
            DICE + "\n\n@tool(name='dice_roll')\ndef g() -> str:\n    return ''\n",
            "plugins/bad.py: line 10: there is a tool 'dice_roll' already, of this plug-in",
        ),
        ("def f(:\n", "plugins/bad.py:1: SyntaxError"),
        ("\x00", "plugins/bad.py"),
    ],
)
def test_a_bad_plugin_is_reported_and_costs_only_itself(plugins: Path, source: str, problem: str) -> None:
    modules = set(sys.modules)
    (plugins / "bad.py").write_text(source)
    (plugins / "worse.py").write_text(DICE.replace("dice_roll", "coin_flip"))
    loaded = load_tools(plugins)
    assert set(loaded.tools) == BUILT_IN | {"coin_flip"}
    assert len(loaded.problems) == 1
    assert loaded.problems[0].startswith(problem)
    assert "\n" not in loaded.problems[0]
    failed_on_import = not problem.startswith("plugins/bad.py: line")
    assert any(name.endswith("_bad") for name in set(sys.modules) - modules) is not failed_on_import


def test_files_are_read_in_the_order_of_their_names(plugins: Path) -> None:
    for name in ("b", "a", "c"):
        (plugins / f"{name}.py").write_text(DICE)
    loaded = load_tools(plugins)
    assert loaded.tools["dice_roll"].source == "a"
    assert [problem.split(":")[0] for problem in loaded.problems] == ["plugins/b.py", "plugins/c.py"]


def test_a_plugin_cannot_take_the_id_of_another(plugins: Path) -> None:
    (plugins / "files.py").write_text(DICE)
    loaded = load_tools(plugins)
    assert set(loaded.tools) == BUILT_IN
    assert loaded.problems == ["plugins/files.py: there is a plug-in 'files' already"]


def test_plugins_and_tools_can_be_disabled(plugins: Path) -> None:
    (plugins / "bad.py").write_text("raise ValueError")
    (plugins / "dice.py").write_text(DICE)
    disabled = ["bad", "files", "memory", "results", "agents", "subagents", "system_status"]
    loaded = load_tools(plugins, disabled)
    assert (set(loaded.tools), loaded.problems) == ({"system_time", "dice_roll"}, [])


def test_a_disabled_tool_leaves_its_name_to_another(plugins: Path) -> None:
    (plugins / "dice.py").write_text(DICE.replace("dice_roll", "files_read"))
    loaded = load_tools(plugins, ["files"])
    assert (loaded.tools["files_read"].source, loaded.problems) == ("dice", [])


def install(site: Path, name: str, entry: str, source: str) -> None:
    """What an installer leaves behind: a module and the entry point that names it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[coterie.plugins]\n{name} = {entry}\n")
    (site / f"{entry.partition(':')[0]}.py").write_text(source)


def test_installed_packages_bring_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "dice", "coterie_test_dice", DICE)
    install(tmp_path, "coin", "coterie_test_coin:flip", DICE.replace("dice_roll", "flip"))
    install(
        tmp_path,
        "cards",
        "coterie_test_cards:TOOLS",
        DICE.replace("dice_roll", "draw") + "\nTOOLS = [draw]\n",
    )
    install(tmp_path, "number", "coterie_test_number:X", "X = 3")
    install(tmp_path, "broken", "coterie_test_broken", "\n1 / 0\n")
    install(tmp_path, "gone", "coterie_test_gone:nothing", "")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_tools(None)
    added = {name: tool.source for name, tool in loaded.tools.items() if name not in BUILT_IN}
    assert added == {"dice_roll": "dice", "flip": "coin", "draw": "cards"}
    broken, gone, number = loaded.problems
    assert (
        broken
        == "plug-in broken (coterie_test_broken): coterie_test_broken.py:2: ZeroDivisionError: division by zero"
    )
    assert gone.startswith("plug-in gone (coterie_test_gone:nothing): ")
    assert "AttributeError" in gone
    assert number.endswith("expected a module, a tool or a list of tools, found int")
