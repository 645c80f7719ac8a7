"""A tool: what a model may call. Most are typed Python functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, get_type_hints, overload

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from coterie.core.errors import CoterieError, InvalidRequest
from coterie.core.fence import Fences
from coterie.core.message import DataPart, FilePart, ImagePart, ResultPart, TextPart
from coterie.core.ports import ToolSchema
from coterie.core.threads import on_own_thread

NAME_RULE = "a tool's name is 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.M)
_PARAMETER = re.compile(r"^\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_PROBLEMS_SHOWN = 5
LARGEST_RESULT = 8_000_000
"""Characters or bytes of one result. All of it is stored, and shown shortened."""


class ToolInputError(InvalidRequest):
    """The arguments of a call do not fit the tool. The message is for the model."""


class ToolError(CoterieError):
    """A call that was understood and cannot be done. The reason is a word that programs may rely on."""

    code = "CONFLICT"
    http_status = 409

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, details={"reason": reason})
        self.reason = reason


class Workspace(Protocol):
    """The files of one agent. No path leaves them; a bad one raises InvalidRequest, an absent one NotFound."""

    def read_text(self, path: str) -> str: ...

    def write_text(self, path: str, content: str) -> None:
        """Create or replace the file, and the folders that lead to it."""

    def entries(self, path: str = "") -> list[tuple[str, int | None]]:
        """Name and size of what is in a folder; the size of a folder is None."""


class Colleagues(Protocol):
    """Other agents, as one call of one turn may reach them.

    A call asks for one thing: made again after a crash, it finds by its id what it began.
    """

    def peers(self) -> list[dict[str, Any]]: ...

    async def message(
        self, agent_id: str, content: str, *, session: str, mode: str, seconds: float
    ) -> dict[str, Any]: ...

    async def switch(self, agent_id: str, message: str | None, summary: str | bool) -> dict[str, Any]: ...

    async def spawn(
        self,
        task: str,
        *,
        agent_id: str | None,
        label: str | None,
        model: str | None,
        tools: Sequence[str] | None,
        seconds: float | None,
    ) -> dict[str, Any]: ...

    async def runs(self) -> list[dict[str, Any]]: ...

    async def run(self, run_id: str) -> dict[str, Any]: ...

    async def cancel(self, run_id: str) -> dict[str, Any]: ...


class AgentMemory(Protocol):
    """What one agent remembers. Results are as the model reads them."""

    async def remember(
        self,
        content: str,
        *,
        share: bool,
        tags: Sequence[str],
        occurred_at: str | None,
        supersedes: str | None,
    ) -> Mapping[str, Any]:
        """Once per call, also if the call is made again after a crash."""

    async def recall(self, query: str, limit: int) -> Mapping[str, Any]:
        """Memories that it may see, and its own past conversations."""

    async def forget(self, memory_id: str) -> None:
        """Only its own."""

    async def log(self, text: str) -> str:
        """A line in today's log; the file's name."""

    async def edit(self, old: str, new: str) -> None:
        """A passage of MEMORY.md; without an old one, at its end."""


async def _just_wait(work: Awaitable[Any]) -> Any:
    return await work


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A result that was stored whole."""

    text: str
    said_by: str | None = None
    """Whose words it is or holds, where that is somebody else."""


async def _no_results(result_id: str) -> KeptResult | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """On whose behalf a call is made, and the handles that are bound to it."""

    agent_id: str
    session_key: str
    run_id: str
    call_id: str
    workspace: Workspace
    while_waiting: Callable[[Awaitable[Any]], Awaitable[Any]] = _just_wait
    """Await something that others do: the turn keeps its session and gives its slot to somebody else meanwhile."""
    memory: AgentMemory | None = None
    read_result: Callable[[str], Awaitable[KeptResult | None]] = _no_results
    """A tool result of this session that was stored whole and shown shortened."""
    colleagues: Colleagues | None = None
    """The way to other agents; every message between them begins here."""
    fences: Fences = field(default_factory=Fences)

    def fence(self, text: str, who: str) -> str:
        """Somebody else's words, as a result should hold them: marked as theirs, by a fence that they cannot close."""
        return self.fences.around(text, who)


class Tool(Protocol):
    """Something that a model may call, wherever it comes from, with what the policy needs to know about it."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> ToolSchema: ...

    @property
    def capabilities(self) -> tuple[str, ...]: ...

    @property
    def safe_to_repeat(self) -> bool:
        """A call that was cut off by a crash may simply be made again."""

    @property
    def source(self) -> str:
        """Which plug-in or server brought it."""

    async def call(self, context: ToolContext, arguments: str) -> Sequence[ResultPart]:
        """Run on the model's own argument string. Raises ToolInputError, or whatever the tool raises."""


