"""agent.yaml: what is accepted, and how a rejected file says what is wrong, where, and what was meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.config import Config, ConfigError, Parsed, Problem, Surroundings, parse

SKILLS = Surroundings(skills=("calendar", "notes"))


def accepted(text: str, around: Surroundings = SKILLS) -> Parsed:
    return parse(text, around)


def rejected(text: str, around: Surroundings = SKILLS) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse(text, around)
    assert caught.value.code == "INVALID_REQUEST"
    return caught.value.problems


def one(text: str, around: Surroundings = SKILLS) -> tuple[int | None, str, str]:
    """Line, key and message of the only problem."""
    problems = rejected(text, around)
    assert len(problems) == 1, problems
    assert problems[0].file == "agent.yaml"
    return problems[0].line, problems[0].key, problems[0].message


def roster(*lines: str) -> str:
    """A file whose first entry begins on line 3."""
    return "agents:\n  roster:\n" + "".join(f"    {line}\n" for line in lines)


# Unknown keys


@pytest.mark.parametrize(
    ("text", "line", "key", "meant"),
    [
        ("version: 1\nagnets: {}\n", 2, "agnets", "agents"),
        ("agents:\n  defualt: main\n", 2, "agents.defualt", "default"),
        (roster("- name: dot", "  modle: a/b"), 4, "agents.roster[0].modle", "model"),
        (roster("- name: dot", "- name: rose", "  skils: []"), 5, "agents.roster[1].skils", "skills"),
        (roster("- name: dot", "  toolAllowlst: []"), 4, "agents.roster[0].toolAllowlst", "tool_allowlist"),
        (
            roster("- name: dot", "  memory:", "    recall: true", "    read_polcy: shared"),
            6,
            "agents.roster[0].memory.read_polcy",
            "read_policy",
        ),
        (
            roster("- {name: dot, limits: {cost_per_dya: 1}}"),
            3,
            "agents.roster[0].limits.cost_per_dya",
            "cost_per_day",
        ),
        (
            "models:\n  providers:\n    local:\n      type: ollama\n      base_urll: x\n",
            5,
            "models.providers.local.base_urll",
            "base_url",
        ),
        (
            "channels:\n  telegram:\n    accounts:\n      bot: {tokn_env: X}\n",
            4,
            "channels.telegram.accounts.bot.tokn_env",
            "token_env",
        ),
        ("bindings:\n  - agent: main\n    mach: {channel: x}\n", 3, "bindings[0].mach", "match"),
        ("gateway:\n  prot: 1\n", 2, "gateway.prot", "port"),
    ],
)
def test_an_unknown_key_is_named_with_its_line_and_the_nearest_valid_one(
    text: str, line: int, key: str, meant: str
) -> None:
    problem = next(p for p in rejected(text) if "unknown key" in p.message)
    assert (problem.file, problem.line, problem.key) == ("agent.yaml", line, key)
    assert f"did you mean {meant!r}?" in problem.message
    assert str(problem).startswith(f"agent.yaml line {line}: {key}: unknown key")


def test_a_key_that_resembles_nothing_gets_no_guess() -> None:
    assert one("xyzzy: 1\n") == (1, "xyzzy", "unknown key")


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("version: 1\n5: 6\n", 2, "5"),
        ("~: 1\n", 1, "None"),
        ("true: 1\n", 1, "True"),
        (roster("- name: dot", "  7: 8"), 4, "agents.roster[0].7"),
        ("? [a, b]\n: 1\n", 1, "('a', 'b')"),
    ],
)
def test_keys_that_are_not_words_are_unknown_keys(text: str, line: int, key: str) -> None:
    assert one(text) == (line, key, "unknown key")


def test_every_problem_is_told_and_the_first_one_leads() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("versoin: 1\ngateway: {port: 99999}\nagents:\n  roster:\n    - label: X\n")
    assert {p.key: p.line for p in caught.value.problems} == {
        "versoin": 1,
        "gateway.port": 2,
        "agents.roster[0].name": 5,
    }
    assert "(and 2 more)" in caught.value.message
    assert caught.value.details is not None
    assert [set(p) for p in caught.value.details["problems"]] == [{"file", "line", "key", "message"}] * 3


# Values of the wrong kind


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("version: 2\n", 1, "version", "1"),
        ("agents: hello\n", 1, "agents", "must hold keys and values"),
        (roster("- dot"), 3, "agents.roster[0]", "must hold keys and values"),
        (roster("-"), 3, "agents.roster[0]", "must hold keys and values"),
        ("agents:\n  roster:\n    dot: {}\n", 2, "agents.roster", "list"),
        (roster("- label: Dot"), 3, "agents.roster[0].name", "is missing"),
        (roster("- name: 5"), 3, "agents.roster[0].name", "string"),
        (roster("- name: ../x"), 3, "agents.roster[0].name", "an id is 1 to 50 characters"),
        (roster("- name: Dot"), 3, "agents.roster[0].name", "an id is 1 to 50 characters"),
        (roster("- name: " + "a" * 51), 3, "agents.roster[0].name", "an id is 1 to 50 characters"),
        (roster("- name: subagents"), 3, "agents.roster[0].name", "reserved word"),
        (roster("- name: default"), 3, "agents.roster[0].name", "reserved word"),
        (roster("- name: dot", "  label: 'a#b'"), 4, "agents.roster[0].label", "'#'"),
        (roster("- name: dot", "  displayName: '[a]'"), 4, "agents.roster[0].displayName", "'['"),
        (roster("- name: dot", "  model: gpt"), 4, "agents.roster[0].model", "<provider>/<model>"),
        (roster("- name: dot", '  model: "a/\\0b"'), 4, "agents.roster[0].model", "<provider>/<model>"),
        (roster("- name: dot", "  temperature: 3"), 4, "agents.roster[0].temperature", "2"),
        (roster("- name: dot", "  temperature: .nan"), 4, "agents.roster[0].temperature", "2"),
        (roster("- name: dot", "  max_tokens: 0"), 4, "agents.roster[0].max_tokens", "0"),
        (roster("- name: dot", "  max_tokens: 1" + "0" * 400), 4, "agents.roster[0].max_tokens", "less than"),
        (
            roster("- name: dot", "  limits:", "    cost_per_day: .inf"),
            5,
            "agents.roster[0].limits.cost_per_day",
            "finite",
        ),
        (roster("- name: dot", '  description: "a\\0b"'), 4, "agents.roster[0].description", "NUL"),
        (roster("- name: dot", "  type: external"), 3, "agents.roster[0]", "input_url"),
        (roster("- name: dot", "  chat: hello"), 4, "agents.roster[0].chat", "provider and model"),
        (roster("- name: dot", "  provider: openai"), 4, "agents.roster[0].provider", "names no model"),
        (
            roster("- name: dot", "  chat: {provider: openai}"),
            4,
            "agents.roster[0].chat",
            "model: openai/<model>",
        ),
        (
            roster("- name: dot", "  chat: {provider: openai, model: m, temp: 1}"),
            4,
            "agents.roster[0].chat",
            "temp: unknown key",
        ),
        ('{"agents": [{"agentId": "dot",\n"modle": "a/b"}]}\n', 2, "agents[0].modle", "'model'"),
        (
            roster("- name: dot", "  personality: ../x.md"),
            4,
            "agents.roster[0].personality",
            "inside the home",
        ),
        (
            roster("- name: dot", "  personality: agents/rose/SOUL.md"),
            4,
            "agents.roster[0].personality",
            "another agent's folder",
        ),
        ("gateway:\n  port: 99999\n", 2, "gateway.port", "65535"),
        ("delegation: {max_depth: 6}\n", 1, "delegation.max_depth", "5"),
        ("database: {url: mysql://x}\n", 1, "database.url", "sqlite:///FILE or postgresql://"),
        ("models: {providers: {x: {type: opnai}}}\n", 1, "models.providers.x.type", "'openai'"),
        (
            "bindings:\n  - agent: main\n    match: {channel: telegram, peer: {kind: group, id: 5}}\n",
            3,
            "bindings[0].match.peer.id",
            "string",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_line(text: str, line: int, key: str, says: str) -> None:
    found = one(text)
    assert found[:2] == (line, key)
    assert says in found[2]


@pytest.mark.parametrize("keys", [("max_tokens: 5", "maxTokens: 6"), ("skills: []", "skill_allowlist: []")])
def test_one_setting_in_two_spellings_is_refused(keys: tuple[str, str]) -> None:
    line, key, message = one(roster("- name: dot", *(f"  {k}" for k in keys)))
    assert line is not None and line >= 4 and key.startswith("agents.roster[0].")
    assert "another key" in message


# Patterns


@pytest.mark.parametrize("pattern", ["a[", "[!]", "][", "[]x", "x[a-", '" a"', "''", '"a\\tb"'])
def test_a_pattern_that_does_not_parse_is_refused(pattern: str) -> None:
    quoted = pattern if pattern[0] in "'\"" else f"'{pattern}'"
    line, key, message = one(roster("- name: dot", f"  tool_denylist: [ok_*, {quoted}]"))
    assert (line, key) == (4, "agents.roster[0].tool_denylist[1]")
    assert "pattern" in message


@pytest.mark.parametrize("pattern", ["*", "lists_*", "a?c", "[abc]x", "[!a]", "[]]", "[[]x", "a[x]]", "x]y"])
def test_globs_parse(pattern: str) -> None:
    text = roster("- name: dot", f"  tool_allowlist: ['{pattern}']")
    assert accepted(text).entries["dot"] == {"tool_allowlist": [pattern]}


def test_a_rule_that_matches_nothing_is_a_warning() -> None:
    parsed = accepted(
        roster(
            "- name: dot",
            "  skills: [calendar, 'zz*']",
            "  skill_denylist: [unknown]",
            "  agent_allowlist: [dot, nobody]",
            "  agent_denylist: ['*']",
        )
    )
    assert [(w.line, w.key, w.message) for w in parsed.warnings] == [
        (6, "agents.roster[0].agent_allowlist[1]", "'nobody' matches nothing"),
        (4, "agents.roster[0].skills[1]", "'zz*' matches nothing"),
        (5, "agents.roster[0].skill_denylist[0]", "'unknown' matches nothing"),
    ]


# Names


def test_a_name_used_twice() -> None:
    assert one(roster("- name: dot", "- name: rose", "- name: dot")) == (
        5,
        "agents.roster[2].name",
        "the name 'dot' is used twice",
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("- {name: a, label: Same}", "- {name: b, label: same}"),
        ("- {name: a, label: b}", "- {name: b}"),
        ("- {name: a}", "- {name: b, label: Ａ}"),
    ],
)
def test_labels_that_look_the_same_clash(first: str, second: str) -> None:
    line, key, message = one(roster(first, second))
    assert (line, key) == (4, "agents.roster[1].label")
    assert "belongs to 'a' already" in message


def test_a_label_clashes_with_main_and_with_archived_agents() -> None:
    assert one(roster("- {name: a, label: Main}"))[2] == "the label 'Main' belongs to 'main' already"
    around = Surroundings(archived=["old"], labels={"old": "Rose"})
    assert one(roster("- {name: a, label: rose}"), around)[2] == "the label 'rose' belongs to 'old' already"
    # The archived agent itself may come back under its label.
    assert accepted(roster("- {name: old, label: Rose}"), around).entries == {"old": {"label": "Rose"}}
    # Where main has another label, its name is free.
    assert accepted(roster("- {name: main, label: Boss}", "- {name: a, label: Main}")).entries["a"] == {
        "label": "Main"
    }


def test_a_missing_skill_is_named() -> None:
    assert one(roster("- name: dot", "  skills:", "    - notes", "    - calender")) == (
        6,
        "agents.roster[0].skills[1]",
        "no skill is named 'calender' in skills/",
    )


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (roster("- name: dot", "  extends: dto"), 4, "agents.roster[0].extends"),
        ("agents:\n  default: dto\n  roster: [{name: dot}]\n", 2, "agents.default"),
        (
            "agents: {roster: [{name: dot}]}\nbindings:\n  - {agent: dto, match: {channel: x}}\n",
            3,
            "bindings[0].agent",
        ),
        (roster("- name: dot", "  memory: {group: [dto]}"), 4, "agents.roster[0].memory.group[0]"),
    ],
)
def test_names_must_exist_and_archived_ones_count(text: str, line: int, key: str) -> None:
    assert one(text) == (line, key, "no agent is named 'dto'; did you mean 'dot'?")
    accepted(text, Surroundings(archived=["dto"], labels={"dto": "dto"}))


def test_the_word_default_names_nobody_but_in_a_binding() -> None:
    accepted("bindings:\n  - {agent: default, match: {channel: x}}\n")
    assert one("agents: {default: default}\n")[1] == "agents.default"
    assert one(roster("- {name: dot, extends: default}"))[1] == "agents.roster[0].extends"


def test_each_extends_cycle_is_told_once() -> None:
    problems = rejected(
        roster(
            "- {name: a, extends: b}",
            "- {name: b, extends: c}",
            "- {name: c, extends: a}",
            "- {name: outside, extends: a}",
            "- {name: d, extends: d}",
            "- {name: fine, extends: main}",
        )
    )
    assert [(p.line, p.key) for p in problems] == [
        (3, "agents.roster[0].extends"),
        (7, "agents.roster[4].extends"),
    ]
    assert problems[0].message.endswith("a → b → c → a")
    assert problems[1].message.endswith("d → d")


# Other spellings


def test_camel_case_and_the_names_of_other_assistants_are_read() -> None:
    parsed = accepted(
        """
