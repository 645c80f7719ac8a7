"""What an agent is: its id, its specification, and what it takes over from a template."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    model_validator,
)

from coterie.core.errors import Conflict, InvalidRequest
from coterie.core.wire import Wire

MAIN = "main"
DEFAULT_ALIAS = "default"
ID_RULE = "an id is 1 to 50 characters of a-z, 0-9 and '-', and starts with a letter or a digit"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")

# First path segments that the HTTP API uses below /api/agents.
RESERVED_WORDS = frozenset({"subagents", "apply"})


AgentType = Literal["chat", "external"]


class AgentState(StrEnum):
    ACTIVE = "active"
    ARCHIVED = "archived"
    PURGING = "purging"  # being deleted for good; finished at the next start if that was cut short
    DISCOVERED = "discovered"  # a folder that no roster names: listed, never run, never stored


def check_id(value: str) -> str:
    """The id itself, or an error that states the rule."""
    if not _ID.fullmatch(value):
        raise InvalidRequest(f"{value!r} is not an agent id: {ID_RULE}", details={"field": "id"})
    return value


def check_new_id(value: str) -> str:
    """As check_id, and not one of the words that can never name a new agent."""
    check_id(value)
    if value == MAIN:
        raise Conflict("'main' always exists and cannot be created", details={"field": "id"})
    if value == DEFAULT_ALIAS:
        raise InvalidRequest(
            "'default' is another name for the default agent and cannot be created", details={"field": "id"}
        )
    if value in RESERVED_WORDS:
        raise InvalidRequest(f"{value!r} is a reserved word of the API", details={"field": "id"})
    return value


def check_label(value: str) -> str:
    """A label is one line that people read; it also stands inside `[@agent:<label>#<id>]`."""
    if not value.strip():
        raise ValueError("a label must not be empty")
    if value != value.strip():
        raise ValueError("a label must not begin or end with a space")
    if len(value) > 100:
        raise ValueError("a label has at most 100 characters")
    # Zero-width joiners hold emoji together and are harmless; other format characters hide text.
    bad = next(
        (
            c
            for c in value
            if c in "[]#" or (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\u200d")
        ),
        None,
    )
    if bad is not None:
        raise ValueError(f"a label must not contain {bad!r}")
    return value


def label_key(label: str) -> str:
    """Two labels with the same key look the same to a person."""
    return unicodedata.normalize("NFKC", label).casefold()


def check_pattern(value: str) -> str:
    """A glob over names: `*`, `?` and `[...]`."""
    if not value or value != value.strip():
        raise ValueError("a pattern must not be empty or padded with spaces")
    if any(unicodedata.category(c) == "Cc" for c in value):
        raise ValueError("a pattern must not contain control characters")
    at = value.find("[")
    while at != -1:
        # The first character of a set may be ']' itself.
        first = at + 2 if value.startswith("!", at + 1) else at + 1
        end = value.find("]", first + 1)
        if end == -1:
            raise ValueError(f"the pattern {value!r} has a '[' without its ']'")
        at = value.find("[", end)
    return value


def _plain_text(value: str) -> str:
    if "\x00" in value:
        raise ValueError("text must not contain NUL characters")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("text must be valid Unicode") from None
    return value


def check_model(value: str) -> str:
    """`<provider>/<model>`: the one rule for a model's name."""
    provider, slash, model = value.partition("/")
    if not slash or not provider or not model or value != value.strip() or not value.isprintable():
        raise ValueError(f"{value!r} is not a model; write <provider>/<model>, as in openai/gpt-5.2")
    return value


Text = Annotated[str, AfterValidator(_plain_text)]
Line = Annotated[str, Field(max_length=1000), AfterValidator(_plain_text)]
Label = Annotated[str, AfterValidator(check_label)]
Pattern = Annotated[str, AfterValidator(check_pattern)]
ModelName = Annotated[str, AfterValidator(check_model)]
Count = Annotated[int, Field(gt=0, le=2**53 - 1)]
"""No larger than every JSON reader understands."""
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Patterns = list[Pattern] | None
"""Missing or null: no restriction. Empty: nothing. Otherwise globs."""


class ModelChoice(Wire):
    """Which model an agent uses, and what is tried after it when the provider fails."""

    primary: ModelName
    fallbacks: list[ModelName] = []


class MemoryPolicy(Wire):
    """What an agent may read of the shared memory, and what a turn recalls of it."""

    read_policy: Literal["shared", "isolated", "group"] = "shared"
    group: list[str] = []
    recall: bool = True
    recall_tokens: Count = 800
    tags: list[str] | None = None


class Outside(Wire):
    """What people outside get of an agent: those who write on channels, and of its memory API users, too."""

    memory: Literal["none", "shared"] = "none"
    """Whether what is the owner's reaches them: memories, MEMORY.md and USER.md."""
    tool_allowlist: list[Pattern] = ["memory_remember", "memory_recall", "system_time", "results_read"]
    """Of the agent's own tools, those that guests and groups get. API users get what the agent has."""


class SubagentPolicy(Wire):
    """Bounds on the children that an agent may start."""

    max_children: Count | None = None
    max_concurrent: Count | None = None


