"""Agents and their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializationInfo, field_serializer

from coterie.api.operation import Delete, Get, Patch, Post, Put, operation
from coterie.api.operations.memory import MemoryCounts
from coterie.api.shapes import AgentId, Answer, Change, Flag, Params, Shape, ShortText
from coterie.core.agent import Agent, AgentSpec, AgentState, AgentType, Text
from coterie.core.errors import InvalidRequest
from coterie.core.memory import Count
from coterie.engine.gateway import Gateway
from coterie.engine.household.roster_sync import Sync
from coterie.engine.household.workspace import FileState

MAX_DEPTH = 20


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


SpecPatch = Annotated[dict[str, Any], AfterValidator(_shallow)]
FileName = Annotated[str, Field(description="As in SOUL.md or memory/2026-05-01.md.")]

AUDIENCES = 1_000
"""That an answer lists."""


class AgentsList(Params):
    include_archived: Flag = False


class AgentRef(Params):
    agent_id: AgentId


class AgentChange(Change):
    agent_id: AgentId


class IdentityPatch(Shape):
    """The name is the agent's label; the rest stands in IDENTITY.md."""

    name: ShortText | None = None
    emoji: ShortText | None = None
    creature: ShortText | None = None
    vibe: ShortText | None = None


class AgentCreate(Change):
    id: Text = Field(max_length=200, description="1 to 50 characters of a-z, 0-9 and '-'.")
    label: ShortText | None = None
    emoji: ShortText | None = None
    soul: str | None = Field(None, description="Text for the agent's SOUL.md.")
    spec: SpecPatch | None = Field(None, description="Keys of the roster entry, in either spelling.")


class AgentUpdate(AgentChange):
    label: ShortText | None = None
    identity: IdentityPatch | None = None
    soul: str | None = None
    spec: SpecPatch | None = Field(None, description="Keys to change; null takes a key back.")


class ApplyRoster(Change):
    yes: Flag = Field(False, description="Also apply what is held for a person's word.")


class FileRef(AgentRef):
    name: FileName


class FileWrite(AgentChange):
    name: FileName
    content: str
    expected_hash: ShortText | None = Field(
        None, description="Write only if the file still has this hash; empty: only if there is none yet."
    )


class AgentSummary(Answer):
    id: str
    label: str
    is_default: bool
    emoji: str | None
    description: str | None
    state: AgentState
    type: AgentType
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


class FileEntry(Answer):
    name: str
    state: FileState
    size: int


class Effective(Answer):
    """What a turn of an agent would have."""

    model: str
    tools: list[str]
    skills: list[str]
    agents: list[str]


class Origins(Answer):
    """Whose words decide what a turn of an agent would have."""

    model: str
    tools: str
    skills: str
    agents: str


class AgentMemories(MemoryCounts):
    """An agent's memories by scope, and what it can read of others'."""

    of_others: int = Field(description="Global ones of other agents that its policy lets it read.")


class AgentAudience(Answer):
    """Somebody outside, and what an agent has with them."""

    audience: str
    sessions: int
    memories: int = Field(description="Its own, learnt there.")


class AgentInfo(Answer):
    id: str
    label: str
    is_default: bool
    state: AgentState
    identity: Identity
    soul: str
    spec: AgentSpec
    files: list[FileEntry]
    folder: str = Field(description="Where its files lie, on the gateway's machine.")
    effective: Effective | None = Field(None, description="Of active agents.")
    origins: Origins | None = Field(None, description="Where each of these comes from.")
    memories: AgentMemories | None = Field(None, description="How much it remembers.")
    audiences: list[AgentAudience] | None = Field(None, description="Whom outside it talks with.")
    warnings: list[str] = Field([], description="Rules that match no tool, capability, skill or agent.")
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
    backups: list[str] = Field([], description="After a purge: files that still hold what was deleted.")
    traces_left: bool = Field(
        False,
        description="After a purge: somebody reads the database, and its log is emptied at the next start.",
    )


class FileList(Answer):
    agent_id: str
    files: list[FileEntry]


class File(FileEntry):
    agent_id: str
    content: str
    hash: str | None


class SyncReport(Answer):
    problems: list[str] = Field(description="Why agent.yaml is not in force; empty: it is.")
    warnings: list[str]
    held: list[str] = Field(description="Changes in agent.yaml that wait for a person's word.")
    changes: list[str] = []


@operation("agents.list", "read", http=Get("/api/agents"))
def agents_list(gateway: Gateway, params: AgentsList) -> AgentList:
    """Active agents and folders that no roster names yet."""
    registry = gateway.registry
    agents = registry.agents(archived=params.include_archived)
    default = next((a.id for a in agents if a.is_default), None) or registry.default().id
    pool = gateway.home.skill_names()
    return AgentList(default_id=default, agents=[_summary(gateway, agent, pool) for agent in agents])


