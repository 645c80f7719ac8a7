"""Where a person types: an editor line below the conversation, or plain lines on a terminal that only prints."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from coterie.cli.chat.screen import Outlet, Straight
from coterie.cli.chat.terminal import Terminal, last_lines
from coterie.cli.clean import one_line, painted
from coterie.cli.output import say
from coterie.engine.household.home import Home

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

HISTORY = "chat_history"
"""In the home's run folder. That it exists also says that somebody chatted here before."""
TICK = 0.5


class Person(Protocol):
    """Who is told what the person does."""

    def said(self, text: str) -> None: ...

    def interrupts(self) -> bool:
        """Ctrl-C. True where something was running that it stops."""

    def status(self) -> str:
        """For the toolbar."""

    def working(self) -> str:
        """For the line above the prompt while nothing of a reply is there yet; empty: nothing runs."""

    def completions(self, line: str) -> Sequence[tuple[str, str]]:
        """What could stand for the last word of a line, and what it means."""


class Prompt(Protocol):
    outlet: Outlet
    shown: asyncio.Event
    """Set once a person can type."""

    async def run(self, person: Person) -> None:
        """Until the person leaves."""

    def leave(self) -> None: ...

    def refresh(self) -> None: ...


def make_prompt(terminal: Terminal, home: Home) -> Prompt:
    return EditorPrompt(terminal, home) if terminal.escapes else LinePrompt(terminal)


class EditorPrompt:
    """The prompt stays at the bottom; what is written goes above it, what is still coming in just above it.

    The text that comes in is part of the prompt's own picture, so that it can change without flicker and
    without getting in the way of somebody who types.
    """

    def __init__(self, terminal: Terminal, home: Home) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import in_terminal
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.styles import Style
        from prompt_toolkit.utils import get_cwidth

        self.outlet: Outlet = self
        self._terminal = terminal
        self._in_terminal = in_terminal
        self._width_of = get_cwidth
        self._person: Person | None = None
        self._tail = ""
        self._tail_is_dim = False
        self._unwritten = ""
        self._next_tail: tuple[str, bool] | None = None
        """Shown once everything before it is written."""
        self._writing: asyncio.Task[None] | None = None
        self._armed = False
        """Ctrl-C was pressed with nothing to stop: once more leaves."""
        self._session: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation="  ",
            history=FileHistory(str(home.run / HISTORY)),
            key_bindings=self._keys(),
            completer=self._completer(),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            reserve_space_for_menu=5,
            bottom_toolbar=self._toolbar,
            style=Style.from_dict(
                {"bottom-toolbar": "noreverse", "bottom-toolbar.text": "fg:ansibrightblack"}
            ),
            erase_when_done=True,
        )
        self.shown = asyncio.Event()
        self._session.app.after_render += lambda _: self.shown.set()
        self._session.app.min_redraw_interval = 0.03
        self._session.default_buffer.on_text_changed += self._typed

    async def run(self, person: Person) -> None:
        from prompt_toolkit.patch_stdout import patch_stdout

        self._person = person
        ticking = asyncio.create_task(self._tick())
        try:
            with patch_stdout(raw=True):
                await self._session.prompt_async()
        except (EOFError, KeyboardInterrupt):
            pass
        finally:
            ticking.cancel()
            if self._writing is not None:
                await self._writing

    def leave(self) -> None:
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(result="")

    def refresh(self) -> None:
        self._session.app.invalidate()

    async def write(self, text: str, tail: str | None = None) -> None:
        # Each time the terminal is asked where its cursor is, which takes a while over a slow line. What
        # comes in meanwhile is written together.
        self._unwritten += text
        if tail is not None:
            self._next_tail = (tail, self._tail_is_dim)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        if not self._session.app.is_running:
            await self._writing

    async def _write_all(self) -> None:
        while self._unwritten:
            async with self._in_terminal():
                text, self._unwritten = self._unwritten, ""
                if self._next_tail is not None:
                    (self._tail, self._tail_is_dim), self._next_tail = self._next_tail, None
                self._session.output.write_raw(painted(text))
                self._session.output.flush()

    def show(self, text: str, *, dim: bool) -> None:
        if self._unwritten:
            self._next_tail = (text, dim)
            return
        self._tail, self._tail_is_dim = text, dim
        self.refresh()

    async def _tick(self) -> None:
        """The time that something takes is part of the picture."""
        while True:
            await asyncio.sleep(TICK)
            if self._person is not None and self._person.working():
                self.refresh()

    def _message(self) -> StyleAndTextTuples:
        columns = self._terminal.columns
        parts: StyleAndTextTuples = []
        if self._tail:
            rows = max(self._terminal.lines - 6, 2)
            lines = last_lines(self._tail, columns, rows, self._width_of)
            parts.append(("dim" if self._tail_is_dim else "", "\n".join(lines) + "\n"))
        elif self._person is not None and (working := self._person.working()):
            parts.append(("dim", self._cut(working) + "\n"))
        return [*parts, ("bold", "› " if self._terminal.unicode else "> ")]

    def _toolbar(self) -> StyleAndTextTuples:
        status = self._person.status() if self._person is not None else ""
        hint = "Ctrl-C again, or Ctrl-D, leaves" if self._armed else status
        return [("", self._cut(hint))]

    def _cut(self, text: str) -> str:
        return last_lines(self._terminal.fit(text)[::-1], self._terminal.columns - 1, 1, self._width_of)[-1][
            ::-1
        ]

    def _typed(self, _: Any) -> None:
        self._armed = False

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("enter")
        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            text = buffer.text.strip("\n")
            if text.strip() and self._person is not None:
                buffer.append_to_history()
                buffer.reset()
                self._person.said(text)

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def interrupt(event: KeyPressEvent) -> None:
            if self._person is not None and self._person.interrupts():
                return
            if self._armed:
                self.leave()
                return
            event.current_buffer.reset()
            self._armed = True
            self.refresh()

        return keys

    def _completer(self) -> Completer:
        from prompt_toolkit.completion import CompleteEvent, Completer, Completion

        prompt = self

        class Slash(Completer):
            def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
                line = document.text_before_cursor
                if prompt._person is None or not line.startswith("/"):
                    return
                word = line.rpartition(" ")[2]
                for text, meaning in prompt._person.completions(line):
                    fit = prompt._terminal.fit
                    yield Completion(one_line(text), -len(word), fit(text), display_meta=fit(meaning))

        return Slash()


