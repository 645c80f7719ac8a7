"""A claim names its owner and a lease; a turn that waits says for whom."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    for name in ("owner", "lease_until", "waits_for"):
        op.add_column("turn_jobs", sa.Column(name, sa.Text))
