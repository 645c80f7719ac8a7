"""Tools, and the prompt that they are part of."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from coterie.api.operation import operation
from coterie.api.shapes import AgentId, Answer, Nothing, Params, SessionName
from coterie.core.policy import Verdict
from coterie.engine.gateway import Gateway
from coterie.engine.preview import preview


class ToolsEffective(Params):
    agent_id: AgentId | None = None
    session: SessionName | None = None


class PromptPreview(ToolsEffective):
    message: str | None = Field(None, description="As if this was said next.", max_length=1_000_000)


class ToolInfo(Answer):
    name: str
    description: str
    plugin: str
    capabilities: list[str]
    safe_to_repeat: bool


class ToolList(Answer):
    tools: list[ToolInfo]


class ToolDecision(Answer):
    name: str
    allowed: bool
    verdict: Verdict = Field(description="A call that a person is asked about first is listed, too.")
    reason: str


class EffectiveTools(Answer):
    agent_id: str
    tools: list[ToolDecision]


class PromptSection(Answer):
    name: str
    bytes: int
    cut: int = Field(description="Characters that did not fit.")


class PromptView(Answer):
    agent_id: str
    model: str
    sections: list[PromptSection]
    system: str
    tools: list[dict[str, Any]]
    context: str
    body: str | None = Field(
        description="The request's body exactly as the provider would get it; null for a model that has no wire."
    )
    total_bytes: int = Field(description="Of the whole request.")


@operation("tools.list", "read")
async def tools_list(gateway: Gateway, params: Nothing) -> ToolList:
    """Every tool that is loaded."""
    tools = gateway.brains.tools
    return ToolList(
        tools=[
            ToolInfo(
                name=name,
                description=tool.schema.description,
                plugin=tool.source,
                capabilities=list(tool.capabilities),
                safe_to_repeat=tool.safe_to_repeat,
            )
            for name, tool in sorted(tools.items())
        ]
    )


@operation("tools.effective", "read")
async def tools_effective(gateway: Gateway, params: ToolsEffective) -> EffectiveTools:
    """Which tools an agent may call, and which rule decided, from the resolver that turns use."""
    if params.session is not None:
        brain = gateway.brains.for_session(await gateway.sessions.get(params.session))
    else:
        brain = gateway.brains.of(gateway.registry.get(params.agent_id or "default").id)
    decisions = [ToolDecision.of(brain.decisions[name]) for name in sorted(brain.decisions)]
    return EffectiveTools(agent_id=brain.agent_id, tools=decisions)


@operation("prompt.preview", "read")
async def prompt_preview(gateway: Gateway, params: PromptPreview) -> PromptView:
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
    return PromptView(
        agent_id=seen.agent_id,
        model=seen.model,
        sections=[PromptSection.of(s, bytes=s.size) for s in seen.sections],
        system=seen.request.system,
        tools=tools,
        context=seen.request.context or "",
        body=None if seen.body is None else seen.body.decode(),
        total_bytes=len(body),
    )
