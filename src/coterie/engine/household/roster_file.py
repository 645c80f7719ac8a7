"""Editing the roster inside agent.yaml as text, so that every other byte stays as its author left it."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from coterie.config import Loaded, load, values
from coterie.core.errors import Conflict
from coterie.core.roster import Roster
from coterie.engine.household.roster_json import write_json_roster
from coterie.yaml_tree import MappingNode, Node, ScalarNode, SequenceNode, compose, readable

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

Pair = tuple[ScalarNode, Node]


def write_roster(text: str, wanted: Roster) -> str:
    """The text with exactly this roster and default in it. Comments, order and line ends are kept."""
    return rewrite(text, load(text), wanted)[0]


def rewrite(text: str, told: Loaded, wanted: Roster) -> tuple[str, Loaded]:
    """The same for a text that was read already; also what the new text says."""
    if told.roster == wanted:
        return text, told
    windows = "\r\n" in text
    plain = text.replace("\r\n", "\n") if windows else text
    if not windows:
        _known[text] = told.tree.root
    try:
        plain = _edited(plain, told, wanted)
        result = load(plain)
        same = result.roster == wanted and _others(result) == _others(told)
    except Conflict:
        raise
    except Exception as error:
        # Whatever is odd about the file: an edit that goes wrong must never reach it.
        raise Conflict(_UNSAFE) from error
    finally:
        _known.clear()
    if not same:
        raise Conflict(_UNSAFE)
    return plain.replace("\n", "\r\n") if windows else plain, result


_UNSAFE = "agent.yaml is written in a way that cannot be edited safely; please make this change in the file"


def parse_roster(text: str) -> Roster:
    """The roster that a text declares, without checking that the names in it exist elsewhere."""
    return load(text).roster


def _others(loaded: Loaded) -> dict[str, Any]:
    return {key: value for key, value in loaded.tree.values.items() if key != "agents"}


def _edited(text: str, loaded: Loaded, wanted: Roster) -> str:
    told = loaded.roster
    root = loaded.tree.root
    if isinstance(root, MappingNode) and root.flow:
        return write_json_roster(readable(text), told, wanted, _ALIASES)
    agents = _agents(text)
    if agents is not None and isinstance(agents[1], MappingNode) and agents[1].flow:
        text = _replace_value(text, agents, values(text)["agents"])
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
    return text


# What can be changed


def _set_default(text: str, agent: str) -> str:
    agents = _agents(text)
    if agents is not None and isinstance(agents[1], SequenceNode):
        return _replace_value(text, agents, {"default": agent, "roster": values(text)["agents"]})
    if agents is None or not isinstance(agents[1], MappingNode) or not agents[1].value:
        return _with_agents(text, {"default": agent})
    found = _pair(agents[1], ("default",))
    if found is not None:
        return _replace_value(text, found, agent)
    first = agents[1].value[0][0]
    return _insert(text, _line_start(text, first.start), _key_lines("default", agent, first.column))


def _append_entry(text: str, agent: str, entry: Mapping[str, Any]) -> str:
    new = {"name": agent, **{_PREFERRED.get(k, k): v for k, v in entry.items()}}
    agents = _agents(text)
    if agents is None or not isinstance(agents[1], MappingNode | SequenceNode) or not agents[1].value:
        return _with_agents(text, {"roster": [new]})
    found = _roster(agents)
    if found is None:
        assert isinstance(agents[1], MappingNode)
        return _insert_key(text, agents[1], "roster", [new])
    roster = found[1]
    if not isinstance(roster, SequenceNode) or not roster.value or roster.flow:
        return _replace_value(text, found, [*_listed(text), new])
    return _insert(text, _after_line(text, _end(text, roster)), _item_lines(new, roster.column))


def _remove_entry(text: str, agent: str) -> str:
    found, index = _find(text, agent)
    roster = found[1]
    assert isinstance(roster, SequenceNode)
    item = roster.value[index]
    if roster.flow:
        rest = [entry for i, entry in enumerate(_listed(text)) if i != index]
        return _replace_value(text, found, rest)
    text = _cut(text, _dash(text, roster, item), _after_line(text, _end(text, item)))
    if len(roster.value) > 1:
        return text
    colon = _colon(text, found[0])
    return text[: colon + 1] + " []" + text[colon + 1 :]


def _set_key(text: str, agent: str, key: str, value: Any) -> str:
    found, index = _find(text, agent)
    roster = found[1]
    assert isinstance(roster, SequenceNode)
    entry = roster.value[index]
    assert isinstance(entry, MappingNode)
    pair = _pair(entry, _names(key))
    if entry.flow or roster.flow:
        data = dict(_listed(text)[index])
        data[pair[0].value if pair is not None else _PREFERRED.get(key, key)] = value
        return _replace_flow(text, found, entry, data)
    if pair is not None:
        return _replace_value(text, pair, value)
    return _insert_key(text, entry, _PREFERRED.get(key, key), value)


def _remove_key(text: str, agent: str, key: str) -> str:
    found, index = _find(text, agent)
    roster = found[1]
    assert isinstance(roster, SequenceNode)
    entry = roster.value[index]
    assert isinstance(entry, MappingNode)
    pair = _pair(entry, _names(key))
    if pair is None:
        raise Conflict(f"{agent}.{key} has no line of its own in agent.yaml; please change it in the file")
    if entry.flow or roster.flow:
        data = {k: v for k, v in _listed(text)[index].items() if k != pair[0].value}
        return _replace_flow(text, found, entry, data)
    start, after = pair[0].start, _after_line(text, _value_end(text, pair))
    line = _line_start(text, start)
    if not text[line:start].strip():
        return _cut(text, line, after)
    # The key stands on the dash's own line: the next one moves up, and what lies between goes above.
    following = next(k for k, _ in entry.value if k.start > start).start
    between = text[after : _line_start(text, following)]
    return text[:line] + between + text[line:start] + text[following:]


# Where things are


_known: dict[str, Node | None] = {}
"""The nodes of the text that is being edited; the registry's lock lets one edit happen at a time."""