agents:
  roster:
    - agentId: dot
      displayName: Dot
      chat: {provider: openai, model: gpt-5.2}
      systemPrompt: Be brief.
      toolAllowlist: ["lists_*"]
      toolDenylist: [lists_delete]
      capabilityAllowlist: ["lists.*"]
      capabilityDenylist: [lists.write]
      skillAllowlist: [notes]
      agentAllowlist: [rose]
      toolExposure: mixed
      uiVisible: false
      apiExposed: true
      maxTokens: 100
      memory: {readPolicy: isolated, recallTokens: 50}
    - id: rose
      provider: anthropic
      model: claude-sonnet-5
    - agent_id: miles
      display_name: Miles
      model: {primary: a/b, fallbacks: [c/d]}
    - name: ci
      type: external
      inputUrl: https://ci.invalid/in
      secretEnv: CI_SECRET
"""
    )
    assert parsed.entries == {
        "dot": {
            "label": "Dot",
            "model": "openai/gpt-5.2",
            "system_prompt": "Be brief.",
            "tool_allowlist": ["lists_*"],
            "tool_denylist": ["lists_delete"],
            "capability_allowlist": ["lists.*"],
            "capability_denylist": ["lists.write"],
            "skill_allowlist": ["notes"],
            "agent_allowlist": ["rose"],
            "tool_exposure": "mixed",
            "ui_visible": False,
            "max_tokens": 100,
            "memory": {"read_policy": "isolated", "recall_tokens": 50},
        },
        "rose": {"model": "anthropic/claude-sonnet-5"},
        "miles": {"label": "Miles", "model": {"primary": "a/b", "fallbacks": ["c/d"]}},
        "ci": {"type": "external", "input_url": "https://ci.invalid/in", "secret_env": "CI_SECRET"},
    }
    assert [(w.key, w.message) for w in parsed.warnings] == [
        ("agents.roster[0].toolExposure", "nothing reads this yet"),
        ("agents.roster[3].inputUrl", "nothing reads this yet"),
        ("agents.roster[3].secretEnv", "nothing reads this yet"),
    ]


def test_channels_and_accounts_that_nobody_has_are_warnings() -> None:
    text = """channels:
  telegarm: {accounts: {bot: {owner: ["1"]}}}
  telegram: {accounts: {rosebot: {token_env: X}}}
