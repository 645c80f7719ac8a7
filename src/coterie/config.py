"""The whole of agent.yaml as one model tree, and errors that name file, line and key."""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_snake

from coterie.core.agent import (
    DEFAULT_ALIAS,
    MAIN,
    RESERVED_WORDS,
    AgentSpec,
    Amount,
    Count,
    Label,
    Line,
    ModelName,
    check_id,
    label_key,
    unmapped,
)
from coterie.core.errors import CoterieError, InvalidRequest
from coterie.core.policy import Names
from coterie.core.roster import Roster
from coterie.core.wire import Wire
from coterie.yaml_tree import Tree, Unreadable, read, readable

FILE = "agent.yaml"
MAX_TOLD = 100
"""Problems or warnings that are told of one file; whoever mends these sees the next."""
MAX_GUESSES = 10
"""Misspelt names for which the nearest right one is looked up."""
MAX_TEMPLATES = 50
"""How deep `extends` may go."""
CHANNELS = ("telegram", "webhook")
"""Channels that may be named. Others exist only for clients that send under their name."""
UNREAD = "nothing reads this yet"

TO_COME = ("claude-cli", "codex-cli", "pi-cli")
"""Kinds of providers that may be named already."""


@cache
def provider_types() -> tuple[str, ...]:
    """The kinds that may be named: a file each, found by its name and not imported."""
    folder = importlib.util.find_spec("coterie.models.providers")
    assert folder is not None
    found = (file.name.replace("_", "-") for file in pkgutil.iter_modules(folder.submodule_search_locations))
    return (*found, *TO_COME)


