"""Keeps agent.yaml and the registry the same: the registry is what runs, the file is its human face."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from coterie.config import Config, ConfigError, Loaded, Parsed, Problem, Surroundings, check, load
from coterie.core.agent import MAIN, Agent, AgentState
from coterie.core.clock import now_iso
from coterie.core.errors import Conflict, InvalidRequest
from coterie.core.roster import Merge, Roster, keep_lost, merge
from coterie.engine.household.config_file import STABLE_AFTER, ConfigFile, text_sha
from coterie.engine.household.home import Home
from coterie.engine.household.household import Agreed, Change, Household, without_roster
from coterie.engine.household.roster_file import FRESH, rewrite
from coterie.engine.household.workspace import Workspace

if TYPE_CHECKING:
    from coterie.store.transaction import Store

log = logging.getLogger("coterie.registry")

MANY = 100
"""More agents than these at once get their folders from the gateway, one by one, or when they are first used."""


@dataclass(frozen=True, slots=True)
class Sync:
    """How far the file and the registry agree."""

    problems: tuple[Problem, ...] = ()
    """Why the file is not in force. Empty: it is."""
    warnings: tuple[Problem, ...] = ()
    held: tuple[str, ...] = ()
    """Changes in the file that wait for a person's word."""
    settling: bool = False
    """The file changed a moment ago; look again soon."""
    changes: tuple[Change, ...] = ()


