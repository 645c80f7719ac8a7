"""agent.yaml as people and programs leave it: huge, hostile, half written, in JSON, with mistakes in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, Rpc, coterie, running
from tests.support.terminal import chatting

LONG_AGO = (1_700_000_000, 1_700_000_000)


def laid_out(home: Path, text: str) -> Path:
    """A home with this file, which nobody has touched for a while."""
    home.mkdir(exist_ok=True)
    (home / "agent.yaml").write_text(text, encoding="utf-8")
    os.utime(home / "agent.yaml", LONG_AGO)
    return home


# Large and hostile. What these took before was minutes; a command that hangs is ended and fails.


def entries(count: int) -> str:
    return "".join(
        f"    - name: agent-{n}\n      label: Agent {n}\n      agent_allowlist: [agent-{n // 2}, 'b{n}*']\n"
        for n in range(count)
    )


def test_five_thousand_agents_can_be_listed_edited_and_added_to(home: Path) -> None:
    laid_out(home, f"# the house\nversion: 1\nagents:\n  roster:\n{entries(5_000)}")
    assert len(json.loads(coterie(home, "agent", "list", "--json").stdout)["agents"]) == 5_001
    done = coterie(home, "agent", "edit", "agent-17", "--label", "Seventeen", "--description", "Odd")
    assert done.stdout == "Changed Seventeen (agent-17).\n"
    assert coterie(home, "agent", "add", "rose").returncode == 0
    lines = (home / "agent.yaml").read_text().splitlines()
    assert lines[0] == "# the house" and len(lines) == 4 + 15_000 + 2
    at = lines.index("    - name: agent-17")
    assert lines[at + 1] == "      label: Seventeen" and lines[at + 3] == "      description: Odd"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            "version: 1\n" + "".join(f"key{n}: 1\n" for n in range(20_000)),
            "agent.yaml line 2: key0: unknown key",
            id="20,000 unknown keys",
        ),
        pytest.param(
            "agents:\n  roster:\n" + "".join(f"    - {{name: a{n}, extends: a{n}x}}\n" for n in range(5_000)),
            "agent.yaml line 3: agents.roster[0].extends: no agent is named 'a0x'; did you mean 'a0'?",
            id="5,000 misspelt names",
        ),
        pytest.param(
            "agents:\n  roster:\n"
            + "".join(f"    - {{name: a{n}, extends: a{(n + 1) % 5_000}}}\n" for n in range(5_000)),
            "extends goes round in a circle",
            id="5,000 in a circle",
        ),
        pytest.param(
            "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
            "expands to too many values",
            id="aliases",
        ),
        pytest.param("a: " + "[" * 1_000_000, "agent.yaml line 1: the file is nested too deeply", id="lists"),
        pytest.param("\n\na: " + "{b: " * 500_000, "line 3: the file is nested too deeply", id="mappings"),
        pytest.param("a:\n  b: " + "9" * 3_000_000, "line 2: a number has at most", id="a number"),
        pytest.param("# " + "x" * 4_200_000, "larger than 4 MiB", id="too large"),
    ],
)
def test_a_hostile_file_is_refused_by_name_and_line(home: Path, text: str, says: str) -> None:
    listed = coterie(laid_out(home, text), "agent", "list", "--json")
    assert [agent["id"] for agent in json.loads(listed.stdout)["agents"]] == ["main"]
    assert says in listed.stderr and "Traceback" not in listed.stderr
    refused = coterie(home, "agent", "add", "dot")
    assert refused.returncode == 1 and says.split(": ", 1)[-1] in refused.stderr
    assert (home / "agent.yaml").read_text() == text


@pytest.mark.parametrize(
    "filler",
    [
        pytest.param("# a comment of some length, of which there are many\n" * 78_000, id="4 MB of comments"),
        pytest.param("\n" * 4_000_000, id="4 MB of nothing"),
        pytest.param(
            "models:\n  providers:\n" + "".join(f"    p{n}: {{type: ollama}}\n" for n in range(20_000)),
            id="20,000 providers",
        ),
    ],
)
def test_a_large_file_is_edited_in_its_place(home: Path, filler: str) -> None:
    laid_out(home, f"version: 1\n{filler}agents: # all\n  roster:\n    - name: dot # her\n")
    assert coterie(home, "agent", "edit", "dot", "--label", "Dot").stdout == "Changed Dot (dot).\n"
    text = (home / "agent.yaml").read_text()
    assert text == f"version: 1\n{filler}agents: # all\n  roster:\n    - name: dot # her\n      label: Dot\n"


# Saved in two steps

WHOLE = """version: 1
default_model: cage/grey
models:
  providers:
    cage: {type: offline}
