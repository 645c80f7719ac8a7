"""What the methods take and give. RPC writes these in snake_case, HTTP in camelCase."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializationInfo, field_serializer, model_validator

from coterie.core.agent import AgentSpec, Text
from coterie.core.wire import Wire

MAX_DEPTH = 20


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be one line without control characters")
    return value


def _shallow(value: dict[str, Any]) -> dict[str, Any]:
    """Nothing that makes sense is nested deeply, and what is deep enough cannot be written down again."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for item in level
            if isinstance(item, dict | list)
            for below in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise ValueError(f"must be nested at most {MAX_DEPTH} deep")
    return value


AgentId = Annotated[
    Text, Field(max_length=200, description="An agent's id; `default` is whoever is the default now.")
]
ShortText = Annotated[Text, Field(max_length=2000)]
SpecPatch = Annotated[dict[str, Any], AfterValidator(_shallow)]


class Params(Wire):
    """Parameters of a method."""


class Change(Params):
    """Parameters of a method that changes something."""

    idempotency_key: Annotated[Text, Field(min_length=1, max_length=200)] | None = Field(
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
    id: Text = Field(max_length=200, description="1 to 50 characters of a-z, 0-9 and '-'.")
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
    label: Annotated[str, Field(max_length=100), AfterValidator(_one_line)] | None = None


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


class Effective(Answer):
    """What a turn of an agent would have."""

    model: str
    tools: list[str]
    skills: list[str]
    agents: list[str]


class AgentMemories(Answer):
    """An agent's memories by scope, and what it can read of others'."""

    shared: int = Field(description="Its own with scope global.")
    private: int
    archived: int
    pinned: int
    files: int = Field(description="Sections of its files, among the private ones.")
    of_others: int = Field(description="Global ones of other agents that its policy lets it read.")


class AgentInfo(Answer):
    id: str
    label: str
    is_default: bool
    state: Literal["active", "archived", "discovered"]
    identity: Identity
    soul: str
    spec: AgentSpec
    files: list[FileEntry]
    effective: Effective | None = Field(None, description="Of active agents.")
    memories: AgentMemories | None = Field(None, description="How much it remembers.")
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
    reassigned_sessions: int = Field(description="Sessions that fall back to the default agent now.")
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


# Sessions and chat

SessionName = Annotated[str, Field(max_length=1000, description="A session's id or its key.")]


class SessionParam(Params):
    session: SessionName


class SessionChange(Change):
    session: SessionName


class SessionsList(Params):
    agent_id: AgentId | None = None
    kinds: list[Literal["main", "dm", "group", "subagent", "cron", "web", "api"]] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    before: ShortText | None = Field(None, description="The `next_cursor` of the page before.")


class SessionCreateBody(Wire):
    agent_id: AgentId | None = None
    from_session: SessionName | None = Field(
        None, description="The session being viewed: its agent is taken over."
    )
    name: Annotated[str, Field(max_length=1000)] | None = None


class SessionCreate(SessionCreateBody, Change):
    pass


class SessionForkBody(Wire):
    at_seq: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="Copy up to and including this message."
    )
    name: Annotated[str, Field(max_length=1000)] | None = None


class SessionFork(SessionForkBody, SessionChange):
    pass


class SessionRename(SessionChange):
    name: Annotated[str, Field(max_length=1000)]


class SessionPin(SessionChange):
    pinned: bool = True


class SessionPatchBody(Wire):
    name: Annotated[str, Field(max_length=1000)] | None = None
    pinned: bool | None = None
    attributes: dict[str, Any] | None = Field(None, description="Merged; a null value removes a key.")
    model: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="<provider>/<model>; empty: the agent's own."
    )
    agent_id: AgentId | None = Field(None, description="Hand the conversation over to this agent.")


class SessionPatch(SessionPatchBody, SessionChange):
    pass


class SessionSetAgent(SessionChange):
    agent_id: AgentId


class SessionsSearch(Params):
    query: Annotated[str, Field(max_length=1000)]
    agent_id: AgentId | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 20


class SessionExport(SessionParam):
    format: Literal["markdown", "jsonl"] = "markdown"


class HistoryParams(SessionParam):
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    before: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    after: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    with_data: bool = Field(False, description="With the bytes of images, as base64.")


class Attachment(Wire):
    """A picture that comes with a message: PNG, JPEG, GIF or WebP, recognised by what is in it."""

    data: str = Field(description="The file as base64.")
    media_type: ShortText | None = None
    name: ShortText | None = None


