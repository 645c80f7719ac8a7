"""What an agent may use, and why: one resolver for tools, skills and agents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from coterie.core.agent import AgentSpec

SUBAGENT_DENIED = ("agents_create", "agents_switch", "subagents_*", "schedules_*", "config_*", "system_*")
"""What a subagent session never has, whatever any list says."""
HANDING_ON = ("agents_list", "agents_message", "agents_switch", "subagents_spawn")
"""What an agent needs only while it may hand something on to others."""
NEEDS_OTHERS = ("agents_list", "agents_message", "agents_switch")
SYSTEM = "system_*"
"""Tools that agent lists do not restrict."""


class Offered(Protocol):
    """As much of a tool as the policy looks at."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Decision:
    name: str
    allowed: bool
    reason: str
    code: Literal["tool_not_allowed", "delegation_limit"] = "tool_not_allowed"
    """What a call that is refused gets."""


def permits(name: str, allow: Iterable[str] | None, deny: Iterable[str] | None) -> bool:
    """Missing: no restriction. Empty: nothing. Otherwise globs; deny comes after allow."""
    return _list_decision(name, allow, deny, "").allowed


def tool_decision(tool: Offered, spec: AgentSpec, *, subagent: bool = False) -> Decision:
    """Whether an agent may call a tool in this kind of session. The reason names the rule that decided."""
    name = tool.name
    if subagent and (rule := _match(name, SUBAGENT_DENIED)):
        return Decision(name, False, f"subagents never have {rule}")
    if fnmatchcase(name, SYSTEM):
        return Decision(name, True, f"{SYSTEM} passes agent lists")
    by_name = _list_decision(name, spec.tool_allowlist, spec.tool_denylist, "tool")
    if not by_name.allowed:
        return by_name
    for capability in tool.capabilities:
        if spec.capability_allowlist is not None and not _match(capability, spec.capability_allowlist):
            return Decision(name, False, f"its capability {capability} is not in capability_allowlist")
    for capability in tool.capabilities:
        if rule := _match(capability, spec.capability_denylist or ()):
            return Decision(
                name, False, f"its capability {capability} is denied by {rule!r} in capability_denylist"
            )
    return by_name


def tool_decisions(tools: Iterable[Offered], spec: AgentSpec, *, subagent: bool = False) -> list[Decision]:
    return [tool_decision(tool, spec, subagent=subagent) for tool in tools]


def _list_decision(name: str, allow: Iterable[str] | None, deny: Iterable[str] | None, kind: str) -> Decision:
    reason = f"no {kind}_allowlist"
    if allow is not None:
        rule = _match(name, allow)
        if rule is None:
            return Decision(name, False, f"not in {kind}_allowlist")
        reason = f"{rule!r} in {kind}_allowlist"
    if rule := _match(name, deny or ()):
        return Decision(name, False, f"{rule!r} in {kind}_denylist")
    return Decision(name, True, reason)


def _match(name: str, patterns: Iterable[str] | Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
