"""Memories, what finds them, and full text over messages.

A `memories` table that is there already keeps its rows as they are: columns are added, and rows without owner
and scope read as main's, global. What is derived from them stands in tables of its own.
"""

import sqlalchemy as sa
from alembic import op

from coterie.store import full_text

revision = "0004"
down_revision = "0003"

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")

COLUMNS = (
    ("agent_id", True),
    ("scope", True),
    ("former_scope", True),
    ("content", False),
    ("tags_json", True),
    ("thread", True),
    ("source_ref", True),
    ("file", True),
    ("occurred_at", True),
    ("created_at", True),
    ("updated_at", True),
    ("pinned_at", True),
    ("superseded_by", True),
)


def upgrade() -> None:
    connection = op.get_bind()
    look = sa.inspect(connection)
    older = look.has_table("memories")
    if older:
        there = {column["name"] for column in look.get_columns("memories")}
        for name, nullable in COLUMNS:
            if name not in there:
                op.add_column("memories", sa.Column(name, sa.Text, nullable=nullable))
    else:
        op.create_table(
            "memories",
            sa.Column("id", sa.Text, primary_key=True),
            *(sa.Column(name, sa.Text, nullable=nullable) for name, nullable in COLUMNS),
        )
    op.create_index("memories_by_agent", "memories", ["agent_id", "created_at"])
    op.create_table(
        "memory_index",
        sa.Column("number", Big, primary_key=True, autoincrement=True),
        sa.Column("memory_id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("private", sa.Boolean, nullable=False),
        sa.Column("thread", sa.Text),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("moment", sa.Text, nullable=False),
        sa.Column("vector", sa.LargeBinary),
        sa.Column("model", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("memory_index_by_owner", "memory_index", ["owner", "private", "number"])
    op.create_index("memory_index_by_scope", "memory_index", ["private", "number"])
    in_thread, pending = sa.text("thread IS NOT NULL"), sa.text("model IS NULL")
    op.create_index(
        "memory_index_by_thread",
        "memory_index",
        ["owner", "thread", "place"],
        sqlite_where=in_thread,
        postgresql_where=in_thread,
    )
    op.create_index(
        "memory_index_pending", "memory_index", ["number"], sqlite_where=pending, postgresql_where=pending
    )
    full_text.create(connection)
    full_text.index_messages(connection)
    if older:
        full_text.index_memories(connection)