class ChatSendBody(Wire):
    message: str = Field(
        description="What is said. At most a million characters; may be empty beside an image."
    )
    attachments: list[Attachment] | None = None


class ChatSend(ChatSendBody, SessionChange):
    pass


class RunRef(Change):
    run_id: ShortText


class AbortParams(Change):
    run_id: ShortText | None = None
    session: SessionName | None = Field(None, description="Stops whatever runs there.")


class ToolsParams(Params):
    agent_id: AgentId | None = None
    session: SessionName | None = None


class SessionInfo(Answer):
    id: str
    key: str
    agent_id: str
    name: str | None
    kind: Literal["main", "dm", "group", "subagent", "cron", "web", "api"]
    pinned_at: str | None
    model: str | None
    parent_id: str | None
    created_at: str
    updated_at: str
    last_snippet: str | None
    attributes: dict[str, Any]
    deliver: bool
    route: dict[str, Any] | None
    running: bool


class SessionList(Answer):
    sessions: list[SessionInfo]
    next_cursor: str | None = None


class ToolCallInfo(Answer):
    id: str
    name: str
    arguments: str


class PartInfo(Answer):
    """An image of a message."""

    type: Literal["image"]
    media_type: str
    size: int = Field(description="In bytes.")
    name: str | None = None
    data: str | None = Field(None, description="Base64; only where it was asked for.")


class MessageInfo(Answer):
    id: str
    seq: int | None
    role: Literal["user", "assistant", "tool", "system"]
    origin: Literal["user", "agent", "schedule", "system", "external"]
    text: str
    parts: list[PartInfo] | None = None
    tool_calls: list[ToolCallInfo] | None = None
    call_id: str | None = None
    tool_name: str | None = None
    meta: dict[str, Any] | None = None
    agent_id: str
    run_id: str | None = None
    created_at: str


class LiveInfo(Answer):
    """A turn so far."""

    run_id: str
    state: str
    attempt: int
    seq: int
    text: str
    thinking: str
    tools: list[dict[str, Any]]


class HistoryPage(Answer):
    session: SessionInfo
    messages: list[MessageInfo]
    next_cursor: int | None = None
    running: LiveInfo | None = None


class SearchHit(Answer):
    session: SessionInfo
    message: MessageInfo


class SearchHits(Answer):
    hits: list[SearchHit]


class Exported(Answer):
    format: Literal["markdown", "jsonl"]
    content: str


class SessionDeleted(Answer):
    deleted: bool
    id: str


class Sent(Answer):
    message_id: str
    run_id: str
    status: Literal["started", "steering", "queued"]


class Stopped(Answer):
    state: Literal["aborted", "cancelled", "ended", "idle"]
    run_id: str | None


class QueueEntry(Answer):
    run_id: str
    state: Literal["queued", "running", "waiting", "interrupted"]
    text: str | None


class Queue(Answer):
    mode: Literal["steer-backlog"] = "steer-backlog"
    session: str
    entries: list[QueueEntry]


class ToolInfo(Answer):
    name: str
    description: str
    plugin: str
    capabilities: list[str]
    safe_to_repeat: bool


class ToolList(Answer):
    tools: list[ToolInfo]


class ToolDecision(Answer):
    name: str
    allowed: bool
    reason: str


class EffectiveTools(Answer):
    agent_id: str
    tools: list[ToolDecision]


# Prompts, models, usage


class PromptPreview(Params):
    agent_id: AgentId | None = None
    session: SessionName | None = None
    message: str | None = Field(None, description="As if this was said next.", max_length=1_000_000)


class PromptSection(Answer):
    name: str
    bytes: int
    cut: int = Field(description="Characters that did not fit.")


class PromptView(Answer):
    agent_id: str
    model: str
    sections: list[PromptSection]
    system: str
    tools: list[dict[str, Any]]
    context: str
    body: str | None = Field(
        description="The request's body exactly as the provider would get it; null for a model that has no wire."
    )
    total_bytes: int = Field(description="Of the whole request.")


class ModelsList(Params):
    all: bool = Field(False, description="Also the models of providers that have no key yet.")


class ModelInfo(Answer):
    name: str = Field(description="<provider>/<model>.")
    provider: str
    available: bool = Field(description="Its provider is known, and has a key or needs none.")
    named: bool = Field(description="It is the default, or an agent's.")


class ProviderInfo(Answer):
    name: str
    type: str
    base_url: str | None
    key_names: list[str] = Field(description="Environment variables that its key may stand in.")
    has_key: bool = Field(description="True as well where none is needed.")


