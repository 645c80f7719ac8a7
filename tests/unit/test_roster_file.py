"""Editing the roster inside agent.yaml: what is wanted gets in, and every other byte stays."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from coterie.config import ConfigError, RosterEntry, values, written
from coterie.core.errors import Conflict
from coterie.core.roster import Roster
from coterie.engine.household.roster_file import FRESH, parse_roster, write_roster

NAMES = ("main", "dot", "rose", "miles", "ci-2", "0x1f", "yes")

texts = st.sampled_from(
    [
        "plain words",
        "It's # not a comment",
        'a "quoted": thing',
        "- dash",
        "key: value",
        "123",
        "true",
        "~",
        "@at",
        "trailing space ",
        " leading space",
        "Zoë 🦊 日本語",
        "tab\tinside",
        "line\u2028separator",
        "next\x85line",
        "{brace}",
        "*star",
        "%percent",
        "%",
        "back\\slash",
        "...",
        "---",
        "x" * 200,
    ]
)
paragraphs = st.lists(texts | st.just(""), min_size=1, max_size=4).map("\n".join)
patterns = st.lists(st.sampled_from(["a_*", "b", "lists.*", "[ab]c", "x-y"]), max_size=3)
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "label": st.sampled_from(["Dot", "Rose O'Hara", "日本 🦊", "a: b", "5", "- x"]),
    "description": texts,
    "model": st.sampled_from(["a/b", {"primary": "a/b", "fallbacks": ["c/d", "e/f"]}]),
    "temperature": st.sampled_from([0.0, 0.7, 2.0]),
    "thinking": st.sampled_from([True, False, "low"]),
    "max_tokens": st.integers(1, 9999),
    "system_prompt": paragraphs,
    "tool_allowlist": st.none() | patterns,
    "skill_allowlist": patterns,
    "memory": st.fixed_dictionaries({}, optional={"recall": st.booleans(), "tags": st.none() | patterns}),
    "limits": st.fixed_dictionaries(
        {}, optional={"concurrency": st.integers(1, 9), "cost_per_day": st.just(0.5)}
    ),
    "ui_visible": st.booleans(),
}
specs = st.fixed_dictionaries({}, optional=SETTINGS)


def canonical(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return written(RosterEntry.model_validate({"name": name, **spec}))


@dataclass
class Line:
    text: str
    owner: tuple[str, ...] = ()
    """What the line says: (), ("roster",), (agent,) or (agent, key)."""


@dataclass
class Page:
    """A file while it is being written."""

    lines: list[Line] = field(default_factory=list)
    comments: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def comment(self, owner: tuple[str, ...] = ()) -> str:
        mark = f"# c{len(self.comments)}: don't lose 'this [one]"
        self.comments.append((mark, owner))
        return mark

    def text(self, end: str) -> str:
        return "".join(line.text + end for line in self.lines)


def quoted(value: str, style: str) -> str:
    if style == "single" and "\n" not in value:
        return "'" + value.replace("'", "''") + "'"
    table = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(table.get(c, c) for c in value) + '"'


def scalar(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if isinstance(value, int | float) else quoted(str(value), "double")


def flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    return scalar(value)


SPELLINGS = {
    "skill_allowlist": ["skills", "skillAllowlist"],
    "label": ["label", "displayName"],
    "max_tokens": ["maxTokens"],
}


@st.composite
def pages(draw: st.DrawFn) -> Page:
    page = Page()

    def gap(owner: tuple[str, ...], indent: int, chance: int = 4) -> None:
        """Now and then a comment, or a blank line."""
        for _ in range(draw(st.integers(0, 2)) if draw(st.integers(0, chance)) == 0 else 0):
            if draw(st.booleans()):
                at = draw(st.sampled_from([indent, 0, indent + 3]))
                page.lines.append(Line(" " * at + page.comment(owner), owner))
            else:
                page.lines.append(Line(draw(st.sampled_from(["", "  "])), owner))

    def tail(owner: tuple[str, ...]) -> str:
        return (
            f"{draw(st.sampled_from(['  ', ' ']))}{page.comment(owner)}"
            if draw(st.integers(0, 3)) == 0
            else ""
        )

    def key_lines(key: str, value: Any, indent: int, owner: tuple[str, ...], head: str) -> None:
        spelled = draw(st.sampled_from([key, *SPELLINGS.get(key, [])]))
        key_text = draw(st.sampled_from([spelled, spelled, f'"{spelled}"'])) + draw(
            st.sampled_from([":", ":", " :"])
        )
        pad = " " * indent
        begin = f"{head}{key_text}"
        if isinstance(value, str) and draw(st.booleans()):
            block = (
                value
                and not any(c in value for c in "\x85\u2028")
                and value.strip()
                and not value.startswith((" ", "\n"))
            )
            if block and key in ("description", "system_prompt") and draw(st.booleans()):
                style = draw(st.sampled_from(["|", "|-", "|+", ">", ">-", "|2", "|-2"]))
                step = 2 if "2" in style else draw(st.sampled_from([1, 2, 4]))
                page.lines.append(Line(f"{begin} {style}{tail(owner)}", owner))
                page.lines.extend(
                    Line((pad + " " * step + part) if part else "", owner) for part in value.split("\n")
                )
                if "+" not in style and draw(st.integers(0, 3)) == 0:
                    page.lines.append(Line("", owner))
            elif (
                len(value) > 3
                and " " in value.strip()
                and "\n" not in value
                and draw(st.booleans())
                and value == value.strip()
            ):
                first, rest = value.split(" ", 1)
                mark = draw(st.sampled_from(["single", "double"]))
                whole = quoted(f"{first} {rest}", mark)
                cut = whole.index(" ")
                page.lines.append(Line(f"{begin} {whole[:cut]}", owner))
                page.lines.append(Line(f"{pad}  {whole[cut + 1 :]}{tail(owner)}", owner))
            else:
                page.lines.append(Line(f"{begin} {quoted(value, 'single')}{tail(owner)}", owner))
        elif isinstance(value, dict | list) and value and draw(st.booleans()):
            page.lines.append(Line(f"{begin}{tail(owner)}", owner))
            if isinstance(value, list):
                step = draw(st.sampled_from([0, 2]))
                for item in value:
                    gap(owner, indent + step, 6)
                    page.lines.append(Line(f"{pad}{' ' * step}- {flow(item)}{tail(owner)}", owner))
            else:
                step = draw(st.sampled_from([1, 2, 4]))
                for inner, part in value.items():
                    gap(owner, indent + step, 6)
                    page.lines.append(Line(f"{pad}{' ' * step}{inner}: {flow(part)}{tail(owner)}", owner))
        elif isinstance(value, list) and len(value) > 1 and draw(st.booleans()):
            page.lines.append(Line(f"{begin} [{tail(owner)}", owner))
            page.lines.extend(Line(f"{pad}    {flow(item)},{tail(owner)}", owner) for item in value)
            page.lines.append(Line(f"{pad}  ]{tail(owner)}", owner))
        else:
            page.lines.append(Line(f"{begin} {flow(value)}{tail(owner)}", owner))

    def entry(name: str, spec: dict[str, Any], column: int) -> None:
        gap((), column)
        dash = " " * column + "-"
        if draw(st.integers(0, 3)) == 0:
            items = {draw(st.sampled_from(["name", "id"])): name, **spec}
            shuffled = {k: items[k] for k in draw(st.permutations(list(items)))}
            page.lines.append(Line(f"{dash} {flow(shuffled)}{tail((name,))}", (name,)))
            return
        space = draw(st.sampled_from([1, 1, 3]))
        indent = column + 1 + space
        if draw(st.integers(0, 7)) == 0:
            anchor = "&a" + str(len(page.lines)) + " " if draw(st.booleans()) else ""
            page.lines.append(Line(f"{dash} {anchor}".rstrip() + tail((name,)), (name,)))
            head = " " * indent
        else:
            head = dash + " " * space
        pairs: list[tuple[str, Any]] = [("name", name), *spec.items()]
        if draw(st.integers(0, 3)) == 0:
            pairs = draw(st.permutations(pairs))
        for number, (key, value) in enumerate(pairs):
            owner = (name, key)
            if number:
                gap((name,), indent, 5)
                head = " " * indent
            if key == "name":
                shown = draw(st.sampled_from([name, quoted(name, "single"), quoted(name, "double")]))
                if name in ("0x1f",):
                    shown = quoted(name, "double")
                page.lines.append(Line(f"{head}name: {shown}{tail(owner)}", owner))
            else:
                key_lines(key, value, indent, owner, head)

    def other(name: str) -> None:
        gap((), 0, 2)
        page.lines.extend(Line(text) for text in OTHERS[name])

    others = draw(st.permutations(list(OTHERS)))
    cut = draw(st.integers(0, len(others)))
    if draw(st.integers(0, 5)) == 0:
        page.lines.append(Line("---"))
    for section in others[:cut]:
        other(section)
    gap((), 0)
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    people = {name: draw(specs) for name in names}
    default = draw(st.none() | st.sampled_from(["main", *names]))
    shape = draw(st.integers(0, 9))
    if shape == 0 and not people and default is None:
        pass
    elif shape == 1:
        listed = [{"name": n, **s} for n, s in people.items()]
        page.lines.append(
            Line(
                f"agents: {flow({'default': default or 'main', 'roster': listed})}{tail(('roster',))}",
                ("roster",),
            )
        )
    else:
        step = draw(st.sampled_from([2, 2, 4, 1]))
        pad = " " * step
        page.lines.append(Line(f"agents:{tail(())}"))
        above = draw(st.booleans())
        if default is not None and above:
            gap((), step)
            page.lines.append(Line(f"{pad}default: {quoted(default, 'single')}{tail(())}", ("default",)))
        say_empty = draw(st.booleans())
        if people or say_empty:
            gap((), step)
            if not people:
                empty = draw(st.sampled_from(["roster: []", "roster:"]))
                page.lines.append(Line(f"{pad}{empty}{tail(())}", ("roster",)))
            elif shape == 2:
                page.lines.append(
                    Line(f"{pad}roster: {flow([{'name': n, **s} for n, s in people.items()])}", ("roster",))
                )
            elif shape == 3:
                page.lines.append(Line(f"{pad}roster: [{tail(('roster',))}", ("roster",)))
                for n, s in people.items():
                    page.lines.append(
                        Line(f"{pad}  {flow({'name': n, **s})},{tail(('roster',))}", ("roster",))
                    )
                page.lines.append(Line(f"{pad}]", ("roster",)))
            else:
                page.lines.append(
                    Line(f"{pad}roster:{tail(())}", ("roster",) if len(people) == 1 else ("head",))
                )
                column = step + draw(st.sampled_from([0, 2, 4]))
                for name, spec in people.items():
                    entry(name, spec, column)
        if default is not None and not above:
            gap((), step)
            page.lines.append(Line(f"{pad}default: {quoted(default, 'single')}{tail(())}", ("default",)))
        gap((), step)
    for section in others[cut:]:
        other(section)
    gap((), 0)
    return page


OTHERS = {
    "version": ["version: 1"],
    "bindings": ["bindings:", "- agent: main", "  match: {channel: x}  # agents: roster:"],
    "gateway": ["gateway:", "  port: 18790", "  # roster:", "  #   - name: dot", "  host: 127.0.0.1"],
    "default_model": ['default_model: "offline/demo"'],
}


@st.composite
def changes(draw: st.DrawFn, told: Roster) -> Roster:
    """Another roster, some edits away."""
    entries = {name: dict(entry) for name, entry in told.entries.items()}
    for name in list(entries):
        what = draw(st.sampled_from(["keep", "keep", "remove", "edit", "edit"]))
        if what == "remove":
            del entries[name]
        elif what == "edit":
            for key in list(entries[name]):
                if draw(st.integers(0, 2)) == 0:
                    del entries[name][key]
            entries[name].update(draw(specs))
            entries[name] = canonical(name, entries[name])
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=2)):
        if name not in told.entries:
            entries[name] = canonical(name, draw(specs))
    return Roster(entries, draw(st.sampled_from([told.default, "main", *entries])))


def touched(told: Roster, wanted: Roster) -> set[tuple[str, ...]]:
    """Owners of lines that may change."""
    found: set[tuple[str, ...]] = set()
    for name, entry in told.entries.items():
        now = wanted.entries.get(name)
        if now is None:
            found.add((name,))
        else:
            for key in {*entry, *now}:
                if key not in entry or key not in now or entry[key] != now[key]:
                    found.add((name, key))
    if told.default != wanted.default:
        found.add(("default",))
    if set(told.entries) != set(wanted.entries):
        found.add(("roster",))
    if found:
        found.add(("roster",))
    if not told.entries.keys() & wanted.entries.keys():
        found.add(("head",))
    return found


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.data(), pages(), st.sampled_from(["\n", "\n", "\n", "\r\n"]), st.booleans())
def test_the_file_says_what_is_wanted_and_keeps_everything_else(
    data: st.DataObject, page: Page, end: str, cut_last_end: bool
) -> None:
    text = page.text(end)
    if cut_last_end and not text.endswith((end + end, "  " + end)):
        text = text.removesuffix(end)
    try:
        told = parse_roster(text)
    except ConfigError as error:
        raise AssertionError(f"{error}\n{text}") from error
    wanted = data.draw(changes(told))
    note(f"--- before\n{text}\n--- wanted\n{wanted}")
    result = write_roster(text, wanted)
    note(f"--- after\n{result}")

    assert parse_roster(result) == wanted
    assert list(parse_roster(result).entries) == list(wanted.entries)
    before, after = values(text), values(result)
    assert {k: v for k, v in before.items() if k != "agents"} == {
        k: v for k, v in after.items() if k != "agents"
    }
    if told == wanted:
        assert result == text
    if end == "\r\n" and "\r\n" in text:
        assert not re.search(r"(?<!\r)\n", result)

    changed = touched(told, wanted)
    for mark, owner in page.comments:
        if owner[:1] not in changed and not (
            owner in changed and owner[1:] and owner[1] not in wanted.entries.get(owner[0], {})
        ):
            assert mark in result, f"the comment {mark!r} is lost"
    left = result.split(end)
    at = 0
    for number, line in enumerate(page.lines):
        if (
            line.owner[:1] in changed
            or line.owner in changed
            or (len(line.owner) == 1 and any(c[0] == line.owner[0] for c in changed))
        ):
            continue
        if any(c[0] == line.owner[0] for c in changed if line.owner) and moved_up(page, number, changed):
            continue
        try:
            at = left.index(line.text, at) + 1
        except ValueError:
            raise AssertionError(f"line {number + 1} is gone or moved: {line.text!r}") from None


def moved_up(page: Page, number: int, changed: set[tuple[str, ...]]) -> bool:
    """Whether a line took the place of one that stood behind the dash."""
    owner = page.lines[number].owner
    first = next(i for i, line in enumerate(page.lines) if line.owner[:1] == owner[:1])
    return page.lines[first].owner in changed


def test_a_roster_that_is_already_right_is_not_touched() -> None:
    text = "agents: {roster: [ {name: dot  } ] }   # odd\r\n\n\n"
    assert write_roster(text, parse_roster(text)) == text


def test_the_first_agent_in_a_fresh_file() -> None:
    result = write_roster(FRESH, Roster({"dot": {"label": "Dot", "skill_allowlist": ["notes"]}}))
    assert (
        result == FRESH + "\nagents:\n  roster:\n    - name: dot\n      label: Dot\n      skills: [notes]\n"
    )


SHARED = """\
agents:
  roster:
    - &b
      name: base
      description: Shared
    - <<: *b
      name: dot
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param(
            SHARED,
            Roster({"base": {"description": "Shared"}, "dot": {}}),
            id="a merged key cannot be taken away",
        ),
        pytest.param(
            SHARED,
            Roster({"dot": {"description": "Shared"}}),
            id="an anchor that others use cannot be removed",
        ),
        pytest.param(
            SHARED,
            Roster({"base": {"description": "Other"}, "dot": {"description": "Shared"}}),
            id="a change of the anchored entry would change the other one too",
        ),
        pytest.param(
            "agents:\n  roster:\n    - {name: base, skills: &t [a]}\n    - {name: dot, skills: *t}\n",
            Roster({"base": {"skill_allowlist": ["c"]}, "dot": {"skill_allowlist": ["a"]}}),
            id="an anchored list",
        ),
        pytest.param(
            "agents:\n  roster: &r\n    - name: dot\n",
            Roster({"dot": {}, "rose": {}}),
            id="an anchored roster",
        ),
        pytest.param(
            "agents:\n  roster:\n    - ? name\n      : dot\n",
            Roster({"dot": {"label": "D"}}),
            id="a spelled-out key",
        ),
    ],
)
def test_what_cannot_be_edited_safely_is_refused(text: str, wanted: Roster) -> None:
    with pytest.raises(Conflict, match="in the file"):
        write_roster(text, wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SHARED, Roster({"base": {"description": "Shared"}, "dot": {"description": "Own"}})),
        (SHARED, Roster({"base": {"description": "Shared"}})),
        ("{agents: {roster: [{name: dot}]}}\n", Roster({})),
        ("{version: 1, # one\n}\n", Roster({"dot": {}})),
        ("--- {}\n", Roster({"dot": {}})),
        ("agents:\n  - name: dot # her\n", Roster({"dot": {"label": "D"}, "rose": {}})),
        ("agents:\n  - name: dot # her\n", Roster({"dot": {}}, "dot")),
        ("agents: &a\n  roster:\n    - name: dot\n", Roster({"rose": {}})),
        ("agents: !x {}\n", Roster({"rose": {}})),
        ("agents: ~\n", Roster({"rose": {}})),
        ("agents: &a {}\nbindings: []\n", Roster({"rose": {}})),
        ("? agents\n: roster:\n  - name: dot\n", Roster({"dot": {}, "rose": {}})),
        ("agents: {\n  roster: [ # all\n    {name: dot}, # her\n  ]}\n", Roster({"dot": {}, "rose": {}})),
        ("--- # start\nagents:\n  roster:\n    - name: dot\n... # end\n", Roster({"dot": {}, "rose": {}})),
        ("version: 1\n...\n", Roster({"dot": {}})),
        ("# only a comment", Roster({"dot": {}}, "dot")),
        ("", Roster({"dot": {}})),
        ("---\n", Roster({"dot": {}})),
        ("%YAML 1.2\n---\nversion: 1\n", Roster({"dot": {}})),
        (
            "agents:\n  roster:\n    - name: dot\n      chat: {provider: openai, model: gpt} # old\n",
            Roster({"dot": {"model": "anthropic/claude"}}),
        ),
        (
            "agents:\n  roster:\n    - name: dot\n      tool_allowlist: # which\n      # first\n      - a # why a\n      - b\n",
            Roster({"dot": {"tool_allowlist": ["c"]}}),
        ),
        (
            "agents:\n  roster:\n    - {name: dot, # her\n       label: D} # end\n#   - name: old\n    - name: rose\n",
            Roster({"dot": {"label": "E"}}),
        ),
    ],
)
def test_odd_but_legal_files_are_edited_and_keep_their_comments(text: str, wanted: Roster) -> None:
    result = write_roster(text, wanted)
    assert parse_roster(result) == wanted
    assert sorted(re.findall("#.*", text)) == sorted(re.findall("#.*", result))