bindings:
  - {agent: main, match: {channel: telegram, account: rosbot}}
  - {agent: main, match: {channel: whatsapp}}
"""
    assert [(w.line, w.key, w.message.partition(":")[0]) for w in accepted(text).warnings] == [
        (2, "channels.telegarm", "no channel is named 'telegarm'; did you mean 'telegram'?"),
        (3, "channels.telegram.accounts.rosebot.token_env", "nothing reads this yet"),
        (4, "bindings", "nothing reads this yet"),
        (5, "bindings[0].match.account", "telegram has no account 'rosbot'"),
        (6, "bindings[1].match.channel", "no channel is named 'whatsapp'"),
    ]


def test_a_provider_alone_means_the_default_model_of_it() -> None:
    """The other assistants' files say which provider, and the model elsewhere."""
    text = "default_model: openai/gpt-5.2\nagents: [{agentId: dot, chat: {provider: openai}}]\n"
    assert accepted(text).entries == {"dot": {}}
    assert "names no model" in one(text.replace("{provider: openai}", "{provider: ollama}"))[2]


def test_templates_go_only_so_deep() -> None:
    chain = [f"- {{name: a{n}, extends: a{n + 1}}}" for n in range(5_000)]
    _, key, message = one(roster(*chain, "- name: a5000"))
    assert key == "agents.roster[4950].extends" and "more than 50" in message


