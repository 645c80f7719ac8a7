"""How a conversation looks on a terminal: finished text above, what is still coming in below it."""

from __future__ import annotations

import json
from typing import Protocol

from coterie.cli.chat.markdown import render, split_finished
from coterie.cli.chat.terminal import Terminal, short
from coterie.cli.output import say_painted

ARGUMENTS = 60
"""Characters of a tool's arguments that are shown."""


class Outlet(Protocol):
    """Where the screen's text goes."""

    async def write(self, text: str, tail: str | None = None) -> None:
        """Text that stays; whole lines, unless `show` is never used. From the same moment, `tail` is shown."""

    def show(self, text: str, *, dim: bool) -> None:
        """Text that is still coming in, instead of what was shown last."""


class Screen:
    """Implements the View of a conversation."""

    def __init__(self, terminal: Terminal, outlet: Outlet) -> None:
        self.terminal = terminal
        self._outlet = outlet
        self._thinking = ""
        self._text = ""
        """The part of the reply that is not written yet."""
        self._speaker: str | None = None
        """Who replies now."""
        self._named = False
        """The speaker's name stands above what comes next."""
        self._tools: dict[str, str] = {}
        """Calls under way, by id, as they are shown."""
        self._blank = True
        """The last line that was written is empty."""
        self._mid_line = False
        """Only where text streams straight out: the line is not ended."""

    async def asked(self, text: str, *, who: str | None = None, elsewhere: bool = False) -> None:
        """What a person said here; with a name, what somebody else did."""
        head = self._mark() if who is None else self._fit(f"{short(who, 80)}:")
        lines = self._fit(text).rstrip().split("\n")
        said = "\n".join([f"{head} {lines[0]}", *(f"  {line}" for line in lines[1:])])
        where = self.terminal.paint(" (said elsewhere)", "dim") if elsewhere else ""
        painted = self.terminal.paint(said, "bold", "cyan") if who is None else self._dim(said).rstrip("\n")
        await self._aside(painted + where + "\n")

    async def earlier(self, who: str | None, text: str) -> None:
        """A message of the past, in short. Without a name it is the person's."""
        head = f"{who}:" if who is not None else self._mark()
        await self._aside(self._dim(f"{head} {short(text, 300)}"))

    async def begins(self, name: str) -> None:
        """An agent starts to reply. Its name comes with the first thing it says or does."""
        await self._flush()
        self._speaker, self._named = name, False

    async def thinks(self, text: str) -> None:
        self._thinking += self._fit(text)
        if not self.terminal.escapes:
            return
        await self._speak("")
        complete = self._thinking.rfind("\n") + 1
        if complete:
            thought, self._thinking = self._thinking[: complete - 1], self._thinking[complete:]
            await self._speak(self._dim(thought), self._thinking)
        self._outlet.show(self._thinking, dim=True)

    async def says(self, text: str) -> None:
        await self._end_thinking()
        text = self._fit(text)
        await self._speak("")
        if not self.terminal.escapes:
            self._mid_line, self._blank = not text.endswith("\n"), False
            await self._outlet.write(text)
            return
        self._text += text
        if "\n" in text:
            finished, self._text = split_finished(self._text)
            await self._write_markdown(finished, self._text)
        self._outlet.show(self._text, dim=False)

    async def tool_starts(self, call_id: str, name: str, arguments: str) -> None:
        await self._flush()
        self._tools[call_id] = self._fit(f"{name}{_arguments(arguments)}")
        if self.terminal.escapes:
            self._show_tools()
        else:
            await self._speak(f"  {self._tools[call_id]} ...\n")

    async def tool_ends(self, call_id: str, name: str, *, ok: bool, milliseconds: int, result: str) -> None:
        await self._flush()
        call = self._tools.pop(call_id, self._fit(name))
        mark = (
            self.terminal.paint(self._fit("✓"), "green") if ok else self.terminal.paint(self._fit("✗"), "red")
        )
        how = duration(milliseconds) if ok else f"failed, {duration(milliseconds)}: {short(result, 120)}"
        line = self.terminal.wrap(self._fit(f"  {call}  {how}"), "    ")[1:]
        await self._speak(mark + self.terminal.paint(line, "dim") + "\n")
        self._show_tools()

    async def starts_over(self) -> None:
        """What was shown of this reply no longer counts."""
        self._thinking = self._text = ""
        self._outlet.show("", dim=False)
        await self.note("the reply was cut short and starts over")

    async def ends(self) -> None:
        """The reply is complete, or there will be no more of it."""
        await self._flush()
        for call in self._tools.values():
            await self._speak(self._dim(f"{self._fit('✗')} {call}  did not end"))
        self._tools.clear()
        self._speaker = None
        self._outlet.show("", dim=False)
        if not self._blank:
            await self._write("\n")

    async def note(self, text: str) -> None:
        await self._aside(self._dim(text))

    async def error(self, text: str) -> None:
        await self._aside(self.terminal.paint(self._wrapped(f"error: {short(text, 500)}"), "red") + "\n")

    async def lines(self, text: str, indent: str = "") -> None:
        """An answer of our own, such as a list. What is too long goes on behind the indent."""
        await self._aside(self.terminal.wrap(self._fit(text), indent) + "\n")

    async def commanded(self, line: str) -> None:
        """A command that was typed."""
        await self._aside(self._dim(f"{self._mark()} {line}"))

    # Small parts

    async def _flush(self) -> None:
        """Write what is still only shown."""
        await self._end_thinking()
        text, self._text = self._text, ""
        await self._write_markdown(text, "")
        if self._mid_line:
            self._mid_line = False
            await self._outlet.write("\n")
        self._show_tools()

    async def _end_thinking(self) -> None:
        thought, self._thinking = self._thinking, ""
        if thought.strip():
            await self._speak(self._dim(thought.rstrip()), "")

    async def _write_markdown(self, text: str, tail: str) -> None:
        if text.strip():
            await self._speak(render(text, self.terminal) + "\n", tail)

    async def _speak(self, text: str, tail: str | None = None) -> None:
        """A part of the reply, below its speaker's name."""
        if self._speaker is not None and not self._named:
            self._named = True
            text = self.terminal.paint(self._fit(self._speaker), "bold", "green") + "\n" + text
        if text:
            await self._write(text, tail)

    async def _aside(self, text: str) -> None:
        """Something that is not part of the reply; what the reply goes on with is named again."""
        self._named = False
        await self._write(text)

    async def _write(self, text: str, tail: str | None = None) -> None:
        if self._mid_line:
            self._mid_line = False
            text = "\n" + text
        self._blank = text.endswith("\n\n") or (self._blank and text == "\n")
        await self._outlet.write(text, tail)

    def _show_tools(self) -> None:
        self._outlet.show("\n".join(f"  {call} …" for call in self._tools.values()), dim=True)

    def _mark(self) -> str:
        return "›" if self.terminal.unicode else ">"

    def _fit(self, text: str) -> str:
        return self.terminal.fit(text)

    def _wrapped(self, text: str) -> str:
        return self.terminal.wrap(self._fit(text))

    def _dim(self, text: str) -> str:
        return self.terminal.paint(self._wrapped(text), "dim") + "\n"


class Straight:
    """An outlet without a prompt and without anything that moves: for terminals that only print."""

    async def write(self, text: str, tail: str | None = None) -> None:
        say_painted(text)

    def show(self, text: str, *, dim: bool) -> None:
        pass


def duration(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _arguments(text: str) -> str:
    """A call's arguments as a person would write them."""
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return f" {short(text, ARGUMENTS)}"
    if not isinstance(given, dict) or not given:
        return ""
    if len(given) == 1:
        value = next(iter(given.values()))
        return " " + short(value if isinstance(value, str) else json.dumps(value), ARGUMENTS)
    pairs = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in given.items())
    return " " + short(" ".join(pairs), ARGUMENTS)
