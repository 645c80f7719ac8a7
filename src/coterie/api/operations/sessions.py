"""Sessions: finding, making and changing them, and watching what happens in them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from coterie.api.operation import Delete, Get, Patch, Post, operation
from coterie.api.shapes import (
    NUMBER,
    AgentId,
    Answer,
    Change,
    Flag,
    Name,
    Params,
    Seq,
    SessionChange,
    SessionName,
    SessionParam,
    ShortText,
)
from coterie.api.watching import Watching
from coterie.core.agent import Text
from coterie.core.message import Message, Origin, Role
from coterie.core.session import Kind, Session
from coterie.core.text import all_storable
from coterie.engine.gateway import Gateway
from coterie.engine.memory.text import Format
from coterie.engine.turns.sessions import message_payload


class SessionsList(Params):
    agent_id: AgentId | None = None
    kinds: list[Kind] | None = None
    limit: Annotated[int, Field(ge=1, le=1000), NUMBER] = 200
    before: ShortText | None = Field(None, description="The `next_cursor` of the page before.")


class SessionCreate(Change):
    agent_id: AgentId | None = None
    from_session: SessionName | None = Field(
        None, description="The session being viewed: its agent is taken over."
    )
    name: Name | None = None


class SessionFork(SessionChange):
    at_seq: Seq | None = Field(None, description="Copy up to and including this message.")
    name: Name | None = None


class SessionRename(SessionChange):
    name: Name


class SessionPin(SessionChange):
    pinned: Flag = True


class SessionPatch(SessionChange):
    name: Name | None = None
    pinned: Flag | None = None
    attributes: Annotated[dict[str, Any], AfterValidator(all_storable)] | None = Field(
        None, description="Merged; a null value removes a key."
    )
    model: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="<provider>/<model>; empty: the agent's own."
    )
    agent_id: AgentId | None = Field(None, description="Hand the conversation over to this agent.")


class SessionSetAgent(SessionChange):
    agent_id: AgentId


class SessionsSearch(Params):
    query: Annotated[str, Field(max_length=1000)]
    agent_id: AgentId | None = None
    limit: Annotated[int, Field(ge=1, le=200), NUMBER] = 20


class SessionExport(SessionParam):
    format: Format = "markdown"


class SessionsRecall(Params):
    agent_id: AgentId
    query: Annotated[Text, Field(max_length=200_000)]
    limit: Annotated[int, Field(ge=1, le=50), NUMBER] = 5


class SessionsWatch(Params):
    session: SessionName | None = None
    all: Flag = Field(False, description="Every session, those to come as well.")

    @model_validator(mode="after")
    def _one_of_them(self) -> SessionsWatch:
        if (self.session is None) != self.all:
            raise ValueError("give session, or all: true")
        return self


class SessionInfo(Answer):
    id: str
    key: str
    agent_id: str
    name: str | None
    kind: Kind
    pinned_at: str | None
    model: str | None
    parent_id: str | None
    created_at: str
    updated_at: str
    last_snippet: str | None
    attributes: dict[str, Any]
    deliver: bool
    route: dict[str, Any] | None
    audience: str = Field(description="Who hears what is said here: owner, or a person or room outside.")
    running: bool

    @classmethod
    def seen(cls, gateway: Gateway, session: Session) -> SessionInfo:
        sessions = gateway.sessions
        agent_id = session.agent_id or sessions.agent_id(session)
        return cls.of(session, agent_id=agent_id, running=sessions.running(session))


class SessionList(Answer):
    sessions: list[SessionInfo]
    next_cursor: str | None = None


class ToolCallInfo(Answer):
    id: str
    name: str
    arguments: str


class PartInfo(Answer):
    """What a message holds besides text: an image, a file, or a value that a tool found out."""

    type: Literal["image", "file", "data"]
    media_type: str | None = None
    size: int | None = Field(None, description="In bytes.")
    name: str | None = None
    data: Any = Field(None, description="A value; of images and files, base64, only where it was asked for.")


class MessageInfo(Answer):
    id: str
    seq: int | None
    role: Role
    origin: Origin
    speaker: str = Field(
        description="Who said it: user, assistant, guest <audience>, agent <id>, tool <name>, …"
    )
    text: str
    parts: list[PartInfo] | None = None
    tool_calls: list[ToolCallInfo] | None = None
    call_id: str | None = None
    tool_name: str | None = None
    meta: dict[str, Any] | None = None
    agent_id: str | None = Field(description="Null where that agent was purged.")
    run_id: str | None = None
    created_at: str

    @classmethod
    def seen(cls, message: Message, session: Session, *, with_data: bool = False) -> MessageInfo:
        return cls.model_validate(message_payload(message, session, with_data=with_data))


class SearchHit(Answer):
    session: SessionInfo
    message: MessageInfo


class SearchHits(Answer):
    hits: list[SearchHit]


class Exported(Answer):
    format: Format
    content: str


class SessionDeleted(Answer):
    deleted: bool
    id: str


class ConversationMessage(Answer):
    seq: int
    role: Role
    origin: Origin
    speaker: str = Field(description="user, assistant, guest <audience>, agent <id>, …")
    text: str
    created_at: str
    hit: bool


class ConversationHit(Answer):
    session_id: str
    session_key: str
    session_name: str | None
    audience: str
    score: float
    messages: list[ConversationMessage]


class ConversationHits(Answer):
    conversations: list[ConversationHit]


class Watched(Answer):
    """Whose `chat` events this socket gets from now on."""

    all: bool
    sessions: list[str] = Field(description="Keys and ids, as they were named.")

    @classmethod
    def by(cls, watching: Watching | None) -> Watched:
        """A caller in this process hears everything anyway."""
        if watching is None:
            return cls(all=True, sessions=[])
        return cls(all=watching.all, sessions=watching.names)


@operation("sessions.list", "read", http=Get("/api/sessions"))
async def sessions_list(gateway: Gateway, params: SessionsList) -> SessionList:
    """Sessions, pinned ones first, then by last update."""
    found, cursor = await gateway.sessions.list(
        agent_id=params.agent_id, kinds=params.kinds, limit=params.limit, after=params.before
    )
    return SessionList(sessions=[SessionInfo.seen(gateway, s) for s in found], next_cursor=cursor)


@operation("sessions.get", "read", http=Get("/api/sessions/{id:path}", id="session"))
async def sessions_get(gateway: Gateway, params: SessionParam) -> SessionInfo:
    """One session, by id or key."""
    return SessionInfo.seen(gateway, await gateway.sessions.get(params.session))


@operation("sessions.create", "write", http=Post("/api/sessions", 201))
async def sessions_create(
    gateway: Gateway, params: SessionCreate, watching: Watching | None = None
) -> SessionInfo:
    """A new session with the agent named, else that of the session being viewed, else the default."""
    made = await gateway.sessions.create(
        agent_id=params.agent_id, from_session=params.from_session, name=params.name
    )
    if watching is not None:
        await watching.add(made.id)
    return SessionInfo.seen(gateway, made)


@operation("sessions.renew", "write")
async def sessions_renew(gateway: Gateway, params: SessionChange) -> SessionInfo:
    """Start afresh under the same key; the old session is kept under another."""
    return SessionInfo.seen(gateway, await gateway.sessions.renew(params.session))


@operation("sessions.fork", "write", http=Post("/api/sessions/{id:path}/fork", 201, id="session"))
async def sessions_fork(gateway: Gateway, params: SessionFork) -> SessionInfo:
    """A copy of a session up to a message."""
    made = await gateway.sessions.fork(params.session, at_seq=params.at_seq, name=params.name)
    return SessionInfo.seen(gateway, made)


@operation("sessions.clear", "write", http=Post("/api/sessions/{id:path}/clear", id="session"))
async def sessions_clear(gateway: Gateway, params: SessionChange) -> SessionInfo:
    """Stop what runs and wipe the history; the session itself stays."""
    return SessionInfo.seen(gateway, await gateway.sessions.clear(params.session))


@operation("sessions.delete", "write", http=Delete("/api/sessions/{id:path}", id="session"))
async def sessions_delete(gateway: Gateway, params: SessionChange) -> SessionDeleted:
    """Stop what runs and remove the session."""
    session = await gateway.sessions.get(params.session)
    await gateway.sessions.delete(session.id)
    return SessionDeleted(deleted=True, id=session.id)


@operation("sessions.rename", "write")
async def sessions_rename(gateway: Gateway, params: SessionRename) -> SessionInfo:
    """Give a session a name; an empty one takes it back."""
    return SessionInfo.seen(gateway, await gateway.sessions.patch(params.session, name=params.name))


@operation("sessions.pin", "write")
async def sessions_pin(gateway: Gateway, params: SessionPin) -> SessionInfo:
    """Keep a session on top of the list, or no longer."""
    return SessionInfo.seen(gateway, await gateway.sessions.patch(params.session, pinned=params.pinned))


@operation("sessions.patch", "write", http=Patch("/api/sessions/{id:path}", id="session"))
async def sessions_patch(gateway: Gateway, params: SessionPatch) -> SessionInfo:
    """Change name, pin, attributes, model or agent."""
    sessions = gateway.sessions
    session = await sessions.patch(
        params.session,
        name=params.name,
        pinned=params.pinned,
        attributes=params.attributes,
        model=params.model,
    )
    if params.agent_id is not None:
        session = await sessions.set_agent(session.id, params.agent_id)
    return SessionInfo.seen(gateway, session)


@operation("sessions.set_agent", "write")
async def sessions_set_agent(gateway: Gateway, params: SessionSetAgent) -> SessionInfo:
    """Hand a conversation over to another agent; its history stays."""
    return SessionInfo.seen(gateway, await gateway.sessions.set_agent(params.session, params.agent_id))


@operation("sessions.search", "read")
async def sessions_search(gateway: Gateway, params: SessionsSearch) -> SearchHits:
    """Messages that contain a text, newest first."""
    found = await gateway.sessions.search(params.query, agent_id=params.agent_id, limit=params.limit)
    return SearchHits(
        hits=[
            SearchHit(session=SessionInfo.seen(gateway, s), message=MessageInfo.seen(m, s)) for s, m in found
        ]
    )


@operation("sessions.export", "read")
async def sessions_export(gateway: Gateway, params: SessionExport) -> Exported:
    """A whole transcript as Markdown or JSON lines."""
    content = await gateway.sessions.export(params.session, params.format)
    return Exported(format=params.format, content=content)


@operation("sessions.recall", "read")
def sessions_recall(gateway: Gateway, params: SessionsRecall) -> ConversationHits:
    """What was said in an agent's own past turns, with the messages around each hit."""
    found = gateway.memories.as_agent(params.agent_id).conversations(params.query, limit=params.limit)
    return ConversationHits(
        conversations=[
            ConversationHit.of(one, messages=[ConversationMessage(**message) for message in one.messages])
            for one in found
        ]
    )


@operation("sessions.watch", "read")
async def sessions_watch(gateway: Gateway, params: SessionsWatch, watching: Watching | None) -> Watched:
    """Get the `chat` events of a session, or of all, on this socket; a key may be watched before its session exists."""
    if watching is not None:
        watching.all = watching.all or params.all
        if params.session is not None:
            await watching.add(params.session)
    return Watched.by(watching)


@operation("sessions.unwatch", "read")
async def sessions_unwatch(gateway: Gateway, params: SessionsWatch, watching: Watching | None) -> Watched:
    """No longer get the `chat` events of a session; with `all`, of none."""
    if watching is not None:
        if params.session is None:
            watching.clear()
        else:
            await watching.remove(params.session)
    return Watched.by(watching)
