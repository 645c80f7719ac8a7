"""A turn is found by its idempotency key in whatever session, and says whether its answer reached whoever asked."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("turn_jobs", sa.Column("delivered_at", sa.Text))
    op.create_index("turn_jobs_by_key", "turn_jobs", ["idempotency_key"])
