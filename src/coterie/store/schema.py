"""The tables, as the statements see them. How they came to be is in migrations/."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Index, MetaData, Table, Text, text

HEAD = "0001"
"""The migration that this program was written for."""

metadata = MetaData()

agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("label", Text, nullable=False),
    Column("label_key", Text, unique=True),
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
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
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
    Column("idempotency_key", Text, primary_key=True),
    Column("request_hash", Text, nullable=False),
    Column("answer_json", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)
