"""One folding for what is indexed and what is asked: full text is made anew from the rows."""

from alembic import op

from coterie.store import full_text

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    full_text.make_anew(op.get_bind())
