"""Sessions, their messages and inbox, the turns that answer them, and what leaves the house."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("agent_id", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("pinned_at", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("parent_id", sa.Text),
        sa.Column("deliver", sa.Boolean, nullable=False),
        sa.Column("route_json", sa.Text),
        sa.Column("attributes_json", sa.Text, nullable=False),
        sa.Column("last_snippet", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
    )
    op.create_index("sessions_by_update", "sessions", ["updated_at"])
    op.create_index("sessions_by_agent", "sessions", ["agent_id", "updated_at"])
    op.create_table(
        "messages",
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("parts_json", sa.Text),
        sa.Column("call_id", sa.Text),
        sa.Column("tool_name", sa.Text),
        sa.Column("meta_json", sa.Text),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_table(
        "inbox",
        sa.Column("position", Big, primary_key=True, autoincrement=True),
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("message_id", sa.Text, nullable=False, unique=True),
        sa.Column("run_id", sa.Text),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("meta_json", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_index("inbox_by_session", "inbox", ["session_id", "position"])
    op.create_table(
        "turn_jobs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("open_call", sa.Text),
        sa.Column("trace_id", sa.Text, nullable=False),
        sa.Column("hop", sa.Integer, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("body_hash", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("cost", sa.Float),
        sa.Column("error", sa.Text),
        sa.Column("final_message_id", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text),
        sa.Column("ended_at", sa.Text),
        sa.UniqueConstraint("session_id", "idempotency_key", name="turn_jobs_once"),
    )
    active = sa.text("state IN ('running', 'waiting')")
    op.create_index(
        "turn_jobs_one_active",
        "turn_jobs",
        ["session_id"],
        unique=True,
        sqlite_where=active,
        postgresql_where=active,
    )
    unfinished = sa.text("state IN ('queued', 'running', 'waiting', 'interrupted')")
    op.create_index(
        "turn_jobs_unfinished",
        "turn_jobs",
        ["session_id", "state"],
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    op.create_index("turn_jobs_by_body", "turn_jobs", ["body_hash"])
    op.create_index("turn_jobs_by_agent", "turn_jobs", ["agent_id", "ended_at"])
    op.create_table(
        "backlog",
        sa.Column("position", Big, primary_key=True, autoincrement=True),
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("run_id", sa.Text, nullable=False, unique=True),
        sa.Column("token_json", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_index("backlog_by_session", "backlog", ["session_id", "position"])
    op.create_table(
        "outbox",
        sa.Column("position", Big, primary_key=True, autoincrement=True),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("message_id", sa.Text, nullable=False, unique=True),
        sa.Column("route_json", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("sent_at", sa.Text),
    )
    op.create_index("outbox_by_state", "outbox", ["state", "position"])
