"""How the log is written: one record, one line, and nothing in it that a terminal would obey or that is secret."""

from __future__ import annotations

import logging

from coterie.core.redaction import redacted
from coterie.core.text import well_formed

FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"


class OneLine(logging.Formatter):
    """Whatever a record quotes cannot begin a line of its own: a traceback's lines stand behind a bar."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        line = _escaped(self.formatMessage(record))
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        more = "\n".join(text for text in (record.exc_text, record.stack_info) if text)
        return redacted("".join([line, *(f"\n  | {_escaped(text)}" for text in more.splitlines())]))


def _escaped(text: str) -> str:
    """With every control character, and every one that turns the direction of writing, spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in well_formed(text))


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
