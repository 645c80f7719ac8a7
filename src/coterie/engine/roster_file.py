"""Editing the roster inside agent.yaml as text, so that every other byte stays as its author left it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from coterie.config import Config, values, written
from coterie.core.errors import Conflict
from coterie.core.roster import Roster

FRESH = """\
# Coterie's configuration. Every key is optional; `coterie agent --help` edits the roster for you.
version: 1
"""

# How a key is spelled in a file that does not spell it some other way already.
_PREFERRED = {"skill_allowlist": "skills"}
_ALIASES = {
    "skill_allowlist": ("skills", "skill_allowlist", "skillAllowlist"),
    "label": ("label", "display_name", "displayName"),
    "name": ("name", "id", "agent_id", "agentId"),
}


def write_roster(text: str, wanted: Roster) -> str:
    """The text with exactly this roster and default in it. Comments and order are kept."""
    told = parse_roster(text)
    if told == wanted:
        return text
    agents = _agents(text)
    if isinstance(agents, MappingNode) and agents.flow_style:
        text = _with_agents(text, values(text)["agents"])
    for agent in told.entries:
        if agent not in wanted.entries:
            text = _remove_entry(text, agent)
    for agent, entry in wanted.entries.items():
        now = told.entries.get(agent)
        if now is None:
            text = _append_entry(text, agent, entry)
            continue
        for key in now:
            if key not in entry:
                text = _remove_key(text, agent, key)
        for key, value in entry.items():
            if key not in now or now[key] != value:
                text = _set_key(text, agent, key, value)
    if told.default != wanted.default:
        text = _set_default(text, wanted.default)
    result = parse_roster(text)
    if dict(result.entries) != dict(wanted.entries) or result.default != wanted.default:
        raise Conflict(
            "agent.yaml is written in a way that cannot be edited safely; please make this change in the file"
        )
    return text


def parse_roster(text: str) -> Roster:
    """The roster that a text declares, without checking that the names in it exist elsewhere."""
    config = Config.model_validate(values(text))
    return Roster({e.name: written(e) for e in config.agents.roster}, config.agents.default)


def _set_default(text: str, agent: str) -> str:
    agents = _agents(text)
    if isinstance(agents, MappingNode) and agents.value:
        found = _pair(agents, ("default",))
        if found is not None:
            return _replace_value(text, found, agent)
        return _insert_key(text, agents, "default", agent, first=True)
    return _with_agents(text, {"default": agent})


def _append_entry(text: str, agent: str, entry: Mapping[str, Any]) -> str:
    new = {"name": agent, **{_PREFERRED.get(k, k): v for k, v in entry.items()}}
    agents = _agents(text)
    if not isinstance(agents, MappingNode) or not agents.value:
        return _with_agents(text, {"roster": [new]})
    found = _pair(agents, ("roster",))
    if found is None:
        return _insert_key(text, agents, "roster", [new])
    roster = found[1]
    if not isinstance(roster, SequenceNode) or not roster.value or roster.flow_style:
        return _replace_value(text, found, [*(_data(text, roster) or []), new])
    return _insert_lines(text, _last_line(text, roster), _item(new, roster.start_mark.column))


def _remove_entry(text: str, agent: str) -> str:
    roster, index = _find(text, agent)
    if roster.flow_style or len(roster.value) == 1:
        agents = _agents(text)
        assert isinstance(agents, MappingNode)
        found = _pair(agents, ("roster",))
        assert found is not None
        rest = [item for i, item in enumerate(_data(text, roster)) if i != index]
        if roster.flow_style:
            return _replace_value(text, found, rest)
        first, last = roster.start_mark.line, _last_line(text, roster)
        return _set_after_colon(_delete_lines(text, first, last), found[0], " []")
    item = roster.value[index]
    return _delete_lines(text, _dash_line(text, roster, item), _last_line(text, item))


def _set_key(text: str, agent: str, key: str, value: Any) -> str:
    roster, index = _find(text, agent)
    entry = roster.value[index]
    found = _pair(entry, _ALIASES.get(key, (key, _camel(key))))
    if entry.flow_style or roster.flow_style:
        data = dict(_data(text, entry))
        data[found[0].value if found is not None else _PREFERRED.get(key, key)] = value
        return _replace_span(text, entry, _flow(data))
    if found is not None:
        return _replace_value(text, found, value)
    return _insert_key(text, entry, _PREFERRED.get(key, key), value)


def _remove_key(text: str, agent: str, key: str) -> str:
    roster, index = _find(text, agent)
    entry = roster.value[index]
    found = _pair(entry, _ALIASES.get(key, (key, _camel(key))))
    if found is None:
        raise Conflict(f"{agent}.{key} in agent.yaml comes from a YAML anchor; please change it in the file")
    if entry.flow_style or roster.flow_style:
        data = {k: v for k, v in _data(text, entry).items() if k != found[0].value}
        return _replace_span(text, entry, _flow(data))
    if found[0].start_mark.line == _dash_line(text, roster, entry):
        # The key stands on the dash's own line: move the next key up to it.
        keys = [k for k, _ in entry.value]
        after = keys[keys.index(found[0]) + 1]
        lines = text.splitlines(keepends=True)
        head = lines[found[0].start_mark.line][: found[0].start_mark.column]
        target = after.start_mark.line
        lines[target] = head + lines[target][after.start_mark.column :]
        del lines[found[0].start_mark.line : _last_line(text, found[1]) + 1]
        return "".join(lines)
    return _delete_lines(text, found[0].start_mark.line, _last_line(text, found[1]))


# Where things are


def _compose(text: str) -> Node | None:
    node: Node | None = YAML(typ="safe", pure=True).compose(text)
    return node


def _agents(text: str) -> Node | None:
    root = _compose(text)
    if not isinstance(root, MappingNode):
        return None
    found = _pair(root, ("agents",))
    return None if found is None else found[1]


def _pair(node: MappingNode, names: tuple[str, ...]) -> tuple[ScalarNode, Node] | None:
    return next(((k, v) for k, v in node.value if isinstance(k, ScalarNode) and k.value in names), None)


def _find(text: str, agent: str) -> tuple[SequenceNode, int]:
    agents = _agents(text)
    assert isinstance(agents, MappingNode)
    found = _pair(agents, ("roster",))
    assert found is not None
    assert isinstance(found[1], SequenceNode)
    for index, item in enumerate(found[1].value):
        name = _pair(item, _ALIASES["name"]) if isinstance(item, MappingNode) else None
        if name is not None and name[1].value == agent:
            return found[1], index
    raise Conflict(f"{agent!r} in agent.yaml is written through a YAML anchor; please change it in the file")


def _last_line(text: str, node: Node) -> int:
    """The last line that holds something of this node, comments behind it aside."""
    if isinstance(node, MappingNode) and node.value and not node.flow_style:
        return max(_last_line(text, v) for _, v in node.value)
    if isinstance(node, SequenceNode) and node.value and not node.flow_style:
        return max(_last_line(text, v) for v in node.value)
    last: int = node.end_mark.line
    start: int = node.start_mark.line
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        lines = text.splitlines()
        last = min(last - 1 if node.end_mark.column == 0 else last, len(lines) - 1)
        while last > start and not lines[last].strip():
            last -= 1
    return max(last, start)


def _dash_line(text: str, roster: SequenceNode, item: Node) -> int:
    lines = text.splitlines()
    line: int = item.start_mark.line
    while not lines[line][roster.start_mark.column :].startswith("-"):
        line -= 1
    return line


# Rendering


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _dump(value: Any, *, flow: bool = False) -> str:
    yaml = YAML(typ="rt")
    yaml.default_flow_style = flow
    yaml.width = 2**30
    yaml.allow_unicode = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(
        type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    out = io.StringIO()
    yaml.dump(_lists_in_flow(value), out)
    return out.getvalue().removesuffix("...\n").rstrip("\n")


def _lists_in_flow(value: Any) -> Any:
    """Short lists of plain values read better on one line."""
    from ruamel.yaml.comments import CommentedSeq

    if isinstance(value, Mapping):
        return {key: _lists_in_flow(item) for key, item in value.items()}
    if isinstance(value, list):
        sequence = CommentedSeq(_lists_in_flow(item) for item in value)
        if not any(isinstance(item, dict | list) for item in value):
            sequence.fa.set_flow_style()
        return sequence
    return value


def _flow(value: Any) -> str:
    return " ".join(_dump(value, flow=True).split("\n"))


def _indent(block: str, columns: int) -> list[str]:
    return [(" " * columns + line if line else line) + "\n" for line in block.split("\n")]


def _item(entry: Mapping[str, Any], column: int) -> list[str]:
    lines = _indent(_dump(entry), column + 2)
    lines[0] = " " * column + "- " + lines[0].lstrip(" ")
    return lines


def _key_lines(key: str, value: Any, column: int) -> list[str]:
    return _indent(_dump({key: value}), column)


# Splicing


def _data(text: str, node: Node) -> Any:
    """A node's value as plain data, aliases resolved."""
    roster = values(text)["agents"].get("roster")
    if isinstance(node, SequenceNode):
        return roster
    if isinstance(node, MappingNode):
        container = _pair_value(text, "roster")
        for index, item in enumerate(container.value if isinstance(container, SequenceNode) else []):
            if item.start_mark.index == node.start_mark.index:
                return roster[index]
    return None


