"""YAML read fast and within bounds, with the place of everything it says.

libyaml does the reading: event by event, so that a file too large or nested too deeply is refused where it becomes so.
Words are taken as YAML 1.2 has it: `yes`, `on` and `1:30` are words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_DIGITS = 1_000


class Unreadable(Exception):
    """A text that is not YAML, or more of it than anybody needs."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(slots=True, eq=False)
class Node:
    start: int
    """Index of the first character in the text."""
    end: int
    """Just behind the last one; for a block, where the next thing begins."""
    line: int
    column: int
    tag: str | None


@dataclass(slots=True, eq=False)
class ScalarNode(Node):
    value: str
    style: str
    """Empty where it is written without quotes."""


@dataclass(slots=True, eq=False)
class SequenceNode(Node):
    value: list[Node]
    flow: bool


@dataclass(slots=True, eq=False)
class MappingNode(Node):
    value: list[tuple[Node, Node]]
    flow: bool


@dataclass(slots=True)
class Tree:
    """A text's values, and where they stand."""

    values: dict[str, Any]
    root: Node | None
    _keys: dict[int, dict[str, tuple[Node, Node]]] = field(default_factory=dict)

    def line(self, steps: list[int | str]) -> int:
        """The line that a path leads to, or that of the nearest parent; counted from 1."""
        node, line = self.root, 0
        for step in steps:
            if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.line
            elif isinstance(node, MappingNode) and (found := self._pairs(node).get(str(step))):
                line, node = found[0].line, found[1]
            else:
                break
        return line + 1

    def _pairs(self, node: MappingNode) -> dict[str, tuple[Node, Node]]:
        if id(node) not in self._keys:
            self._keys[id(node)] = {_key(key): (key, value) for key, value in node.value}
        return self._keys[id(node)]


def read(text: str) -> Tree:
    """What a text says. Raises Unreadable."""
    root = compose(text)
    return Tree(_values(root), root)


