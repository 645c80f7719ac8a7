"""What a memory took the place of is found without a look at every memory."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    superseded = sa.text("superseded_by IS NOT NULL")
    op.create_index(
        "memories_superseded",
        "memories",
        ["superseded_by"],
        sqlite_where=superseded,
        postgresql_where=superseded,
    )
