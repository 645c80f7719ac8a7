"""What an agent may use, and why: one resolver for tools, skills and agents."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from coterie.core.agent import AgentSpec
from coterie.core.audience import Rights

SUBAGENT_DENIED = ("agents_create", "agents_switch", "subagents_*", "schedules_*", "config_*", "system_*")
"""What a subagent session never has, whatever any list says."""
HANDING_ON = ("agents_list", "agents_message", "agents_switch", "subagents_spawn")
"""What an agent needs only while it may hand something on to others."""
NEEDS_OTHERS = ("agents_list", "agents_message", "agents_switch")
OUTSIDE_DENIED = ("memory_edit", "memory_log")
"""What nobody outside gets, whatever any list says: tools on identity and memory files."""
SYSTEM = "system_*"
"""Tools that agent lists do not restrict."""
MAX_LOOKS = 1_000_000
"""Names that are held against patterns in one check; beyond it a pattern counts as matching."""


class Offered(Protocol):
    """As much of a tool as the policy looks at."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> tuple[str, ...]: ...

    @property
    def source(self) -> str: ...


Verdict = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a tool may be called. Made here and nowhere else; a tool that a person is asked about is listed."""

    name: str
    verdict: Verdict
    reason: str
    """The rule that decided."""
    code: Literal["tool_not_allowed", "delegation_limit", "denied"] = "tool_not_allowed"
    """What a call that is refused gets."""

    @property
    def allowed(self) -> bool:
        return self.verdict == "allow"

    @property
    def listed(self) -> bool:
        return self.verdict != "deny"


@dataclass(frozen=True, slots=True)
class Place:
    """What makes one agent's turns differ: where and how far down the line they run."""

    subagent: bool = False
    may_hand_on: bool = True
    """Others may still be asked from here."""
    tools: tuple[str, ...] | None = None
    """Globs that narrow the agent's tools."""
    rights: Rights = "owner"
    """Those of whoever hears the turn."""


@dataclass(frozen=True, slots=True)
class HouseRules:
    """What the household says about every agent's tools."""

    disabled: frozenset[str] = frozenset()
    """Tools and sources that are switched off."""
    max_depth: int = 1
    has_peers: bool = True
    """There is another agent that this one may reach."""


def permits(name: str, allow: Iterable[str] | None, deny: Iterable[str] | None) -> bool:
    """Missing: no restriction. Empty: nothing. Otherwise globs; deny comes after allow."""
    return _list_decision(name, allow, deny, "").allowed


def decide(
    tool: Offered, spec: AgentSpec, place: Place = Place(), house: HouseRules = HouseRules()
) -> Decision:
    """Allow, ask or deny, for one agent in one place: denied by any rule, else asked by any, else allowed."""
    decision = _denied(tool, spec, place, house)
    return decision if decision.verdict == "deny" else _asked(tool, spec) or decision


def after_asking(decision: Decision, *, allowed: bool, reason: str) -> Decision:
    """What a person said about one call."""
    return replace(decision, verdict="allow" if allowed else "deny", reason=reason, code="denied")


def unknown_tool(name: str) -> Decision:
    return Decision(name, "deny", "there is no such tool")


def _denied(tool: Offered, spec: AgentSpec, place: Place, house: HouseRules) -> Decision:
    name = tool.name
    if {name, tool.source} & house.disabled:
        return Decision(name, "deny", "disabled in plugins.disabled")
    decision = _by_lists(tool, spec, subagent=place.subagent)
    if decision.verdict == "deny":
        return decision
    if (outside := _denied_outside(name, spec, place.rights)) is not None:
        return outside
    if place.tools is not None and not permits(name, place.tools, None):
        return Decision(name, "deny", "not in the list that this session was given")
    if name in HANDING_ON and not place.may_hand_on:
        reason = (
            f"tool_not_allowed in a turn that was handed on as far as delegation.max_depth, {house.max_depth}"
        )
        return Decision(name, "deny", reason, "delegation_limit")
    if name in NEEDS_OTHERS and not house.has_peers:
        return Decision(name, "deny", "there is no other agent that it may reach")
    return decision


