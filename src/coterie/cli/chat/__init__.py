"""coterie chat: talk to the household from a terminal or a pipe."""

from coterie.cli.chat.command import chat

__all__ = ["chat"]
