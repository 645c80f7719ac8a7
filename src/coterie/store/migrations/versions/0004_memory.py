"""Memories, what finds them, and full text over messages.

A `memories` table that is there already keeps its rows as they are: columns are added, and rows without owner
and scope read as main's, global. What is derived from them stands in tables of its own.
"""

import sqlalchemy as sa
from alembic import op

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


MESSAGES = "session_id, seq, id, role, origin, content, parts_json, call_id, tool_name, meta_json, agent_id, run_id, created_at"


def upgrade() -> None:
    connection = op.get_bind()
    number_messages(connection.dialect.name)
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
    if older:
        index_memories(connection)  # full text is made in 0009


def index_memories(connection: sa.Connection) -> None:
    """Rows of an older table. Without vectors, which come later."""
    connection.execute(
        sa.text(
            "INSERT INTO memory_index (memory_id, owner, private, thread, place, moment)"
            " SELECT CAST(id AS TEXT), coalesce(nullif(agent_id, ''), 'main'), coalesce(scope, 'global') = 'private',"
            " thread, row_number() OVER (), coalesce(CAST(occurred_at AS TEXT), CAST(created_at AS TEXT), '')"
            " FROM memories WHERE coalesce(scope, 'global') IN ('global', 'private')"
        )
    )


def number_messages(dialect: str) -> None:
    """A key that stays when a file is written anew; full text goes by it."""
    if dialect != "sqlite":
        op.execute("ALTER TABLE messages DROP CONSTRAINT messages_pkey")
        op.execute("ALTER TABLE messages ADD COLUMN number BIGSERIAL PRIMARY KEY")
        op.create_unique_constraint("messages_place", "messages", ["session_id", "seq"])
        return
    op.rename_table("messages", "messages_before")
    op.create_table(
        "messages",
        sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("parts_json", "call_id", "tool_name", "meta_json")),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("number", Big, primary_key=True, autoincrement=True),
        sa.UniqueConstraint("session_id", "seq", name="messages_place"),
    )
    op.execute(f"INSERT INTO messages ({MESSAGES}) SELECT {MESSAGES} FROM messages_before ORDER BY rowid")
    op.drop_table("messages_before")
