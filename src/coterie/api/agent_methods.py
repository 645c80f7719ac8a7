"""Agents, the identity of a session's agent, tokens, and the house itself."""

from __future__ import annotations

from datetime import UTC, datetime

from coterie import __version__
from coterie.api import payloads as p
from coterie.api.method import method
from coterie.core.agent import Agent, AgentSpec, AgentState
from coterie.core.errors import InvalidRequest, NotFound
from coterie.core.memory import Count
from coterie.engine.gateway import Gateway
from coterie.engine.household.roster_sync import Sync
from coterie.engine.household.workspace import FileContent, FileInfo

# Agents


@method("agents.list", "read")
def agents_list(gateway: Gateway, params: p.AgentsList) -> p.AgentList:
    """Active agents and folders that no roster names yet."""
    registry = gateway.registry
    agents = registry.agents(archived=params.include_archived)
    default = next((a.id for a in agents if a.is_default), None) or registry.default().id
    pool = gateway.home.skill_names()
    return p.AgentList(default_id=default, agents=[_summary(gateway, agent, pool) for agent in agents])


@method("agents.get", "read")
def agents_get(gateway: Gateway, params: p.AgentRef) -> p.AgentInfo:
    """One agent: identity, soul, specification, and where each of its files comes from."""
    return _info(gateway, gateway.registry.get(params.agent_id))


@method("agents.create", "admin")
def agents_create(gateway: Gateway, params: p.AgentCreate) -> p.AgentInfo:
    """A new agent with a folder of its own."""
    identity = {"emoji": params.emoji} if params.emoji else None
    agent = gateway.registry.create(
        params.id, label=params.label, spec=params.spec, identity=identity, soul=params.soul
    )
    return _info(gateway, agent)


@method("agents.update", "admin")
def agents_update(gateway: Gateway, params: p.AgentUpdate) -> p.AgentInfo:
    """Change what is given; everything else stays."""
    label, fields = _identity_changes(params.identity)
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


@method("agents.delete", "admin")
def agents_delete(gateway: Gateway, params: p.AgentChange) -> p.Deleted:
    """Archive an agent: it leaves the roster, its folder stays."""
    agent = gateway.registry.get(params.agent_id)
    gateway.registry.delete(agent.id)
    return _deleted(gateway, agent.id, True)


@method("agents.restore", "admin")
def agents_restore(gateway: Gateway, params: p.AgentChange) -> p.Deleted:
    """Bring an archived agent back."""
    gateway.registry.restore(params.agent_id)
    return _deleted(gateway, params.agent_id, False)


@method("agents.purge", "admin")
def agents_purge(gateway: Gateway, params: p.AgentChange) -> p.Deleted:
    """Delete an agent and its folder for good."""
    agent = gateway.registry.get(params.agent_id)
    gateway.registry.purge(agent.id)
    return _deleted(gateway, agent.id, True)


@method("agents.set_default", "admin")
def agents_set_default(gateway: Gateway, params: p.AgentChange) -> p.DefaultAgent:
    """Make an agent the one that answers when nobody is named."""
    return p.DefaultAgent(default_id=gateway.registry.set_default(params.agent_id).id)


@method("agents.apply", "admin")
def agents_apply(gateway: Gateway, params: p.ApplyParams) -> p.SyncReport:
    """Bring agent.yaml and the registry together now."""
    return _report(gateway.registry.sync.apply(yes=params.yes))


@method("agents.files.list", "read")
def agents_files_list(gateway: Gateway, params: p.AgentRef) -> p.FileList:
    """An agent's files, each own, inherited or missing."""
    agent = gateway.registry.get(params.agent_id)
    return p.FileList(agent_id=agent.id, files=_entries(gateway.registry.workspace(agent).files()))


@method("agents.files.get", "read")
def agents_files_get(gateway: Gateway, params: p.FileRef) -> p.File:
    """The text that counts for an agent."""
    agent = gateway.registry.get(params.agent_id)
    return _file(agent.id, gateway.registry.workspace(agent).get(params.name))


@method("agents.files.set", "admin")
def agents_files_set(gateway: Gateway, params: p.FileWrite) -> p.File:
    """Write one of an agent's own files."""
    agent = gateway.registry.get(params.agent_id)
    return _file(
        agent.id, gateway.registry.set_file(agent.id, params.name, params.content, params.expected_hash)
    )


# The identity of a session's agent


@method("agent.identity.get", "read")
def agent_identity_get(gateway: Gateway, params: p.SessionRef) -> p.IdentityWithSoul:
    """Name, emoji, creature, vibe and soul of the session's agent, or of the default one."""
    return _identity_with_soul(gateway, _agent_of(gateway, params.session))


@method("agent.identity.update", "admin")
def agent_identity_update(gateway: Gateway, params: p.IdentityUpdate) -> p.IdentityWithSoul:
    """Change the identity of the session's agent, or of the default one."""
    agent = _agent_of(gateway, params.session)
    label, fields = _identity_changes(params)
    return _identity_with_soul(gateway, gateway.registry.update(agent.id, label=label, identity=fields))


@method("agent.identity.update_soul", "admin")
def agent_identity_update_soul(gateway: Gateway, params: p.SoulUpdate) -> p.IdentityWithSoul:
    """Write the soul of the session's agent, or of the default one."""
    agent = _agent_of(gateway, params.session)
    return _identity_with_soul(gateway, gateway.registry.update(agent.id, soul=params.soul))


# The house


@method("status", "read")
def status(gateway: Gateway, params: p.Nothing) -> p.Status:
    """What runs here, and whether agent.yaml is in force."""
    agents = [a for a in gateway.registry.agents() if a.state is AgentState.ACTIVE]
    return p.Status(
        version=__version__,
        home=str(gateway.home.path),
        pid=gateway.pid,
        started_at=datetime.fromtimestamp(gateway.started, UTC).isoformat().replace("+00:00", "Z"),
        default_id=gateway.registry.default().id,
        agents=len(agents),
        config=_report(gateway.registry.sync.state),
    )