channels:
  telegram: {accounts: {bot: {owner: ["4711", "4712"]}}}
agents:
  roster:
    - name: dot
      description: Runs the front desk
      tool_denylist: [files_write, files_edit]
    - name: rose
      system_prompt: Be brief.
    - name: miles
  default: rose
bindings:
  - {agent: rose, match: {channel: telegram, account: bot}}
"""
CUTS = {
    "nothing but a comment": "# hm\n",
    "before the agents": WHOLE[: WHOLE.index("agents:\n")],
    "without the first half": WHOLE[WHOLE.index("agents:\n") :],
    "inside an agent": WHOLE[: WHOLE.index("      tool_denylist")],
    "behind a colon": WHOLE[: WHOLE.index(" [files_write")] + "\n",
    "inside a name": WHOLE[: WHOLE.index("se\n      system_prompt")],
    "inside a text": WHOLE[: WHOLE.index("brief")],
    "inside a list": WHOLE.replace('["4711", "4712"]', '["4711"]').replace(", files_edit", ""),
}


def in_place(file: Path, text: str) -> None:
    """As `>` in a shell, and many editors."""
    with file.open("r+") as opened:
        opened.truncate(0)
        opened.write(text)


def renamed(file: Path, text: str) -> None:
    beside = file.with_name("agent.yaml.swp")
    beside.write_text(text)
    beside.rename(file)


def removed_first(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = laid_out(tmp_path_factory.mktemp("steps") / "home", WHOLE)
    with running(home) as gateway:
        yield gateway


def facts(rpc: Rpc) -> dict[str, Any]:
    agents = rpc.call("agents.list", include_archived=True)
    models = rpc.call("models.list", all=True)
    return {
        "agents": {a["id"]: a["state"] for a in agents["agents"]},
        "default": agents["default_id"],
        "model": models["default"],
        "providers": "cage" in {provider["name"] for provider in models["providers"]},
        "specs": {a: rpc.call("agents.get", agent_id=a)["spec"] for a in ("dot", "rose")},
    }


def heard(rpc: Rpc, file: Path) -> dict[str, Any]:
    """What the gateway says of the file as it is, which somebody still has a hand on: it never gets old."""
    rpc.events.clear()
    for _ in range(100):
        os.utime(file)
        try:
            return rpc.wait_for("config.changed", seconds=0.6)
        except AssertionError:
            continue
    raise AssertionError("the gateway does not look at the file")


@pytest.mark.parametrize("save", [in_place, renamed, removed_first])
@pytest.mark.parametrize("cut", CUTS)
def test_half_a_file_takes_nothing_away(
    house: GatewayProcess, cut: str, save: Callable[[Path, str], None]
) -> None:
    file = house.home / "agent.yaml"
    with house.rpc() as rpc:
        before = facts(rpc)
        assert before["agents"] == dict.fromkeys(("main", "dot", "rose", "miles"), "active")
        save(file, CUTS[cut])
        assert heard(rpc, file)["problems"] == []
        assert facts(rpc) == before
        save(file, WHOLE)
        assert heard(rpc, file)["problems"] == []
        assert facts(rpc) == before
        assert file.read_text() == WHOLE


def test_what_is_new_counts_at_once_and_what_is_gone_once_the_file_is_left_alone(home: Path) -> None:
    laid_out(home, WHOLE)
    file = home / "agent.yaml"
    changed = WHOLE.replace("      tool_denylist: [files_write, files_edit]\n", "").replace(
        "Runs the front desk", "Keeps the books"
    )
    changed = changed.replace("    cage: {type: offline}", "    den: {type: offline}").replace(
        "cage/", "den/"
    )
    changed = changed.replace("    - name: miles\n", "    - name: ada\n")
    with running(home) as gateway, gateway.rpc() as rpc:
        file.write_text(changed)
        heard(rpc, file)
        spec = rpc.call("agents.get", agent_id="dot")["spec"]
        assert spec["description"] == "Keeps the books" and spec["tool_denylist"] == [
            "files_write",
            "files_edit",
        ]
        providers = {p["name"] for p in rpc.call("models.list", all=True)["providers"]}
        assert {"cage", "den"} <= providers
        assert facts(rpc)["agents"] | {"ada": "active"} == facts(rpc)["agents"]
        os.utime(file, LONG_AGO)
        rpc.wait_for("agents.changed", agent_id="miles", change="archived")
        assert "tool_denylist" not in rpc.call("agents.get", agent_id="dot")["spec"]
        assert "cage" not in {p["name"] for p in rpc.call("models.list", all=True)["providers"]}


# JSON

JSON = {
    "agents": [
        {"agentId": "dot", "displayName": "Dot 🦊", "chat": {"provider": "offline", "model": "demo"}},
        {"agentId": "todo", "toolAllowlist": None, "apiExposed": False},
    ],
    "gateway": {"port": 0},
}


@pytest.mark.parametrize("ascii", [True, False])
def test_a_json_file_is_read_and_written_as_json(home: Path, ascii: bool) -> None:
    laid_out(home, json.dumps(JSON, indent="\t", ensure_ascii=ascii))
    assert coterie(home, "agent", "add", "rose", "--label", "Rose 🌹").returncode == 0
    assert coterie(home, "agent", "edit", "todo", "--set", "tool_denylist=[bash]").returncode == 0
    assert coterie(home, "agent", "default", "dot").returncode == 0
    assert coterie(home, "agent", "remove", "todo").returncode == 0
    written = json.loads((home / "agent.yaml").read_text())
    assert written["gateway"] == {"port": 0}
    assert written["agents"]["default"] == "dot"
    assert written["agents"]["roster"] == [JSON["agents"][0], {"name": "rose", "label": "Rose 🌹"}]  # type: ignore[index]


def test_what_cannot_be_mapped_is_refused_by_its_key(home: Path) -> None:
    laid_out(home, json.dumps({"agents": [{"agentId": "dot", "chat": {"provider": "openai"}}]}))
    refused = coterie(home, "agent", "apply")
    assert refused.returncode == 1
    assert "agent.yaml line 1: agents[0].chat: names no model; write model: openai/<model>" in refused.stderr


# Mistakes that cost nothing but their effect


def test_doctor_names_what_has_no_effect(home: Path) -> None:
    laid_out(
        home,
        "channels:\n  telegarm: {accounts: {bot: {token_env: X}}}\n"
        "agents:\n  roster:\n    - name: dot\n      tool_denylist: [fles_write]\n      tool_asklist: ['web_*']\n"
        "      capability_allowlist: ['memory.*', 'lists.*']\n      outside: {tool_allowlist: [system_tme]}\n",
    )
    (home / "plugins").mkdir()
    (home / "plugins" / "dice.py").write_text("from coterie import tool\n\nraise RuntimeError('no dice')\n")
    found = json.loads(coterie(home, "doctor", "--json").stdout)["findings"]
    told = {finding["message"]: finding["level"] for finding in found}
    assert told[
        "agent.yaml line 2: channels.telegarm: no channel is named 'telegarm'; did you mean 'telegram'?"
    ]
    assert told["agent.yaml line 2: channels.telegarm.accounts.bot.token_env: nothing reads this yet"]
    for rule in (
        "tool_denylist: 'fles_write' matches no tool",
        "tool_asklist: 'web_*' matches no tool",
        "capability_allowlist: 'lists.*' matches no capability",
        "outside.tool_allowlist: 'system_tme' matches no tool",
    ):
        assert told[f"dot: {rule}"] == "warning"
    assert told["plug-in skipped: plugins/dice.py:3: RuntimeError: no dice"] == "problem"
    assert not any("memory.*" in message for message in told)


def test_a_rule_that_matches_nothing_is_said_wherever_it_is_made(home: Path) -> None:
    added = coterie(
        home, "agent", "add", "dot", "--set", "tool_denylist=[bsah]", "--set", "agent_allowlist=[x]"
    )
    edited = coterie(home, "agent", "edit", "dot", "--label", "Dot")
    shown = coterie(home, "agent", "info", "dot")
    applied = coterie(home, "agent", "apply")
    for said in (added, edited, shown):
        assert said.returncode == 0
        assert "warning: tool_denylist: 'bsah' matches no tool" in said.stderr
        assert "warning: agent_allowlist: 'x' matches no agent" in said.stderr
    assert "dot: tool_denylist: 'bsah' matches no tool" in applied.stdout
    with running(home) as gateway, gateway.rpc() as rpc:
        file = home / "agent.yaml"
        file.write_text(file.read_text().replace("bsah", "bshh"))
        assert "dot: tool_denylist: 'bshh' matches no tool" in heard(rpc, file)["warnings"]


# One rule, one answer


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = laid_out(
        tmp_path_factory.mktemp("family") / "home",
        "agents:\n  default: dot\n  roster:\n"
        "    - {name: base, ui_visible: false, model: offline/base, tool_denylist: [files_edit]}\n"
        "    - {name: dot, label: Miss Dot, extends: base, model: offline/own}\n"
        "    - {name: shy, extends: dot, ui_visible: false}\n    - {name: rose}\n",
    )
    with running(home) as gateway:
        yield gateway


def test_who_extends_a_hidden_template_is_shown_everywhere(family: GatewayProcess) -> None:
    with family.rpc() as rpc, family.http() as http:
        listed = {a["id"] for a in rpc.call("agents.list")["agents"] if a["ui_visible"]}
        models = {m["id"].removeprefix("coterie/") for m in http.get("/v1/models").json()["data"]}
        peers = set(rpc.call("agents.get", agent_id="rose")["effective"]["agents"])
    assert listed == models == peers | {"rose"} == {"main", "dot", "rose"}


def test_null_brings_back_what_the_template_says(family: GatewayProcess) -> None:
    done = coterie(family.home, "agent", "edit", "dot", "--set", "model=null")
    assert done.returncode == 0, done.stderr
    with family.rpc() as rpc:
        agent = rpc.call("agents.get", agent_id="dot")
        assert agent["effective"]["model"] == "offline/base" and "model" not in agent["spec"]
    assert "model: null" not in (family.home / "agent.yaml").read_text()


READS = (
    "sessions.get",
    "chat.history",
    "chat.queue",
    "agent.identity.get",
    "tools.effective",
    "prompt.preview",
)


def test_the_word_default_in_a_session_key_is_read_by_every_method(family: GatewayProcess) -> None:
    with family.rpc() as rpc, family.http() as http:
        rpc.call("chat.send", session="agent:default:main", message="hello")
        real = rpc.call("sessions.get", session="agent:dot:main")
        assert (real["key"], real["agent_id"]) == ("agent:dot:main", "dot")
        rpc.wait_for("chat", state="final")
        for method in READS:
            expected = rpc.call(method, session="agent:dot:main")
            assert rpc.call(method, session="agent:default:main") == expected, method
        assert http.get("/api/sessions/agent:default:main").json()["key"] == "agent:dot:main"
        body = {"sessionKey": "agent:default:main", "agentId": "dot", "text": "hello"}
        assert http.post("/api/gateway/chat", json=body).json()["sessionKey"] == "agent:dot:main"
        asked = {"model": "coterie/dot", "messages": [{"role": "user", "content": "hi"}]}
        http.post("/v1/chat/completions", json=asked, headers={"X-Coterie-Session": "agent:default:main"})
        rpc.call("sessions.rename", session="agent:default:main", name="Ours")
        assert rpc.call("sessions.get", session="agent:dot:main")["name"] == "Ours"
        keys = {s["key"] for s in rpc.call("sessions.list")["sessions"]}
        assert not any(key.startswith("agent:default") for key in keys)


def test_user_md_is_written_through_any_agent_and_is_the_households(family: GatewayProcess) -> None:
    with family.rpc() as rpc, family.http() as http:
        written = rpc.call("agents.files.set", agent_id="rose", name="USER.md", content="She likes tea.\n")
        assert written["state"] == "inherited"
        assert (family.home / "USER.md").read_text() == "She likes tea.\n"
        assert not (family.home / "agents" / "rose" / "USER.md").exists()
        put = {"content": "She likes coffee.\n", "expectedHash": written["hash"]}
        assert http.put("/api/agents/dot/files/USER.md", json=put).json()["state"] == "inherited"
        assert http.put("/api/agents/rose/files/USER.md", json=put).status_code == 409
        for agent in ("dot", "rose", "main"):
            assert "She likes coffee." in str(rpc.call("prompt.preview", agent_id=agent))
        reader = rpc.call("tokens.create", scope="write")["token"]
        assert (
            http.put(
                "/api/agents/dot/files/USER.md", json=put, headers={"Authorization": f"Bearer {reader}"}
            ).status_code
            == 403
        )


def test_lines_of_a_template_that_nobody_filled_in_do_not_reach_a_model(home: Path) -> None:
    assert coterie(home, "agent", "add", "dot", "--emoji", "🦊").returncode == 0
    file = home / "agents" / "dot" / "IDENTITY.md"
    kept = file.read_text()
    shown = coterie(home, "prompt", "show", "--agent", "dot").stdout
    assert "🦊" in shown and "_(" not in shown and "Replace this line" not in shown
    assert file.read_text() == kept and "_(what kind of being is it?)_" in kept


def test_in_the_chat_an_agent_is_named_by_its_label_and_hidden_ones_are_not_listed(home: Path) -> None:
    laid_out(
        home,
        "agents:\n  roster:\n    - {name: dot, label: Miss Dot}\n    - {name: base, ui_visible: false}\n    - {name: zoe}\n",
    )
    with chatting(home) as pane:
        pane.wait("session main")
        pane.say("/agents")
        assert "base" not in pane.wait("zoe")
        pane.say("/agent miss dot")
        pane.wait("Miss Dot takes over")
