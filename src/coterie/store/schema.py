"""The tables, as the statements see them. How they came to be is in migrations/."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from coterie.store.columns import Key

HEAD = "0011"
"""The migration that this program was written for."""

metadata = MetaData()

agents = Table(
    "agents",
    metadata,
    Column("id", Key, primary_key=True),
    Column("label", Text, nullable=False),
    Column("label_key", Key, unique=True),
    Column("is_default", Boolean, nullable=False),
    Column("spec_json", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    CheckConstraint("state IN ('active', 'archived', 'purging')", name="agents_state"),
    CheckConstraint("NOT is_default OR state = 'active'", name="agents_default_is_active"),
    CheckConstraint("id <> 'main' OR state = 'active'", name="agents_main_is_active"),
    Index(
        "agents_one_default",
        "is_default",
        unique=True,
        sqlite_where=text("is_default"),
        postgresql_where=text("is_default"),
    ),
)

meta = Table(
    "meta",
    metadata,
    Column("key", Key, primary_key=True),
    Column("value", Text, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Key, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("label", Text),
    Column("secret_hash", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("revoked_at", Text),
    CheckConstraint("scope IN ('read', 'write', 'admin')", name="tokens_scope"),
)

answers = Table(
    "answers",
    metadata,
    Column("idempotency_key", Key, primary_key=True),
    Column("request_hash", Text, nullable=False),
    Column("answer_json", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)

_Big = BigInteger().with_variant(Integer, "sqlite")
_ACTIVE = text("state IN ('running', 'waiting')")
_UNFINISHED = text("state IN ('queued', 'running', 'waiting', 'interrupted')")
_WAITING_WAKE = text("kind = 'wake' AND state = 'queued'")
_LIVE = text("status IN ('queued', 'running')")
_OUTSIDE = text("audience <> 'owner'")

sessions = Table(
    "sessions",
    metadata,
    Column("id", Key, primary_key=True),
    Column("key", Key, nullable=False, unique=True),
    Column("agent_id", Key),
    Column("kind", Text, nullable=False),
    Column("name", Text),
    Column("pinned_at", Text),
    Column("model", Text),
    Column("parent_id", Key),
    Column("deliver", Boolean, nullable=False),
    Column("route_json", Text),
    Column("attributes_json", Text, nullable=False),
    Column("last_snippet", Text),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("tools_json", Text),
    Column("audience", Key, nullable=False, server_default="owner"),
    Index("sessions_by_update", "updated_at"),
    Index("sessions_by_agent", "agent_id", "updated_at"),
    Index("sessions_by_audience", "audience", "agent_id", sqlite_where=_OUTSIDE, postgresql_where=_OUTSIDE),
)

messages = Table(
    "messages",
    metadata,
    Column("session_id", Key, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("id", Key, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("parts_json", Text),
    Column("call_id", Text),
    Column("tool_name", Text),
    Column("meta_json", Text),
    Column("agent_id", Key, nullable=False),
    Column("run_id", Key),
    Column("created_at", Text, nullable=False),
    # SQLite would number rows by itself, but anew whenever the file is written anew: full text goes by this one.
    Column("number", _Big, primary_key=True, autoincrement=True),
    # The audience of its session as a word of the index; empty where that is the owner's.
    Column("heard_by", Text),
    Column("mark", Text),
    UniqueConstraint("session_id", "seq", name="messages_place"),
)

inbox = Table(
    "inbox",
    metadata,
    Column("position", _Big, primary_key=True, autoincrement=True),
    Column("session_id", Key, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", Key, nullable=False, unique=True),
    Column("run_id", Key),
    Column("agent_id", Key, nullable=False),
    Column("role", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("meta_json", Text),
    Column("created_at", Text, nullable=False),
    Column("parts_json", Text),
    Index("inbox_by_session", "session_id", "position"),
)

turn_jobs = Table(
    "turn_jobs",
    metadata,
    Column("run_id", Key, primary_key=True),
    Column("session_id", Key, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", Key, nullable=False),
    Column("state", Text, nullable=False),
    Column("agent_id", Key),
    Column("epoch", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("open_call", Text),
    Column("trace_id", Key, nullable=False),
    Column("hop", Integer, nullable=False),
    Column("idempotency_key", Key),
    Column("body_hash", Text),
    Column("model", Text),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("cost", Float),
    Column("error", Text),
    Column("final_message_id", Key),
    Column("created_at", Text, nullable=False),
    Column("started_at", Text),
    Column("ended_at", Text),
    Column("kind", Text),
    Column("chain_json", Text),
    Column("timeout_s", Integer),
    Column("owner", Key),
    Column("lease_until", Text),
    Column("waits_for", Text),
    Column("audience", Key),
    Column("delivered_at", Text),
    UniqueConstraint("session_id", "idempotency_key", name="turn_jobs_once"),
    Index("turn_jobs_one_active", "session_id", unique=True, sqlite_where=_ACTIVE, postgresql_where=_ACTIVE),
    Index(
        "turn_jobs_unfinished", "session_id", "state", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED
    ),
    Index("turn_jobs_by_body", "body_hash"),
    Index("turn_jobs_by_key", "idempotency_key"),
    Index("turn_jobs_by_agent", "agent_id", "ended_at"),
    Index("turn_jobs_by_trace", "trace_id"),
    Index(
        "turn_jobs_one_wake",
        "session_id",
        unique=True,
        sqlite_where=_WAITING_WAKE,
        postgresql_where=_WAITING_WAKE,
    ),
)

# Of turns whose sessions are gone.
usage_kept = Table(
    "usage_kept",
    metadata,
    Column("agent_id", Key, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("day", Text, primary_key=True),
    Column("audience", Key, primary_key=True),
    Column("turns", Integer, nullable=False),
    Column("input_tokens", _Big, nullable=False),
    Column("output_tokens", _Big, nullable=False),
    Column("cached_tokens", _Big, nullable=False),
    Column("cost", Float),
    Index("usage_kept_by_day", "agent_id", "day"),
)

backlog = Table(
    "backlog",
    metadata,
    Column("position", _Big, primary_key=True, autoincrement=True),
    Column("session_id", Key, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("run_id", Key, nullable=False, unique=True),
    Column("token_json", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Index("backlog_by_session", "session_id", "position"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("position", _Big, primary_key=True, autoincrement=True),
    Column("session_id", Key, nullable=False),
    Column("run_id", Key, nullable=False),
    Column("message_id", Key, nullable=False, unique=True),
    Column("route_json", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("sent_at", Text),
    Index("outbox_by_state", "state", "position"),
)

results = Table(
    "results",
    metadata,
    Column("session_id", Key, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("call_id", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)

# No links to sessions: what was asked for and what came of it outlive them.
subagent_runs = Table(
    "subagent_runs",
    metadata,
    Column("run_id", Key, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("agent_id", Key, nullable=False),
    Column("session_id", Key, nullable=False),
    Column("session_key", Key, nullable=False),
    Column("requester_session_id", Key),
    Column("requester_session_key", Key),
    Column("requester_agent_id", Key),
    Column("requester_run_id", Key),
    Column("call_id", Text),
    Column("label", Text),
    Column("task", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("trace_id", Key, nullable=False),
    Column("hop", Integer, nullable=False),
    Column("chain_json", Text, nullable=False),
    Column("announce", Boolean, nullable=False),
    Column("held_because", Text),
    Column("status", Text, nullable=False),
    Column("result", Text),
    Column("error", Text),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("cost", Float),
    Column("created_at", Text, nullable=False),
    Column("started_at", Text),
    Column("ended_at", Text),
    CheckConstraint("kind IN ('subagent', 'message')", name="subagent_runs_kind"),
    CheckConstraint("status IN ('queued', 'running', 'completed', 'error')", name="subagent_runs_status"),
    UniqueConstraint("requester_run_id", "call_id", name="subagent_runs_once"),
    Index("subagent_runs_by_time", "created_at"),
    Index("subagent_runs_by_requester", "requester_session_id", "created_at"),
    Index("subagent_runs_live", "requester_session_id", sqlite_where=_LIVE, postgresql_where=_LIVE),
)

announcements = Table(
    "announcements",
    metadata,
    Column("run_id", Key, primary_key=True),
    Column("session_id", Key, nullable=False),
    Column("session_key", Key, nullable=False),
    Column("content", Text, nullable=False),
    Column("meta_json", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("message_id", Key),
    Column("turn_id", Key),
    Column("created_at", Text, nullable=False),
    Column("delivered_at", Text),
    Column("audience", Key),
    CheckConstraint("state IN ('pending', 'blocked', 'delivered')", name="announcements_state"),
    Index("announcements_by_session", "session_id", "state"),
    Index("announcements_by_turn", "turn_id"),
)

_SUPERSEDED = text("superseded_by IS NOT NULL")

memories = Table(
    "memories",
    metadata,
    Column("id", Key, primary_key=True),
    Column("agent_id", Key),
    Column("scope", Text),
    Column("former_scope", Text),
    Column("content", Text, nullable=False),
    Column("tags_json", Text),
    Column("thread", Key),
    Column("source_ref", Key),
    Column("file", Text),
    Column("occurred_at", Text),
    Column("created_at", Text),
    Column("updated_at", Text),
    Column("pinned_at", Text),
    Column("superseded_by", Key),
    Column("audience", Key),
    Index("memories_by_agent", "agent_id", "created_at"),
    Index("memories_superseded", "superseded_by", sqlite_where=_SUPERSEDED, postgresql_where=_SUPERSEDED),
)

_IN_THREAD = text("thread IS NOT NULL")
_PENDING = text("model IS NULL")
_LEARNT_OUTSIDE = text("audience IS NOT NULL")

memory_index = Table(
    "memory_index",
    metadata,
    Column("number", _Big, primary_key=True, autoincrement=True),
    Column("memory_id", Key, nullable=False, unique=True),
    Column("owner", Key, nullable=False),
    Column("private", Boolean, nullable=False),
    Column("thread", Key),
    Column("place", Integer, nullable=False),
    Column("moment", Text, nullable=False),
    Column("vector", LargeBinary),
    Column("model", Text),
    Column("audience", Key),
    Index("memory_index_by_owner", "owner", "private", "number"),
    Index("memory_index_by_scope", "private", "number"),
    Index(
        "memory_index_by_thread",
        "owner",
        "thread",
        "place",
        sqlite_where=_IN_THREAD,
        postgresql_where=_IN_THREAD,
    ),
    Index("memory_index_pending", "number", sqlite_where=_PENDING, postgresql_where=_PENDING),
    Index(
        "memory_index_by_audience",
        "audience",
        "owner",
        sqlite_where=_LEARNT_OUTSIDE,
        postgresql_where=_LEARNT_OUTSIDE,
    ),
    sqlite_autoincrement=True,
)

SEARCH_TABLES = ("memories_fts", "messages_fts")
"""Full text, each database in its own way: FTS5 with its shadow tables, or a column of word vectors."""