class ModelList(Answer):
    default: str
    models: list[ModelInfo]
    providers: list[ProviderInfo]


class ModelTest(Change):
    name: ShortText | None = Field(None, description="<provider>/<model>; else the default agent's.")


class ModelTested(Answer):
    name: str
    ok: bool
    latency_ms: int | None
    kind: str | None = Field(description="auth, unknown_model, network, rate_limit, rejected, …")
    message: str | None


class UsageParams(Params):
    by: list[Literal["agent", "session", "model", "day"]] = ["day", "agent", "model"]
    since: ShortText | None = None
    until: ShortText | None = None
    agent_id: AgentId | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000


class UsageEntry(Answer):
    agent: str | None = None
    session: str | None = None
    model: str | None = None
    day: str | None = None
    turns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None


class UsageSummary(Answer):
    rows: list[UsageEntry]
    total: UsageEntry


# Subagents

RunId = Annotated[Text, Field(min_length=1, max_length=200)]


class SubagentSpawnBody(Wire):
    task: str = Field(description="All that the child has to know. At most a million characters.")
    agent_id: AgentId | None = Field(
        None, description="Who does it; else the requester's agent, else the default."
    )
    label: Annotated[Text, Field(max_length=1000)] | None = None
    requester_session_key: SessionName | None = Field(
        None, description="The session that is told of the result; without it, the result stays in the run."
    )
    model: Annotated[Text, Field(max_length=200)] | None = Field(None, description="<provider>/<model>")
    tool_allowlist: Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=200)] | None = (
        Field(None, description="Globs that narrow what the child's agent may call.")
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = Field(
        None, description="Seconds from its start after which it is stopped."
    )


class SubagentSpawn(SubagentSpawnBody, Change):
    pass


class SubagentsList(Params):
    requester_session_key: SessionName | None = None
    status: Literal["queued", "running", "completed", "error"] | None = None
    before: ShortText | None = Field(None, description="Only runs created before this moment.")
    limit: Annotated[int, Field(ge=1, le=1000)] = 200


class SubagentRef(Params):
    run_id: RunId


class SubagentChange(Change):
    run_id: RunId


class AnnouncementInfo(Answer):
    """How a result got back to whoever asked."""

    state: Literal["pending", "blocked", "delivered"]
    reason: str | None = Field(None, description="Why it is blocked.")
    created_at: str
    delivered_at: str | None = None


class RunUsage(Answer):
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None


class SubagentRunInfo(Answer):
    run_id: str
    kind: Literal["subagent", "message"] = Field(
        description="A task in a child session, or a message to a session of the agent's own."
    )
    child_session_key: str
    requester_session_key: str | None = None
    requester_channel: str | None = None
    requester_chat_id: str | None = None
    requester_peer_id: str | None = None
    label: str | None = None
    task: str
    agent_id: str
    model: str
    status: Literal["queued", "running", "completed", "error"]
    trace_id: str
    hop: int
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    result: str | None = None
    error: str | None = None
    usage: RunUsage | None = None
    announcement: AnnouncementInfo | None = None


class SubagentReceipt(SubagentRunInfo):
    """A run, and what it got of its agent."""

    workspace: str
    tools: list[str]


class SubagentRunList(Answer):
    runs: list[SubagentRunInfo]
    next_cursor: str | None = None


# Memory

MemoryText = Annotated[Text, Field(max_length=100_000)]
MemoryId = Annotated[Text, Field(min_length=1, max_length=200)]
ReaderAgent = Annotated[
    Text,
    Field(max_length=200, description="As whom; without it, nobody in particular, who sees what is global."),
]
Tags = Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=50)]
Moment = Annotated[Text, Field(max_length=64, description="ISO 8601; without a zone it is taken for UTC.")]
StoreScope = Annotated[Text, Field(max_length=20, description="global, which is the default, or private.")]


class MemoryNew(Wire):
    content: MemoryText
    agent_id: AgentId | None = Field(None, description="Whose it is; the default agent's if nobody is named.")
    scope: StoreScope | None = None
    tags: Tags | None = None
    occurred_at: Moment | None = Field(None, description="When it happened, if not now.")
    thread: ShortText | None = Field(
        None, description="Memories of one thread are neighbours in order of arrival."
    )
    source_ref: ShortText | None = Field(None, description="Opaque; comes back with every hit.")


class MemoryRememberBody(MemoryNew):
    supersedes: MemoryId | None = Field(None, description="An older memory that this one takes the place of.")


