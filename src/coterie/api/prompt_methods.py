"""What is sent to models, and what it used."""

from __future__ import annotations

import json
from typing import Any

from coterie.api import payloads as p
from coterie.api.method import method
from coterie.core.agent import AgentState
from coterie.core.usage import UsageRow
from coterie.engine.gateway import Gateway
from coterie.engine.model_check import check
from coterie.engine.preview import preview


@method("prompt.preview", "read")
async def prompt_preview(gateway: Gateway, params: p.PromptPreview) -> p.PromptView:
    """Exactly what a turn would send, with sizes by section."""
    seen = await preview(gateway, agent_id=params.agent_id, session=params.session, message=params.message)
    tools: list[dict[str, Any]] = [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
        for t in seen.request.tools
    ]
    body = seen.body
    if body is None:
        said = [seen.request.system, *(m.text for m in seen.request.messages), seen.request.context]
        sent = {"tools": tools, "messages": said}
        body = json.dumps(sent, ensure_ascii=False, separators=(",", ":")).encode()
    return p.PromptView(
        agent_id=seen.agent_id,
        model=seen.model,
        sections=[p.PromptSection(name=s.name, bytes=s.size, cut=s.cut) for s in seen.sections],
        system=seen.request.system,
        tools=tools,
        context=seen.request.context or "",
        body=None if seen.body is None else seen.body.decode(),
        total_bytes=len(body),
    )


@method("models.list", "read")
def models_list(gateway: Gateway, params: p.ModelsList) -> p.ModelList:
    """Models that can be used now, those that agents name first. With `all`, also those that lack a key."""
    providers = {state.name: state for state in gateway.providers(params.all)}
    default = gateway.registry.sync.config.default_model
    named = {default: None}
    for agent in gateway.registry.agents():
        model = gateway.registry.spec(agent).model
        if agent.state is AgentState.ACTIVE and model is not None:
            named |= dict.fromkeys((model.primary, *model.fallbacks))
    known = dict.fromkeys(name for state in providers.values() for name in state.models)
    return p.ModelList(
        default=default,
        models=[
            p.ModelInfo(
                name=name,
                provider=provider,
                available=provider in providers and providers[provider].has_key,
                named=name in named,
            )
            for name in {**named, **known}
            if (provider := name.partition("/")[0])
        ],
        providers=[
            p.ProviderInfo(
                name=state.name,
                type=state.type,
                base_url=state.base_url,
                key_names=list(state.key_names),
                has_key=state.has_key,
            )
            for state in providers.values()
        ],
    )


@method("models.test", "write")
async def models_test(gateway: Gateway, params: p.ModelTest) -> p.ModelTested:
    """Ask a model for a word, and say what came of it."""
    engine = gateway.engine
    name = params.name or engine.brains.of(gateway.registry.default().id).model
    found = await check(engine.around.resolve_model, name)
    return p.ModelTested(
        name=name,
        ok=found.ok,
        latency_ms=None if found.latency_ms is None else round(found.latency_ms),
        kind=None if found.error is None else found.error.kind,
        message=None if found.error is None else found.error.message,
    )


@method("usage.summary", "read")
def usage_summary(gateway: Gateway, params: p.UsageParams) -> p.UsageSummary:
    """Turns, tokens and cost by agent, session, model and day."""
    with gateway.store.read() as tx:
        rows = tx.usage.summary(
            params.by, since=params.since, until=params.until, agent_id=params.agent_id, limit=params.limit
        )
        [total] = tx.usage.summary(
            (), since=params.since, until=params.until, agent_id=params.agent_id, limit=1
        )
    return p.UsageSummary(rows=[_entry(row) for row in rows], total=_entry(total))


def _entry(row: UsageRow) -> p.UsageEntry:
    key: dict[str, Any] = {str(name): value for name, value in row.key.items()}
    return p.UsageEntry(
        **key,
        turns=row.turns,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cached_tokens=row.cached_tokens,
        cost=row.cost,
    )
