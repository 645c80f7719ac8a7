"""Past conversations, searched: what was said in turns that one agent ran."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, or_, select, text

from coterie.core.audience import is_outside
from coterie.core.memory import Reader
from coterie.core.message import Message
from coterie.core.ranking import WINDOW
from coterie.store import full_text, schema
from coterie.store.session_rows import message

_m = schema.messages
_s = schema.sessions
_SAID = _m.c.role.in_(("user", "assistant"))
BATCH = 100


class ConversationRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def any(self, reader: Reader, *, apart_from: str) -> bool:
        """Whether the reader's agent has other conversations to remember."""
        query = select(_s.c.id).where(_s.c.agent_id == reader.agent_id, _s.c.id != apart_from).limit(1)
        if is_outside(reader.audience):
            query = query.where(_s.c.audience == reader.audience)
        else:
            query = query.where(_s.c.kind != "once")
        return self._connection.execute(query).first() is not None

    def find(
        self, reader: Reader, wanted: Sequence[full_text.Form], *, apart_from: str | None, limit: int
    ) -> list[list[str]]:
        """For each word, ids of messages that have it, newest first."""
        return full_text.find_messages(self._connection, reader, wanted, apart_from=apart_from, limit=limit)

    def passages(self, reader: Reader, ids: Sequence[str]) -> list[tuple[str, Message]]:
        """These messages and what stands around them, with the sessions they belong to."""
        heard, values = full_text.heard_sql(reader)
        seen = and_(
            _m.c.agent_id == reader.agent_id,
            _SAID,
            text(heard.replace("m.", "messages.")).bindparams(**values),
        )
        found: dict[str, tuple[str, Message]] = {}
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            rows = self._connection.execute(select(_m).where(_m.c.id.in_(some), seen)).all()
            around = or_(
                *(
                    and_(
                        _m.c.session_id == row.session_id,
                        _m.c.seq.between(row.seq - WINDOW, row.seq + WINDOW),
                    )
                    for row in rows
                )
            )
            if not rows:
                continue
            near = self._connection.execute(select(_m).where(around, seen))
            found.update({row.id: (row.session_id, message(row)) for row in near})
        return list(found.values())
