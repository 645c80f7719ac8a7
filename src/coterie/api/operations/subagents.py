"""Runs that agents do for sessions and for each other."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from coterie.api.operation import Delete, Get, Post, operation
from coterie.api.shapes import NUMBER, AgentId, Answer, Change, Params, RunId, SessionName, ShortText
from coterie.core.agent import Text
from coterie.core.announce import AnnouncementState, Asker, RunKind, RunStatus
from coterie.engine.gateway import Gateway
from coterie.engine.together.subagents import Told


class SubagentSpawn(Change):
    task: str = Field(description="All that the child has to know. At most a million characters.")
    agent_id: AgentId | None = Field(
        None, description="Who does it; else the requester's agent, else the default."
    )
    label: Annotated[Text, Field(max_length=1000)] | None = None
    requester_session_key: SessionName | None = Field(
        None, description="The session that is told of the result; without it, the result stays in the run."
    )
    model: Annotated[Text, Field(max_length=200)] | None = Field(None, description="<provider>/<model>")
    tool_allowlist: Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=200)] | None = (
        Field(None, description="Globs that narrow what the child's agent may call.")
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400), NUMBER] | None = Field(
        None, description="Seconds from its start after which it is stopped."
    )


class SubagentsList(Params):
    requester_session_key: SessionName | None = None
    status: RunStatus | None = None
    before: ShortText | None = Field(None, description="Only runs created before this moment.")
    limit: Annotated[int, Field(ge=1, le=1000), NUMBER] = 200


class SubagentRef(Params):
    run_id: RunId


class SubagentChange(Change):
    run_id: RunId


class AnnouncementInfo(Answer):
    """How a result got back to whoever asked."""

    state: AnnouncementState
    reason: str | None = Field(None, description="Why it is blocked.")
    created_at: str
    delivered_at: str | None = None


class RunUsage(Answer):
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None


class SubagentRunInfo(Answer):
    run_id: str
    kind: RunKind = Field(
        description="A task in a child session, or a message to a session of the agent's own."
    )
    child_session_key: str
    requester_session_key: str | None = None
    requester_channel: str | None = None
    requester_chat_id: str | None = None
    requester_peer_id: str | None = None
    label: str | None = None
    task: str
    agent_id: str
    model: str
    status: RunStatus
    trace_id: str
    hop: int
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    result: str | None = None
    error: str | None = None
    usage: RunUsage | None = None
    announcement: AnnouncementInfo | None = None


class SubagentReceipt(SubagentRunInfo):
    """A run, and what it got of its agent."""

    workspace: str
    tools: list[str]


class SubagentRunList(Answer):
    runs: list[SubagentRunInfo]
    next_cursor: str | None = None


@operation("subagents.spawn", "write", http=Post("/api/agents/subagents/spawn", 201))
async def subagents_spawn(gateway: Gateway, params: SubagentSpawn) -> SubagentReceipt:
    """Start a child on one task. Beyond the bounds it waits as queued; its result goes to the session named."""
    asker = route = None
    if params.requester_session_key is not None:
        session = await gateway.sessions.get(params.requester_session_key)
        asker = Asker(
            gateway.sessions.agent_id(session),
            session.id,
            session.key,
            is_subagent=session.kind == "subagent",
            audience=session.audience,
        )
        route = session.route
    receipt = await gateway.subagents.spawn(
        asker,
        params.task,
        agent_id=params.agent_id,
        label=params.label,
        model=params.model,
        tools=params.tool_allowlist,
        seconds=params.timeout_seconds,
    )
    told = Told(receipt.run, None, route)
    return SubagentReceipt.of(
        receipt.run, **_around(told), workspace=receipt.workspace, tools=list(receipt.tools)
    )


@operation("subagents.list", "read", http=Get("/api/agents/subagents"))
async def subagents_list(gateway: Gateway, params: SubagentsList) -> SubagentRunList:
    """Runs, newest first, each with how its result got back; long tasks and results are cut at 4,000 characters."""
    found = await gateway.subagents.list(
        requester=params.requester_session_key, status=params.status, before=params.before, limit=params.limit
    )
    cursor = found[-1].run.created_at if len(found) == params.limit else None
    return SubagentRunList(runs=[_run(told) for told in found], next_cursor=cursor)


@operation("subagents.get", "read", http=Get("/api/agents/subagents/{runId}", runId="run_id"))
async def subagents_get(gateway: Gateway, params: SubagentRef) -> SubagentRunInfo:
    """One run, with its result."""
    return _run(await gateway.subagents.get(params.run_id))


@operation("subagents.cancel", "write")
async def subagents_cancel(gateway: Gateway, params: SubagentChange) -> SubagentRunInfo:
    """Stop a run; whoever asked is told. One that has ended stays as it is."""
    return _run(await gateway.subagents.cancel(params.run_id))


@operation("subagents.delete", "write", http=Delete("/api/agents/subagents/{runId}", runId="run_id"))
async def subagents_delete(gateway: Gateway, params: SubagentChange) -> SubagentRunInfo:
    """Cancel a live run, remove a finished one. A result that is on its way still arrives."""
    return _run(await gateway.subagents.delete(params.run_id))


@operation("subagents.retry", "write", http=Post("/api/agents/subagents/{runId}/retry", runId="run_id"))
async def subagents_retry(gateway: Gateway, params: SubagentChange) -> SubagentRunInfo:
    """Send a blocked announcement on its way again."""
    return _run(await gateway.subagents.retry(params.run_id))


def _run(told: Told) -> SubagentRunInfo:
    return SubagentRunInfo.of(told.run, **_around(told))


def _around(told: Told) -> dict[str, Any]:
    """What is known of a run beside the run itself."""
    run, announcement, route = told.run, told.announcement, told.route or {}
    return {
        "child_session_key": run.session_key,
        "requester_channel": route.get("channel"),
        "requester_chat_id": route.get("chat"),
        "requester_peer_id": route.get("peer"),
        "usage": None if run.usage is None else RunUsage.of(run.usage),
        "announcement": None if announcement is None else AnnouncementInfo.of(announcement),
    }