def _provider_type(value: str) -> str:
    known = provider_types()
    if value not in known:
        near = difflib.get_close_matches(value, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ValueError(f"{value!r} is no kind of provider; {hint}")
    return value


class Provider(Wire):
    """Where a family of models is reached."""

    type: Annotated[Line, AfterValidator(_provider_type)]
    base_url: Line | None = None
    api_key_env: Line | None = None
    context_window: Count | None = None
    """Tokens that its models take; where it is not known, 128,000 is assumed."""


class Models(Wire):
    """Providers by the name that stands before the slash in `<provider>/<model>`."""

    providers: dict[str, Provider] = {}


class RosterEntry(AgentSpec):
    """One agent as the file declares it."""

    name: str = Field(validation_alias=AliasChoices("name", "id", "agent_id", "agentId"))
    label: Label | None = Field(None, validation_alias=AliasChoices("label", "display_name", "displayName"))

    @field_validator("name")
    @classmethod
    def _slug(cls, value: str) -> str:
        try:
            check_id(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
        if value == DEFAULT_ALIAS or value in RESERVED_WORDS:
            raise ValueError(f"{value!r} is a reserved word")
        return value


class Agents(Wire):
    """Who lives here, and who answers when nobody is named."""

    default: str = MAIN
    roster: list[RosterEntry] = []

    @field_validator("roster", mode="before")
    @classmethod
    def _nothing_is_empty(cls, value: Any) -> Any:
        return [] if value is None else value


class Peer(Wire):
    kind: Literal["dm", "direct", "group", "channel"]
    id: str


class Match(Wire):
    """Which inbound messages a binding is about."""

    channel: str
    account: str | None = None
    peer: Peer | None = None


class Binding(Wire):
    agent: str
    match: Match


class Account(Wire):
    """One account of a channel. Secrets are named, never written."""

    token_env: Line | None = None
    secret_env: Line | None = None
    api_base: Line | None = None
    owner: list[Annotated[str, Field(min_length=1, max_length=500)]] = []
    """Peers who are the owner themself: what they write in a direct chat has the owner's rights."""


class Channel(Wire):
    accounts: dict[str, Account] = {}


class Subagents(Wire):
    """How many children run at once; more of them wait as queued."""

    max_children: Count = 20
    """Of one session."""
    max_concurrent: Count = 8
    """In the whole household."""


class Delegation(Wire):
    """How far one message may be handed on between agents, and what it may lead to in all."""

    max_depth: Annotated[int, Field(ge=1, le=5)] = 1
    trace_ttl_s: Count = 86_400
    trace_turns: Count = 100
    trace_tokens: Count | None = None
    trace_cost: Amount | None = None
    """In US dollars."""


class Plugins(Wire):
    disabled: list[str] = []


class Database(Wire):
    url: str = "sqlite:///coterie.db"

    @field_validator("url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if not value.startswith(("sqlite:///", "postgresql://")):
            raise ValueError("write sqlite:///FILE or postgresql://…")
        return value


class Turns(Wire):
    """How many turns run at once."""

    concurrency: Count = 64


class PromptLimits(Wire):
    """How much of an agent's files goes into every request, in characters."""

    file_characters: Count = 20_000
    whole_characters: Count = 60_000


class Embeddings(Wire):
    """What turns memories into vectors; a change is applied to stored ones in the background."""

    type: Literal["static", "openai-compatible", "ollama", "fastembed", "none"] = "static"
    """static: word vectors that come with the package, with no download and no network. none: words alone."""
    model: Line | None = None
    base_url: Line | None = None
    api_key_env: Line | None = None


class Memory(Wire):
    """How memories are found."""

    embeddings: Embeddings = Embeddings()


class Gateway(Wire):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 18_790
    public_url: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")] | None = None
    """The address by which others reach the gateway, such as https://home.example.org; requests to its host are answered."""
    allowed_hosts: list[str] = []
    """Host names besides loopback under which clients may reach the gateway."""
    allowed_origins: list[str] = []
    """Web origins besides its own that may call it."""
    watchdog_s: Annotated[float, Field(ge=0, le=3_600)] = 60
    """An event loop that stands still for so long is reported; under `coterie service` the gateway is started again. 0: never."""
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """Connections at the same time, from everywhere."""
    max_connections_per_client: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """Connections at the same time from one address; behind a proxy all have the proxy's."""


_EVERY = re.compile(r"[1-9][0-9]{0,3}[mhd]|never")


class Backup(Wire):
    """Copies of the whole household that the gateway makes by itself while it runs."""

    every: Line = "24h"
    """As in `30m`, `24h` or `7d`; `never` turns them off."""
    keep: Count = 7
    """How many are kept; older ones are removed once a newer one was read back."""
    folder: Line = "backups"
    """In the home folder, or an absolute path."""

    @field_validator("every")
    @classmethod
    def _a_time(cls, value: str) -> str:
        if not _EVERY.fullmatch(value):
            raise ValueError("write a number and m, h or d, as in 24h, or never")
        return value

    @field_validator("folder")
    @classmethod
    def _a_folder_of_its_own(cls, value: str) -> str:
        first, *others = value.split("/")
        if ".." in (first, *others) or first in (".", "agents", "skills", "plugins", "memory", "run"):
            raise ValueError("must be a folder of its own: a name in the home folder, or an absolute path")
        return value

    @property
    def seconds(self) -> float | None:
        if self.every == "never":
            return None
        return float(self.every[:-1]) * {"m": 60, "h": 3_600, "d": 86_400}[self.every[-1]]


class Config(Wire):
    """agent.yaml."""

    version: Literal[1] = 1
    default_model: ModelName = "offline/demo"
    models: Models = Models()
    agents: Agents = Agents()
    bindings: list[Binding] = []
    channels: dict[str, Channel] = {}
    turns: Turns = Turns()
    prompt: PromptLimits = PromptLimits()
    memory: Memory = Memory()
    subagents: Subagents = Subagents()
    delegation: Delegation = Delegation()
    plugins: Plugins = Plugins()
    database: Database = Database()
    backup: Backup = Backup()
    gateway: Gateway = Gateway()

    @model_validator(mode="before")
    @classmethod
    def _accept_other_shapes(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        said = {k: v for k, v in data.items() if v is not None}
        default = said.get("default_model", said.get("defaultModel"))
        provider = default.partition("/")[0] if isinstance(default, str) else None
        agents = said.get("agents")
        if isinstance(agents, list):
            # The JSON configuration of other assistants has no default, and so no level between.
            said["agents"] = agents = {"roster": agents}
        if provider and isinstance(agents, Mapping) and isinstance(agents.get("roster"), list):
            said["agents"] = {**agents, "roster": [_of_default(e, provider) for e in agents["roster"]]}
        return said


def _of_default(entry: Any, provider: str) -> Any:
    """An entry that names a provider and no model: the default model is meant where it is that provider's."""
    if not isinstance(entry, Mapping):
        return entry
    for key in ("chat", "provider"):
        value = entry.get(key)
        told = value.get("provider") if isinstance(value, Mapping) and len(value) == 1 else value
        if told == provider and unmapped(key, entry):
            entry = {k: v for k, v in entry.items() if k != key}
    return entry


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    message: str
    key: str = ""
    """Dotted path, as in `agents.roster[0].model`."""
    line: int | None = None
    file: str = FILE

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file} line {self.line}"
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"

    def payload(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "key": self.key, "message": self.message}


class ConfigError(CoterieError):
    """A file that cannot be put in force. The last good one stays."""

    code = "INVALID_REQUEST"
    http_status = 400

    def __init__(self, problems: list[Problem]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}", details={"problems": [p.payload() for p in problems]})
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a file is checked against beyond its own text."""

    skills: Collection[str] = ()
    archived: Collection[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of archived agents, by id: they may come back and must not clash."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A text that was read and is well-formed; whether its names exist is another question."""

    tree: Tree
    config: Config

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Roster entries by name, in file order, as written (canonical keys, nothing defaulted)."""
        return {entry.name: written(entry) for entry in self.config.agents.roster}

    @property
    def roster(self) -> Roster:
        return Roster(self.entries, self.config.agents.default)


@dataclass(frozen=True, slots=True)
class Parsed:
    config: Config
    entries: dict[str, dict[str, Any]]
    """As `Loaded.entries`."""
    warnings: list[Problem]


def parse(text: str, surroundings: Surroundings | None = None) -> Parsed:
    """The configuration in a text. Raises ConfigError with the problems found."""
    return check(load(text), surroundings or Surroundings())


def load(text: str) -> Loaded:
    tree = _read(text)
    try:
        return Loaded(tree, Config.model_validate(tree.values))
    except ValidationError as error:
        raise ConfigError(_problems(error, tree)) from None


def check(loaded: Loaded, surroundings: Surroundings) -> Parsed:
    """Whether what is named exists."""
    problems, warnings = _check_names(loaded.config, loaded.tree, surroundings)
    if problems:
        raise ConfigError(problems)
    return Parsed(loaded.config, loaded.entries, warnings)


def values(text: str) -> dict[str, Any]:
    """What a text says, as plain values, before anything is checked."""
    return _read(text).values


def written(entry: RosterEntry) -> dict[str, Any]:
    """A roster entry without its name: label and spec as they were said."""
    data = entry.written()
    del data["name"]
    if data.get("label") in (None, entry.name):
        data.pop("label", None)
    return data


def _read(text: str) -> Tree:
    try:
        return read(readable(text))
    except Unreadable as error:
        raise ConfigError([Problem(error.message, line=error.line)]) from None


def _problems(error: ValidationError, tree: Tree) -> list[Problem]:
    found: dict[str, Problem] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        if len(found) >= MAX_TOLD:
            break
        steps = list(_real_steps(item["loc"], tree.values))
        key = _dotted(steps)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
            valid = _keys_at(Config, steps[:-1])
            near = difflib.get_close_matches(str(steps[-1])[:100], valid, n=1, cutoff=0.6)
            if steps[-1] in ("chat", "provider") and (
                why := unmapped(steps[-1], _at(tree.values, steps[:-1]))
            ):
                message = why
            elif to_snake(str(steps[-1])) in (*valid, *_OTHER_NAMES):
                message = "says the same as another key of this entry; keep one of them"
            elif near:
                message += f"; did you mean {near[0]!r}?"
        elif item["type"] == "missing":
            message = "is missing"
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = "must hold keys and values"
        found.setdefault(key, Problem(message, key, tree.line(steps)))
    return list(found.values())


def _at(values: Any, steps: list[int | str]) -> Any:
    for step in steps:
        values = values[step]
    return values


def _real_steps(loc: tuple[int | str, ...], values: Any) -> Iterator[int | str]:
    """A pydantic location without the tags of unions, spelled as in the file."""
    node = values
    for position, step in enumerate(loc):
        if isinstance(node, Mapping):
            names = [str(step), to_camel(str(step)), *_OTHER_SPELLINGS.get(str(step), ())]
            name = next((n for n in names if n in node), None)
            if name is None and position < len(loc) - 1:
                continue
            yield step if name is None else name
            node = node.get(name) if name is not None else None
        elif isinstance(node, list) and isinstance(step, int):
            yield step
            node = node[step] if step < len(node) else None
        elif (isinstance(node, list) and position == 1 and step == "roster") or node is None:
            continue
        else:
            return


_OTHER_SPELLINGS = {
    "skill_allowlist": ("skills",),
    "name": ("id", "agent_id", "agentId"),
    "label": ("display_name", "displayName"),
}
_OTHER_NAMES = [to_snake(name) for names in _OTHER_SPELLINGS.values() for name in names]


def _dotted(steps: list[int | str]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _keys_at(model: type[BaseModel], steps: list[int | str]) -> list[str]:
    """Valid keys at a path, found by walking the types."""
    current: Any = model
    if steps[:1] == ["agents"] and isinstance(steps[1:2] and steps[1], int):
        steps = ["agents", "roster", *steps[1:]]
    for step in steps:
        current = _unwrap(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            names = {to_camel(n): n for n in current.model_fields} | {n: n for n in current.model_fields}
            name = names.get(str(step))
            if name is None:
                return []
            current = current.model_fields[name].annotation
        else:
            args = typing.get_args(current)
            if not args:
                return []
            current = args[-1]
    current = _unwrap(current)
    if isinstance(current, type) and issubclass(current, BaseModel):
        return (
            [*current.model_fields, "skills"] if issubclass(current, AgentSpec) else [*current.model_fields]
        )
    return []


def _unwrap(annotation: Any) -> Any:
    """The interesting branch of Optional, Annotated and unions: the model or container in it."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _unwrap(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        branches = [_unwrap(a) for a in typing.get_args(annotation) if a is not type(None)]
        return next((b for b in branches if isinstance(b, type) and issubclass(b, BaseModel)), branches[0])
    return annotation


def _check_names(config: Config, tree: Tree, around: Surroundings) -> tuple[list[Problem], list[Problem]]:
    """Names that must exist, and rules that match nothing."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    roster = config.agents.roster
    known = {MAIN, *(entry.name for entry in roster), *around.archived}

    def at(into: list[Problem], message: str, *steps: int | str) -> None:
        if len(into) < MAX_TOLD:
            real = list(_real_steps(steps, tree.values))
            into.append(Problem(message, _dotted(real), tree.line(real)))

    def must_exist(name: str, *steps: int | str) -> None:
        if name not in known:
            # Looking for the nearest of thousands takes a while: the first few typing errors are enough.
            near = difflib.get_close_matches(name, known, n=1) if len(problems) < MAX_GUESSES else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            at(problems, f"no agent is named {name!r}{hint}", *steps)

    names: dict[str, int] = {}
    labels = {label_key(label): agent for agent, label in around.labels.items()}
    if all(entry.name != MAIN for entry in roster):
        labels[label_key(MAIN)] = MAIN
    for index, entry in enumerate(roster):
        here: tuple[int | str, ...] = ("agents", "roster", index)
        if entry.name in names:
            at(problems, f"the name {entry.name!r} is used twice", *here, "name")
            continue
        names[entry.name] = index
        label = entry.label or entry.name
        owner = labels.setdefault(label_key(label), entry.name)
        if owner != entry.name:
            at(problems, f"the label {label!r} belongs to {owner!r} already", *here, "label")
        if entry.extends is not None:
            must_exist(entry.extends, *here, "extends")
        for number, name in enumerate(entry.skill_allowlist or []):
            if not _is_glob(name) and name not in around.skills:
                at(problems, f"no skill is named {name!r} in skills/", *here, "skill_allowlist", number)
        for number, name in enumerate(entry.memory.group):
            must_exist(name, *here, "memory", "group", number)
        if entry.personality is not None:
            problem = _personality_problem(entry.personality, entry.name)
            if problem:
                at(problems, problem, *here, "personality")
    agents, skills = Names(known), Names(around.skills)
    for entry in roster:
        here = ("agents", "roster", names[entry.name])
        for key, pool in (
            ("agent_allowlist", agents),
            ("agent_denylist", agents),
            ("skill_allowlist", skills),
            ("skill_denylist", skills),
        ):
            for number, pattern in enumerate(getattr(entry, key) or []):
                if not pool.matched(pattern):
                    at(warnings, f"{pattern!r} matches nothing", *here, key, number)
    for agent, message in _bad_templates({entry.name: entry.extends for entry in roster}, names):
        at(problems, message, "agents", "roster", names[agent], "extends")
    if config.agents.default == DEFAULT_ALIAS:
        at(
            problems,
            "'default' stands for whichever agent is named here; name a real one",
            "agents",
            "default",
        )
    else:
        must_exist(config.agents.default, "agents", "default")
    for index, binding in enumerate(config.bindings):
        if binding.agent != DEFAULT_ALIAS:
            must_exist(binding.agent, "bindings", index, "agent")
    _check_channels(config, partial(at, warnings))
    for index, entry in enumerate(roster):
        for key in ("tool_exposure", "input_url", "secret_env"):
            if key in entry.model_fields_set:
                at(warnings, UNREAD, "agents", "roster", index, key)
    return problems, warnings


def _check_channels(config: Config, warn: Callable[..., None]) -> None:
    """Channels and accounts that nobody has, and what is said of them that has no effect."""

    def known(channel: str, *steps: int | str) -> None:
        near = difflib.get_close_matches(channel, CHANNELS, n=1)
        if near and channel not in CHANNELS:
            warn(f"no channel is named {channel!r}; did you mean {near[0]!r}?", *steps)
        elif channel not in CHANNELS:
            warn(f"no channel is named {channel!r}: only what clients send under that name is meant", *steps)

    for channel, section in config.channels.items():
        known(channel, "channels", channel)
        for name, account in section.accounts.items():
            for key in sorted(account.model_fields_set - {"owner"}):
                warn(UNREAD, "channels", channel, "accounts", name, key)
    if config.bindings:
        warn(f"{UNREAD}: every message goes to the agent that it names, else to the default one", "bindings")
    for index, binding in enumerate(config.bindings):
        place = ("bindings", index, "match")
        match, configured = binding.match, config.channels.get(binding.match.channel)
        if configured is None:
            known(match.channel, *place, "channel")
        if match.account is not None and match.account not in (configured.accounts if configured else ()):
            warn(f"{match.channel} has no account {match.account!r}", *place, "account")


def _bad_templates(parents: Mapping[str, str | None], place: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Agents whose `extends` goes round in a circle, each circle once, or too deep. Looks at each agent once."""
    depth: dict[str, int] = {}
    for agent in parents:
        path: dict[str, None] = {}
        current: str | None = agent
        while current is not None and current not in depth and current not in path:
            path[current] = None
            current = parents.get(current)
        if current in path:
            chain = list(path)
            circle = chain[chain.index(current) :]
            yield (
                min(circle, key=place.__getitem__),
                f"extends goes round in a circle: {' → '.join([*circle, current])}",
            )
        below = 0 if current is None or current in path else depth[current]
        for name in reversed(path):
            below = depth[name] = below + 1
            if below == MAX_TEMPLATES + 1:
                yield name, f"extends goes more than {MAX_TEMPLATES} templates deep"


def _personality_problem(path: str, agent: str) -> str | None:
    parts = path.split("/")
    if not path.endswith(".md") or path.startswith("/") or "\\" in path or {"", ".", ".."} & set(parts):
        return "must be the path of a .md file inside the home folder"
    if parts[0] == "agents" and (len(parts) < 3 or parts[1] != agent):
        return "must not lie in another agent's folder"
    return None


def _is_glob(pattern: str) -> bool:
    return any(c in pattern for c in "*?[")
