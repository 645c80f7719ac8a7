"""Models that can be asked, and what they were used for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field

from coterie.api.operation import Get, operation
from coterie.api.shapes import NUMBER, AgentId, Answer, Change, Flag, Params, ShortText
from coterie.core.agent import AgentState
from coterie.core.ports import ProviderState
from coterie.core.usage import UsageKey, UsageRow
from coterie.engine.gateway import Gateway
from coterie.engine.model_check import check


class ModelsList(Params):
    all: Flag = Field(False, description="Also the models of providers that have no key yet.")


class ModelTest(Change):
    name: ShortText | None = Field(None, description="<provider>/<model>; else the default agent's.")


class UsageAsked(Params):
    by: list[UsageKey] = ["day", "agent", "model"]
    since: ShortText | None = None
    until: ShortText | None = None
    agent_id: AgentId | None = None
    limit: Annotated[int, Field(ge=1, le=10_000), NUMBER] = 1000


class ModelInfo(Answer):
    name: str = Field(description="<provider>/<model>.")
    provider: str
    available: bool = Field(description="Its provider is known and can be asked.")
    reason: str | None = Field(None, description="Why it is not available.")
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


class ModelTested(Answer):
    name: str
    ok: bool
    latency_ms: int | None
    kind: str | None = Field(description="auth, unknown_model, network, rate_limit, rejected, …")
    message: str | None


class UsageEntry(Answer):
    agent: str | None = None
    session: str | None = None
    model: str | None = None
    day: str | None = None
    audience: str | None = None
    turns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None = Field(description="In dollars, as far as prices are known; null: none is.")
    unpriced_turns: int = Field(description="Turns whose price is not known.")


class UsageSummary(Answer):
    rows: list[UsageEntry]
    total: UsageEntry


@operation("models.list", "read", http=Get("/api/models"))
def models_list(gateway: Gateway, params: ModelsList) -> ModelList:
    """Models that can be used now, those that agents name first. With `all`, also those that lack a key."""
    providers = {state.name: state for state in gateway.models.describe(only_usable=not params.all)}
    default = gateway.registry.sync.config.default_model
    named = {default: None}
    for agent in gateway.registry.agents():
        model = gateway.registry.spec(agent).model
        if agent.state is AgentState.ACTIVE and model is not None:
            named |= dict.fromkeys((model.primary, *model.fallbacks))
    known = dict.fromkeys(name for state in providers.values() for name in state.models)
    return ModelList(
        default=default,
        models=[
            ModelInfo(
                name=name,
                provider=provider,
                available=(reason := _why_not(providers, provider)) is None,
                reason=reason,
                named=name in named,
            )
            for name in {**named, **known}
            if (provider := name.partition("/")[0])
        ],
        providers=[ProviderInfo.of(state) for state in providers.values()],
    )


def _why_not(providers: Mapping[str, ProviderState], provider: str) -> str | None:
    return providers[provider].trouble if provider in providers else f"there is no provider {provider!r}"


@operation("models.test", "write")
async def models_test(gateway: Gateway, params: ModelTest) -> ModelTested:
    """Ask a model for a word, and say what came of it."""
    name = params.name or gateway.brains.of(gateway.registry.default().id).model
    found = await check(gateway.models.resolve, name)
    return ModelTested(
        name=name,
        ok=found.ok,
        latency_ms=None if found.latency_ms is None else round(found.latency_ms),
        kind=None if found.error is None else found.error.kind,
        message=None if found.error is None else found.error.message,
    )


@operation("usage.summary", "read")
def usage_summary(gateway: Gateway, params: UsageAsked) -> UsageSummary:
    """Turns, tokens and cost by agent, session, model and day."""
    narrow: dict[str, Any] = {"since": params.since, "until": params.until, "agent_id": params.agent_id}
    with gateway.store.read() as tx:
        rows = tx.usage.summary(params.by, limit=params.limit, **narrow)
        [total] = tx.usage.summary((), limit=1, **narrow)
    return UsageSummary(rows=[_entry(row) for row in rows], total=_entry(total))


def _entry(row: UsageRow) -> UsageEntry:
    return UsageEntry.of(row, **{str(name): row.key.get(name) for name in get_args(UsageKey)})