@method("tokens.create", "admin")
def tokens_create(gateway: Gateway, params: p.TokenCreate) -> p.NewToken:
    """A new token; it is shown this once."""
    token, spelling = gateway.access.create(params.scope, params.label)
    return p.NewToken(token=spelling, scope=token.scope, id=token.id)


@method("tokens.list", "admin")
def tokens_list(gateway: Gateway, params: p.Nothing) -> p.TokenList:
    """Every token ever made, without its secret."""
    return p.TokenList(
        tokens=[
            p.TokenInfo(
                id=t.id, scope=t.scope, label=t.label, created_at=t.created_at, revoked_at=t.revoked_at
            )
            for t in gateway.access.tokens()
        ]
    )


@method("tokens.revoke", "admin")
def tokens_revoke(gateway: Gateway, params: p.TokenRef) -> p.Revoked:
    """Take a token back; connections that use it end at once."""
    gateway.access.revoke(params.id)
    gateway.events.publish("token.revoked", {"id": params.id})
    return p.Revoked(revoked=True, id=params.id)


# Views


def _deleted(gateway: Gateway, agent_id: str, deleted: bool) -> p.Deleted:
    """With the number of sessions that fall back to the default agent now."""
    with gateway.store.read() as tx:
        bound = tx.sessions.count_bound_to(agent_id)
    return p.Deleted(
        deleted=deleted,
        reassigned_sessions=bound if deleted else 0,
        default_id=gateway.registry.default().id,
    )


def _summary(gateway: Gateway, agent: Agent, pool: list[str]) -> p.AgentSummary:
    spec = gateway.registry.spec(agent)
    return p.AgentSummary(
        id=agent.id,
        label=agent.label,
        is_default=agent.is_default,
        emoji=gateway.registry.identity(agent).get("emoji"),
        description=spec.description,
        state=agent.state.value,
        type=spec.type,
        model=spec.model.primary if spec.model else None,
        skills=gateway.registry.skills(spec, pool),
        ui_visible=spec.ui_visible,
    )


def _info(gateway: Gateway, agent: Agent) -> p.AgentInfo:
    workspace = gateway.registry.workspace(agent)
    return p.AgentInfo(
        id=agent.id,
        label=agent.label,
        is_default=agent.is_default,
        state=agent.state.value,
        identity=p.Identity(name=agent.label, **gateway.registry.identity(agent)),
        soul=workspace.effective("SOUL.md")[1],
        spec=AgentSpec.model_validate(agent.spec),
        files=_entries(workspace.files()),
        effective=_effective(gateway, agent) if agent.state is AgentState.ACTIVE else None,
        memories=_memories(gateway, agent),
        created_at=agent.created_at or None,
        updated_at=agent.updated_at or None,
    )


def _memories(gateway: Gateway, agent: Agent) -> p.AgentMemories:
    if agent.state is AgentState.ACTIVE:
        counts = gateway.memories.as_agent(agent.id).counts()
    else:
        counts = [gateway.memories.archived_count(agent.id)]
    own = next((count for count in counts if count.agent_id == agent.id), Count(agent.id))
    return p.AgentMemories(
        shared=own.global_,
        private=own.private,
        archived=own.archived,
        pinned=own.pinned,
        files=own.files,
        of_others=sum(count.global_ for count in counts if count.agent_id != agent.id),
    )


def _effective(gateway: Gateway, agent: Agent) -> p.Effective:
    """What a turn of this agent would have, from the resolver that turns use."""
    brain = gateway.brains.of(agent.id)
    return p.Effective(
        model=brain.model,
        tools=[schema.name for schema in brain.schemas],
        skills=gateway.registry.skills(brain.spec, gateway.home.skill_names()),
        agents=[peer.id for peer in gateway.brains.peers(agent.id, brain.spec)],
    )


def _identity_with_soul(gateway: Gateway, agent: Agent) -> p.IdentityWithSoul:
    soul = gateway.registry.workspace(agent).effective("SOUL.md")[1]
    return p.IdentityWithSoul(name=agent.label, soul=soul, **gateway.registry.identity(agent))


def _identity_changes(patch: p.IdentityPatch | None) -> tuple[str | None, dict[str, str] | None]:
    """The label, which the registry keeps, and the fields that stand in IDENTITY.md."""
    if patch is None:
        return None, None
    given = patch.model_dump(include={"emoji", "creature", "vibe"}, exclude_none=True)
    return patch.name, given or None


def _agent_of(gateway: Gateway, session: str | None) -> Agent:
    """The agent that runs a session now; without one, the default."""
    if session is None:
        return gateway.registry.default()
    with gateway.store.read() as tx:
        found = tx.sessions.find(session)
    if found is None:
        raise NotFound(f"there is no session {session[:200]!r}")
    return gateway.registry.get(gateway.brains.agent_of(found))


def _entries(files: list[FileInfo]) -> list[p.FileEntry]:
    return [p.FileEntry(name=f.name, state=f.state, size=f.size) for f in files]


def _file(agent_id: str, file: FileContent) -> p.File:
    return p.File(
        agent_id=agent_id,
        name=file.name,
        state=file.state,
        content=file.content,
        size=file.size,
        hash=file.hash,
    )


def _report(sync: Sync) -> p.SyncReport:
    return p.SyncReport(
        problems=[str(problem) for problem in sync.problems],
        warnings=[str(warning) for warning in sync.warnings],
        held=list(sync.held),
        changes=[f"{agent_id} {change}" for change, agent_id in sync.changes],
    )
