"""Tools: what a model is told about a function, and what a call does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import coterie
from coterie import ToolContext, tool
from coterie.core.errors import InvalidRequest, NotFound
from coterie.core.tool import Tool, ToolInputError, result_parts, result_text
from coterie.tools.files import MAX_READ, MAX_WRITE, files_edit, files_list, files_read, files_write
from coterie.tools.status import system_status
from coterie.tools.time import system_time


class Folder:
    """A workspace in a real folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read_text(self, path: str) -> str:
        if not self._inside(path).is_file():
            raise NotFound(f"there is no file {path}")
        return self._inside(path).read_bytes().decode()

    def write_text(self, path: str, content: str) -> None:
        self._inside(path).parent.mkdir(parents=True, exist_ok=True)
        self._inside(path).write_text(content)

    def entries(self, path: str = "") -> list[tuple[str, int | None]]:
        return [
            (entry.name, None if entry.is_dir() else entry.stat().st_size)
            for entry in self._inside(path).iterdir()
        ]

    def _inside(self, path: str) -> Path:
        if ".." in path or path.startswith("/"):
            raise InvalidRequest(f"{path} leaves the workspace")
        return self.root / path


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(
        agent_id="rose", session_key="agent:rose:main", run_id="r1", call_id="c1", workspace=Folder(tmp_path)
    )


def call(which: Tool, context: ToolContext, arguments: str | dict[str, Any] = "") -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return result_text(asyncio.run(which.call(context, text)))


def refusal(which: Tool, context: ToolContext, arguments: str | dict[str, Any]) -> str:
    with pytest.raises(ToolInputError) as caught:
        call(which, context, arguments)
    return caught.value.message


# What a model is told


class Place(BaseModel):
    """Where."""

    title: str
    floor: int | None = None


@tool(capabilities=["house.read", "house.write"], safe_to_repeat=True)
def furnish(
    context: ToolContext,
    place: Place,
    colour: Literal["red", "blue"] = "red",
    count: Annotated[int, Field(ge=1)] = 1,
    note: str | None = None,
    json: str = "",
) -> str:
    """Furnish a place.

    Carefully.

    Args:
        place: where to begin,
            and where to end
        colour (str): of the walls
        json: a name that pydantic has for itself

    Returns:
        Nothing of interest.
    """
    return f"{context.agent_id} {place.title} {colour} {count} {note} {json}"


def test_the_schema_comes_from_signature_and_docstring() -> None:
    assert (furnish.name, furnish.schema.description) == ("furnish", "Furnish a place.\n\nCarefully.")
    assert (furnish.capabilities, furnish.safe_to_repeat) == (("house.read", "house.write"), True)
    assert furnish.schema.parameters == {
        "$defs": {
            "Place": {
                "description": "Where.",
                "type": "object",
                "properties": {"title": {"type": "string"}, "floor": {"type": "integer"}},
                "required": ["title"],
            }
        },
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place", "description": "where to begin, and where to end"},
            "colour": {
                "type": "string",
                "enum": ["red", "blue"],
                "default": "red",
                "description": "of the walls",
            },
            "count": {"type": "integer", "minimum": 1, "default": 1},
            "note": {"type": "string"},
            "json": {"type": "string", "default": "", "description": "a name that pydantic has for itself"},
        },
        "required": ["place"],
    }


def test_a_tool_without_parameters_or_docstring_is_described_all_the_same() -> None:
    @tool
    def ring_bell() -> str:
        return "ding"

    assert (ring_bell.schema.description, ring_bell.schema.parameters) == (
        "ring bell",
        {"type": "object", "properties": {}},
    )
    assert (ring_bell.capabilities, ring_bell.safe_to_repeat) == ((), False)
    assert ring_bell() == "ding"


def test_a_default_that_is_no_json_is_left_out_of_the_schema(context: ToolContext) -> None:
    nothing = datetime(2026, 1, 1)

    @tool
    def since(at: datetime = nothing) -> str:
        """Since."""
        return str(at is nothing)

    assert "required" not in since.schema.parameters
    assert call(since, context) == "True"


