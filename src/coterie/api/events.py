"""The events that a socket gets, and what is in each."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from coterie.api.shapes import Answer
from coterie.core.announce import RunKind, RunStatus
from coterie.core.events import ChatState, SessionChange


class ChatHappened(Answer):
    """Something happened in a turn of a session that this socket watches."""

    run_id: str
    session: str = Field(description="The session's key.")
    seq: int = Field(description="Counts the events of this run.")
    state: ChatState
    attempt: int = Field(
        description="Rises when a reply starts over: what an older attempt streamed is void."
    )
    status: str | None = Field(None, description="`queued`: steering or queued.")
    text: str | None = Field(
        None, description="`delta`, `thinking`: the next piece. `final`: the whole answer."
    )
    call_id: str | None = Field(None, description="`tool_start`, `tool_end`.")
    name: str | None = Field(None, description="`tool_start`, `tool_end`: the tool.")
    arguments: str | None = Field(None, description="`tool_start`: JSON, as the model wrote it.")
    ok: bool | None = Field(None, description="`tool_end`: it worked.")
    result: str | None = Field(None, description="`tool_end`: at most 2,000 characters of it.")
    duration_ms: float | None = Field(None, description="`tool_end`.")
    by: str | None = Field(None, description="`steered`: the run that is answered first.")
    message_id: str | None = Field(None, description="`final`: the answer in the history.")
    usage: dict[str, Any] | None = Field(None, description="`final`: tokens and cost.")
    fallback: dict[str, Any] | None = Field(None, description="`final`: the model that stood in for another.")
    finish: Literal["length", "refused"] | None = Field(
        None, description="`final`: the model broke off, or its provider would not let it go on."
    )
    message: str | None = Field(None, description="`error`: what went wrong.")
    reason: str | None = Field(None, description="`aborted`: why.")


class SessionChanged(Answer):
    """A session was made, changed or went on; of every session, watched or not."""

    id: str
    key: str = Field(description="As it is now.")
    change: SessionChange = Field(
        description="A message came in, a turn ended, or the session itself changed."
    )
    deleted: bool | None = Field(None, description="True: it is gone.")


class SessionSwitched(Answer):
    """An agent took the person from one session to another."""

    from_: str = Field(alias="from", description="Session key.")
    to: str = Field(description="Session key.")


class AgentsChanged(Answer):
    """An agent, or one of its files, is not what it was."""

    agent_id: str | None = Field(description="Null: files that all of them share.")
    change: str = Field(
        description="created, updated, default, archived, restored, purged, files, shared_files."
    )


class SubagentChanged(Answer):
    """A run that one agent does for another began, went on or ended."""

    run_id: str
    kind: RunKind
    status: RunStatus
    agent_id: str
    label: str | None
    child_session_key: str
    requester_session_key: str | None


class MemoryChanged(Answer):
    """Memories were added, changed, forgotten or indexed. What they say is not told."""

    agent_id: str | None
    change: str = Field(
        description="remembered, updated, forgotten, imported, files, archived, restored, purged, reindex, reindexed."
    )
    id: str | None = Field(None, description="Where it is one memory.")
    count: int | None = Field(None, description="`imported`: how many.")
    pending: int | None = Field(None, description="`reindex`: memories that wait for a vector.")
    total: int | None = None


class ConfigChanged(Answer):
    """agent.yaml was read again."""

    problems: list[str] = Field(description="Why it is not in force; empty: it is.")
    warnings: list[str]
    held: list[str] = Field(description="Changes that wait for a person's word.")


class Tick(Answer):
    """Nothing else happened for a while."""

    ts: str


EVENTS: dict[str, type[Answer]] = {
    "chat": ChatHappened,
    "session.changed": SessionChanged,
    "session.switched": SessionSwitched,
    "agents.changed": AgentsChanged,
    "subagent.changed": SubagentChanged,
    "memory.changed": MemoryChanged,
    "config.changed": ConfigChanged,
    "tick": Tick,
}