def _pair_value(text: str, key: str) -> Node | None:
    agents = _agents(text)
    found = _pair(agents, (key,)) if isinstance(agents, MappingNode) else None
    return None if found is None else found[1]


def _insert_lines(text: str, after: int, new: list[str]) -> str:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join([*lines[: after + 1], *new, *lines[after + 1 :]])


def _delete_lines(text: str, first: int, last: int) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:first], *lines[last + 1 :]])


def _insert_key(text: str, node: MappingNode, key: str, value: Any, *, first: bool = False) -> str:
    new = _key_lines(key, value, node.value[0][0].start_mark.column)
    if first:
        return _insert_lines(text, node.value[0][0].start_mark.line - 1, new)
    return _insert_lines(text, _last_line(text, node), new)


def _with_agents(text: str, agents: Mapping[str, Any]) -> str:
    """The `agents` section anew: it was missing, empty, or written in flow style."""
    root = _compose(text)
    block = _key_lines("agents", agents, 0)
    if not isinstance(root, MappingNode):
        body = text if not text or text.endswith("\n") else text + "\n"
        return body + "".join(block)
    found = _pair(root, ("agents",))
    if found is None:
        if root.flow_style:
            raise Conflict("agent.yaml is one flow mapping; please make this change in the file")
        return _insert_lines(text, _last_line(text, root), ["\n", *block])
    lines = text.splitlines(keepends=True)
    first, last = found[0].start_mark.line, _last_line(text, found[1])
    return "".join([*lines[:first], *block, *lines[last + 1 :]])


