"""Runs that one agent asks another for, and the announcements of their results."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("tools_json", sa.Text))
    op.add_column("turn_jobs", sa.Column("kind", sa.Text))
    op.add_column("turn_jobs", sa.Column("chain_json", sa.Text))
    op.add_column("turn_jobs", sa.Column("timeout_s", sa.Integer))
    op.create_index("turn_jobs_by_trace", "turn_jobs", ["trace_id"])
    wake = sa.text("kind = 'wake' AND state = 'queued'")
    op.create_index(
        "turn_jobs_one_wake",
        "turn_jobs",
        ["session_id"],
        unique=True,
        sqlite_where=wake,
        postgresql_where=wake,
    )
    op.create_table(
        "subagent_runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("session_key", sa.Text, nullable=False),
        sa.Column("requester_session_id", sa.Text),
        sa.Column("requester_session_key", sa.Text),
        sa.Column("requester_agent_id", sa.Text),
        sa.Column("requester_run_id", sa.Text),
        sa.Column("call_id", sa.Text),
        sa.Column("label", sa.Text),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("trace_id", sa.Text, nullable=False),
        sa.Column("hop", sa.Integer, nullable=False),
        sa.Column("chain_json", sa.Text, nullable=False),
        sa.Column("announce", sa.Boolean, nullable=False),
        sa.Column("held_because", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("result", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("input_tokens", sa.Integer),
        sa.Column("output_tokens", sa.Integer),
        sa.Column("cached_tokens", sa.Integer),
        sa.Column("cost", sa.Float),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text),
        sa.Column("ended_at", sa.Text),
        sa.CheckConstraint("kind IN ('subagent', 'message')", name="subagent_runs_kind"),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'completed', 'error')", name="subagent_runs_status"
        ),
        sa.UniqueConstraint("requester_run_id", "call_id", name="subagent_runs_once"),
    )
    live = sa.text("status IN ('queued', 'running')")
    op.create_index("subagent_runs_by_time", "subagent_runs", ["created_at"])
    op.create_index("subagent_runs_by_requester", "subagent_runs", ["requester_session_id", "created_at"])
    op.create_index(
        "subagent_runs_live",
        "subagent_runs",
        ["requester_session_id"],
        sqlite_where=live,
        postgresql_where=live,
    )
    op.create_table(
        "announcements",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("session_key", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("meta_json", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("message_id", sa.Text),
        sa.Column("turn_id", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("delivered_at", sa.Text),
        sa.CheckConstraint("state IN ('pending', 'blocked', 'delivered')", name="announcements_state"),
    )
    op.create_index("announcements_by_session", "announcements", ["session_id", "state"])
    op.create_index("announcements_by_turn", "announcements", ["turn_id"])
