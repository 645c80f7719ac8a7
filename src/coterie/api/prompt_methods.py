"""What is sent to models, and what it used."""

from __future__ import annotations

import json
from typing import Any

from coterie.api import payloads as p
from coterie.api.method import method
from coterie.core.usage import UsageRow
from coterie.engine.gateway import Gateway
from coterie.engine.preview import preview


@method("prompt.preview", "read")
async def prompt_preview(gateway: Gateway, params: p.PromptPreview) -> p.PromptView:
    """Exactly what a turn would send, with sizes by section."""
    seen = await preview(gateway, agent_id=params.agent_id, session=params.session)
    body: dict[str, Any] = dict(seen.body or {})
    tools: list[dict[str, Any]] = body.get("tools") or [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
        for t in seen.request.tools
    ]
    messages: list[dict[str, Any]] = body.get("messages") or []
    sent: dict[str, Any] = {"tools": tools, "messages": messages}
    if not messages:
        sent["messages"] = [seen.request.system, seen.request.context]
    return p.PromptView(
        agent_id=seen.agent_id,
        model=seen.model,
        sections=[p.PromptSection(name=s.name, bytes=s.size, cut=s.cut) for s in seen.sections],
        system=seen.request.system,
        tools=tools,
        context=seen.request.context or "",
        messages=messages,
        total_bytes=len(json.dumps(sent, ensure_ascii=False, separators=(",", ":")).encode()),
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