def _composed(text: str) -> Node | None:
    """Asked for several times between two changes of the text."""
    if text not in _known:
        node = compose(text)
        _known.clear()
        _known[text] = node
    return _known[text]


def _agents(text: str) -> Pair | None:
    root = _composed(text)
    return _pair(root, ("agents",)) if isinstance(root, MappingNode) else None


def _pair(node: Node, names: tuple[str, ...]) -> Pair | None:
    pairs = node.value if isinstance(node, MappingNode) else ()
    return next(((k, v) for k, v in pairs if isinstance(k, ScalarNode) and k.value in names), None)


def _roster(agents: Pair) -> Pair | None:
    """Where the list of agents stands: below `roster`, or right there."""
    return agents if isinstance(agents[1], SequenceNode) else _pair(agents[1], ("roster",))


def _listed(text: str) -> list[Any]:
    agents = values(text)["agents"]
    listed = agents if isinstance(agents, list) else agents["roster"]
    return list(listed or [])


def _names(key: str) -> tuple[str, ...]:
    """Every way in which a key may be spelled."""
    head, *rest = key.split("_")
    return _ALIASES.get(key, (key, head + "".join(part.capitalize() for part in rest)))


def _find(text: str, agent: str) -> tuple[Pair, int]:
    """The roster, and the place of an agent in it."""
    agents = _agents(text)
    found = None if agents is None else _roster(agents)
    if found is not None and isinstance(found[1], SequenceNode):
        for index, item in enumerate(found[1].value):
            name = _pair(item, _ALIASES["name"]) if isinstance(item, MappingNode) else None
            if name is not None and isinstance(name[1], ScalarNode) and name[1].value == agent:
                return found, index
    raise Conflict(f"{agent!r} in agent.yaml is written through a YAML anchor; please change it in the file")


def _end(text: str, node: Node) -> int:
    """Just behind the last character of a node, comments and blank lines aside."""
    if isinstance(node, MappingNode) and node.value and not node.flow:
        return max(_value_end(text, pair) for pair in node.value)
    if isinstance(node, SequenceNode) and node.value and not node.flow:
        return max(_end(text, item) for item in node.value)
    start: int = node.start
    end: int = node.end
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        header = text[start : text.find("\n", start)]
        body = text[start:end]
        # With `+`, the blank lines at the end are part of the text.
        return start + (len(body[: body.rfind("\n")]) if "+" in header.split("#")[0] else len(body.rstrip()))
    return end


def _value_end(text: str, pair: tuple[Node, Node]) -> int:
    key, value = pair
    colon = _colon(text, key)
    if isinstance(value, ScalarNode) and value.start == value.end:
        tagged = _TAGGED.match(text, colon + 1)
        return tagged.end() if tagged is not None else colon + 1
    if value.start < colon:
        alias = _ALIAS.match(text, colon + 1)
        if alias is None:
            raise Conflict(_UNSAFE)
        return alias.end()
    return _end(text, value)


def _colon(text: str, key: Node) -> int:
    found = _COLON.match(text, key.end)
    if found is None:
        raise Conflict(_UNSAFE)
    return found.end() - 1


def _dash(text: str, roster: SequenceNode, item: Node) -> int:
    """Start of the line with an item's dash."""
    column = roster.column
    line = _line_start(text, item.start)
    dash = " " * column + "-"
    while not (text.startswith(dash, line) and text[line + len(dash) : line + len(dash) + 1].strip() == ""):
        if line == 0:
            raise Conflict(_UNSAFE)
        line = _line_start(text, line - 1)
    return line


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _after_line(text: str, index: int) -> int:
    """Start of the next line."""
    end = text.find("\n", index)
    return len(text) if end == -1 else end + 1


def _comments(text: str, start: int, end: int, node: Node) -> list[tuple[int, str]]:
    """Comments in a part of the text that holds a node: where they begin, and what they say."""
    spoken = sorted(_spoken(text, node))
    found: list[tuple[int, str]] = []
    while (match := _COMMENT.search(text, start, end)) is not None:
        before = bisect_right(spoken, (match.start(), len(text)))
        if before and match.start() < spoken[before - 1][1]:
            start = spoken[before - 1][1]
            continue
        start = min(_after_line(text, match.start()), end)
        found.append((match.start(), text[match.start() : start].rstrip()))
    return found