@operation("agents.get", "read", http=Get("/api/agents/{id}", id="agent_id"))
def agents_get(gateway: Gateway, params: AgentRef) -> AgentInfo:
    """One agent: identity, soul, specification, and where each of its files comes from."""
    return _info(gateway, gateway.registry.get(params.agent_id))


@operation("agents.create", "admin", http=Post("/api/agents", 201))
def agents_create(gateway: Gateway, params: AgentCreate) -> AgentInfo:
    """A new agent with a folder of its own."""
    _check_models(gateway, params.spec)
    identity = {"emoji": params.emoji} if params.emoji else None
    agent = gateway.registry.create(
        params.id, label=params.label, spec=params.spec, identity=identity, soul=params.soul
    )
    return _info(gateway, agent)


@operation("agents.update", "admin", http=Patch("/api/agents/{id}", id="agent_id"))
def agents_update(gateway: Gateway, params: AgentUpdate) -> AgentInfo:
    """Change what is given; everything else stays."""
    _check_models(gateway, params.spec)
    label, fields = identity_changes(params.identity)
    if label is not None and params.label is not None and label != params.label:
        raise InvalidRequest(
            "identity.name and label are the same thing; give one", details={"field": "label"}
        )
    agent = gateway.registry.update(
        params.agent_id,
        label=label if params.label is None else params.label,
        spec=params.spec,
        identity=fields,
        soul=params.soul,
    )
    return _info(gateway, agent)


@operation("agents.delete", "admin", http=Delete("/api/agents/{id}", id="agent_id"))
def agents_delete(gateway: Gateway, params: AgentChange) -> Deleted:
    """Archive an agent: it leaves the roster, its folder stays."""
    agent = gateway.registry.get(params.agent_id)
    gateway.registry.delete(agent.id)
    return _deleted(gateway, agent.id, True)


@operation("agents.restore", "admin", http=Post("/api/agents/{id}/restore", id="agent_id"))
def agents_restore(gateway: Gateway, params: AgentChange) -> Deleted:
    """Bring an archived agent back."""
    gateway.registry.restore(params.agent_id)
    return _deleted(gateway, params.agent_id, False)


@operation("agents.purge", "admin")
def agents_purge(gateway: Gateway, params: AgentChange) -> Deleted:
    """Delete an agent, its memories, the sessions bound to it and its folder for good. Backups stay, and are named."""
    agent = gateway.registry.get(params.agent_id)
    gateway.registry.purge(agent.id)
    folder = gateway.home.backups
    kept = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    left = gateway.registry.traces_left
    return _deleted(gateway, agent.id, True).model_copy(update={"backups": kept, "traces_left": left})


@operation("agents.set_default", "admin", http=Post("/api/agents/{id}/default", id="agent_id"))
def agents_set_default(gateway: Gateway, params: AgentChange) -> DefaultAgent:
    """Make an agent the one that answers when nobody is named."""
    return DefaultAgent(default_id=gateway.registry.set_default(params.agent_id).id)


@operation("agents.apply", "admin")
def agents_apply(gateway: Gateway, params: ApplyRoster) -> SyncReport:
    """Bring agent.yaml and the registry together now."""
    report = sync_report(gateway.registry.sync.apply(yes=params.yes))
    return report.model_copy(update={"warnings": report.warnings + gateway.brains.unmatched()})


@operation("agents.files.list", "read", http=Get("/api/agents/{id}/files", id="agent_id"))
def agents_files_list(gateway: Gateway, params: AgentRef) -> FileList:
    """An agent's files, each own, inherited or missing."""
    agent = gateway.registry.get(params.agent_id)
    files = gateway.registry.workspace(agent).files()
    return FileList(agent_id=agent.id, files=[FileEntry.of(file) for file in files])


@operation("agents.files.get", "read", http=Get("/api/agents/{id}/files/{name:path}", id="agent_id"))
def agents_files_get(gateway: Gateway, params: FileRef) -> File:
    """The text that counts for an agent."""
    agent = gateway.registry.get(params.agent_id)
    return File.of(gateway.registry.workspace(agent).get(params.name), agent_id=agent.id)


@operation("agents.files.set", "admin", http=Put("/api/agents/{id}/files/{name:path}", id="agent_id"))
def agents_files_set(gateway: Gateway, params: FileWrite) -> File:
    """Write one of an agent's own files."""
    agent = gateway.registry.get(params.agent_id)
    written = gateway.registry.set_file(agent.id, params.name, params.content, params.expected_hash)
    return File.of(written, agent_id=agent.id)