class ToolSource(Protocol):
    """Where tools come from. They may change while the house runs."""

    @property
    def version(self) -> int:
        """Another number whenever `tools` gives something else: until then prompts stay as they are."""

    def tools(self) -> Mapping[str, Tool]:
        """By name. May take a while the first time."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionTool:
    """A function as models see it. Implements Tool."""

    schema: ToolSchema
    function: Callable[..., object]
    arguments: type[BaseModel]
    """The arguments object; fields are named by place and carry the parameter's name as their alias."""
    capabilities: tuple[str, ...] = ()
    safe_to_repeat: bool = False
    """A call that was cut off by a crash may simply be made again."""
    takes_context: bool = False
    source: str = ""

    @property
    def name(self) -> str:
        return self.schema.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, for Python code that wants it."""
        return self.function(*args, **kwargs)

    async def call(self, context: ToolContext, arguments: str) -> Sequence[ResultPart]:
        values = self.parse(arguments)
        leading = (context,) if self.takes_context else ()
        try:
            if inspect.iscoroutinefunction(self.function):
                result = await self.function(*leading, **values)
            else:
                result = await on_own_thread(self.name, partial(_contained, self.function, leading, values))
                if inspect.isawaitable(result):
                    result = await result
        except SystemExit as error:
            # A tool must not end the service.
            raise RuntimeError(f"{self.name} tried to exit with {error.code!r}") from error
        return result_parts(result)

    def parse(self, arguments: str) -> dict[str, Any]:
        """The arguments that the model gave, checked and converted, by parameter name."""
        try:
            parsed = self.arguments.model_validate_json(arguments.strip() or "{}")
        except ValidationError as error:
            raise ToolInputError(f"{self.name}: {self._explain(error)}") from None
        fields = self.arguments.model_fields
        return {str(field.alias): getattr(parsed, name) for name, field in fields.items()}

    def _explain(self, error: ValidationError) -> str:
        problems = []
        for item in error.errors(include_url=False, include_input=False):
            where = ".".join(str(step) for step in item["loc"])
            match item["type"]:
                case "json_invalid":
                    return f"the arguments are not valid JSON ({item['msg'].removeprefix('Invalid JSON: ')})"
                case "string_unicode" if not where:
                    return "the arguments are not valid Unicode"
                case "model_type" if not where:
                    return "the arguments must be a JSON object"
                case "missing":
                    problems.append(f"argument {where!r} is missing")
                case "extra_forbidden":
                    known = ", ".join(str(field.alias) for field in self.arguments.model_fields.values())
                    problems.append(
                        f"there is no argument {where!r} ({f'known: {known}' if known else 'it takes none'})"
                    )
                case _:
                    problems.append(f"argument {where!r}: {item['msg']}")
        more = len(problems) - _PROBLEMS_SHOWN
        return "; ".join(problems[:_PROBLEMS_SHOWN]) + (f"; and {more} more problems" if more > 0 else "")


@overload
def tool(function: Callable[..., object], /) -> FunctionTool: ...


@overload
def tool(
    *, capabilities: Sequence[str] = (), safe_to_repeat: bool = False, name: str | None = None
) -> Callable[[Callable[..., object]], FunctionTool]: ...


def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    capabilities: Sequence[str] = (),
    safe_to_repeat: bool = False,
    name: str | None = None,
) -> FunctionTool | Callable[[Callable[..., object]], FunctionTool]:
    """Make a tool of a function. Its signature and docstring are what models are told."""
    if isinstance(capabilities, str):
        raise TypeError(f"capabilities is a list of names: write [{capabilities!r}]")

    def decorate(function: Callable[..., object]) -> FunctionTool:
        return _make(function, name or function.__name__, tuple(capabilities), safe_to_repeat)

    return decorate if function is None else decorate(function)


def result_parts(result: object) -> tuple[ResultPart, ...]:
    """What a function returned, as parts: text as it is, pictures and files as they are, anything else as a value."""
    if isinstance(result, TextPart | ImagePart | DataPart | FilePart):
        return (result,)
    if isinstance(result, list | tuple) and any(isinstance(one, ImagePart | FilePart) for one in result):
        return tuple(part for one in result for part in result_parts(one))
    return (TextPart(_plain(result)),)


def result_text(parts: Sequence[ResultPart]) -> str:
    """A tool's result as the model reads it; what cannot be read is named."""
    return "\n".join(_part_text(part) for part in parts)


def bounded(parts: Sequence[ResultPart]) -> Sequence[ResultPart]:
    """A result that can be kept: too long a text is cut, anything else that is too large is refused."""
    left = LARGEST_RESULT
    kept: list[ResultPart] = []
    for part in parts:
        if isinstance(part, TextPart) and len(part.text) > left:
            rest = len(part.text) - left
            part = TextPart(f"{part.text[:left]}\n[{rest} more characters were left out]")
        elif not isinstance(part, TextPart):
            _check_size(part.data)
        left = max(0, left - len(part.text)) if isinstance(part, TextPart) else left
        kept.append(part)
    return kept


