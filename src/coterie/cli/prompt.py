"""coterie prompt: what a model is told."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from coterie.cli.clean import escaped
from coterie.cli.connection import connected
from coterie.cli.options import HomeOption, JsonOption, examples
from coterie.cli.output import print_json, print_table, say, say_exactly, say_text, size, to_terminal

app = typer.Typer(help="See what a turn sends to its model.", no_args_is_help=True)


@app.command(epilog=examples('coterie prompt show --agent rose --message "Which soil?"'))
def show(
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Whose prompt.")] = "default",
    session: Annotated[
        str | None, typer.Option("--session", metavar="KEY", help="The next request in this session instead.")
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", metavar="TEXT", help="As if this was said next.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Only the body of the request, exactly as it would be sent.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the exact prompt a turn would get, with sizes."""
    from coterie.core.errors import InvalidRequest

    with connected(home) as gateway:
        found = gateway.call(
            "prompt.preview", agent_id=None if session else agent, session=session, message=message
        )
    if raw:
        if found["body"] is None:
            raise InvalidRequest(f"{found['model']} cannot show what it would send")
        say_exactly(escaped(found["body"]) if to_terminal() else found["body"])
        return
    if as_json:
        print_json(found)
        return
    say_text(found["system"])
    say()
    for tool in found["tools"]:
        say(escaped(json.dumps(tool, ensure_ascii=False, separators=(",", ":"))))
    say()
    say_text(found["context"])
    tools = sum(
        len(json.dumps(t, ensure_ascii=False, separators=(",", ":")).encode()) for t in found["tools"]
    )
    rows = [
        (s["name"], size(s["bytes"]), f"{s['cut']} characters cut" if s["cut"] else "")
        for s in found["sections"]
    ]
    rows += [(f"{len(found['tools'])} tools", size(tools), ""), ("in all", size(found["total_bytes"]), "")]
    print_table((f"{found['agent_id']} with {found['model']}", "Size", ""), rows)