def _spoken(text: str, node: Node) -> Iterator[tuple[int, int]]:
    """Where a `#` is part of a value."""
    if isinstance(node, ScalarNode):
        first = node.start
        block = node.style in ("|", ">")
        yield (_after_line(text, first) if block else first, node.end)
    for child in node.value if isinstance(node, MappingNode | SequenceNode) else ():
        for part in child if isinstance(child, tuple) else (child,):
            yield from _spoken(text, part)


# How things are written


def _key_lines(key: str, value: Any, column: int) -> str:
    return f"{' ' * column}{key}:{_behind_colon(value, column)}\n"


def _item_lines(entry: Mapping[str, Any], column: int) -> str:
    lines = "".join(_key_lines(key, value, column + 2) for key, value in entry.items())
    return f"{' ' * column}- {lines.lstrip(' ')}"


def _behind_colon(value: Any, column: int) -> str:
    """A value as it stands behind its key, which begins at this column."""
    if isinstance(value, Mapping) and value:
        return "\n" + "".join(_key_lines(str(k), v, column + 2) for k, v in value.items()).removesuffix("\n")
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return "\n" + "".join(_item_lines(item, column + 2) for item in value).removesuffix("\n")
    if isinstance(value, str) and _reads_well_as_block(value):
        mark = "|" if value.endswith("\n") else "|-"
        body = value.removesuffix("\n").split("\n")
        return f" {mark}\n" + "\n".join(" " * (column + 2) + line if line else "" for line in body)
    return f" {_flow(value, inside=False)}"


def _flow(value: Any, *, inside: bool = True) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(str(k))}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        safe = _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not (inside and "," in value)
        return value if safe else _quoted(value)
    return json.dumps(value)


_TAGGED = re.compile(r"[ \t]*[&!][^\s]*")
_ALIAS = re.compile(r"\s*\*[^\s,\]}]+")
_COLON = re.compile(r"\s*:")
_COMMENT = re.compile(r"(?:(?<=\s)|^)#", re.MULTILINE)
_PLAIN = re.compile(r"[^\W\d_](?:[\w.,/()!'+ -]*[\w./()!'+-])?")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def _quoted(value: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _reads_well_as_block(value: str) -> bool:
    lines = value.removesuffix("\n").split("\n")
    return (
        len(lines) > 1
        and all(line.isprintable() and line == line.rstrip() for line in lines)
        and bool(lines[0] and lines[-1])
        and not lines[0].startswith(" ")
    )


# Splicing


def _insert(text: str, at: int, new: str) -> str:
    if at and text[at - 1] != "\n":
        new = "\n" + new.removesuffix("\n")
    return text[:at] + new + text[at:]


def _cut(text: str, start: int, end: int) -> str:
    return text[:start] + text[end:]


def _insert_key(text: str, node: MappingNode, key: str, value: Any) -> str:
    column = node.value[0][0].column
    return _insert(text, _after_line(text, _end(text, node)), _key_lines(key, value, column))


def _with_agents(text: str, agents: Mapping[str, Any]) -> str:
    """The `agents` section, which was missing or empty."""
    root = _composed(text)
    found = _agents(text)
    if found is not None:
        return _replace_value(text, found, agents)
    block = _key_lines("agents", agents, 0)
    if not isinstance(root, MappingNode):
        return text + ("" if not text or text.endswith("\n") else "\n") + block
    at = _after_line(text, _end(text, root))
    return _insert(text, at, f"\n{block}")


def _replace_value(text: str, pair: Pair, value: Any) -> str:
    """Another value behind the same key. Comments inside the old one are kept."""
    key, old = pair
    colon, end = _colon(text, key), _value_end(text, pair)
    line_end = _after_line(text, end)
    rest = text[end:line_end].strip()
    if rest and not rest.startswith("#"):
        raise Conflict(_UNSAFE)
    tail, above = "", []
    own_line = _after_line(text, colon)
    for at, comment in _comments(text, colon + 1, line_end, old):
        if at < own_line:
            gap = text[len(text[:at].rstrip(" \t")) : at]
            tail = f"{gap}{comment}"
        else:
            above.append(" " * key.column + comment + "\n")
    first, *more = _behind_colon(value, key.column).split("\n")
    new = "\n".join([first + tail, *more]) + ("\n" if text[line_end - 1 : line_end] == "\n" else "")
    line = _line_start(text, key.start)
    return text[:line] + "".join(above) + text[line : colon + 1] + new + text[line_end:]


def _replace_flow(text: str, roster: Pair, entry: MappingNode, data: Mapping[str, Any]) -> str:
    """Another entry in place of one that is written in braces."""
    start, end = entry.start, entry.end
    comments = _comments(text, start, end, entry)
    line = _line_start(text, start)
    above = "".join(" " * (roster[0].column + 2) + comment + "\n" for _, comment in comments)
    return text[:line] + above + text[line:start] + _flow(data) + text[end:]
