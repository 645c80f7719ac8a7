"""README, followed word for word in fresh shells: a new home, a bare PATH, a copy of the checkout."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.terminal import Pane
from tests.surfaces.test_docs import ROOT, blocks, examples, fits

PORT = 18790
README = ROOT / "README.md"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy, with the environment that the tests have already: `make` finds it in order, and installs nothing."""
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".tools", ".build", ".*_cache", ".hypothesis", "node_modules"
    )
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=unwanted, symlinks=True)
    (copy / ".venv").mkdir()
    (copy / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (copy / ".venv" / ".program").touch()
    (copy / ".tools" / "bin").mkdir(parents=True)
    (copy / ".tools" / "bin" / "uv").write_text("#!/bin/sh\necho 'nothing is to be installed' >&2\nexit 1\n")
    (copy / ".tools" / "bin" / "uv").chmod(0o755)
    return copy


@pytest.fixture
def fresh(tmp_path: Path, checkout: Path) -> dict[str, str]:
    """What a new account has in its shell, and where the tests' Python finds the copy."""
    (tmp_path / "person").mkdir()
    kept = {name: os.environ[name] for name in ("LOOPBACK_RECORD", "NO_PROXY", "no_proxy")}
    places = [str(checkout / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        "HOME": str(tmp_path / "person"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TERM": "screen-256color",
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }


@contextmanager
def the_port() -> Iterator[None]:
    """README names it; two who follow README on one machine take turns."""
    with (Path(tempfile.gettempdir()) / "coterie-readme.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_taken():
            assert os.environ.get("CI") != "true", f"something listens on {PORT}"
            pytest.skip(f"something listens on {PORT}: README is not followed")
        yield
        deadline = time.monotonic() + 30
        while _is_taken():
            assert time.monotonic() < deadline, "the gateway outlived its terminal"
            time.sleep(0.05)


def _is_taken() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0


@contextmanager
def terminal(command: str, checkout: Path, env: dict[str, str]) -> Iterator[Pane]:
    """A window in the checkout in which somebody typed this."""
    if shutil.which("tmux") is None:
        assert os.environ.get("CI") != "true", "tmux is missing"
        pytest.skip("tmux is missing: README is not followed")
    pane = Pane(100, 50, ["bash", "--norc", "-c", f"cd {shlex.quote(str(checkout))}\n{command}"], env)
    try:
        yield pane
    finally:
        pane.close()


def shell(command: str, checkout: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", command],
        cwd=checkout,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_readme_word_for_word(checkout: Path, fresh: dict[str, str]) -> None:
    serve, chat, *others = blocks(README, "sh")
    assert serve == "make serve\n"
    home = Path(fresh["HOME"]) / ".coterie"
    with the_port(), terminal(serve, checkout, fresh) as gateway:
        seen = gateway.wait("Open http://")
        assert f"http://127.0.0.1:{PORT}/#token=" in seen
        with terminal(chat, checkout, fresh) as pane:
            pane.wait("Welcome to Coterie")
            pane.say("what time is it")
            pane.wait("system_time answered: ")
            pane.say("/quit")
            assert pane.ended() == 0
        for block in blocks(README, "console"):
            for command, shown in examples(block):
                printed = shell(command, checkout, fresh)
                assert fits(shown, printed), f"{command} printed:\n{printed}"
        assert (home / "agents" / "dot" / "SOUL.md").read_text() == "Kind, brief, fond of lists.\n"
        for block in others:
            answer = json.loads(shell(block, checkout, fresh))
            assert "system_time answered: " in answer["choices"][0]["message"]["content"]
        [settings] = blocks(README, "yaml")
        with (home / "agent.yaml").open() as file:
            former = re.sub(r"^default_model:.*\n", "", file.read(), flags=re.M)
        (home / "agent.yaml").write_text(former + settings)
        shell("./coterie agent apply", checkout, fresh)
        assert "openai/gpt-5.2" in shell("./coterie model list", checkout, fresh)


def test_every_command_in_readme_is_in_a_block_that_is_followed() -> None:
    languages = re.findall(r"^```(\w*)$", README.read_text(), re.M)
    assert {language for language in languages if language} == {"text", "sh", "console", "yaml"}


def test_the_launcher_is_found_through_a_link_and_says_what_is_missing(
    checkout: Path, fresh: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    shell(f'ln -s "$PWD/coterie" {shlex.quote(str(tmp_path / "bin"))}/', checkout, fresh)
    linked = {**fresh, "PATH": f"{tmp_path / 'bin'}:{fresh['PATH']}"}
    assert shell("cd / && coterie --version", checkout, linked).startswith("coterie ")
    (tmp_path / "few").mkdir()
    for name in ("sh", "dirname", "readlink"):
        (tmp_path / "few" / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [str(checkout / "coterie"), "chat"],
        env={**fresh, "PATH": str(tmp_path / "few")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "needs make and Python" in done.stderr