def test_a_system_prompt_stays_readable() -> None:
    text = "agents:\n  roster:\n    - name: dot\n"
    result = write_roster(text, Roster({"dot": {"system_prompt": "You are Dot.\n\nBe # brief.\n"}}))
    assert result == text + "      system_prompt: |\n        You are Dot.\n\n        Be # brief.\n"


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30))
def test_any_text_survives_being_written(description: str) -> None:
    try:
        entry = canonical(
            "dot", {"description": description, "system_prompt": f"{description}\nx\n{description}"}
        )
    except ValueError:
        return
    for start in (FRESH, "agents:\n  roster: [{name: dot}]\n", "agents:\n  roster:\n  - name: dot\n"):
        assert parse_roster(write_roster(start, Roster({"dot": entry}))) == Roster({"dot": entry})


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([None, 2, 4, "\t"]), st.booleans(), st.booleans())
def test_a_json_file_stays_json(
    data: st.DataObject, indent: int | str | None, listed: bool, ascii: bool
) -> None:
    people = {
        name: canonical(name, data.draw(specs))
        for name in data.draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    }
    roster = [{data.draw(st.sampled_from(["name", "agentId"])): n, **spec} for n, spec in people.items()]
    agents: Any = roster if listed else {"default": "main", "roster": roster}
    content = {"version": 1, "agents": agents, "gateway": {"port": 5}}
    if data.draw(st.integers(0, 5)) == 0:
        del content["agents"]
    text = json.dumps(content, indent=indent, ensure_ascii=ascii) + data.draw(st.sampled_from(["", "\n"]))
    told = parse_roster(text)
    wanted = data.draw(changes(told))
    note(f"--- before\n{text}\n--- wanted\n{wanted}")
    result = write_roster(text, wanted)
    note(f"--- after\n{result}")
    assert parse_roster(result) == wanted
    assert list(parse_roster(result).entries) == list(wanted.entries)
    after = json.loads(result)
    assert {k: v for k, v in after.items() if k != "agents"} == {
        k: v for k, v in content.items() if k != "agents"
    }


def test_a_json_file_keeps_its_layout() -> None:
    text = '{\n  "agents": [\n    {\n      "agentId": "dot",\n      "displayName": "Dot"\n    }\n  ],\n  "version":1}\n'
    result = write_roster(text, Roster({"dot": {"label": "Dorothy"}, "rose": {"model": "a/b"}}))
    assert result == (
        '{\n  "agents": [\n    {\n      "agentId": "dot",\n      "displayName": "Dorothy"\n    },\n'
        '    {\n      "name": "rose",\n      "model": "a/b"\n    }\n  ],\n  "version":1}\n'
    )


def test_an_emoji_that_json_wrote_as_two_escapes_is_read_and_kept() -> None:
    text = json.dumps({"agents": [{"agentId": "dot", "description": "a \\ud83d 🦊"}]})
    assert "\\ud83e" in text
    result = write_roster(text, Roster({"dot": {"description": "a \\ud83d 🦊", "label": "D"}}))
    assert json.loads(result)["agents"][0] == {"agentId": "dot", "description": "a \\ud83d 🦊", "label": "D"}
