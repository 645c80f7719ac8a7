"""One message, one answer: for a line on the command line, and for pipes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from coterie.cli.chat.conversation import Choice, Conversation, Outcome, Unseen
from coterie.cli.chat.screen import Screen, Straight
from coterie.cli.chat.terminal import Terminal, last_lines
from coterie.cli.client import Client, joined
from coterie.cli.output import Picture
from coterie.core.errors import CoterieError, Unavailable
from coterie.engine.household.home import Home

PATIENCE = 60
"""Seconds to wait for a gateway that went away in the middle."""


async def answer(home: Home, choice: Choice, message: str, *, shown: bool) -> dict[str, Any]:
    """Ask, and wait for the answer. `shown`: as it comes in, on this terminal."""
    async with joined(home, patience=PATIENCE) as client:
        if not shown:
            return await _answer(client, Unseen(), choice, message)
        terminal = Terminal.here()
        if not terminal.escapes:
            return await _answer(client, Screen(terminal, Straight()), choice, message)
        with Moving(terminal) as outlet:
            return await _answer(client, Screen(terminal, outlet), choice, message)


async def _answer(client: Client, view: Any, choice: Choice, message: str) -> dict[str, Any]:
    conversation = await Conversation.begin(client, view, choice)
    following = asyncio.create_task(conversation.follow())
    asking = asyncio.create_task(_ask(conversation, message))
    try:
        await asyncio.wait((following, asking), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            following.result()
        run_id, outcome = await asking
    except asyncio.CancelledError:  # Ctrl-C: the person wants no answer any more
        with suppress(CoterieError):
            await conversation.stop()
        raise
    finally:
        following.cancel()
        asking.cancel()
    if outcome.state == "error":
        raise Unavailable(outcome.text)
    if outcome.state == "aborted":
        raise Unavailable("the turn was stopped before it had an answer")
    return {
        "text": outcome.text,
        "run_id": run_id,
        "session": conversation.key,
        "agent_id": conversation.agent_id,
    }


async def _ask(conversation: Conversation, message: str) -> tuple[str, Outcome]:
    run = await conversation.ask(message)
    return run.id, await run.ended


class Moving:
    """An outlet for a terminal without a prompt: the end of what comes in is drawn again and again."""

    def __init__(self, terminal: Terminal) -> None:
        from rich.cells import cell_len

        self._terminal = terminal
        self._width_of = cell_len
        self._picture = Picture(colour=terminal.colour)

    def __enter__(self) -> Moving:
        self._picture.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._picture.__exit__()

    async def write(self, text: str, tail: str | None = None) -> None:
        self._picture.above(text)

    def show(self, text: str, *, dim: bool) -> None:
        lines = last_lines(text, self._terminal.columns, self._terminal.lines - 2, self._width_of)
        self._picture.draw(lines, dim=dim)
