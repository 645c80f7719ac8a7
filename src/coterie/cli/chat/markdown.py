"""Replies as Markdown: which part of a stream is finished, and how it looks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from coterie.cli.chat.terminal import Terminal
from coterie.cli.clean import to_ascii
from coterie.cli.output import rendered

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_PARSED = 50_000
"""Characters of one unfinished block; a longer one is shown as it is."""


def split_finished(text: str) -> tuple[str, str]:
    """The blocks that nothing to come can change, and the rest.

    Once a top-level block has begun, those before it are closed. A line that is not complete may still
    become anything, so it takes no part in this.
    """
    complete = text.rfind("\n") + 1
    if not complete:
        return "", text
    if len(text) > MAX_PARSED:
        return text[:complete], text[complete:]
    tokens = _parser().parse(text[:complete])
    starts = [t.map[0] for t in tokens if t.level == 0 and t.nesting >= 0 and t.map]
    if len(starts) < 2:
        return "", text
    lines = text.split("\n")
    finished = "\n".join(lines[: starts[-1]]) + "\n"
    return finished, text[len(finished) :]


def render(text: str, terminal: Terminal) -> str:
    """Finished Markdown as lines for the terminal."""
    if len(text) > MAX_PARSED:
        return text.rstrip("\n") + "\n"
    drawn = rendered(_markdown()(text), terminal.columns, colour=terminal.colour)
    lines = [line.rstrip() for line in drawn.split("\n")]
    shown = "\n".join(lines).strip("\n") + "\n"
    return shown if terminal.unicode else to_ascii(shown)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt().enable("table").enable("strikethrough")


@cache
def _markdown() -> Any:
    from rich.markdown import Heading, Markdown

    class LeftHeading(Heading):
        LEVEL_ALIGN = {}

    class ChatMarkdown(Markdown):
        elements = {**Markdown.elements, "heading_open": LeftHeading}

        def __init__(self, text: str) -> None:
            super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
            # In a conversation, a line that was broken was meant to be.
            for child in (child for token in self.parsed for child in token.children or ()):
                if child.type == "softbreak":
                    child.type = "hardbreak"

    return ChatMarkdown
