"""The household: the registry table is what runs, agent.yaml is its human face, and both follow each other."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from coterie.core.agent import (
    DEFAULT_ALIAS,
    MAIN,
    Agent,
    AgentSpec,
    AgentState,
    check_id,
    check_label,
    check_new_id,
    inherit,
    unmapped,
)
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound
from coterie.core.names import LONGEST, hint
from coterie.core.policy import permits
from coterie.engine.household.first_run import settle_in
from coterie.engine.household.home import Home
from coterie.engine.household.household import Household
from coterie.engine.household.roster_sync import RosterSync
from coterie.engine.household.workspace import FileContent, Workspace

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

log = logging.getLogger("coterie.registry")

SCRUB = "scrub"
"""Under this key the store remembers that its files are to be written anew."""


class Registry:
    """Agents: who they are, what they may do, where their files lie."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._workspaces: dict[tuple[str, str | None], Workspace] = {}
        self._store = store
        self.sync = RosterSync(home, store)
        self._identities: dict[str, tuple[tuple[object, ...], dict[str, str]]] = {}
        self.empty: Callable[[Transaction, str], Callable[[], None]] = lambda tx, agent_id: lambda: None
        """Deletes an agent's conversations when it is purged; gives back what is to be done once that is on disk."""

    # Opening

    def open(self, first_model: Callable[[], str | None] = lambda: None) -> None:
        """Make the household whole: main exists, first-run copies are made, cut-short deletions are finished.

        `first_model` is asked, on a first run without a configuration, which model can be used here.
        """
        with self._store.read() as tx:
            settled = tx.meta.get("first_run") is not None
            purging = tx.agents.in_state(AgentState.PURGING)
            due = tx.meta.get(SCRUB) is not None
        if not settled:
            with self.sync.locked():
                self._move_in(first_model)
        for agent in purging:
            with self.sync.locked():
                self._finish_purge(agent.id)
        if due and not purging:
            self._scrub()
        self.sync.refresh()

    def _move_in(self, first_model: Callable[[], str | None]) -> None:
        with self._store.write() as tx:
            if tx.agents.default() is None:
                at = now_iso()
                tx.agents.save([Agent(MAIN, MAIN, True, AgentState.ACTIVE, {}, at, at)])
        settle_in(self._home, first_model)
        with self._store.write() as tx:
            tx.meta.set("first_run", now_iso())

    # Reading

    def agents(self, *, archived: bool = False) -> list[Agent]:
        """Active agents, then folders that no roster names; archived ones if asked for."""
        with self._store.read() as tx:
            rows = tx.agents.all()
        known = {agent.id for agent in rows}
        shown = [
            a for a in rows if a.state is AgentState.ACTIVE or (archived and a.state is AgentState.ARCHIVED)
        ]
        return shown + [_discovered(name) for name in self._folders() if name not in known]

    def get(self, agent_id: str) -> Agent:
        """By id; `default` is whoever is the default now."""
        with self._store.read() as tx:
            found = tx.agents.default() if agent_id == DEFAULT_ALIAS else tx.agents.get(agent_id)
        if found is not None and found.state is not AgentState.PURGING:
            return found
        if found is None and self._is_folder(agent_id):
            return _discovered(agent_id)
        raise self.absent(agent_id)

    def absent(self, name: str) -> NotFound:
        """Why a name is no active agent's, and who was meant, perhaps. For callers who may see everybody."""
        with self._store.read() as tx:
            rows = {agent.id: agent.state for agent in tx.agents.all()}
        state = rows.get(name)
        if state is AgentState.ARCHIVED:
            return NotFound(f"there is no active agent {name!r}: {_archived(name)}")
        known = [one for one, state in rows.items() if state is not AgentState.PURGING]
        return NotFound(f"there is no agent {name[:LONGEST]!r}{hint(name, known)}")

    def default(self) -> Agent:
        return self.get(DEFAULT_ALIAS)

    def spec(self, agent: Agent) -> AgentSpec:
        """What counts for an agent: its own entry over its templates'."""
        return inherit([entry for _, entry in self._lineage(agent)])

    def who_said(self, agent: Agent, key: str) -> str | None:
        """Whose entry decides a key for an agent: its own id, a template's, or None where nobody says anything."""
        return next((one for one, entry in self._lineage(agent) if key in entry), None)

    def _lineage(self, agent: Agent) -> list[tuple[str, Mapping[str, Any]]]:
        """An agent's entry, then those of its templates."""
        layers: list[tuple[str, Mapping[str, Any]]] = [(agent.id, agent.spec)]
        parent = agent.spec.get("extends")
        if parent is None:
            return layers
        with self._store.read() as tx:
            while parent is not None and parent not in (one for one, _ in layers):
                row = tx.agents.get(parent)
                if row is None:
                    break
                layers.append((parent, row.spec))
                parent = row.spec.get("extends")
        return layers

    def workspace(self, agent: Agent | str) -> Workspace:
        """The only way to an agent's files."""
        agent_id, soul = (
            (agent, None) if isinstance(agent, str) else (agent.id, agent.spec.get("personality"))
        )
        found = self._workspaces.get((agent_id, soul))
        if found is None:
            found = self._workspaces[agent_id, soul] = Workspace(self._home, check_id(agent_id), soul=soul)
        return found

    def identity(self, agent: Agent) -> dict[str, str]:
        """Emoji, creature and vibe; read again only when the file changed."""
        workspace = self.workspace(agent)
        signature = workspace.signature("IDENTITY.md")
        cached = self._identities.get(agent.id)
        if cached is None or cached[0] != signature:
            cached = (signature, workspace.identity_fields())
            self._identities[agent.id] = cached
        return cached[1]

    def skills(self, spec: AgentSpec, pool: list[str]) -> list[str]:
        """The shared pool through this agent's lists."""
        return [name for name in pool if permits(name, spec.skill_allowlist, spec.skill_denylist)]

    # Changing

    def create(
        self,
        agent_id: str,
        *,
        label: str | None = None,
        spec: Mapping[str, Any] | None = None,
        identity: Mapping[str, str] | None = None,
        soul: str | None = None,
    ) -> Agent:
        check_new_id(agent_id)
        written = _written(spec or {})
        _check_label_argument(label)

        def edit(household: Household) -> None:
            existing = household.rows.get(agent_id)
            if existing is not None and existing.state is AgentState.ARCHIVED:
                raise Conflict(
                    f"{agent_id!r} is archived: {_brings_back(agent_id)}, `coterie agent purge` deletes it"
                )
            if existing is not None:
                raise Conflict(f"there is an agent {agent_id!r} already")
            at = now_iso()
            household.put(
                "created", Agent(agent_id, label or agent_id, False, AgentState.ACTIVE, written, at, at)
            )

        self._check_new_files(agent_id, identity, soul)
        with self.sync.locked():
            self.sync.edit(edit)
            agent = self.get(agent_id)
            workspace = self.workspace(agent)
            if soul:
                workspace.set("SOUL.md", soul if soul.endswith("\n") else soul + "\n")
            if identity:
                workspace.set_identity_fields(dict(identity))
        return agent

    def update(
        self,
        agent_id: str,
        *,
        label: str | None = None,
        spec: Mapping[str, Any] | None = None,
        identity: Mapping[str, str] | None = None,
        soul: str | None = None,
    ) -> Agent:
        """Change what is given. A key of the spec set to null goes back to what it was without it."""
        agent = self._registered(agent_id)
        agent_id = agent.id
        _check_label_argument(label)
        self._check_new_files(agent_id, identity, soul)

        def edit(household: Household) -> None:
            now = household.rows.get(agent_id)
            if now is None:
                raise NotFound(f"there is no agent {agent_id!r}")
            _require_active(now)
            after = replace(now, label=label or now.label, spec=_changed(now.spec, spec or {}))
            if after != now:
                household.put("updated", replace(after, updated_at=now_iso()))

        with self.sync.locked():
            _require_active(self.get(agent_id))
            if label is not None or spec:
                self.sync.edit(edit)
            workspace = self.workspace(self.get(agent_id))
            if identity:
                workspace.set_identity_fields(dict(identity))
            if soul is not None:
                workspace.set("SOUL.md", soul)
        if identity or soul is not None:
            self.sync.tell(("updated", agent_id))
        return self.get(agent_id)

    def set_default(self, agent_id: str) -> Agent:
        agent_id = self._registered(agent_id).id

        def edit(household: Household) -> None:
            found = household.rows.get(agent_id)
            if found is None or found.state is not AgentState.ACTIVE:
                why = f": {_brings_back(agent_id)}" if found is not None else ""
                raise Conflict(f"{agent_id!r} is not active and cannot be the default{why}")
            household.make_default(agent_id)

        self.sync.edit(edit)
        return self.get(agent_id)

    def delete(self, agent_id: str) -> None:
        """Archive: it leaves the roster and its memories every search; its folder stays."""
        agent_id = self._registered(agent_id).id

        def edit(household: Household) -> None:
            found = household.rows.get(agent_id)
            if found is None or found.state is not AgentState.ACTIVE:
                raise NotFound(f"there is no active agent {agent_id!r}; it is archived already")
            _refuse_to_lose(found)
            household.put("archived", replace(found, state=AgentState.ARCHIVED, updated_at=now_iso()))

        self.sync.edit(edit)

    def restore(self, agent_id: str) -> Agent:
        def edit(household: Household) -> None:
            found = household.rows.get(agent_id)
            if found is None or found.state is AgentState.PURGING:
                archived = [one.id for one in household.rows.values() if one.state is AgentState.ARCHIVED]
                raise NotFound(f"there is no archived agent {agent_id!r}{hint(agent_id, archived)}")
            if found.state is not AgentState.ARCHIVED:
                raise Conflict(f"{agent_id!r} is active already")
            household.put("restored", replace(found, state=AgentState.ACTIVE, updated_at=now_iso()))

        check_id(agent_id)
        self.sync.edit(edit)
        return self.get(agent_id)

    def purge(self, agent_id: str) -> None:
        """Delete an agent, its memories, its conversations and its folder for good."""
        found = self.get(agent_id)
        if found.state is AgentState.DISCOVERED:
            with self.sync.locked():
                self._delete_folder(found.id)
            self.sync.tell(("purged", found.id))
            return
        agent_id = found.id

        def edit(household: Household) -> None:
            row = household.rows.get(agent_id)
            if row is None:
                raise NotFound(f"there is no agent {agent_id!r}")
            _refuse_to_lose(row)
            household.put("purged", replace(row, state=AgentState.PURGING, updated_at=now_iso()))

        with self.sync.locked():
            self.sync.edit(edit)
            self._finish_purge(agent_id)

    def set_file(self, agent_id: str, name: str, content: str, expected_hash: str | None) -> FileContent:
        agent = self._registered(agent_id)
        with self.sync.locked():
            written = self.workspace(agent).set(name, content, expected_hash)
        self.sync.tell(("updated", agent.id))
        return written

    def without_folder(self) -> list[Agent]:
        """Active agents whose folder was not made yet: many came at once, or their creation was cut short."""
        made = set(self._folders())
        return [a for a in self.agents() if a.state is AgentState.ACTIVE and a.id not in made]

    def scaffold(self, agents: Iterable[Agent]) -> None:
        """Their folders and templates. One that cannot be made is `doctor`'s to tell."""
        for agent in agents:
            with suppress(CoterieError, OSError):
                self.workspace(agent).scaffold()

    # Small parts

    def _registered(self, agent_id: str) -> Agent:
        """An agent that is in the registry, so that it can be changed."""
        agent = self.get(agent_id)
        if agent.state is AgentState.DISCOVERED:
            raise Conflict(f"{agent_id!r} is only a folder so far; `coterie agent add {agent_id}` adds it")
        return agent

    def _check_new_files(self, agent_id: str, identity: Mapping[str, str] | None, soul: str | None) -> None:
        """Refuse bad file content before anything is committed."""
        from coterie.core.identity import write_fields

        if identity:
            write_fields("", dict(identity))
        if soul is not None:
            self.workspace(agent_id).check_content("SOUL.md", soul)

    def _is_folder(self, agent_id: str) -> bool:
        with suppress(InvalidRequest):
            folder = self._home.agents / check_id(agent_id)
            return agent_id != DEFAULT_ALIAS and folder.is_dir() and not folder.is_symlink()
        return False

    def _folders(self) -> list[str]:
        """Folders below agents/ with the name of an agent."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self._home.agents) as scan:
            for entry in scan:
                with suppress(InvalidRequest):
                    if entry.is_dir(follow_symlinks=False):
                        found.append(check_id(entry.name))
        return sorted(name for name in found if name != DEFAULT_ALIAS)

    def _finish_purge(self, agent_id: str) -> None:
        with self._store.write() as tx:
            follow = self.empty(tx, agent_id)
            tx.memories.purge(agent_id)
            tx.meta.set(SCRUB, "due")
        follow()
        self._delete_folder(agent_id)
        with self._store.write() as tx:
            # A tool that was under way may have noted something meanwhile.
            tx.memories.purge(agent_id)
            tx.agents.remove(agent_id)
        self._scrub()
        self._identities.pop(agent_id, None)

    def _scrub(self) -> None:
        """Remembered until it is done, over crashes too."""
        if self._store.scrub():
            with self._store.write() as tx:
                tx.meta.delete(SCRUB)
        else:
            log.warning(
                "traces of what was deleted are left in the database's log; they go with the next start"
            )

    @property
    def traces_left(self) -> bool:
        """Whether bytes of something that was purged may still be in the database's files."""
        with self._store.read() as tx:
            return tx.meta.get(SCRUB) is not None

    def _delete_folder(self, agent_id: str) -> None:
        """Out of sight first, so that a half-deleted folder is never taken for an agent."""
        trash = self._home.run / f"trash-{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            (self._home.agents / agent_id).rename(trash)
        for leftover in self._home.run.glob("trash-*"):
            if leftover.is_symlink():
                leftover.unlink()
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def _written(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec from outside, checked and in canonical spelling."""
    try:
        return AgentSpec.model_validate(dict(spec)).written()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = (
                unmapped(where, spec) or "unknown key" if where in ("chat", "provider") else "unknown key"
            )
        raise InvalidRequest(f"spec.{where}: {message}", details={"field": f"spec.{where}"}) from None


def _changed(spec: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with some keys changed. Null takes a key back: what its template says counts again."""
    patch = {_canonical(key): value for key, value in patch.items()}
    for key in ("memory", "outside", "limits", "subagents"):
        if isinstance(patch.get(key), Mapping):
            section = {**spec.get(key, {}), **{to_snake(k): v for k, v in patch[key].items()}}
            patch[key] = {k: v for k, v in section.items() if v is not None}
    gone = {key for key, value in patch.items() if value is None and key in AgentSpec.model_fields}
    kept = {key: value for key, value in {**spec, **patch}.items() if key not in gone}
    return _written(kept)


def _canonical(key: str) -> str:
    if key == "skills":
        return "skill_allowlist"
    return to_snake(key) if to_snake(key) in AgentSpec.model_fields else key


def _require_active(agent: Agent) -> None:
    if agent.state is AgentState.ARCHIVED:
        raise NotFound(f"there is no active agent {agent.id!r}: {_archived(agent.id)}")
    if agent.state is not AgentState.ACTIVE:
        raise NotFound(f"there is no active agent {agent.id!r}")


def _archived(agent_id: str) -> str:
    return f"it is archived, and {_brings_back(agent_id)}"


def _brings_back(agent_id: str) -> str:
    return f"`coterie agent restore {agent_id}` brings it back"


def _check_label_argument(label: str | None) -> None:
    if label is None:
        return
    try:
        check_label(label)
    except ValueError as error:
        raise InvalidRequest(str(error), details={"field": "label"}) from None


def _refuse_to_lose(agent: Agent) -> None:
    if agent.id == MAIN:
        raise Conflict("main can never be deleted")
    if agent.is_default:
        raise Conflict(f"{agent.id!r} is the default agent; make another one the default first")


def _discovered(name: str) -> Agent:
    return Agent(name, name, False, AgentState.DISCOVERED, {}, "", "")
