"""The house rules that no linter knows: what a start may import, what files may say, what the docs must name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from coterie.api.events import EVENTS
from coterie.api.methods import METHODS
from coterie.cli import app
from docs import generate

ROOT = Path(__file__).parents[2]
HEAVY = (
    "pydantic",
    "pydantic_ai",
    "sqlalchemy",
    "alembic",
    "starlette",
    "uvicorn",
    "yaml",
    "websockets",
    "watchfiles",
    "httpx",
    "openai",
    "asyncio",
)


def loaded(code: str) -> set[str]:
    """Modules that a fresh interpreter has after some code."""
    dump = "import sys; print('\\n' + ' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{dump}"], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stdout.rsplit("\n", 2)[-2].split()}


def test_importing_coterie_loads_nothing_heavy() -> None:
    assert loaded("import coterie") & set(HEAVY) == set()


@pytest.mark.parametrize(
    "words", [["--help"], ["agent", "--help"], ["agent", "add", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = f"""
import sys
from coterie.cli import app
try:
    app({words!r})
except SystemExit:
    pass
"""
    # typer itself reads the parameters of a subcommand with pydantic.
    allowed = {"pydantic"} if "agent" in words else set()
    assert loaded(code) & set(HEAVY) <= allowed


# What files may say


def ours() -> Iterator[Path]:
    """Files that belong to the repository; without Git, those in its folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        folders = ("src", "tests", "docs", "bench", "examples", ".ci")
        found = [p for folder in folders for p in (ROOT / folder).rglob("*")]
        found += [p for p in ROOT.iterdir() if p.is_file()]
    for path in found:
        if path.is_file() and "__pycache__" not in path.parts and path != Path(__file__):
            yield path


FORBIDDEN = {
    "a path of somebody's machine": re.compile(r"""(?:^|[\s"'`(=:,])/(?:work|root|home/\w+|Users/\w+)/\w"""),
    "the host of a package registry": re.compile(
        r"https?://[\w.-]*(?:pypi\.org|pythonhosted\.org|npmjs\.(?:com|org)|yarnpkg\.com|artifactory|nexus|devpi)"
    ),
    "papers that the repository does not hold": re.compile(
        r"\bSPEC(?:\.md)?\b|\bINTERFACES(?:\.md)?\b|\.\./shared"
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    found = []
    for path in ours():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if FORBIDDEN[what].search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


# What a client may rely on


def test_the_events_that_a_client_is_told_of_are_those_that_happen() -> None:
    published = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr == "publish" and isinstance(first, ast.Constant):
                    published.add(first.value)
    assert published - {"token.revoked"} == set(EVENTS) - {"tick"}


# What the docs must name


def test_every_method_is_in_the_reference() -> None:
    page = (generate.FOLDER / "rpc.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"## `{name}`\n" not in page] == []


def test_every_command_and_option_is_in_the_reference() -> None:
    page = (generate.FOLDER / "cli.md").read_text(encoding="utf-8")
    missing = []
    for path, command in generate.commands(get_command(app), ("coterie",)):
        title = f"## `{' '.join(path)}`\n"
        section = page.partition(title)[2].partition("\n## ")[0]
        options = [opt for p in command.params if p.name and "completion" not in p.name for opt in p.opts]
        missing += [
            f"{' '.join(path)} {opt}" for opt in options if opt.startswith("-") and f"`{opt}" not in section
        ]
        if title not in page:
            missing.append(" ".join(path))
    assert missing == []


def test_the_reference_pages_are_what_the_program_says_now() -> None:
    assert generate.main(["--check"]) == 0


def test_a_stale_page_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "reference"
    assert generate.main([], folder) == 0
    assert generate.main(["--check"], folder) == 0
    (folder / "rpc.md").write_text("old")
    (folder / "cli.md").unlink()
    capsys.readouterr()
    assert generate.main(["--check"], folder) == 1
    told = capsys.readouterr().err
    assert "rpc.md is stale" in told and "cli.md is stale" in told and "http.md" not in told
