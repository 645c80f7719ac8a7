"""Runs that agents do for sessions and for each other."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from coterie.api import payloads as p
from coterie.api.method import method
from coterie.core.announce import Asker
from coterie.engine.gateway import Gateway
from coterie.engine.together.subagents import Told


@method("subagents.spawn", "write")
async def subagents_spawn(gateway: Gateway, params: p.SubagentSpawn) -> p.SubagentReceipt:
    """Start a child on one task. Beyond the bounds it waits as queued; its result goes to the session named."""
    engine = gateway.engine
    asker = route = None
    if params.requester_session_key is not None:
        session = await engine.sessions.get(params.requester_session_key)
        asker = Asker(
            engine.sessions.agent_id(session),
            session.id,
            session.key,
            is_subagent=session.kind == "subagent",
        )
        route = session.route
    receipt = await engine.subagents.spawn(
        asker,
        params.task,
        agent_id=params.agent_id,
        label=params.label,
        model=params.model,
        tools=params.tool_allowlist,
        seconds=params.timeout_seconds,
    )
    told = Told(receipt.run, None, route)
    return p.SubagentReceipt(**_fields(told), workspace=receipt.workspace, tools=list(receipt.tools))


@method("subagents.list", "read")
async def subagents_list(gateway: Gateway, params: p.SubagentsList) -> p.SubagentRunList:
    """Runs, newest first, each with how its result got back; long tasks and results are cut at 4,000 characters."""
    found = await gateway.engine.subagents.list(
        requester=params.requester_session_key, status=params.status, before=params.before, limit=params.limit
    )
    cursor = found[-1].run.created_at if len(found) == params.limit else None
    return p.SubagentRunList(runs=[run_info(told) for told in found], next_cursor=cursor)


@method("subagents.get", "read")
async def subagents_get(gateway: Gateway, params: p.SubagentRef) -> p.SubagentRunInfo:
    """One run, with its result."""
    return run_info(await gateway.engine.subagents.get(params.run_id))


@method("subagents.cancel", "write")
async def subagents_cancel(gateway: Gateway, params: p.SubagentChange) -> p.SubagentRunInfo:
    """Stop a run; whoever asked is told. One that has ended stays as it is."""
    return run_info(await gateway.engine.subagents.cancel(params.run_id))


@method("subagents.delete", "write")
async def subagents_delete(gateway: Gateway, params: p.SubagentChange) -> p.SubagentRunInfo:
    """Cancel a live run, remove a finished one. A result that is on its way still arrives."""
    return run_info(await gateway.engine.subagents.delete(params.run_id))


@method("subagents.retry", "write")
async def subagents_retry(gateway: Gateway, params: p.SubagentChange) -> p.SubagentRunInfo:
    """Send a blocked announcement on its way again."""
    return run_info(await gateway.engine.subagents.retry(params.run_id))


def run_info(told: Told) -> p.SubagentRunInfo:
    return p.SubagentRunInfo(**_fields(told))


def _fields(told: Told) -> dict[str, Any]:
    run, announcement, route = told.run, told.announcement, told.route or {}
    return {
        "run_id": run.run_id,
        "kind": run.kind,
        "child_session_key": run.session_key,
        "requester_session_key": run.requester_session_key,
        "requester_channel": route.get("channel"),
        "requester_chat_id": route.get("chat"),
        "requester_peer_id": route.get("peer"),
        "label": run.label,
        "task": run.task,
        "agent_id": run.agent_id,
        "model": run.model,
        "status": run.status,
        "trace_id": run.trace_id,
        "hop": run.hop,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "result": run.result,
        "error": run.error,
        "usage": None if run.usage is None else p.RunUsage(**asdict(run.usage)),
        "announcement": None
        if announcement is None
        else p.AnnouncementInfo(
            state=announcement.state,
            reason=announcement.reason,
            created_at=announcement.created_at,
            delivered_at=announcement.delivered_at,
        ),
    }