def _check_models(gateway: Gateway, spec: Mapping[str, Any] | None) -> None:
    """A model that nobody could have is refused before it is written down; anything odder, by the registry."""
    model = (spec or {}).get("model")
    named = list(model.values()) if isinstance(model, dict) else [model]
    for name in [name for one in named for name in (one if isinstance(one, list) else [one])]:
        if isinstance(name, str) and "/" in name:
            gateway.models.check(name)


def identity_changes(patch: IdentityPatch | None) -> tuple[str | None, dict[str, str] | None]:
    """The label, which the registry keeps, and the fields that stand in IDENTITY.md."""
    if patch is None:
        return None, None
    given = patch.model_dump(include={"emoji", "creature", "vibe"}, exclude_none=True)
    return patch.name, given or None


def sync_report(sync: Sync) -> SyncReport:
    return SyncReport(
        problems=[str(problem) for problem in sync.problems],
        warnings=[str(warning) for warning in sync.warnings],
        held=list(sync.held),
        changes=[f"{agent_id} {change}" for change, agent_id in sync.changes],
    )


def _summary(gateway: Gateway, agent: Agent, pool: list[str]) -> AgentSummary:
    spec = gateway.registry.spec(agent)
    return AgentSummary.of(
        agent,
        emoji=gateway.registry.identity(agent).get("emoji"),
        description=spec.description,
        type=spec.type,
        model=spec.model.primary if spec.model else None,
        skills=gateway.registry.skills(spec, pool),
        ui_visible=agent.visible,
    )


def _info(gateway: Gateway, agent: Agent) -> AgentInfo:
    workspace = gateway.registry.workspace(agent)
    return AgentInfo.of(
        agent,
        identity=Identity(name=agent.label, **gateway.registry.identity(agent)),
        soul=workspace.effective("SOUL.md")[1],
        spec=AgentSpec.model_validate(agent.spec),
        files=[FileEntry.of(file) for file in workspace.files()],
        folder=str(workspace.path),
        effective=_effective(gateway, agent) if agent.state is AgentState.ACTIVE else None,
        origins=_origins(gateway, agent) if agent.state is AgentState.ACTIVE else None,
        memories=_memories(gateway, agent),
        audiences=_audiences(gateway, agent) if agent.state is AgentState.ACTIVE else None,
        warnings=gateway.brains.unmatched_of(agent, gateway.home.skill_names()),
        created_at=agent.created_at or None,
        updated_at=agent.updated_at or None,
    )


def _memories(gateway: Gateway, agent: Agent) -> AgentMemories:
    if agent.state is AgentState.ACTIVE:
        counts = gateway.memories.as_agent(agent.id).counts()
    else:
        counts = [gateway.memories.archived_count(agent.id)]
    own = next((count for count in counts if count.agent_id == agent.id), Count(agent.id))
    return AgentMemories.of(
        own,
        shared=own.global_,
        of_others=sum(count.global_ for count in counts if count.agent_id != agent.id),
    )


def _audiences(gateway: Gateway, agent: Agent) -> list[AgentAudience]:
    learnt = gateway.memories.as_agent(agent.id).by_audience()
    with gateway.store.read() as tx:
        sessions = tx.sessions.by_audience(agent.id)
    return [
        AgentAudience(audience=one, sessions=sessions.get(one, 0), memories=learnt.get(one, 0))
        for one in sorted({*sessions, *learnt})[:AUDIENCES]
    ]


def _effective(gateway: Gateway, agent: Agent) -> Effective:
    """What a turn of this agent would have, from the resolver that turns use."""
    brain = gateway.brains.of(agent.id)
    return Effective(
        model=brain.model,
        tools=[schema.name for schema in brain.schemas],
        skills=gateway.registry.skills(brain.spec, gateway.home.skill_names()),
        agents=[peer.id for peer in gateway.brains.peers(agent.id, brain.spec)],
    )


def _origins(gateway: Gateway, agent: Agent) -> Origins:
    def of(otherwise: str, *keys: str) -> str:
        said = [(key, who) for key in keys if (who := gateway.registry.who_said(agent, key)) is not None]
        told = [key if who == agent.id else f"{key} of {who}" for key, who in said]
        return " and ".join(told) or otherwise

    lists = ("tool_allowlist", "tool_denylist", "capability_allowlist", "capability_denylist")
    return Origins(
        model=of("default_model of agent.yaml", "model"),
        tools=of("no list: all there are", *lists),
        skills=of("no list: all there are", "skill_allowlist", "skill_denylist"),
        agents=of("no list: all that are visible", "agent_allowlist", "agent_denylist"),
    )


def _deleted(gateway: Gateway, agent_id: str, deleted: bool) -> Deleted:
    """With the number of sessions that fall back to the default agent now."""
    with gateway.store.read() as tx:
        bound = tx.sessions.count_bound_to(agent_id)
    return Deleted(
        deleted=deleted,
        reassigned_sessions=bound if deleted else 0,
        default_id=gateway.registry.default().id,
    )