class RosterSync:
    """Every change of the household, from whichever side, goes through here."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._store = store
        self._file = ConfigFile(home.config)
        self._thread_lock = threading.RLock()
        self._depth = 0
        self._listeners: list[Callable[[Change], None]] = []
        self.config = Config()
        """In force: the last good one."""
        self._in_force: str | None = None
        """Hash of the text that `config` was read from, where that is known."""
        self.state = Sync()

    def listen(self, listener: Callable[[Change], None]) -> None:
        self._listeners.append(listener)

    def refresh(self) -> Sync:
        """Follow the file if it changed. Cheap when it did not."""
        with self._store.read() as tx:
            agreed = Agreed.load(tx)
            current = agreed.revision == int(tx.meta.get("revision") or 0)
        text = self._file.read()
        if text is None or not current or not agreed.settled or text_sha(text) != agreed.sha:
            return self.apply()
        if self._in_force != agreed.sha:
            self.config = Config.model_validate(agreed.config)
            self._in_force = agreed.sha
        self.state = Sync(warnings=tuple(Problem(**warning) for warning in agreed.warnings))
        return self.state

    def apply(self, *, yes: bool = False) -> Sync:
        """Bring file and registry together. `yes` also applies what is held, and mends a file that was emptied."""
        with self.locked():
            if yes:
                self._restore_emptied_file()
            try:
                return self._merge(None, yes=yes)
            except ConfigError as error:
                self._reject(error)
            except Conflict as error:
                # The file is right but cannot be edited; nobody asked for an edit that could be refused.
                self._reject(ConfigError([Problem(error.message)]))
            return self.state

    def edit(self, edit: Callable[[Household], None]) -> None:
        with self.locked():
            try:
                self._merge(edit)
            except ConfigError as error:
                self._reject(error)
                raise Conflict(
                    f"agent.yaml must be mended before the household can change: {error.message}",
                    details=error.details,
                ) from None

    def _reject(self, error: ConfigError) -> None:
        """An invalid file: what was in force stays in force, also across a restart."""
        if self.state.problems != tuple(error.problems):
            log.warning("agent.yaml is not in force: %s", error.message)
        with self._store.read() as tx:
            agreed = Agreed.load(tx)
        self.config = Config.model_validate(agreed.config)
        self._in_force = None
        self.state = Sync(problems=tuple(error.problems))

    def _merge(self, edit: Callable[[Household], None] | None, *, yes: bool = False, tries: int = 5) -> Sync:
        """The one place where file and registry meet. Raises ConfigError while the file is invalid.

        The registry commits first, the file follows, and only then do both count as agreed:
        cut short anywhere, the next merge finds what is left to do.
        """
        give_up = time.monotonic() + 3 * STABLE_AFTER
        while True:
            with self._store.read() as tx:
                revision = int(tx.meta.get("revision") or 0)
                agreed = Agreed.load(tx)
                household = Household({agent.id: agent for agent in tx.agents.all()})
            text, age = self._file.read_settled(agreed.sha)
            before = dict(household.rows)
            if not (text or "").strip() and agreed.sha:
                raise ConfigError(
                    [Problem("the file is empty or missing; `coterie agent apply --yes` writes it again")]
                )
            loaded = load(text or FRESH)
            parsed = check(loaded, self._surroundings(household))
            fresh = -STABLE_AFTER < age < STABLE_AFTER and not yes
            lost: tuple[str, ...] = ()
            if fresh and agreed.sha:
                parsed, lost = _without_losses(agreed, parsed)
            told = Roster(parsed.entries, parsed.config.agents.default)
            plan = merge(agreed.roster, told, household.roster({**told.entries, **agreed.entries}))
            held, settling = self._follow_file(household, plan, agreed, parsed, fresh=fresh, yes=yes)
            settling += lost
            if settling and edit is not None:
                # Perhaps only half of it is written: what we put in its place would take the other half away.
                self._wait_for_the_rest(age, give_up)
                continue
            if edit is not None:
                edit(household)
            wanted = self._wanted(household, told, {*held, *settling})
            new_text, result = (text, loaded) if settling and text else rewrite(text or FRESH, loaded, wanted)
            if edit is not None:
                parsed = self._check_result(result, household)
            waiting = tuple(dict.fromkeys((*held, *settling)))
            kept = {k: agreed.entries[k] for k in waiting if k in agreed.entries}
            kept_default = agreed.default if "agents.default" in waiting else told.default
            heard = agreed.after(
                text or "", Roster({**kept, **told.entries}, kept_default), parsed, waiting, revision + 1
            )
            with self._store.write() as tx:
                if int(tx.meta.get("revision") or 0) != revision:
                    continue
                tx.meta.count_up("revision")
                tx.agents.save(row for key, row in household.rows.items() if before.get(key) != row)
                for change, agent_id in household.changes:
                    if change in ("archived", "purged"):
                        tx.memories.archive(agent_id)
                    elif change == "restored":
                        tx.memories.restore(agent_id)
                heard.save(tx, settled=new_text == text)
            break
        came = [agent_id for change, agent_id in household.changes if change in ("created", "restored")]
        if len(came) <= MANY:
            for agent_id in came:
                agent = household.rows[agent_id]
                Workspace(self._home, agent.id, soul=agent.spec.get("personality")).scaffold()
        self.config, self._in_force = parsed.config, None
        self.state = Sync(
            warnings=tuple(parsed.warnings),
            held=tuple(held.values()),
            settling=bool(settling),
            changes=tuple(household.changes),
        )
        for name in plan.overruled:
            log.warning("%s was changed in the file and elsewhere at once; the file's value was taken", name)
        if new_text != text:
            written_default = agreed.default if "agents.default" in waiting else wanted.default
            both = heard.after(
                new_text, Roster({**kept, **wanted.entries}, written_default), parsed, waiting, revision + 1
            )
            if self._file.replace(text, new_text):
                with self._store.write() as tx:
                    both.save(tx, settled=True)
            elif tries > 1:
                self._merge(None, tries=tries - 1)
            else:
                # Somebody saves faster than we can follow. The registry has it all; the file gets it later.
                self.state = replace(self.state, settling=True)
        outcome = self.state
        for one in household.changes:
            self.tell(one)
        return outcome

    def _wait_for_the_rest(self, age: float, give_up: float) -> None:
        """Until a file that lost entries has been left alone for a while."""
        if time.monotonic() > give_up:
            raise Conflict("agent.yaml keeps changing; try again when nobody is saving it")
        time.sleep(max(0.05, STABLE_AFTER - abs(age)))

    def _follow_file(
        self, household: Household, plan: Merge, agreed: Agreed, parsed: Parsed, *, fresh: bool, yes: bool
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Apply what the file says. Returns what is held, with the reason, and what vanished too recently to act on."""
        at = now_iso()
        for position, (agent_id, entry) in enumerate(plan.merged.entries.items()):
            spec = {k: v for k, v in entry.items() if k != "label"}
            label = entry.get("label") or agent_id
            row = household.rows.get(agent_id)
            if row is None:
                # One microsecond apart, so that the order of the file is the order of arrival.
                made = now_iso(offset_us=position)
                household.put("created", Agent(agent_id, label, False, AgentState.ACTIVE, spec, made, made))
                continue
            after = replace(row, label=label, spec=spec)
            if agent_id not in plan.removed and row.state is not AgentState.ACTIVE:
                household.put("restored", replace(after, state=AgentState.ACTIVE, updated_at=at))
            elif after != row:
                household.put("updated", replace(after, updated_at=at))
        held: dict[str, str] = {}
        settling: list[str] = []
        default = household.rows.get(plan.merged.default)
        if fresh and agreed.default != MAIN and "default" not in parsed.config.agents.model_fields_set:
            settling.append("agents.default")
        elif default is None or default.state is not AgentState.ACTIVE:
            held["agents.default"] = f"{plan.merged.default} is not active and cannot be the default"
        else:
            household.make_default(default.id)
        if fresh:
            return held, (*settling, *plan.dropped)
        active = sum(1 for row in household.rows.values() if row.state is AgentState.ACTIVE)
        going = [a for a in plan.dropped if a != MAIN]
        many = len(going) * 2 > active
        for agent_id in plan.dropped:
            row = household.rows[agent_id]
            if agent_id == MAIN:
                household.put("updated", replace(row, label=MAIN, spec={}, updated_at=at))
            elif row.is_default:
                held[agent_id] = (
                    f"{agent_id} is the default agent and cannot be removed; name another default first"
                )
            elif many and not yes:
                held[agent_id] = (
                    f"{agent_id} left the file together with most of the household; "
                    "`coterie agent apply --yes` archives it"
                )
            else:
                household.put("archived", replace(row, state=AgentState.ARCHIVED, updated_at=at))
        return held, ()

    def _wanted(self, household: Household, told: Roster, waiting: set[str]) -> Roster:
        """What the file should say now: the registry, less what the file itself left open."""
        runs = household.roster(told.entries)
        order = [a for a in told.entries if a in runs.entries]
        order += [a for a in runs.entries if a not in told.entries and a not in waiting]
        default = told.default if "agents.default" in waiting else runs.default
        return Roster({a: runs.entries[a] for a in order}, default)

    def _check_result(self, result: Loaded, household: Household) -> Parsed:
        """The same rules for every door: an edit is checked as the file that it would become."""
        try:
            return check(result, self._surroundings(household))
        except ConfigError as error:
            first = error.problems[0]
            raise InvalidRequest(f"{first.key}: {first.message}", details=error.details) from None

    def _surroundings(self, household: Household) -> Surroundings:
        archived = {a.id: a.label for a in household.rows.values() if a.state is AgentState.ARCHIVED}
        return Surroundings(skills=self._home.skill_names(), archived=list(archived), labels=archived)

    def _restore_emptied_file(self) -> None:
        with self._store.read() as tx:
            agreed = Agreed.load(tx)
        if agreed.text.strip() and not (self._file.read() or "").strip():
            self._file.write(agreed.text)

    def tell(self, change: Change) -> None:
        for listener in self._listeners:
            listener(change)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Re-entrant within a thread, exclusive across threads and processes."""
        with self._thread_lock:
            if self._depth:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
                return
            with self._home.registry_lock():
                self._depth = 1
                try:
                    yield
                finally:
                    self._depth = 0


def _without_losses(agreed: Agreed, parsed: Parsed) -> tuple[Parsed, tuple[str, ...]]:
    """A file that was saved a moment ago may be half of one: what it took away stays until it has been left alone."""
    lost: list[str] = []
    entries: dict[str, dict[str, Any]] = {}
    gone = sorted(set(agreed.entries) - set(parsed.entries))
    for agent, entry in parsed.entries.items():
        if agent in agreed.entries:
            entries[agent] = keep_lost(agreed.entries[agent], entry, lost, agent)
        elif (at := bisect_left(gone, agent)) < len(gone) and gone[at].startswith(agent):
            lost.append(agent)  # the beginning of another's name
        else:
            entries[agent] = entry
    now = without_roster(parsed.config)
    was = {key: value for key, value in agreed.config.items() if key != "agents"}
    kept = keep_lost(was, now, lost)
    try:
        config = Config.model_validate(kept)
    except ValidationError:
        config = Config.model_validate({**was, "agents": now.get("agents")})
    return replace(parsed, entries=entries, config=config), tuple(lost)