def compose(text: str) -> Node | None:
    """The nodes of the one document in a text; None where it has none."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise Unreadable(f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB")
    from yaml import MarkedYAMLError
    from yaml.reader import ReaderError

    shown = text.translate(_HIDE) if any(mark in text for mark in _BREAKS) else text
    try:
        return _compose(shown, shown is not text)
    except ReaderError as error:
        before = shown.encode("utf-8", "replace")[: error.position]
        what = f"not valid YAML: it contains the character U+{error.character:04X}"
        raise Unreadable(what, before.count(b"\n") + 1) from None
    except UnicodeEncodeError as error:
        what = f"not valid YAML: it contains the character U+{ord(shown[error.start]):04X}"
        raise Unreadable(what, shown.count("\n", 0, error.start) + 1) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(error.problem or error.context or "").split())
        if mark is not None and what.endswith("cannot start any token"):
            what = f"found the character {shown[mark.index : mark.index + 1]!r} where a value should begin"
        raise Unreadable(f"not valid YAML: {what}", mark.line + 1 if mark is not None else None) from None


def readable(text: str) -> str:
    """JSON may write one character as two escapes, which YAML cannot read: such a text with the character itself."""
    if "\\ud" not in text.lower() or not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _ESCAPE.sub(lambda found: json.loads(f'"{found[0]}"') if len(found[0]) > 2 else found[0], text)


_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|.)")

# Line ends of YAML 1.1 that 1.2 and every editor take for ordinary characters. libyaml does not see them.
_BREAKS = "\x85\u2028\u2029"
_HIDE = {ord(mark): 0xF0000 + ord(mark) for mark in _BREAKS}
_SHOW = {hidden: mark for mark, hidden in _HIDE.items()}


def _compose(text: str, hidden: bool) -> Node | None:
    import yaml
    from yaml.events import AliasEvent, MappingStartEvent, ScalarEvent, SequenceStartEvent

    ends = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
    # Where PyYAML was built without libyaml, the same events come from its own parser, only slower.
    parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    anchors: dict[str, Node] = {}
    root: Node | None = None
    open_: list[Node] = []
    keys: list[Node | None] = []
    """For each open mapping, the key that waits for its value."""
    left = MAX_NODES
    try:
        parser.get_event()
        if parser.check_event(yaml.StreamEndEvent):
            return None
        parser.get_event()
        while True:
            event = parser.get_event()
            kind = type(event)
            begin, end = event.start_mark, event.end_mark
            node: Node
            if kind in ends:
                open_[-1].end = end.index
                open_.pop()
                keys.pop()
                if not open_:
                    break
                continue
            if kind is AliasEvent:
                if event.anchor not in anchors:
                    raise Unreadable(
                        f"not valid YAML: found undefined alias {event.anchor!r}", begin.line + 1
                    )
                node = anchors[event.anchor]
            elif kind is ScalarEvent:
                said = event.value.translate(_SHOW) if hidden else event.value
                node = ScalarNode(
                    begin.index, end.index, begin.line, begin.column, event.tag, said, event.style or ""
                )
            else:
                made = SequenceNode if kind is SequenceStartEvent else MappingNode
                assert kind in (SequenceStartEvent, MappingStartEvent)
                node = made(
                    begin.index, end.index, begin.line, begin.column, event.tag, [], bool(event.flow_style)
                )
            left -= 1
            if left < 0 or len(open_) > MAX_DEPTH:
                what = "holds too many values" if left < 0 else "is nested too deeply"
                raise Unreadable(f"the file {what}", begin.line + 1)
            if kind is not AliasEvent and event.anchor is not None:
                anchors[event.anchor] = node
            if not open_:
                root = node
            elif isinstance(parent := open_[-1], SequenceNode):
                parent.value.append(node)
            elif (key := keys[-1]) is None:
                keys[-1] = node
            else:
                assert isinstance(parent, MappingNode)
                parent.value.append((key, node))
                keys[-1] = None
            if kind is SequenceStartEvent or kind is MappingStartEvent:
                open_.append(node)
                keys.append(None)
            elif not open_:
                break
        parser.get_event()
        if not parser.check_event(yaml.StreamEndEvent):
            line = parser.peek_event().start_mark.line + 1
            raise Unreadable("not valid YAML: expected one document, and found another document", line)
    finally:
        parser.dispose()
    return root


# Values


def _values(root: Node | None) -> dict[str, Any]:
    """Plain Python values. Aliases expand, so the size of the result is bounded."""
    left = MAX_NODES
    if root is None or (isinstance(root, ScalarNode) and _scalar(root) is None):
        return {}
    if not isinstance(root, MappingNode):
        raise Unreadable("the file must hold keys and values", 1)

    def convert(node: Node, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise Unreadable("the file expands to too many values", node.line + 1)
        if isinstance(node, ScalarNode):
            return _scalar(node)
        if isinstance(node, SequenceNode):
            return [convert(item, depth + 1) for item in node.value]
        assert isinstance(node, MappingNode)
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if isinstance(key, ScalarNode) and key.value == "<<" and not key.style and key.tag is None:
                for source in reversed(value.value if isinstance(value, SequenceNode) else [value]):
                    if not isinstance(source, MappingNode):
                        what = "not valid YAML: expected keys and values for merging"
                        raise Unreadable(what, key.line + 1)
                    merged.update(convert(source, depth + 1))
                continue
            name = _key(key)
            if name in own:
                raise Unreadable(f"not valid YAML: found duplicate key {name!r}", key.line + 1)
            own[name] = convert(value, depth + 1)
        return {**merged, **own} if merged else own

    values: dict[str, Any] = convert(root, 0)
    return values


def _key(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return str(_scalar(node))
    parts = node.value if isinstance(node, SequenceNode) else ()
    return str(tuple(part.value if isinstance(part, ScalarNode) else "…" for part in parts))


def _scalar(node: ScalarNode) -> Any:
    tag, text = node.tag, node.value
    if tag is None:
        return _plain(node) if not node.style else text
    kind = tag.removeprefix("tag:yaml.org,2002:")
    if kind not in ("int", "float", "bool", "null"):
        return text
    value = _plain(node)
    if kind == "float" and type(value) is int:
        value = float(value)
    if (type(value).__name__ if value is not None else "null") != kind:
        raise Unreadable(f"not valid YAML: {text[:100]!r} is not of the kind !!{kind}", node.line + 1)
    return value


def _plain(node: ScalarNode) -> Any:
    """A value without quotes: a word, unless it looks like something else."""
    text = node.value
    if not text or text[0] not in _BEGINNINGS:
        return text if text else None
    if text in _WORDS:
        return _WORDS[text]
    for pattern, value in _NUMBERS:
        if pattern.fullmatch(text):
            if len(text) > MAX_DIGITS:
                raise Unreadable(f"a number has at most {MAX_DIGITS} digits", node.line + 1)
            return value(text.replace("_", ""))
    return text


_WORDS: dict[str, Any] = dict.fromkeys(("~", "null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
_BEGINNINGS = frozenset("~nNtTfF0123456789+-.")
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"[-+]?[0-9][0-9_]*"), int),
    (re.compile(r"[-+]?0o[0-7_]*[0-7]"), lambda text: int(text, 8)),
    (re.compile(r"[-+]?0x[0-9a-fA-F_]*[0-9a-fA-F]"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?0b[01_]*[01]"), lambda text: int(text, 2)),
    (re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(?:nan|NaN|NAN)"), lambda text: float("nan")),
)