def _check_size(value: object) -> None:
    if _weight(value, LARGEST_RESULT) > LARGEST_RESULT:
        raise ToolError("too_large", f"the result has more than {LARGEST_RESULT:,} bytes: ask for less")


def _weight(value: object, enough: int) -> int:
    """About as many bytes as a value has as JSON; counted no further than needed."""
    total, waiting = 0, [value]
    while waiting and total <= enough:
        match waiting.pop():
            case str() | bytes() | bytearray() as words:
                total += len(words)
            case dict() as items:
                total += 4 * len(items)
                waiting += [*items, *items.values()]
            case list() | tuple() | set() | frozenset() as items:
                total += len(items)
                waiting += items
            case _:
                total += 8
    return total


def _part_text(part: ResultPart) -> str:
    match part:
        case TextPart(text):
            return text
        case DataPart(data):
            return _plain(data)
        case ImagePart(media_type, data, name) | FilePart(media_type, data, name):
            kind = "image" if isinstance(part, ImagePart) else "file"
            return f"[{kind}{f' {name}' if name else ''}: {media_type}, {len(data)} bytes]"


def _plain(value: object) -> str:
    """Text as it is, anything else as compact JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    _check_size(value)
    return pydantic_core.to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=str).decode()


def _contained(
    function: Callable[..., object], leading: tuple[object, ...], values: Mapping[str, Any]
) -> object:
    try:
        return function(*leading, **values)
    except StopIteration as error:
        # A future cannot carry it: the caller would wait for ever.
        raise RuntimeError("the tool let a StopIteration escape") from error


def _make(
    function: Callable[..., object], name: str, capabilities: tuple[str, ...], safe_to_repeat: bool
) -> FunctionTool:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a tool: {NAME_RULE}")
    summary, about = _read_docstring(inspect.getdoc(function) or "")
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and hints.get(parameters[0].name) is ToolContext
    if takes_context:
        del parameters[0]
    arguments = _arguments_model(name, parameters, hints, about)
    schema = ToolSchema(name, summary or name.replace("_", " "), _terse_schema(arguments))
    return FunctionTool(schema, function, arguments, capabilities, safe_to_repeat, takes_context)


def _arguments_model(
    name: str, parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any], about: Mapping[str, str]
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for place, parameter in enumerate(parameters):
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise TypeError(
                f"{name}: parameter {parameter} cannot be described to a model; give it a name of its own"
            )
        if parameter.name not in hints:
            raise TypeError(f"{name}: parameter {parameter.name!r} needs a type annotation")
        # Named by place: a parameter may be called like a method of BaseModel.
        fields[f"argument_{place}"] = (
            hints[parameter.name],
            Field(
                ... if parameter.default is inspect.Parameter.empty else parameter.default,
                alias=parameter.name,
                description=about.get(parameter.name),
            ),
        )
    config = ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=False)
    model: type[BaseModel] = create_model(name, __config__=config, **fields)
    return model


class _QuietSchema(GenerateJsonSchema):
    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]


def _terse_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """Every byte of it is paid for in each prompt."""
    schema = _terse(arguments.model_json_schema(schema_generator=_QuietSchema))
    # Unknown arguments are refused by the call itself, with a better message.
    schema.pop("additionalProperties", None)
    schema.setdefault("properties", {})
    return dict(schema)


def _terse(node: Any) -> Any:
    if isinstance(node, list):
        return [_terse(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "$defs", "patternProperties"):
            kept[key] = {name: _terse(schema) for name, schema in value.items()}
        elif key in ("default", "enum", "const", "examples"):
            kept[key] = value
        elif key != "title":
            kept[key] = _terse(value)
    if "default" in kept and kept["default"] is None:
        # Left out means None already; saying so costs three keys.
        del kept["default"]
        choices = [choice for choice in kept.get("anyOf", []) if choice != {"type": "null"}]
        if len(choices) == 1:
            del kept["anyOf"]
            kept = {**choices[0], **kept}
        elif choices:
            kept["anyOf"] = choices
    return kept


def _read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """What the function does, and what each parameter means, from a docstring with an `Args:` block."""
    # Splitting at the headings leaves: text, heading, block, heading, block…
    summary, *sections = _SECTION.split(doc)
    about: dict[str, str] = {}
    for heading, block in zip(sections[::2], sections[1::2], strict=True):
        if heading in ("Args", "Arguments", "Parameters"):
            about.update(_read_parameters(block))
    return summary.strip(), about


def _read_parameters(block: str) -> dict[str, str]:
    about: dict[str, str] = {}
    lines = [line for line in inspect.cleandoc(block).splitlines() if line.strip()]
    current: str | None = None
    for line in lines:
        match = _PARAMETER.match(line)
        if match:
            current = match.group(1)
            about[current] = match.group(2).strip()
        elif current is not None and line[0].isspace():
            about[current] = f"{about[current]} {line.strip()}".strip()
    return about
