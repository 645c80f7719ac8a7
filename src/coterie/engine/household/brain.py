"""What an agent is at this moment: its prompt, tools and model, resolved once and again when something changed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from coterie.config import MAX_TOLD
from coterie.core.agent import DEFAULT_ALIAS, Agent, AgentSpec, AgentState
from coterie.core.audience import rights_of
from coterie.core.errors import NotFound
from coterie.core.policy import Decision, HouseRules, Names, Place, decide, permits, unknown_tool, unmatched
from coterie.core.ports import ToolSchema
from coterie.core.prompt import BASE_FILES, FILES, SUBAGENT, Budget, Peer, Prompt, PromptInputs, assemble
from coterie.core.session import Session
from coterie.core.tool import Tool
from coterie.engine.household.folder import Folder
from coterie.engine.household.people import People
from coterie.engine.household.registry import Registry
from coterie.engine.household.toolbox import Toolbox
from coterie.engine.household.workspace import answered, stamp

log = logging.getLogger("coterie.brain")

PROMPT_FILES = (*BASE_FILES, *FILES)
KEPT = 2_000
"""Resolved brains that are kept; spawns may each bring a list of tools of their own."""
OWNERS_FILES = ("USER.md", "MEMORY.md")
"""What the owner told, or had noted: not for others unless the agent says so."""
SUBAGENT_FILES = (*BASE_FILES, "AGENTS.md", "TOOLS.md")
"""A task needs rules and notes on tools; who its user is and what was said before is none of its business."""


@dataclass(frozen=True, slots=True)
class Brain:
    """One agent, ready for a turn."""

    agent_id: str
    label: str
    spec: AgentSpec
    place: Place
    """For which turns."""
    prompt: Prompt
    system: str
    """The prompt's text."""
    overhead: int
    """About how many bytes system prompt and tools take in a request."""
    model: str
    fallbacks: tuple[str, ...]
    """Tried in order when the model's provider fails."""
    tools: Mapping[str, Tool]
    """Every tool there is; `decisions` says which may be called."""
    schemas: tuple[ToolSchema, ...]
    tools_digest: str
    """Tells one set of tools from another, as a model is shown them."""
    decisions: Mapping[str, Decision]
    workspace: Folder

    def may_call(self, name: str) -> Decision:
        """From the same resolver as the list of tools."""
        return self.decisions.get(name) or unknown_tool(name)