def _denied_outside(name: str, spec: AgentSpec, rights: Rights) -> Decision | None:
    """Because of who hears the turn; None where that does not matter."""
    if rights == "owner":
        return None
    if rule := _match(name, OUTSIDE_DENIED):
        return Decision(name, "deny", f"nobody but the owner has {rule}")
    if rights == "guest" and not _match(name, spec.outside.tool_allowlist):
        return Decision(
            name, "deny", "not in outside.tool_allowlist, and the turn is heard by people outside"
        )
    return None


def _by_lists(tool: Offered, spec: AgentSpec, *, subagent: bool) -> Decision:
    name = tool.name
    if subagent and (rule := _match(name, SUBAGENT_DENIED)):
        return Decision(name, "deny", f"subagents never have {rule}")
    if fnmatchcase(name, SYSTEM):
        return Decision(name, "allow", f"{SYSTEM} passes agent lists")
    by_name = _list_decision(name, spec.tool_allowlist, spec.tool_denylist, "tool")
    if by_name.verdict == "deny":
        return by_name
    for capability in tool.capabilities:
        if spec.capability_allowlist is not None and not _match(capability, spec.capability_allowlist):
            return Decision(name, "deny", f"its capability {capability} is not in capability_allowlist")
    for capability in tool.capabilities:
        if rule := _match(capability, spec.capability_denylist or ()):
            return Decision(
                name, "deny", f"its capability {capability} is denied by {rule!r} in capability_denylist"
            )
    return by_name


def _asked(tool: Offered, spec: AgentSpec) -> Decision | None:
    if rule := _match(tool.name, spec.tool_asklist or ()):
        return Decision(tool.name, "ask", f"{rule!r} in tool_asklist")
    for capability in tool.capabilities:
        if rule := _match(capability, spec.capability_asklist or ()):
            reason = f"its capability {capability} matches {rule!r} in capability_asklist"
            return Decision(tool.name, "ask", reason)
    return None


def _list_decision(name: str, allow: Iterable[str] | None, deny: Iterable[str] | None, kind: str) -> Decision:
    reason = f"no {kind}_allowlist"
    if allow is not None:
        rule = _match(name, allow)
        if rule is None:
            return Decision(name, "deny", f"not in {kind}_allowlist")
        reason = f"{rule!r} in {kind}_allowlist"
    if rule := _match(name, deny or ()):
        return Decision(name, "deny", f"{rule!r} in {kind}_denylist")
    return Decision(name, "allow", reason)


def _match(name: str, patterns: Iterable[str] | Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


class Names:
    """Names that patterns are held against: each pattern once, and only names that begin as it does."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = sorted(set(names))
        self._known: dict[str, bool] = {"*": True}
        self._left = MAX_LOOKS

    def matched(self, pattern: str) -> bool:
        """Whether any name matches."""
        if pattern not in self._known:
            head = pattern[: min((pattern.index(c) for c in "*?[" if c in pattern), default=len(pattern))]
            first = bisect_left(self._names, head)
            last = bisect_left(self._names, head + chr(0x10FFFF), lo=first)
            self._left -= last - first
            some = self._names[first:last]
            self._known[pattern] = self._left < 0 or any(fnmatchcase(name, pattern) for name in some)
        return self._known[pattern]


def unmatched(spec: Mapping[str, Any], pools: Mapping[str, Names]) -> Iterator[str]:
    """Rules that match none of what there is, by kind (tool, capability, skill, agent): most often a typing error."""
    for kind, names in pools.items():
        for key in (f"{kind}_allowlist", f"{kind}_denylist", f"{kind}_asklist"):
            for pattern in spec.get(key) or ():
                if not names.matched(pattern):
                    yield f"{key}: {pattern!r} matches no {kind}"
    if "tool" in pools:
        for pattern in (spec.get("outside") or {}).get("tool_allowlist") or ():
            if not pools["tool"].matched(pattern):
                yield f"outside.tool_allowlist: {pattern!r} matches no tool"