def test_thousands_of_mistakes_are_told_in_part() -> None:
    problems = rejected("version: 1\n" + "".join(f"key{n}: 1\n" for n in range(20_000)))
    assert len(problems) == 100
    assert (problems[99].line, problems[99].key) == (101, "key99")


def test_missing_empty_and_null_lists_are_told_apart() -> None:
    parsed = accepted(
        roster("- {name: a}", "- {name: b, tool_allowlist: []}", "- {name: c, tool_allowlist: null}")
    )
    assert parsed.entries == {"a": {}, "b": {"tool_allowlist": []}, "c": {"tool_allowlist": None}}


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "version: 1\n", "agents:\nbindings:\n", "agents: {}\n"]
)
def test_an_empty_file_or_section_is_a_single_agent_install(text: str) -> None:
    parsed = accepted(text)
    assert parsed.entries == {}
    assert parsed.config.agents.default == "main"


# YAML itself


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("version: 1\nagents:\n\troster: []\n", 3, "'\\t'"),
        ("version: 1\n\x00", 2, "U+0000"),
        ("version: 1\n# \x07\n", 2, "U+0007"),
        ("version: 1\nversion: 1\n", 2, "duplicate key"),
        (roster("- name: dot", "  name: rose"), 4, "duplicate key"),
        ("version: 1\n---\nversion: 1\n", 2, "another document"),
        ("agents: *nobody\n", 1, "undefined alias"),
        (roster("- name: dot", '  description: "\\ud800"'), 4, "escape code"),
        ("agents:\n  roster:\n    - name: 'dot\n", 4, "end of stream"),
        ("agents: {roster: [\n", 2, "expected"),
        ("<<: 5\n", 1, "merging"),
        ("- a\n- b\n", 1, "keys and values"),
        ("hello\n", 1, "keys and values"),
        ("version: 1\na: " + "[" * 100 + "]" * 100, 2, "nested too deeply"),
        ("a: " + "{a: " * 3000 + "1" + "}" * 3000, 1, "nested too deeply"),
    ],
)
def test_broken_yaml_is_named_with_its_line(text: str, line: int, says: str) -> None:
    found = one(text)
    assert found[:2] == (line, "")
    assert says in found[2]