class Brains:
    """Resolves agents and keeps the result until the registry or a file changes."""

    def __init__(self, registry: Registry, home: Path, toolbox: Toolbox) -> None:
        self._registry = registry
        self._home = home
        self._toolbox = toolbox
        self.people = People(registry)
        self._kept: dict[tuple[str, Place], tuple[tuple[object, ...], Brain]] = {}
        self._default: str | None = None
        self._states: dict[str, bool] = {}
        self._warned: set[tuple[str, str]] = set()
        self._visible: dict[str, Peer] | None = None
        registry.sync.listen(lambda _: self.forget())

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Every tool that is loaded now."""
        return self._toolbox.tools

    @property
    def tool_problems(self) -> list[str]:
        """Plug-ins that did not load."""
        return self._toolbox.problems

    def unmatched(self) -> list[str]:
        """Rules on tools that match nothing. Those on agents and skills are the file's own business."""
        pools = self._tool_names()
        active = (agent for agent in self._registry.agents() if agent.state is AgentState.ACTIVE)
        found = (f"{agent.id}: {rule}" for agent in active for rule in unmatched(agent.spec, pools))
        return list(islice(found, MAX_TOLD))

    def unmatched_of(self, agent: Agent, skills: Sequence[str]) -> list[str]:
        """Every rule of one agent that matches nothing."""
        ids = [one.id for one in self._registry.agents(archived=True)]
        pools = {**self._tool_names(), "skill": Names(skills), "agent": Names(ids)}
        return list(islice(unmatched(agent.spec, pools), MAX_TOLD))

    def _tool_names(self) -> dict[str, Names]:
        tools = self.tools
        capabilities = {one for tool in tools.values() for one in tool.capabilities}
        return {"tool": Names(tools), "capability": Names(capabilities)}

    def forget(self) -> None:
        """Something changed: look everything up again."""
        self._kept.clear()
        self._states.clear()
        self._default = None
        self._visible = None

    def peers(self, agent_id: str, spec: AgentSpec) -> list[Peer]:
        """Other active agents that may be seen, through this agent's lists."""
        if self._visible is None:
            active = (agent for agent in self._registry.agents() if agent.state is AgentState.ACTIVE)
            self._visible = {
                agent.id: Peer(agent.id, agent.label, self._description(agent))
                for agent in active
                if agent.visible
            }
        allow, deny = spec.agent_allowlist, spec.agent_denylist
        others = [peer for peer in self._visible.values() if peer.id != agent_id]
        if allow is None and not deny:
            return others
        return [peer for peer in others if permits(peer.id, allow, deny)]

    def _description(self, agent: Agent) -> str | None:
        """Its own or its template's. Most have none, and there may be a thousand."""
        said: str | None = agent.spec.get("description")
        if said is None and agent.spec.get("extends") is not None:
            return self._registry.spec(agent).description
        return said

    def agent_of(self, session: Session) -> str:
        """Who runs a session now: its agent while that is active, else the default."""
        agent_id = session.agent_id
        if agent_id is not None:
            if self._is_active(agent_id):
                return agent_id
            if (session.id, agent_id) not in self._warned:
                self._warned.add((session.id, agent_id))
                log.warning("session %s runs as the default agent: %s is not active", session.key, agent_id)
        default = self.named(DEFAULT_ALIAS)
        assert default is not None
        return default

    def named(self, name: str) -> str | None:
        """The id of an active agent that a client names; `default` is whoever is the default."""
        if name == DEFAULT_ALIAS:
            if self._default is None:
                self._default = self._registry.default().id
            return self._default
        return name if self._is_active(name) else None

    def for_session(
        self,
        session: Session,
        agent_id: str | None = None,
        *,
        hop: int | None = None,
        audience: str | None = None,
    ) -> Brain:
        """What runs a session's turns; `hop` says how often a turn's message was handed on, `audience` who hears it."""
        subagent = session.kind == "subagent"
        if hop is None:
            hop = 1 if subagent else 0
        depth = self._registry.sync.config.delegation.max_depth
        rights = rights_of(audience or self.people.hears(session.audience))
        return self.of(
            agent_id or self.agent_of(session), Place(subagent, hop < depth, session.tools, rights)
        )

    def of(self, agent_id: str, place: Place = Place()) -> Brain:
        signature = self._signature(agent_id)
        kept = self._kept.get((agent_id, place))
        if kept is None or kept[0] != signature:
            kept = (signature, self._resolve(agent_id, place))
            if len(self._kept) > KEPT:
                self._kept.clear()
            self._kept[agent_id, place] = kept
        return kept[1]

    def _is_active(self, agent_id: str) -> bool:
        known = self._states.get(agent_id)
        if known is None:
            try:
                known = self._registry.get(agent_id).state is AgentState.ACTIVE
            except NotFound:
                known = False
            self._states[agent_id] = known
        return known

    def _resolve(self, agent_id: str, place: Place) -> Brain:
        agent = self._registry.get(agent_id)
        spec = self._registry.spec(agent)
        workspace = self._registry.workspace(agent)
        names: tuple[str, ...] = SUBAGENT_FILES if place.subagent else PROMPT_FILES
        if place.rights != "owner" and spec.outside.memory != "shared":
            names = tuple(name for name in names if name not in OWNERS_FILES)
        files = {name: text for name in names if (text := answered(name, workspace.effective(name)[1]))}
        peers = self.peers(agent_id, spec)
        tools = self.tools
        config = self._registry.sync.config
        # Plug-ins that were disabled after the start are still loaded, and refused here.
        house = HouseRules(frozenset(config.plugins.disabled), config.delegation.max_depth, bool(peers))
        decisions = {name: decide(tool, spec, place, house) for name, tool in tools.items()}
        # Harmless ones first: some models try whatever stands on top.
        allowed = sorted(
            (d.name for d in decisions.values() if d.listed), key=lambda n: (not n.startswith("system_"), n)
        )
        folder = Folder(workspace.path / "workspace")
        folder.make()
        limits = config.prompt
        asks = "agents_message" in allowed
        prompt = assemble(
            PromptInputs(
                agent.label,
                spec.description,
                spec.system_prompt,
                files,
                allowed,
                peers=peers if asks else (),
                subagent=place.subagent,
                rights=place.rights,
            ),
            SUBAGENT if place.subagent else Budget(limits.file_characters, limits.whole_characters),
        )
        for section in prompt.sections:
            if section.cut:
                log.warning(
                    "the prompt of %s: %d characters of %s did not fit", agent_id, section.cut, section.name
                )
        schemas = tuple(tools[name].schema for name in allowed)
        return Brain(
            agent_id=agent_id,
            label=agent.label,
            spec=spec,
            place=place,
            prompt=prompt,
            system=prompt.text,
            overhead=len(prompt.text.encode()) + sum(_schema_size(schema) for schema in schemas),
            model=spec.model.primary if spec.model else config.default_model,
            fallbacks=tuple(spec.model.fallbacks) if spec.model else (),
            tools=tools,
            schemas=schemas,
            tools_digest=_digest(schemas),
            decisions=decisions,
            workspace=folder,
        )

    def _signature(self, agent_id: str) -> tuple[object, ...]:
        config = self._registry.sync.config
        folders = (f"{self._home}/agents/{agent_id}", str(self._home))
        files = (stamp(f"{folder}/{name}") for folder in folders for name in PROMPT_FILES)
        depth = config.delegation.max_depth
        return (
            config.default_model,
            config.prompt,
            depth,
            self._toolbox.version,
            *config.plugins.disabled,
            *files,
        )


def _schema_size(schema: ToolSchema) -> int:
    return len(schema.name) + len(schema.description) + len(json.dumps(dict(schema.parameters))) + 80


def _digest(schemas: tuple[ToolSchema, ...]) -> str:
    told = [(schema.name, schema.description, dict(schema.parameters)) for schema in schemas]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