def _decoded(line: bytes) -> str:
    """What was typed. Terminals send UTF-8 also where the locale does not say so."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


class LinePrompt:
    """Lines as the terminal itself edits them. A backslash at the end of one goes on in the next."""

    def __init__(self, terminal: Terminal) -> None:
        self.outlet: Outlet = Straight()
        self.shown = asyncio.Event()
        self.shown.set()
        self._left: asyncio.Event = asyncio.Event()
        self._pending = b""
        self._lines: list[str] = []
        self._armed = False

    async def run(self, person: Person) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._readable, person)
        loop.add_signal_handler(signal.SIGINT, self._interrupt, person)
        try:
            await self._left.wait()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGINT)

    def leave(self) -> None:
        self._left.set()

    def refresh(self) -> None:
        pass

    def _readable(self, person: Person) -> None:
        read = os.read(sys.stdin.fileno(), 65536)
        if not read:
            self.leave()
            return
        self._armed = False
        *lines, self._pending = (self._pending + read).split(b"\n")
        for line in lines:
            text = _decoded(line).rstrip("\r")
            if text.endswith("\\"):
                self._lines.append(text[:-1])
                continue
            whole = "\n".join([*self._lines, text])
            self._lines.clear()
            if whole.strip():
                person.said(whole)

    def _interrupt(self, person: Person) -> None:
        if person.interrupts():
            return
        if self._armed:
            self.leave()
            return
        self._pending, self._armed = b"", True
        self._lines.clear()
        say()
        say("(Ctrl-C again, or Ctrl-D, leaves)")
