"""The conversation at a terminal: prompt, screen and household together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from coterie.cli.chat.commands import TABLE, Commands, Leave
from coterie.cli.chat.conversation import Choice, Conversation
from coterie.cli.chat.prompt import HISTORY, Prompt, make_prompt
from coterie.cli.chat.screen import Screen
from coterie.cli.chat.terminal import Terminal, short
from coterie.cli.chat.welcome import welcome
from coterie.cli.client import Client, joined
from coterie.cli.log import log_to
from coterie.core.errors import CoterieError
from coterie.engine.household.home import Home


async def talk(home: Home, choice: Choice) -> None:
    """Until the person leaves."""
    home.prepare()
    _log_to(home)
    terminal = Terminal.here()
    prompt = make_prompt(terminal, home)
    await Talk(home, choice, prompt, Screen(terminal, prompt.outlet)).run()


class Talk:
    """Implements the prompt's Person. The prompt is there at once; what is said waits for the household."""

    def __init__(self, home: Home, choice: Choice, prompt: Prompt, screen: Screen) -> None:
        self._home = home
        self._choice = choice
        self._prompt = prompt
        self._screen = screen
        self._client: Client | None = None
        self._conversation: Conversation | None = None
        self._commands: Commands | None = None
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._unsent: str | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._busy_since: float | None = None

    async def run(self) -> None:
        prompting = asyncio.create_task(self._prompt.run(self))
        living = asyncio.create_task(self._live())
        try:
            await asyncio.wait((prompting, living), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._prompt.leave()
            await asyncio.gather(prompting, return_exceptions=True)
        in_middle = self._conversation is not None and self._conversation.busy
        alone = self._client is not None and self._client.in_process
        failed = living.exception() if living.done() and not living.cancelled() else None
        while isinstance(failed, BaseExceptionGroup):
            failed = failed.exceptions[0]
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        if failed is not None:
            raise failed
        prompting.result()
        if self._unsent is not None:
            await self._screen.note(f"not sent: {short(self._unsent, 60)}")
        elif in_middle:
            where = "the next time Coterie runs" if alone else "in the gateway"
            await self._screen.note(f"The reply that was under way goes on {where}.")

    async def _live(self) -> None:
        await self._prompt.shown.wait()
        async with joined(self._home) as client:
            self._client = client
            conversation = await Conversation.begin(client, self._screen, self._choice)
            self._conversation = conversation
            conversation.after_error = "Your message is kept; /retry has it answered after all."
            self._commands = Commands(client, conversation, self._screen)
            await self._greet(conversation)
            self._prompt.refresh()
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(conversation.follow())
                tasks.create_task(self._warm_up(self._commands))
                try:
                    await self._listen(conversation, self._commands)
                except Leave:
                    following.cancel()

    async def _greet(self, conversation: Conversation) -> None:
        first_time = not (self._home.run / HISTORY).exists()
        (self._home.run / HISTORY).touch(mode=0o600)
        if first_time and not conversation.exists:
            await welcome(self._screen, conversation, self._home)
        else:
            await conversation.show_past()

    async def _warm_up(self, commands: Commands) -> None:
        """What the first reply and the first completion need."""
        from coterie.cli.chat.markdown import render

        if self._screen.terminal.escapes:
            await asyncio.to_thread(render, "*warm* `up`", self._screen.terminal)
        await commands.learn()

    async def _listen(self, conversation: Conversation, commands: Commands) -> None:
        while True:
            text = await self._said.get()
            try:
                if text.startswith("/") and not text.startswith("//"):
                    if self._screen.terminal.escapes:
                        await self._screen.commanded(text)
                    await commands.run(text)
                else:
                    text = text.removeprefix("/") if text.startswith("//") else text
                    if self._screen.terminal.escapes:
                        await self._screen.asked(text)
                    self._unsent = text
                    await conversation.ask(text)
                    self._unsent = None
            except CoterieError as error:
                self._unsent = None
                await self._screen.error(error.message)
            self._prompt.refresh()

    # Person

    def said(self, text: str) -> None:
        self._said.put_nowait(text)

    def interrupts(self) -> bool:
        conversation, client = self._conversation, self._client
        if conversation is None or client is None or not conversation.busy or not client.connected:
            return False
        task = asyncio.get_running_loop().create_task(self._stop(conversation))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        return True

    async def _stop(self, conversation: Conversation) -> None:
        try:
            await conversation.stop()
        except CoterieError as error:
            await self._screen.error(error.message)

    def status(self) -> str:
        conversation = self._conversation
        if conversation is None or self._client is None:
            return "opening the house …"
        if not self._client.connected:
            return "the gateway is away; trying to reach it …"
        stop = "Ctrl-C stops · " if conversation.busy else ""
        return f"{stop}{conversation.agent_name} · {conversation.model} · session {conversation.label}"

    def working(self) -> str:
        conversation = self._conversation
        if conversation is None or not conversation.busy:
            self._busy_since = None
            return ""
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        return f"… {int(now - self._busy_since)} s"

    def completions(self, line: str) -> Sequence[tuple[str, str]]:
        name, space, rest = line.partition(" ")
        if not space:
            return [(f"/{n}", c.what) for n, c in TABLE.items() if f"/{n}".startswith(line)]
        pools = {"/agent": "agent_ids", "/model": "models"}
        pool: list[str] = getattr(self._commands, pools[name]) if name in pools and self._commands else []
        return [(word, "") for word in pool if word.startswith(rest)]


def _log_to(home: Home) -> None:
    """The engine may run in this process: what it logs must not run across the screen."""
    log_to(logging.FileHandler(home.run / "chat.log", encoding="utf-8"), logging.WARNING)
