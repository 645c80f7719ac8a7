"""What an agent is at this moment: its prompt, tools and model, resolved once and again when something changed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.core.agent import DEFAULT_ALIAS, AgentSpec, AgentState
from coterie.core.errors import NotFound
from coterie.core.policy import Decision, permits, tool_decision
from coterie.core.ports import ToolSchema
from coterie.core.prompt import BASE_FILES, FILES, Budget, Prompt, PromptInputs, assemble
from coterie.core.session import Session
from coterie.core.tool import Tool
from coterie.engine.folder import Folder
from coterie.engine.registry import Registry

log = logging.getLogger("coterie.brain")

PROMPT_FILES = (*BASE_FILES, *FILES)


@dataclass(frozen=True, slots=True)
class Brain:
    """One agent, ready for a turn."""

    agent_id: str
    label: str
    spec: AgentSpec
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
    decisions: Mapping[str, Decision]
    workspace: Folder

    def may_call(self, name: str) -> Decision:
        """From the same resolver as the list of tools."""
        return self.decisions.get(name) or Decision(name, False, "there is no such tool")


class Brains:
    """Resolves agents and keeps the result until the registry or a file changes."""

    def __init__(self, registry: Registry, home: Path, tools: Mapping[str, Tool]) -> None:
        self._registry = registry
        self._home = home
        self.tools = tools
        self._kept: dict[tuple[str, bool], tuple[tuple[object, ...], Brain]] = {}
        self._default: str | None = None
        self._states: dict[str, bool] = {}
        self._warned: set[tuple[str, str]] = set()
        self._visible: list[str] | None = None
        registry.sync.listen(lambda _: self.forget())

    def forget(self) -> None:
        """Something changed: look everything up again."""
        self._kept.clear()
        self._states.clear()
        self._default = None
        self._visible = None

    def peers(self, agent_id: str, spec: AgentSpec) -> list[str]:
        """Other active agents that may be seen, through this agent's lists."""
        if self._visible is None:
            self._visible = [
                agent.id
                for agent in self._registry.agents()
                if agent.state is AgentState.ACTIVE and agent.spec.get("ui_visible") is not False
            ]
        allow, deny = spec.agent_allowlist, spec.agent_denylist
        if allow is None and not deny:
            return [name for name in self._visible if name != agent_id]
        return [name for name in self._visible if name != agent_id and permits(name, allow, deny)]

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

    def of(self, agent_id: str, *, subagent: bool = False) -> Brain:
        signature = self._signature(agent_id)
        kept = self._kept.get((agent_id, subagent))
        if kept is None or kept[0] != signature:
            if kept is not None:
                log.info("the prompt of %s changed: a file was edited", agent_id)
            kept = (signature, self._resolve(agent_id, subagent))
            self._kept[agent_id, subagent] = kept
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

    def _resolve(self, agent_id: str, subagent: bool) -> Brain:
        agent = self._registry.get(agent_id)
        spec = self._registry.spec(agent)
        workspace = self._registry.workspace(agent)
        files = {name: text for name in PROMPT_FILES if (text := workspace.effective(name)[1])}
        decisions = {name: self._decide(tool, spec, subagent) for name, tool in self.tools.items()}
        # Harmless ones first: some models try whatever stands on top.
        allowed = sorted(
            (d.name for d in decisions.values() if d.allowed), key=lambda n: (not n.startswith("system_"), n)
        )
        folder = Folder(workspace.path / "workspace")
        folder.make()
        limits = self._registry.sync.config.prompt
        prompt = assemble(
            PromptInputs(agent.label, spec.description, spec.system_prompt, files, allowed),
            Budget(limits.file_characters, limits.whole_characters),
        )
        for section in prompt.sections:
            if section.cut:
                log.warning(
                    "the prompt of %s: %d characters of %s did not fit", agent_id, section.cut, section.name
                )
        schemas = tuple(self.tools[name].schema for name in allowed)
        return Brain(
            agent_id=agent_id,
            label=agent.label,
            spec=spec,
            prompt=prompt,
            system=prompt.text,
            overhead=len(prompt.text.encode()) + sum(_schema_size(schema) for schema in schemas),
            model=spec.model.primary if spec.model else self._registry.sync.config.default_model,
            fallbacks=tuple(spec.model.fallbacks) if spec.model else (),
            tools=self.tools,
            schemas=schemas,
            decisions=decisions,
            workspace=folder,
        )

    def _decide(self, tool: Tool, spec: AgentSpec, subagent: bool) -> Decision:
        """Plug-ins that were disabled after the start are still loaded, and refused here."""
        if {tool.name, tool.plugin} & set(self._registry.sync.config.plugins.disabled):
            return Decision(tool.name, False, "disabled in plugins.disabled")
        return tool_decision(tool, spec, subagent=subagent)

    def _signature(self, agent_id: str) -> tuple[object, ...]:
        config = self._registry.sync.config
        folders = (f"{self._home}/agents/{agent_id}", str(self._home))
        files = (_stamp(f"{folder}/{name}") for folder in folders for name in PROMPT_FILES)
        return (config.default_model, config.prompt, *config.plugins.disabled, *files)


def _schema_size(schema: ToolSchema) -> int:
    return len(schema.name) + len(schema.description) + len(json.dumps(dict(schema.parameters))) + 80


def _stamp(path: str) -> tuple[int, int, int] | None:
    # Asked a dozen times in every turn: joining and looking up a Path would take six times as long.
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
