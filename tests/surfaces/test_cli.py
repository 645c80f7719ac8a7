"""The terminal: one story, told with and without a running gateway, and the manners of a command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, coterie, environment, running

Said = tuple[str, int, str, str]
"""A command, its exit code, and what it wrote to stdout and stderr."""


def story(home: Path) -> Iterator[tuple[list[str], subprocess.CompletedProcess[str]]]:
    """What a newcomer does on the first day, command by command."""

    def run(*words: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
        return list(words), coterie(home, *words)

    yield run("agent", "add", "dot", "--label", "Dot", "--emoji", "🦊", "--personality", "Kind and brief.")
    yield run("agent", "add", "rose", "--description", "Tends the garden", "--set", "temperature=0.2")
    yield run("agent", "list")
    yield run("agent", "info", "dot")
    (home / "agents" / "dot" / "SOUL.md").write_text("# Soul\n\nNow edited by hand.\n")
    (home / "TOOLS.md").write_text("For everyone.\n")
    yield run("agent", "info", "dot")
    yield run("agent", "edit", "rose", "--label", "Rose", "--model", "offline/demo")
    yield run("agent", "default", "dot")
    yield run("agent", "remove", "dot")  # refused: it is the default
    yield run("agent", "remove", "main")  # refused: main always stays
    yield run("agent", "default", "main")
    yield run("agent", "remove", "dot")
    yield run("agent", "list", "--all")
    yield run("agent", "restore", "dot")
    yield run("agent", "info", "dot", "--json")
    yield run("agent", "remove", "rose")
    yield run("agent", "purge", "rose")  # refused: nobody to ask
    yield run("agent", "purge", "rose", "--yes")
    yield run("agent", "info", "rose")
    yield run("agent", "add", "../x")
    yield run("agent", "apply")
    made = run("token", "create", "--scope", "read", "--label", "phone")
    yield made
    found = re.search(r"revoking: (\w+)", made[1].stderr)
    assert found is not None
    yield run("token", "revoke", found[1])
    yield run("token", "revoke", found[1])
    yield run("token", "list")
    (home / "token").touch()
    (home / "token").chmod(0o644)
    yield run("doctor")
    yield run("doctor", "--fix")
    yield run("doctor", "--json")


def plain(text: str, home: Path) -> str:
    """What differs between any two runs is written the same."""
    text = text.replace(str(home), "HOME")
    text = re.sub(r"cot_\w+?_[\w-]+", "TOKEN", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "TIME", text)
    return re.sub(r"\b[0-9a-f]{12}\b", "ID", text)


EXPECTED_CODES = {"agent purge rose": 2}
REFUSED = {"agent remove main", "agent info rose", "agent add ../x", "doctor"}


def tell_twice(folder: Path) -> dict[str, list[Said]]:
    homes = {name: folder / name.replace(" ", "-") for name in ("alone", "beside a gateway")}

    def tell(name: str) -> list[Said]:
        home = homes[name]
        with nullcontext() if name == "alone" else running(home):
            return [
                (
                    plain(" ".join(words), home),
                    done.returncode,
                    plain(done.stdout, home),
                    plain(done.stderr, home),
                )
                for words, done in story(home)
            ]

    with ThreadPoolExecutor() as pool:
        return dict(zip(homes, pool.map(tell, homes), strict=True))


@pytest.mark.timeout(280)
def test_the_story_goes_as_a_newcomer_expects_with_and_without_a_gateway(tmp_path: Path) -> None:
    told = tell_twice(tmp_path)
    check_words(told["alone"])
    check_codes(told["alone"])
    for alone, beside in zip(told["alone"], told["beside a gateway"], strict=True):
        assert beside == alone


def check_words(said: list[Said]) -> None:
    commands = [command for command, *_ in said]

    def output(command: str, occurrence: int = 0) -> str:
        places = [index for index, known in enumerate(commands) if known == command]
        return said[places[occurrence]][2]

    def refusal(command: str, occurrence: int = 0) -> str:
        places = [index for index, known in enumerate(commands) if known == command]
        _, returned, stdout, stderr = said[places[occurrence]]
        assert returned == 1 and stdout == "" and stderr.startswith("error: ") and stderr.count("\n") == 1
        return stderr

    assert "Added Dot (dot)" in output(commands[0])
    first_list = output("agent list")
    assert "🦊 Dot" in first_list and "Tends the garden" in first_list and "* main" in first_list
    assert re.search(r"SOUL\.md +own", output("agent info dot"))
    assert re.search(r"MEMORY\.md +missing", output("agent info dot"))
    assert re.search(r"TOOLS\.md +missing", output("agent info dot"))
    edited = output("agent info dot", 1)
    assert "Now edited by hand." in edited and re.search(r"TOOLS\.md +inherited", edited)
    assert "default" in refusal("agent remove dot") and "main" in refusal("agent remove main")
    assert re.search(r"dot.*archived", output("agent list --all"))
    assert json.loads(output("agent info dot --json"))["soul"] == "# Soul\n\nNow edited by hand.\n"
    assert "rose" in refusal("agent info rose") and "a-z" in refusal("agent add ../x")
    assert output("token create --scope read --label phone").strip() == "TOKEN"
    assert re.search(r"phone.*revoked", output("token list"))
    assert "PROBLEM" in output("doctor") and "fixed" in output("doctor --fix")
    assert {f["level"] for f in json.loads(output("doctor --json"))["findings"]} == {"ok"}


def check_codes(said: list[Said]) -> None:
    twice = {"agent remove dot": [1, 0], "token revoke ID": [0, 1]}
    for command, returned, stdout, stderr in said:
        expected = EXPECTED_CODES.get(command, 1 if command in REFUSED else 0)
        if command in twice:
            expected = twice[command].pop(0)
        assert returned == expected, (command, stdout, stderr)
        assert "Traceback" not in stderr
        assert "\x1b" not in stdout + stderr, "no colours in a pipe"


# Manners


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running(tmp_path_factory.mktemp("cli") / "home") as process:
        assert coterie(process.home, "agent", "add", "dot", "--personality", "Kind.").returncode == 0
        yield process


@pytest.mark.parametrize(
    ("words", "method", "params"),
    [
        (["agent", "list"], "agents.list", {}),
        (["agent", "list", "--all"], "agents.list", {"include_archived": True}),
        (["agent", "info", "dot"], "agents.get", {"agent_id": "dot"}),
        (["agent", "info", "default"], "agents.get", {"agent_id": "default"}),
        (["agent", "default", "main"], "agents.set_default", {"agent_id": "main"}),
        (["agent", "edit", "dot", "--label", "Dot"], "agents.update", {"agent_id": "dot", "label": "Dot"}),
        (["agent", "apply"], "agents.apply", {}),
        (["token", "list"], "tokens.list", {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_json_is_the_payload_of_the_same_method(
    gateway: GatewayProcess, words: list[str], method: str, params: dict[str, object]
) -> None:
    printed = coterie(gateway.home, *words, "--json")
    assert printed.returncode == 0 and printed.stderr == ""
    with gateway.rpc() as rpc:
        assert json.loads(printed.stdout) == rpc.call(method, **params)


def test_a_token_made_for_a_program(gateway: GatewayProcess) -> None:
    made = json.loads(coterie(gateway.home, "token", "create", "--scope", "write", "--json").stdout)
    assert set(made) == {"token", "scope", "id"} and made["scope"] == "write"
    with gateway.rpc(made["token"]) as rpc:
        assert rpc.call("status")
    assert coterie(gateway.home, "token", "revoke", made["id"], "--json").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["agent", "no-such-command"],
        ["no-such-command"],
        ["agent", "add"],
        ["agent", "list", "--no-such-option"],
        ["agent", "info", "a", "b"],
        ["agent", "edit", "dot"],
        ["agent", "edit", "dot", "--set", "novalue"],
        ["agent", "edit", "dot", "--set", "temperature=[1"],
        ["agent", "purge", "dot"],
        ["token", "create"],
        ["token", "create", "--scope", "owner"],
        ["serve", "--port", "99999"],
        ["serve", "--port", "x"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_said_on_stderr(gateway: GatewayProcess, words: list[str]) -> None:
    done = coterie(gateway.home, *words)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == "" and done.stderr and "Traceback" not in done.stderr


def test_the_home_can_be_named_before_and_after_the_command(tmp_path: Path) -> None:
    elsewhere, chosen = tmp_path / "elsewhere", tmp_path / "chosen"
    assert coterie(elsewhere, "--home", str(chosen), "agent", "add", "dot").returncode == 0
    assert coterie(elsewhere, "agent", "add", "rose", "--home", str(chosen)).returncode == 0
    both = coterie(chosen, "agent", "list", "--json")
    assert [a["id"] for a in json.loads(both.stdout)["agents"]] == ["main", "dot", "rose"]
    assert not elsewhere.exists()


def test_a_broken_file_is_a_warning_and_the_last_good_one_stays(tmp_path: Path) -> None:
    """With and without a gateway: reading works, changing says why it does not."""
    spoken = {}
    for name in ("alone", "beside"):
        home = tmp_path / name
        with ExitStack() as stack:
            if name == "beside":
                stack.enter_context(running(home))
            assert coterie(home, "agent", "add", "dot").returncode == 0
            good = (home / "agent.yaml").read_text()
            (home / "agent.yaml").write_text(good + "agnets: {}\n")
            deadline = 50
            while not (listed := coterie(home, "agent", "list")).stderr and deadline:
                deadline -= 1
            added = coterie(home, "agent", "add", "rose")
            doctor = coterie(home, "doctor")
            assert (home / "agent.yaml").read_text() == good + "agnets: {}\n"
            (home / "agent.yaml").write_text(good)
            deadline = 50
            while coterie(home, "agent", "list").stderr and deadline:
                deadline -= 1
            mended = coterie(home, "agent", "add", "rose")
            spoken[name] = [plain(x.stdout + x.stderr, home) for x in (listed, added, doctor, mended)]
            assert listed.returncode == 0 and "dot" in listed.stdout
            assert re.search(r"warning: .*agent\.yaml.*agnets.*agents", listed.stderr)
            assert added.returncode == 1 and "agnets" in added.stderr and added.stdout == ""
            assert doctor.returncode == 1 and "PROBLEM" in doctor.stdout
            assert mended.returncode == 0
    assert spoken["alone"] == spoken["beside"]


def test_a_reader_that_goes_away_is_no_error_worth_a_traceback(gateway: GatewayProcess) -> None:
    command = f"{sys.executable} -m coterie agent list --json | true"
    done = subprocess.run(
        ["sh", "-c", command], env=environment(gateway.home), capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr


def test_a_gateway_that_was_killed_is_not_in_the_way(tmp_path: Path) -> None:
    """Given run/gateway.json of a process that is gone, commands use the store and a new gateway starts."""
    home = tmp_path / "home"
    with running(home) as first:
        first.kill()
        assert (home / "run" / "gateway.json").exists()
        assert coterie(home, "agent", "add", "dot").returncode == 0
        found = coterie(home, "doctor")
        assert found.returncode == 0 and "no longer runs" in found.stdout
        with running(home) as second, second.http() as http:
            assert {a["id"] for a in http.get("/api/agents").json()["agents"]} == {"main", "dot"}
            epochs = json.loads((home / "run" / "gateway.json").read_text())["epoch"]
            assert epochs == 2


def test_a_second_gateway_on_the_same_home_is_refused(gateway: GatewayProcess) -> None:
    before = (gateway.home / "run" / "gateway.json").read_text()
    refused = coterie(gateway.home, "serve", "--port", "0")
    assert refused.returncode == 1
    assert "another Coterie" in refused.stderr and "Traceback" not in refused.stderr
    assert (gateway.home / "run" / "gateway.json").read_text() == before


def test_a_port_that_is_taken_is_named(gateway: GatewayProcess, tmp_path: Path) -> None:
    port = gateway.url.rpartition(":")[2]
    refused = coterie(tmp_path / "home", "serve", "--port", port)
    assert refused.returncode == 1
    assert port in refused.stderr and "Traceback" not in refused.stderr
    assert not (tmp_path / "home" / "run" / "gateway.json").exists()


@pytest.mark.parametrize(
    "name", ["run", "agents", "coterie.db", "run/registry.lock", "run/engine.lock", "token"]
)
def test_something_odd_in_the_home_is_an_error_in_words(tmp_path: Path, name: str) -> None:
    """Given a file where a folder belongs, or a folder where a file belongs, then one line says so."""
    home = tmp_path / "home"
    home.mkdir()
    if name in ("run", "agents"):
        (home / name).write_text("in the way")
    else:
        (home / name).mkdir(parents=True)
    words = ["serve", "--port", "0"] if name in ("token", "run/engine.lock") else ["agent", "add", "dot"]
    done = coterie(home, *words)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "error: " in done.stderr and "Traceback" not in done.stderr
    doctor = coterie(home, "doctor")
    assert "Traceback" not in doctor.stderr


def test_a_damaged_database_is_an_error_in_words(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "coterie.db").write_bytes(b"not a database at all" * 300)
    for words in (["agent", "list"], ["doctor"]):
        done = coterie(home, *words)
        assert done.returncode == 1
        assert "database" in done.stdout + done.stderr and "Traceback" not in done.stderr
