"""Images wait in the inbox with their message."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("inbox", sa.Column("parts_json", sa.Text))