class Limits(Wire):
    """Ceilings on what an agent may use."""

    concurrency: Count | None = None
    rounds_per_turn: Count | None = None
    tokens_per_turn: Count | None = None
    cost_per_turn: Amount | None = None
    tokens_per_day: Count | None = None
    cost_per_day: Amount | None = None


def unmapped(key: str, entry: Mapping[str, Any]) -> str | None:
    """Why `chat` or `provider`, as other assistants write them, cannot be said with `model`."""
    value = entry.get(key)
    if value is None:
        return None
    if key == "chat" and not isinstance(value, Mapping):
        return "must hold provider and model"
    if key == "chat" and (unknown := next((k for k in value if k not in ("provider", "model")), None)):
        return f"{unknown}: unknown key; of chat, provider and model are read"
    chat = value if key == "chat" else entry.get("chat")
    told = value.get("provider") if key == "chat" else value
    if told is not None and not (isinstance(told, str) and told):
        return "the provider must be a name"
    if (
        told is not None
        and entry.get("model") is None
        and not (isinstance(chat, Mapping) and chat.get("model"))
    ):
        return f"names no model; write model: {told}/<model>, or a default_model of {told}"
    return None


def _model_choice(value: Any) -> Any:
    return {"primary": value} if isinstance(value, str) else value


class AgentSpec(Wire):
    """Everything that makes one agent differ from another, as its roster entry says it."""

    description: Line | None = None
    type: AgentType = "chat"
    model: Annotated[ModelChoice | None, BeforeValidator(_model_choice)] = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    thinking: bool | Literal["low", "medium", "high"] | None = None
    max_tokens: Count | None = None
    system_prompt: Text | None = None
    personality: Line | None = None
    """Path of the file that serves as SOUL.md, relative to the home folder."""
    skill_allowlist: Patterns = Field(
        None, validation_alias=AliasChoices("skill_allowlist", "skillAllowlist", "skills")
    )
    skill_denylist: Patterns = None
    tool_allowlist: Patterns = None
    tool_denylist: Patterns = None
    capability_allowlist: Patterns = None
    capability_denylist: Patterns = None
    tool_asklist: Patterns = None
    """Calls that a person must allow first. Missing: none."""
    capability_asklist: Patterns = None
    agent_allowlist: Patterns = None
    agent_denylist: Patterns = None
    tool_exposure: Literal["tools", "skills", "mixed"] = "tools"
    memory: MemoryPolicy = MemoryPolicy()
    outside: Outside = Outside()
    subagents: SubagentPolicy = SubagentPolicy()
    limits: Limits = Limits()
    ui_visible: bool = True
    extends: str | None = None
    input_url: Line | None = None
    secret_env: Line | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_other_spellings(cls, data: Any) -> Any:
        """The JSON configuration of other assistants: `provider` beside `model`, `chat`, `apiExposed`."""
        if not isinstance(data, Mapping):
            return data
        entry = dict(data)
        entry.pop("apiExposed", None)
        entry.pop("api_exposed", None)
        if not any(unmapped(key, data) for key in ("chat", "provider")):
            chat = entry.pop("chat", None) or {}
            provider = entry.pop("provider", None) or chat.get("provider")
            model = entry.get("model", chat.get("model"))
            if model is not None:
                named = isinstance(model, str) and provider is not None and "/" not in model
                entry["model"] = f"{provider}/{model}" if named else model
        return entry

    @model_validator(mode="after")
    def _external_needs_an_address(self) -> AgentSpec:
        if self.type == "external" and self.input_url is None and self.extends is None:
            raise ValueError("an external agent needs input_url")
        return self

    def written(self) -> dict[str, Any]:
        """What was said, and nothing that was merely defaulted. The form in which a spec is stored."""
        data = self.model_dump(mode="json", exclude_unset=True)
        choice = data.get("model")
        if isinstance(choice, dict) and not choice.get("fallbacks"):
            data["model"] = choice["primary"]
        return data


@dataclass(frozen=True, slots=True)
class Agent:
    """One row of the registry."""

    id: str
    label: str
    is_default: bool
    state: AgentState
    spec: Mapping[str, Any]
    """As written: see AgentSpec.written."""
    created_at: str
    updated_at: str

    @property
    def visible(self) -> bool:
        """Whether people and other agents are shown it. Never a template's word: see `inherit`."""
        return self.spec.get("ui_visible") is not False

    @property
    def entry(self) -> dict[str, Any]:
        """The agent as its roster entry holds it."""
        label = {} if self.label == self.id else {"label": self.label}
        return {"name": self.id, **label, **self.spec}


def inherit(written: list[Mapping[str, Any]]) -> AgentSpec:
    """One spec from an agent's own (first) and its templates'. Lists replace, scalars override."""
    merged: dict[str, Any] = {}
    for layer in reversed(written):
        for key, value in layer.items():
            if isinstance(value, dict) and isinstance(merged.get(key), dict):
                merged[key] = {**merged[key], **value}
            else:
                merged[key] = value
    own = written[0]
    # Which template it extends, and whether it is shown, is each agent's own: a template is hidden because it is one.
    for key in ("extends", "ui_visible"):
        merged.pop(key, None)
        if own.get(key) is not None:
            merged[key] = own[key]
    return AgentSpec.model_validate(merged)
