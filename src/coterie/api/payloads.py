"""What the methods take and give. RPC writes these in snake_case, HTTP in camelCase."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializationInfo, field_serializer, model_validator

from coterie.core.agent import AgentSpec
from coterie.core.wire import Wire

AgentId = Annotated[
    str, Field(max_length=200, description="An agent's id; `default` is whoever is the default now.")
]
ShortText = Annotated[str, Field(max_length=2000)]
SpecPatch = dict[str, Any]


class Params(Wire):
    """Parameters of a method."""


class Change(Params):
    """Parameters of a method that changes something."""

    idempotency_key: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="A repeat with the same key returns the first answer."
    )


class Nothing(Params):
    pass


class AgentsList(Params):
    include_archived: bool = False


class AgentRef(Params):
    agent_id: AgentId


class AgentChange(Change):
    agent_id: AgentId


class IdentityPatch(Wire):
    """The name is the agent's label; the rest stands in IDENTITY.md."""

    name: ShortText | None = None
    emoji: ShortText | None = None
    creature: ShortText | None = None
    vibe: ShortText | None = None


class AgentCreateBody(Wire):
    id: str = Field(max_length=200, description="1 to 50 characters of a-z, 0-9 and '-'.")
    label: ShortText | None = None
    emoji: ShortText | None = None
    soul: str | None = Field(None, description="Text for the agent's SOUL.md.")
    spec: SpecPatch | None = Field(None, description="Keys of the roster entry, in either spelling.")


class AgentCreate(AgentCreateBody, Change):
    pass


class AgentPatch(Wire):
    label: ShortText | None = None
    identity: IdentityPatch | None = None
    soul: str | None = None
    spec: SpecPatch | None = Field(None, description="Keys to change; null takes a key back.")


class AgentUpdate(AgentPatch, AgentChange):
    pass


class FileRef(Params):
    agent_id: AgentId
    name: str


class FileBody(Wire):
    content: str
    expected_hash: ShortText | None = Field(
        None, description="Write only if the file still has this hash; empty: only if there is none yet."
    )


class FileWrite(FileBody, AgentChange):
    name: str


class SessionRef(Params):
    session: ShortText | None = Field(None, description="Id or key; without it the default agent is meant.")


class IdentityUpdate(IdentityPatch, Change):
    session: ShortText | None = None


class SoulUpdate(Change):
    session: ShortText | None = None
    soul: str


class ApplyParams(Change):
    yes: bool = Field(False, description="Also apply what is held for a person's word.")


class TokenCreate(Change):
    scope: Literal["read", "write", "admin"]
    label: Annotated[str, Field(max_length=100)] | None = None


class TokenRef(Change):
    id: ShortText


# Answers


class Answer(Wire):
    """What a method gives back."""


class AgentSummary(Answer):
    id: str
    label: str
    is_default: bool
    emoji: str | None
    description: str | None
    state: Literal["active", "archived", "discovered"]
    type: Literal["chat", "external"]
    model: str | None = Field(description="As configured for this agent; null: the global default.")
    skills: list[str] = Field(description="Skills of the pool that its lists let through.")
    ui_visible: bool


class AgentList(Answer):
    default_id: str
    agents: list[AgentSummary]


class Identity(Answer):
    name: str
    emoji: str | None = None
    creature: str | None = None
    vibe: str | None = None


class IdentityWithSoul(Identity):
    soul: str


class FileEntry(Answer):
    name: str
    state: Literal["own", "inherited", "missing"]
    size: int


class AgentInfo(Answer):
    id: str
    label: str
    is_default: bool
    state: Literal["active", "archived", "discovered"]
    identity: Identity
    soul: str
    spec: AgentSpec
    files: list[FileEntry]
    created_at: str | None = None
    updated_at: str | None = None

    @field_serializer("spec")
    def _only_what_was_said(self, spec: AgentSpec, info: SerializationInfo) -> dict[str, Any]:
        data = spec.model_dump(mode="json", exclude_unset=True, by_alias=bool(info.by_alias))
        model = data.get("model")
        if isinstance(model, dict) and not model.get("fallbacks"):
            data["model"] = model["primary"]
        return data


class DefaultAgent(Answer):
    default_id: str


class Deleted(Answer):
    deleted: bool
    default_id: str


class FileList(Answer):
    agent_id: str
    files: list[FileEntry]


class File(Answer):
    agent_id: str
    name: str
    state: Literal["own", "inherited", "missing"]
    content: str
    size: int
    hash: str | None


class SyncReport(Answer):
    problems: list[str] = Field(description="Why agent.yaml is not in force; empty: it is.")
    warnings: list[str]
    held: list[str] = Field(description="Changes in agent.yaml that wait for a person's word.")
    changes: list[str] = []


class Status(Answer):
    version: str
    home: str
    pid: int
    started_at: str
    default_id: str
    agents: int
    config: SyncReport


class NewToken(Answer):
    token: str
    scope: Literal["read", "write", "admin"]
    id: str


class TokenInfo(Answer):
    id: str
    scope: Literal["read", "write", "admin"]
    label: str | None
    created_at: str
    revoked_at: str | None


class TokenList(Answer):
    tokens: list[TokenInfo]


class Revoked(Answer):
    revoked: bool
    id: str


class ErrorBody(Answer):
    code: Literal[
        "INVALID_REQUEST",
        "UNKNOWN_METHOD",
        "UNAUTHORIZED",
        "FORBIDDEN",
        "NOT_FOUND",
        "CONFLICT",
        "UNAVAILABLE",
        "INTERNAL",
    ]
    message: str
    details: dict[str, Any] | None = None
    retryable: bool | None = None


class Error(Answer):
    error: ErrorBody


class Health(Answer):
    status: Literal["ok"] = "ok"


class Ready(Answer):
    status: Literal["ready"] = "ready"


class Connect(Params):
    """The first request on a socket."""

    class Auth(Wire):
        token: str = Field(max_length=4000)

    auth: Auth
    client: dict[str, Any] | None = None
    scopes: list[Literal["read", "write", "admin"]] | None = Field(
        None, description="Ask for no more than these; the highest one counts."
    )

    @model_validator(mode="after")
    def _some_scope(self) -> Connect:
        if self.scopes == []:
            raise ValueError("scopes must name at least one scope")
        return self
