"""The registry of agents, access tokens, and answers kept for repeated requests."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("label_key", sa.Text, unique=True),
        sa.Column("is_default", sa.Boolean, nullable=False),
        sa.Column("spec_json", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.CheckConstraint("state IN ('active', 'archived', 'purging')", name="agents_state"),
        sa.CheckConstraint("NOT is_default OR state = 'active'", name="agents_default_is_active"),
        sa.CheckConstraint("id <> 'main' OR state = 'active'", name="agents_main_is_active"),
    )
    op.create_index(
        "agents_one_default",
        "agents",
        ["is_default"],
        unique=True,
        sqlite_where=sa.text("is_default"),
        postgresql_where=sa.text("is_default"),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("label", sa.Text),
        sa.Column("secret_hash", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("revoked_at", sa.Text),
        sa.CheckConstraint("scope IN ('read', 'write', 'admin')", name="tokens_scope"),
    )
    op.create_table(
        "answers",
        sa.Column("idempotency_key", sa.Text, primary_key=True),
        sa.Column("request_hash", sa.Text, nullable=False),
        sa.Column("answer_json", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
