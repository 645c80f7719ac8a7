"""The identity of a session's agent."""

from __future__ import annotations

from pydantic import Field

from coterie.api.operation import operation
from coterie.api.operations.agents import Identity, IdentityPatch, identity_changes
from coterie.api.shapes import Change, Params, ShortText
from coterie.core.agent import Agent
from coterie.engine.gateway import Gateway


class IdentityRef(Params):
    session: ShortText | None = Field(None, description="Id or key; without it the default agent is meant.")


class IdentityUpdate(IdentityPatch, Change):
    session: ShortText | None = None


class SoulUpdate(Change):
    session: ShortText | None = None
    soul: str


class IdentityWithSoul(Identity):
    soul: str


@operation("agent.identity.get", "read")
def agent_identity_get(gateway: Gateway, params: IdentityRef) -> IdentityWithSoul:
    """Name, emoji, creature, vibe and soul of the session's agent, or of the default one."""
    return _identity(gateway, _agent_of(gateway, params.session))


@operation("agent.identity.update", "admin")
def agent_identity_update(gateway: Gateway, params: IdentityUpdate) -> IdentityWithSoul:
    """Change the identity of the session's agent, or of the default one."""
    agent = _agent_of(gateway, params.session)
    label, fields = identity_changes(params)
    return _identity(gateway, gateway.registry.update(agent.id, label=label, identity=fields))


@operation("agent.identity.update_soul", "admin")
def agent_identity_update_soul(gateway: Gateway, params: SoulUpdate) -> IdentityWithSoul:
    """Write the soul of the session's agent, or of the default one."""
    agent = _agent_of(gateway, params.session)
    return _identity(gateway, gateway.registry.update(agent.id, soul=params.soul))


def _identity(gateway: Gateway, agent: Agent) -> IdentityWithSoul:
    soul = gateway.registry.workspace(agent).effective("SOUL.md")[1]
    return IdentityWithSoul(name=agent.label, soul=soul, **gateway.registry.identity(agent))


def _agent_of(gateway: Gateway, session: str | None) -> Agent:
    """The agent that runs a session now; without one, the default."""
    if session is None:
        return gateway.registry.default()
    with gateway.store.read() as tx:
        found = gateway.sessions.find(tx, session)
    return gateway.registry.get(gateway.brains.agent_of(found))