def test_files_that_are_too_large_are_refused() -> None:
    assert "larger than 4 MiB" in one("# " + "x" * 5_000_000)[2]
    assert "too many values" in one("a: [" + "1," * 110_000 + "]\n")[2]


def test_aliases_that_blow_up_are_refused() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    for name, before in zip("bcdefghi", "abcdefgh", strict=True):
        bomb += f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    assert "too many values" in one(bomb)[2]


def test_a_file_that_contains_itself_is_refused() -> None:
    assert rejected("agents: &a\n  roster:\n    - *a\n")
    assert rejected("agents: &a\n  again: *a\n")


def test_anchors_and_merge_keys_are_resolved() -> None:
    parsed = accepted(
        """
agents:
  roster:
    - &base
      name: base
      description: Shared
      tool_allowlist: &tools [a, b]
    - <<: *base
      name: dot
      description: Own
    - name: rose
      tool_denylist: *tools
"""
    )
    assert parsed.entries == {
        "base": {"description": "Shared", "tool_allowlist": ["a", "b"]},
        "dot": {"description": "Own", "tool_allowlist": ["a", "b"]},
        "rose": {"tool_denylist": ["a", "b"]},
    }


def test_an_anchor_may_be_used_again_for_something_else() -> None:
    parsed = accepted(
        roster(
            "- {name: a, description: &x one}",
            "- {name: b, description: &x two}",
            "- {name: c, description: *x}",
        )
    )
    assert parsed.entries["c"] == {"description": "two"}


