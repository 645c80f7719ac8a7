"""coterie chat."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from coterie.cli.options import HomeOption
from coterie.cli.output import at_terminal, print_json, say_text, to_terminal


def chat(
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="[MESSAGE]", help="Say this, print the answer and exit. Else: a conversation."
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", "-a", metavar="ID", help="Who to talk to; else the default agent."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", "-s", metavar="KEY", help="A session's key or id; else the agent's main one."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="P/M", help="The model of this session from now on."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With a message: print text, run_id, session and agent_id as JSON.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Talk to an agent. In a pipe, what comes in is the message and the plain answer goes out."""
    import asyncio

    from coterie.cli.chat.conversation import Choice
    from coterie.engine.household.home import Home

    place = Home.locate(home)
    choice = Choice(agent, session, model)
    if message is None and at_terminal():
        if as_json:
            raise typer.BadParameter("a conversation is not JSON; give a message", param_hint="--json")
        from coterie.cli.chat.talk import talk

        asyncio.run(talk(place, choice))
        return

    from coterie.cli.chat.once import answer
    from coterie.core.errors import InvalidRequest

    if message is None:
        message = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    if not message.strip():
        raise InvalidRequest("there is no message: it is empty")
    shown = to_terminal() and not as_json
    found = asyncio.run(answer(place, choice, message, shown=shown))
    if as_json:
        print_json(found)
    elif not shown:
        say_text(found["text"].rstrip("\n"))
