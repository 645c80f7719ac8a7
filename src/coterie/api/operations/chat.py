"""Messages in, turns as they run, and stopping them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from coterie.api.operation import Get, Post, Repeat, operation
from coterie.api.operations.sessions import MessageInfo, SessionInfo
from coterie.api.shapes import (
    NUMBER,
    Answer,
    Change,
    Flag,
    Seq,
    SessionChange,
    SessionName,
    SessionParam,
    Shape,
    ShortText,
)
from coterie.api.watching import Watching
from coterie.core.errors import InvalidRequest
from coterie.core.events import ChatState
from coterie.core.images import decode_image
from coterie.core.message import ImagePart
from coterie.core.turn import Reception, Stop, TurnState, WaitReason
from coterie.engine.gateway import Gateway


class Attachment(Shape):
    """A picture that comes with a message: PNG, JPEG, GIF or WebP, recognised by what is in it."""

    data: str = Field(description="The file as base64.")
    media_type: ShortText | None = None
    name: ShortText | None = None


class ChatSend(SessionChange):
    message: str = Field(
        description="What is said. At most a million characters; may be empty beside an image."
    )
    attachments: list[Attachment] | None = None


class ChatHistory(SessionParam):
    limit: Annotated[int, Field(ge=1, le=1000), NUMBER] = 200
    before: Seq | None = None
    after: Seq | None = None
    with_data: Flag = Field(False, description="With the bytes of images, as base64.")


class RunRef(Change):
    run_id: ShortText


class ChatAbort(Change):
    run_id: ShortText | None = None
    session: SessionName | None = Field(None, description="Stops whatever runs there.")


class LiveInfo(Answer):
    """A turn so far."""

    run_id: str
    state: ChatState
    attempt: int
    seq: int
    text: str
    thinking: str
    tools: list[dict[str, Any]]


class HistoryPage(Answer):
    session: SessionInfo
    messages: list[MessageInfo]
    next_cursor: int | None = None
    running: LiveInfo | None = None


class Sent(Answer):
    message_id: str
    run_id: str
    status: Reception


class Stopped(Answer):
    state: Stop
    run_id: str | None


class QueueEntry(Answer):
    run_id: str
    state: TurnState
    waits_for: WaitReason | None = Field(None, description="Who has the word while it waits.")
    text: str | None


class Queue(Answer):
    mode: Literal["steer-backlog"] = "steer-backlog"
    session: str
    entries: list[QueueEntry]


@operation(
    "chat.send", "write", http=Post("/api/sessions/{id:path}/messages", 202, id="session"), own_keys=True
)
async def chat_send(
    gateway: Gateway, params: ChatSend, repeat: Repeat, watching: Watching | None = None
) -> Sent:
    """Say something. The answer is sent once the message is on disk; the reply comes as events."""
    images = attached(params.attachments or ())
    if watching is not None:
        await watching.add(params.session)
    receipt = await gateway.submit(
        params.session,
        params.message,
        images=images,
        key=repeat.key,
        body_hash=repeat.body_hash if repeat.key else None,
    )
    return Sent.of(receipt)


@operation("chat.retry", "write", http=Post("/api/sessions/{id:path}/retry", 202, id="session"))
async def chat_retry(gateway: Gateway, params: SessionChange) -> Sent:
    """Have the last message answered after all, where its turn ended with an error."""
    return Sent.of(await gateway.retry(params.session))


@operation("chat.history", "read", http=Get("/api/sessions/{id:path}/messages", id="session"))
async def chat_history(
    gateway: Gateway, params: ChatHistory, watching: Watching | None = None
) -> HistoryPage:
    """A page of messages, ascending; messages that wait come last, and the turn so far beside them."""
    if watching is not None:
        await watching.add(params.session)
    session, history = await gateway.sessions.history(
        params.session, limit=params.limit, before=params.before, after=params.after
    )
    return HistoryPage(
        session=SessionInfo.seen(gateway, session),
        messages=[MessageInfo.seen(m, session, with_data=params.with_data) for m in history.messages],
        next_cursor=history.next_cursor,
        running=None if history.running is None else LiveInfo.model_validate(history.running),
    )


@operation("chat.abort", "write", http=Post("/api/sessions/{id:path}/abort", id="session"), overtakes=True)
async def chat_abort(gateway: Gateway, params: ChatAbort) -> Stopped:
    """Stop a turn by its run id, or whatever runs in a session; what others do for it stops too."""
    state: Any
    run_id = params.run_id
    if run_id is not None:
        state = await gateway.abort(run_id)
    elif params.session is not None:
        state, run_id = await gateway.stop_session(params.session)
    else:
        raise InvalidRequest("name a run_id or a session", details={"field": "run_id"})
    return Stopped(state=state, run_id=run_id)


@operation("chat.cancel_queued", "write", overtakes=True)
async def chat_cancel_queued(gateway: Gateway, params: RunRef) -> Stopped:
    """Take a message back that no model has seen yet."""
    state: Any = await gateway.cancel_queued(params.run_id)
    return Stopped(state=state, run_id=params.run_id)


@operation("chat.queue", "read")
async def chat_queue(gateway: Gateway, params: SessionParam) -> Queue:
    """What runs, what was interrupted and what waits in a session."""
    session, jobs, waiting = await gateway.queue(params.session)
    texts = {entry.run_id: entry.text for entry in waiting}
    order = {TurnState.RUNNING: 0, TurnState.WAITING: 0, TurnState.QUEUED: 1, TurnState.INTERRUPTED: 2}
    jobs.sort(key=lambda job: order[job.state])
    return Queue(
        session=session.key, entries=[QueueEntry.of(job, text=texts.get(job.run_id)) for job in jobs]
    )


def attached(attachments: Iterable[Attachment]) -> list[ImagePart]:
    """The images of a message; refused before anything is changed."""
    images = []
    for number, attachment in enumerate(attachments):
        try:
            images.append(decode_image(attachment.data, attachment.name))
        except InvalidRequest as error:
            error.details = {"field": f"attachments.{number}"}
            raise
    return images