@pytest.mark.parametrize("change", [lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n")])
def test_byte_order_marks_and_windows_line_ends_change_nothing(change: object) -> None:
    text = roster("- name: dot", "  label: Dot", "  system_prompt: |", "    One", "    Two")
    assert callable(change)
    assert accepted(change(text)).entries == accepted(text).entries


def test_plain_words_stay_words() -> None:
    """YAML 1.2: yes, no and on are words, and 1:30 is not a number."""
    assert accepted(roster("- {name: yes, label: no, description: on}")).entries == {
        "yes": {"label": "no", "description": "on"}
    }
    assert accepted("gateway: {host: 1:30}\n").config.gateway.host == "1:30"


def test_parsing_what_was_written_changes_nothing() -> None:
    text = roster("- {name: dot, label: dot, model: {primary: a/b}}")
    assert accepted(text).entries == {"dot": {"model": "a/b"}}


SEED = roster(
    "- name: dot", "  label: Dot", "  skills: [notes]", "  memory: {recall: true}", "- &x {name: rose}"
) + ('default_model: "offline/demo"\nbindings:\n  - {agent: rose, match: {channel: a}}\n')


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(SEED)),
            st.integers(0, 6),
            st.sampled_from(
                [
                    "",
                    "\t",
                    "\n",
                    "- ",
                    ": ",
                    "[",
                    "]",
                    "{",
                    "}",
                    "&a ",
                    "*x",
                    "!!int ",
                    "!!bool ",
                    "!!float ",
                    "!!binary ",
                    "!!timestamp ",
                    "!!set ",
                    "!!omap ",
                    "!x ",
                    "<<: ",
                    "? ",
                    "|\n",
                    ">-\n",
                    "#",
                    "'",
                    '"',
                    "%YAML 3.9\n",
                    "---\n",
                    "...\n",
                    "\x00",
                    "\u2028",
                    "\u0085",
                    "\ud800",
                    "🦊",
                    "0x",
                    "1e999",
                    "2020-13-45",
                    "~",
                    "=",
                    ",",
                    "@",
                    "`",
                ]
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_damage_to_a_file_gets_past_the_typed_error(cuts: list[tuple[int, int, str]]) -> None:
    """A file is either a configuration or a list of problems, whatever happened to it."""
    text = SEED
    for at, length, insert in cuts:
        text = text[:at] + insert + text[at + length :]
    problems: list[Problem] = []
    try:
        assert isinstance(parse(text, SKILLS).config, Config)
    except ConfigError as error:
        problems = error.problems
    assert all(p.message and p.file == "agent.yaml" for p in problems)