@pytest.mark.parametrize("name", ["", "has space", "ünicode", "a" * 65, "dot.ted", "line\n"])
def test_a_bad_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 characters"):
        tool(name=name or "-.")(lambda: "x")


def test_a_name_may_be_given() -> None:
    assert tool(name="bell-ring_2")(lambda: "x").name == "bell-ring_2"


def test_what_cannot_be_described_is_refused_at_once() -> None:
    def starred(*names: str) -> str:
        return ""

    def bare(name) -> str:  # type: ignore[no-untyped-def]
        return ""

    with pytest.raises(TypeError, match=r"\*names"):
        tool(starred)
    with pytest.raises(TypeError, match="'name' needs a type"):
        tool(bare)
    with pytest.raises(TypeError, match=r"\['games.play'\]"):
        tool(capabilities="games.play")


# Arguments


def test_arguments_are_checked_and_converted(context: ToolContext) -> None:
    given = {"place": {"title": "hall"}, "count": "3", "note": None}
    assert call(furnish, context, given) == "rose hall red 3 None "


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ('{"place": ', "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('"text"', "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("", "argument 'place' is missing"),
        ('{"place": 3}', "argument 'place': Input should be"),
        ('{"place": {"floor": 1}}', "argument 'place.title' is missing"),
        (
            '{"place": {"title": "x"}, "color": "red"}',
            "there is no argument 'color' (known: place, colour, count",
        ),
        ('{"place": {"title": "x"}, "argument_1": "red"}', "there is no argument 'argument_1'"),
        ('{"place": {"title": "x"}, "context": {}}', "there is no argument 'context'"),
        ('{"place": {"title": "x"}, "count": "many"}', "argument 'count': Input should be a valid integer"),
        ('{"place": {"title": "x"}, "count": 0}', "argument 'count': Input should be greater than"),
        ('{"place": {"title": "x"}, "count": NaN}', "argument 'count'"),
        ('{"place": {"title": "\\ud800"}}', "not valid JSON"),
        ('{"place": {"title": "\ud800"}}', "not valid Unicode"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_bad_arguments_are_explained_to_the_model(
    context: ToolContext, arguments: str, complaint: str
) -> None:
    message = refusal(furnish, context, arguments)
    assert complaint in message
    assert message.startswith("furnish: ")
    assert len(message) < 1000


def test_many_problems_are_counted_not_listed(context: ToolContext) -> None:
    message = refusal(furnish, context, {f"x{number}": 1 for number in range(1000)})
    assert "and 996 more problems" in message
    assert len(message) < 1000


@given(st.text(), st.integers(), st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_any_legal_value_reaches_the_function_unchanged(text: str, number: int, floats: list[float]) -> None:
    @tool
    def keep(text: str, number: int, floats: list[float]) -> str:
        """Keep."""
        return ""

    given = {"text": text, "number": number, "floats": floats}
    assert keep.parse(json.dumps(given, ensure_ascii=False)) == given


# Calls


@dataclass
class Point:
    x: int
    y: str


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is ", "as it is "),
        (None, "done"),
        (True, "true"),
        ({"ä": [1, None]}, '{"ä":[1,null]}'),
        ([Point(1, "é")], '[{"x":1,"y":"é"}]'),
        (Place(title="hall"), '{"title":"hall","floor":null}'),
        (float("nan"), '"NaN"'),
        (Path("a/b"), '"a/b"'),
        (b"\xff", '"_w=="'),
    ],
)
def test_a_result_becomes_text(result: object, text: str) -> None:
    assert result_text(result_parts(result)) == text


def test_a_sync_function_leaves_the_event_loop_free(context: ToolContext) -> None:
    @tool
    def where() -> str:
        """Where."""
        return str(threading.current_thread() is threading.main_thread())

    @tool
    async def where_async() -> str:
        """Where."""
        return str(threading.current_thread() is threading.main_thread())

    assert (call(where, context), call(where_async, context)) == ("False", "True")


def test_what_a_tool_raises_comes_out(context: ToolContext) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise NotFound("no such thing")

    with pytest.raises(NotFound, match="no such thing"):
        call(fail, context)


def test_a_tool_cannot_end_or_block_the_service(context: ToolContext) -> None:
    empty: Iterator[str] = iter(())

    @tool
    def leave() -> str:
        """Leave."""
        sys.exit(3)

    @tool
    async def leave_async() -> str:
        """Leave."""
        sys.exit(3)

    @tool
    def run_dry() -> str:
        """Run dry."""
        return next(empty)

    for which in (leave, leave_async, run_dry):
        with pytest.raises(RuntimeError):
            asyncio.run(asyncio.wait_for(which.call(context, "{}"), 60))


def test_importing_coterie_is_light_and_knows_the_plugin_api() -> None:
    script = "import coterie, sys; assert 'pydantic' not in sys.modules; coterie.tool; assert 'pydantic' in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="nonsense"):
        coterie.nonsense  # noqa: B018


# Built-in tools


def test_the_time_has_zone_and_weekday(context: ToolContext) -> None:
    stamp, weekday = call(system_time, context).split(" ")
    at = datetime.fromisoformat(stamp)
    assert at.tzinfo is not None
    assert weekday == f"{at:%A}"
    assert system_time.safe_to_repeat


def test_the_status_names_agent_session_and_run(context: ToolContext) -> None:
    assert json.loads(call(system_status, context)) == {
        "agentId": "rose",
        "sessionKey": "agent:rose:main",
        "runId": "r1",
    }


def test_files_are_written_read_edited_and_listed(context: ToolContext, tmp_path: Path) -> None:
    assert call(files_list, context) == "empty"
    call(files_write, context, {"path": "notes/a.txt", "content": "one\ntwo\nthree\n"})
    assert (tmp_path / "notes/a.txt").read_text() == "one\ntwo\nthree\n"
    assert call(files_read, context, {"path": "notes/a.txt"}) == "one\ntwo\nthree\n"
    assert call(files_read, context, {"path": "notes/a.txt", "offset": 1, "limit": 1}) == "two\n"
    call(files_edit, context, {"path": "notes/a.txt", "old": "two", "new": "2\\1"})
    assert (tmp_path / "notes/a.txt").read_text() == "one\n2\\1\nthree\n"
    assert call(files_list, context) == "notes/"
    assert call(files_list, context, {"path": "notes"}) == "a.txt (14 bytes)"


@pytest.mark.parametrize(
    ("which", "arguments", "complaint"),
    [
        (files_edit, {"path": "a", "old": "four", "new": ""}, "does not contain"),
        (files_edit, {"path": "a", "old": "o", "new": ""}, "more than once"),
        (files_edit, {"path": "a", "old": "zz", "new": ""}, "more than once"),
        (files_edit, {"path": "a", "old": "", "new": "x"}, "must not be empty"),
        (files_read, {"path": "a", "offset": -1}, "negative"),
        (files_read, {"path": "a", "limit": 0}, "at least 1"),
        (files_read, {"path": "a", "offset": 3}, "only 3 lines"),
        (files_read, {"path": "binary"}, "not a text file"),
        (files_read, {"path": "nul"}, "not a text file"),
        (files_read, {"path": "long"}, "offset and limit"),
        (files_read, {"path": "../a"}, "leaves the workspace"),
        (files_write, {"path": "b", "content": "x" * (MAX_WRITE + 1)}, "too many"),
        (files_write, {"path": "b", "content": "\x00"}, "NUL"),
    ],
)
def test_bad_file_calls_are_explained(
    context: ToolContext, tmp_path: Path, which: Tool, arguments: dict[str, Any], complaint: str
) -> None:
    (tmp_path / "a").write_text("one\ntwo\nzzz\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "nul").write_bytes(b"a\x00b")
    (tmp_path / "long").write_text("x" * (MAX_READ + 1))
    with pytest.raises(InvalidRequest, match=complaint):
        call(which, context, arguments)
    assert (tmp_path / "a").read_text() == "one\ntwo\nzzz\n"
    assert not (tmp_path / "b").exists()


def test_only_reading_is_safe_to_repeat() -> None:
    assert [which.safe_to_repeat for which in (files_read, files_list, files_write, files_edit)] == [
        True,
        True,
        False,
        False,
    ]
    assert files_edit.capabilities == ("files.read", "files.write")