class MemoryRemember(MemoryRememberBody, Change):
    pass


class MemoryNarrow(Wire):
    agent_id: ReaderAgent | None = None
    scope: Literal["global", "private"] | None = None
    tags: Tags | None = Field(None, description="Any of them.")
    since: Moment | None = None
    until: Moment | None = None


class MemoryRecall(MemoryNarrow, Params):
    query: Annotated[Text, Field(max_length=200_000)]
    limit: Annotated[int, Field(ge=1, le=200)] = 10
    mode: Literal["hybrid", "text", "vector"] = Field(
        "hybrid", description="Words and meaning together, or one of them alone."
    )


class MemoryList(MemoryNarrow, Params):
    owner: AgentId | None = Field(None, description="Only this agent's, of those that can be seen.")
    superseded: bool = Field(False, description="Also those that a newer one took the place of.")
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    after: ShortText | None = Field(None, description="The cursor of the page before.")


class MemoryListQuery(MemoryList):
    """The same in an address, where a list is words with commas between."""

    tags: ShortText | None = Field(None, description="Any of these, with commas between.")  # type: ignore[assignment]


class MemoryRef(Params):
    id: MemoryId
    agent_id: ReaderAgent | None = None


class MemoryPatch(Wire):
    agent_id: ReaderAgent | None = None
    content: MemoryText | None = None
    scope: StoreScope | None = None
    tags: Tags | None = None
    occurred_at: Moment | None = None
    pinned: bool | None = None


class MemoryUpdate(MemoryPatch, Change):
    id: MemoryId


class MemoryForget(Change):
    id: MemoryId
    agent_id: ReaderAgent | None = None


class MemoryReader(Params):
    agent_id: ReaderAgent | None = None


class MemoryExport(Params):
    agent_id: ReaderAgent | None = None
    format: Literal["jsonl", "markdown"] = "jsonl"


class MemoryExportAll(Params):
    format: Literal["jsonl", "markdown"] = "jsonl"


class MemoryImport(Change):
    content: str = Field(description="What an export wrote, or JSON lines of what `memory.remember` takes.")
    format: Literal["jsonl", "markdown"] = "jsonl"
    agent_id: AgentId | None = Field(None, description="Whose entries are that name nobody.")


class MemoryReindex(Change):
    restart: bool = Field(False, description="Begin with the first memory; else go on with what is pending.")


class ConversationsRecall(Params):
    agent_id: AgentId
    query: Annotated[Text, Field(max_length=200_000)]
    limit: Annotated[int, Field(ge=1, le=50)] = 5


class MemoryInfo(Answer):
    id: str
    content: str
    agent_id: str = Field(description="Its owner.")
    scope: Literal["global", "private"]
    tags: list[str]
    thread: str | None = None
    source_ref: str | None = None
    file: str | None = Field(None, description="The agent's file that this is a section of.")
    occurred_at: str | None = None
    created_at: str
    updated_at: str
    pinned_at: str | None = None
    superseded_by: str | None = None


class MemoryHit(MemoryInfo):
    score: float
    via: list[Literal["text", "vector", "near", "time"]]


class MemoryHits(Answer):
    memories: list[MemoryHit]


class MemoryPage(Answer):
    memories: list[MemoryInfo]
    next_cursor: str | None = None


class MemoryForgotten(Answer):
    forgotten: bool
    id: str


class MemoryCount(Answer):
    agent_id: str
    shared: int = Field(description="With scope global.")
    private: int
    archived: int
    pinned: int
    files: int = Field(description="Sections of the agent's files, among the private ones.")


class MemoryVectors(Answer):
    model: str | None = Field(description="Null: search goes by words alone.")
    pending: int = Field(description="Memories that wait for a vector of this model.")
    total: int
    problem: str | None = None


class MemoryStats(Answer):
    agents: list[MemoryCount]
    total: int
    vectors: MemoryVectors


class MemoryExported(Answer):
    format: Literal["jsonl", "markdown"]
    count: int
    content: str


class MemoryImported(Answer):
    added: int
    present: int = Field(description="Left alone, because a memory with that id was there already.")


class ConversationMessage(Answer):
    seq: int
    role: Literal["user", "assistant"]
    text: str
    created_at: str
    hit: bool


class ConversationHit(Answer):
    session_id: str
    session_key: str
    session_name: str | None
    score: float
    messages: list[ConversationMessage]


class ConversationHits(Answer):
    conversations: list[ConversationHit]