def _replace_value(text: str, pair: tuple[ScalarNode, Node], value: Any) -> str:
    """Another value behind the same key. A comment behind a one-line value stays."""
    key, old = pair
    first, last = key.start_mark.line, _last_line(text, old)
    new = _key_lines(key.value, value, key.start_mark.column)
    lines = text.splitlines(keepends=True)
    tail = ""
    if first == last or old.start_mark.line == first == old.end_mark.line:
        tail = lines[first][old.end_mark.column :].rstrip("\n") if old.end_mark.line == first else ""
        tail = tail if tail.lstrip().startswith("#") else ""
    new[0] = lines[first][: key.start_mark.column] + new[0][key.start_mark.column :]
    if tail:
        new[0] = new[0].rstrip("\n") + (tail if tail.startswith(" ") else f" {tail}") + "\n"
    return "".join([*lines[:first], *new, *lines[last + 1 :]])


def _replace_span(text: str, node: Node, new: str) -> str:
    return text[: node.start_mark.index] + new + text[node.end_mark.index :]


def _set_after_colon(text: str, key: ScalarNode, value: str) -> str:
    lines = text.splitlines(keepends=True)
    line = lines[key.start_mark.line]
    colon = line.index(":", key.end_mark.column)
    lines[key.start_mark.line] = line[: colon + 1] + value + line[colon + 1 :]
    return "".join(lines)
