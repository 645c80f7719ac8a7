"""Sessions, messages in, turns, tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.api import payloads as p
from coterie.api.method import method
from coterie.core.errors import InvalidRequest
from coterie.core.images import decode_image
from coterie.core.message import ImagePart, Message
from coterie.core.session import Session
from coterie.core.turn import TurnState
from coterie.engine.gateway import Gateway
from coterie.engine.turns.sessions import message_payload


@method("sessions.list", "read")
async def sessions_list(gateway: Gateway, params: p.SessionsList) -> p.SessionList:
    """Sessions, pinned ones first, then by last update."""
    found, cursor = await gateway.engine.sessions.list(
        agent_id=params.agent_id, kinds=params.kinds, limit=params.limit, after=params.before
    )
    return p.SessionList(sessions=[session_info(gateway, s) for s in found], next_cursor=cursor)


@method("sessions.get", "read")
async def sessions_get(gateway: Gateway, params: p.SessionParam) -> p.SessionInfo:
    """One session, by id or key."""
    return session_info(gateway, await gateway.engine.sessions.get(params.session))


@method("sessions.create", "write")
async def sessions_create(gateway: Gateway, params: p.SessionCreate) -> p.SessionInfo:
    """A new session with the agent named, else that of the session being viewed, else the default."""
    made = await gateway.engine.sessions.create(
        agent_id=params.agent_id, from_session=params.from_session, name=params.name
    )
    return session_info(gateway, made)


@method("sessions.renew", "write")
async def sessions_renew(gateway: Gateway, params: p.SessionChange) -> p.SessionInfo:
    """Start afresh under the same key; the old session is kept under another."""
    return session_info(gateway, await gateway.engine.sessions.renew(params.session))


@method("sessions.fork", "write")
async def sessions_fork(gateway: Gateway, params: p.SessionFork) -> p.SessionInfo:
    """A copy of a session up to a message."""
    made = await gateway.engine.sessions.fork(params.session, at_seq=params.at_seq, name=params.name)
    return session_info(gateway, made)


@method("sessions.clear", "write")
async def sessions_clear(gateway: Gateway, params: p.SessionChange) -> p.SessionInfo:
    """Stop what runs and wipe the history; the session itself stays."""
    return session_info(gateway, await gateway.engine.sessions.clear(params.session))


@method("sessions.delete", "write")
async def sessions_delete(gateway: Gateway, params: p.SessionChange) -> p.SessionDeleted:
    """Stop what runs and remove the session."""
    session = await gateway.engine.sessions.get(params.session)
    await gateway.engine.sessions.delete(session.id)
    return p.SessionDeleted(deleted=True, id=session.id)


@method("sessions.rename", "write")
async def sessions_rename(gateway: Gateway, params: p.SessionRename) -> p.SessionInfo:
    """Give a session a name; an empty one takes it back."""
    return session_info(gateway, await gateway.engine.sessions.patch(params.session, name=params.name))


@method("sessions.pin", "write")
async def sessions_pin(gateway: Gateway, params: p.SessionPin) -> p.SessionInfo:
    """Keep a session on top of the list, or no longer."""
    return session_info(gateway, await gateway.engine.sessions.patch(params.session, pinned=params.pinned))


@method("sessions.patch", "write")
async def sessions_patch(gateway: Gateway, params: p.SessionPatch) -> p.SessionInfo:
    """Change name, pin, attributes, model or agent."""
    sessions = gateway.engine.sessions
    if params.model:
        _check_model(params.model)
    session = await sessions.patch(
        params.session,
        name=params.name,
        pinned=params.pinned,
        attributes=params.attributes,
        model=params.model,
    )
    if params.agent_id is not None:
        session = await sessions.set_agent(session.id, params.agent_id)
    return session_info(gateway, session)


@method("sessions.set_agent", "write")
async def sessions_set_agent(gateway: Gateway, params: p.SessionSetAgent) -> p.SessionInfo:
    """Hand a conversation over to another agent; its history stays."""
    return session_info(gateway, await gateway.engine.sessions.set_agent(params.session, params.agent_id))


@method("sessions.search", "read")
async def sessions_search(gateway: Gateway, params: p.SessionsSearch) -> p.SearchHits:
    """Messages that contain a text, newest first."""
    found = await gateway.engine.sessions.search(params.query, agent_id=params.agent_id, limit=params.limit)
    return p.SearchHits(
        hits=[p.SearchHit(session=session_info(gateway, s), message=message_info(m)) for s, m in found]
    )


@method("sessions.export", "read")
async def sessions_export(gateway: Gateway, params: p.SessionExport) -> p.Exported:
    """A whole transcript as Markdown or JSON lines."""
    return p.Exported(
        format=params.format, content=await gateway.engine.sessions.export(params.session, params.format)
    )


@method("chat.send", "write", own_keys=True)
async def chat_send(gateway: Gateway, params: p.ChatSend) -> p.Sent:
    """Say something. The answer is sent once the message is on disk; the reply comes as events."""
    receipt = await gateway.engine.submit(
        params.session,
        params.message,
        images=attached(params.attachments or ()),
        key=params.idempotency_key,
    )
    return p.Sent(message_id=receipt.message_id, run_id=receipt.run_id, status=receipt.status)


@method("chat.retry", "write")
async def chat_retry(gateway: Gateway, params: p.SessionChange) -> p.Sent:
    """Have the last message answered after all, where its turn ended with an error."""
    receipt = await gateway.engine.retry(params.session)
    return p.Sent(message_id=receipt.message_id, run_id=receipt.run_id, status=receipt.status)


@method("chat.history", "read")
async def chat_history(gateway: Gateway, params: p.HistoryParams) -> p.HistoryPage:
    """A page of messages, ascending; messages that wait come last, and the turn so far beside them."""
    session, history = await gateway.engine.sessions.history(
        params.session, limit=params.limit, before=params.before, after=params.after
    )
    return p.HistoryPage(
        session=session_info(gateway, session),
        messages=[message_info(m, with_data=params.with_data) for m in history.messages],
        next_cursor=history.next_cursor,
        running=None if history.running is None else p.LiveInfo.model_validate(history.running),
    )


@method("chat.abort", "write")
async def chat_abort(gateway: Gateway, params: p.AbortParams) -> p.Stopped:
    """Stop a turn by its run id, or whatever runs in a session; what others do for it stops too."""
    run_id = params.run_id
    if run_id is None:
        if params.session is None:
            raise InvalidRequest("name a run_id or a session", details={"field": "run_id"})
        stopped: tuple[Any, str | None] = await gateway.engine.stop_session(params.session)
        return p.Stopped(state=stopped[0], run_id=stopped[1])
    state: Any = await gateway.engine.abort(run_id)
    return p.Stopped(state=state, run_id=run_id)


@method("chat.cancel_queued", "write")
async def chat_cancel_queued(gateway: Gateway, params: p.RunRef) -> p.Stopped:
    """Take a message back that no model has seen yet."""
    state: Any = await gateway.engine.cancel_queued(params.run_id)
    return p.Stopped(state=state, run_id=params.run_id)


@method("chat.queue", "read")
async def chat_queue(gateway: Gateway, params: p.SessionParam) -> p.Queue:
    """What runs, what was interrupted and what waits in a session."""
    session, jobs, waiting = await gateway.engine.queue(params.session)
    texts = {entry.run_id: entry.text for entry in waiting}
    order = {TurnState.RUNNING: 0, TurnState.WAITING: 0, TurnState.QUEUED: 1, TurnState.INTERRUPTED: 2}
    entries: list[Any] = [
        {"run_id": job.run_id, "state": job.state.value, "text": texts.get(job.run_id)}
        for job in sorted(jobs, key=lambda job: order[job.state])
    ]
    return p.Queue(session=session.key, entries=[p.QueueEntry(**entry) for entry in entries])


@method("tools.list", "read")
async def tools_list(gateway: Gateway, params: p.Nothing) -> p.ToolList:
    """Every tool that is loaded."""
    tools = gateway.engine.brains.tools.values()
    return p.ToolList(
        tools=[
            p.ToolInfo(
                name=tool.name,
                description=tool.schema.description,
                plugin=tool.source,
                capabilities=list(tool.capabilities),
                safe_to_repeat=tool.safe_to_repeat,
            )
            for tool in sorted(tools, key=lambda tool: tool.name)
        ]
    )


@method("tools.effective", "read")
async def tools_effective(gateway: Gateway, params: p.ToolsParams) -> p.EffectiveTools:
    """Which tools an agent may call, and which rule decided, from the resolver that turns use."""
    engine = gateway.engine
    if params.session is not None:
        brain = engine.brains.for_session(await engine.sessions.get(params.session))
    else:
        brain = engine.brains.of(gateway.registry.get(params.agent_id or "default").id)
    decisions = [brain.decisions[name] for name in sorted(brain.decisions)]
    return p.EffectiveTools(
        agent_id=brain.agent_id,
        tools=[p.ToolDecision(name=d.name, allowed=d.allowed, reason=d.reason) for d in decisions],
    )


def session_info(gateway: Gateway, session: Session) -> p.SessionInfo:
    sessions = gateway.engine.sessions
    return p.SessionInfo(
        id=session.id,
        key=session.key,
        agent_id=session.agent_id or sessions.agent_id(session),
        name=session.name,
        kind=session.kind,
        pinned_at=session.pinned_at,
        model=session.model,
        parent_id=session.parent_id,
        created_at=session.created_at,
        updated_at=session.updated_at,
        last_snippet=session.last_snippet,
        attributes=dict(session.attributes),
        deliver=session.deliver,
        route=dict(session.route) if session.route else None,
        running=sessions.running(session),
    )


def message_info(message: Message, *, with_data: bool = False) -> p.MessageInfo:
    return p.MessageInfo.model_validate(message_payload(message, with_data=with_data))


def attached(attachments: Iterable[p.Attachment]) -> list[ImagePart]:
    """The images of a message; refused before anything is changed."""
    images = []
    for number, attachment in enumerate(attachments):
        try:
            images.append(decode_image(attachment.data, attachment.name))
        except InvalidRequest as error:
            error.details = {"field": f"attachments.{number}"}
            raise
    return images


def _check_model(name: str) -> None:
    provider, slash, model = name.partition("/")
    if not slash or not provider or not model:
        raise InvalidRequest(f"{name!r} is not a model; write <provider>/<model>", details={"field": "model"})
