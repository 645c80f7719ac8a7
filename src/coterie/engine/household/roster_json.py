"""Editing the roster of a file that is one JSON object: what is written is JSON, and every other byte stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coterie.core.errors import Conflict
from coterie.core.roster import Roster
from coterie.yaml_tree import MappingNode, Node, ScalarNode, SequenceNode, compose

Span = tuple[int, int]


def write_json_roster(
    text: str, told: Roster, wanted: Roster, spellings: Mapping[str, tuple[str, ...]]
) -> str:
    """The text with this roster in it. `spellings` says how else a key may be called."""

    def names(key: str) -> tuple[str, ...]:
        return spellings.get(key, (key, _camel(key)))

    if told.default != wanted.default:
        text = _set_default(text, wanted.default)
    for agent in told.entries:
        if agent not in wanted.entries:
            roster, index = _find(text, agent, names("name"))
            text = _take_out(text, roster, index)
    for agent, entry in wanted.entries.items():
        now = told.entries.get(agent)
        if now is None:
            text = _append(text, {"name": agent, **entry})
            continue
        for key in [*now, *(k for k in entry if k not in now)]:
            if key not in entry:
                text = _remove(text, agent, names("name"), names(key))
            elif key not in now or now[key] != entry[key]:
                roster, index = _find(text, agent, names("name"))
                text = _put(text, _object(roster.value[index]), names(key), entry[key])
    return text


def _set_default(text: str, agent: str) -> str:
    agents = _agents(text)
    if isinstance(agents, SequenceNode):
        return f'{text[: agents.start]}{{"default": {_json(agent)}, "roster": {text[agents.start : agents.end]}}}{text[agents.end :]}'
    if agents is None:
        return _put(text, _object(compose(text)), ("agents",), {"default": agent})
    return _put(text, _object(agents), ("default",), agent)


def _append(text: str, entry: Mapping[str, Any]) -> str:
    agents, roster = _agents(text), _roster(text)
    if roster is not None:
        return _add(text, roster, _spans(roster), lambda column, wide: _json(entry, column, wide))
    if isinstance(agents, MappingNode):
        return _put(text, agents, ("roster",), [entry])
    return _put(text, _object(compose(text)), ("agents",), {"roster": [entry]})


def _remove(text: str, agent: str, ids: tuple[str, ...], keys: tuple[str, ...]) -> str:
    roster, index = _find(text, agent, ids)
    entry = _object(roster.value[index])
    place = _place(entry, keys)
    if place is None:
        raise Conflict(
            f"{agent}.{keys[0]} has no place of its own in agent.yaml; please change it in the file"
        )
    return _take_out(text, entry, place)


def _put(text: str, target: MappingNode, keys: tuple[str, ...], value: Any) -> str:
    place = _place(target, keys)
    if place is None:
        key = _json(keys[0])
        return _add(text, target, _spans(target), lambda column, wide: f"{key}: {_json(value, column, wide)}")
    node = target.value[place][1]
    wide = "\n" in text[node.start : node.end]
    return text[: node.start] + _json(value, target.value[place][0].column, wide) + text[node.end :]


def _add(text: str, target: Node, spans: list[Span], render: Callable[[int, bool], str]) -> str:
    """One more at the end, laid out like the last one."""
    if not spans:
        return text[: target.start + 1] + render(target.column, False) + text[target.end - 1 :]
    start, end = spans[-1]
    before = text[spans[-2][1] if len(spans) > 1 else target.start + 1 : start]
    gap = before[before.rfind("\n") :] if "\n" in before and not before[before.rfind("\n") :].strip() else " "
    new = render(len(gap) - 1 if gap != " " else target.column, gap != " " and "\n" in text[start:end])
    comma = len(text[end : target.end]) - len(text[end : target.end].lstrip())
    if text[end + comma] == ",":
        end += comma + 1
        return f"{text[:end]}{gap}{new}{text[end:]}"
    return f"{text[:end]},{gap}{new}{text[end:]}"


def _take_out(text: str, target: SequenceNode | MappingNode, place: int) -> str:
    spans = _spans(target)
    start, end = spans[place]
    if place:
        start = spans[place - 1][1]
    elif len(spans) > 1:
        end = spans[1][0]
    else:
        start, end = target.start + 1, target.end - 1
    return text[:start] + text[end:]


def _agents(text: str) -> Node | None:
    root = _object(compose(text))
    place = _place(root, ("agents",))
    found = None if place is None else root.value[place][1]
    return found if isinstance(found, SequenceNode | MappingNode) else None


def _roster(text: str) -> SequenceNode | None:
    agents = _agents(text)
    if isinstance(agents, MappingNode) and (place := _place(agents, ("roster",))) is not None:
        agents = agents.value[place][1]
    return agents if isinstance(agents, SequenceNode) else None


def _find(text: str, agent: str, ids: tuple[str, ...]) -> tuple[SequenceNode, int]:
    roster = _roster(text)
    for index, item in enumerate(roster.value if roster is not None else ()):
        if isinstance(item, MappingNode) and (place := _place(item, ids)) is not None:
            name = item.value[place][1]
            if isinstance(name, ScalarNode) and name.value == agent and roster is not None:
                return roster, index
    raise Conflict(f"{agent!r} in agent.yaml is written through a YAML anchor; please change it in the file")


def _place(node: MappingNode, keys: tuple[str, ...]) -> int | None:
    return next(
        (i for i, (key, _) in enumerate(node.value) if isinstance(key, ScalarNode) and key.value in keys),
        None,
    )


def _object(node: Node | None) -> MappingNode:
    if not isinstance(node, MappingNode):
        raise Conflict("agent.yaml holds no object where one is needed; please make this change in the file")
    return node


def _spans(node: Node) -> list[Span]:
    return list(_parts(node))


def _parts(node: Node) -> Iterator[Span]:
    last = node.start
    for part in node.value if isinstance(node, SequenceNode | MappingNode) else ():
        first, value = part if isinstance(part, tuple) else (part, part)
        if first.start < last or value.start < first.start:
            raise Conflict("agent.yaml uses YAML anchors here; please make this change in the file")
        last = max(first.end, value.end)
        yield first.start, last


def _json(value: Any, column: int = 0, wide: bool = False) -> str:
    """JSON that every YAML reader takes too: what does not print is escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2 if wide else None)
    if wide:
        text = text.replace("\n", "\n" + " " * column)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(part.capitalize() for part in rest)
