"""coterie token: who may come in."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.connection import Answer, report
from coterie.cli.options import HomeOption, JsonOption, examples
from coterie.cli.output import print_table, say

app = typer.Typer(help="Make, list and revoke access tokens.", no_args_is_help=True)


@app.command(epilog=examples("coterie token create --scope write --label phone"))
def create(
    scope: Annotated[str, typer.Option("--scope", metavar="SCOPE", help="read, write or admin.")],
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="A reminder of what it is for.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token. It is shown this once."""
    from coterie.core.token import SCOPES

    if scope not in SCOPES:
        raise typer.BadParameter(f"{scope!r} is none of {', '.join(SCOPES)}", param_hint="--scope")
    report(home, as_json, _print_made, "tokens.create", scope=scope, label=label)


def _print_made(made: Answer) -> None:
    say(made["token"])
    say(f"Scope {made['scope']}. Keep it now: it is not shown again. Id for revoking: {made['id']}", err=True)


@app.command("list")
def list_(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show every token, without its secret."""
    report(home, as_json, _print_tokens, "tokens.list")


def _print_tokens(found: Answer) -> None:
    print_table(
        ("Id", "Scope", "Label", "Made", "State"),
        [
            (
                t["id"],
                t["scope"],
                t["label"] or "",
                t["created_at"][:19],
                "revoked" if t["revoked_at"] else "live",
            )
            for t in found["tokens"]
        ],
    )


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a token back. Connections that use it end at once."""
    report(home, as_json, lambda _: say(f"Revoked {token_id}."), "tokens.revoke", id=token_id)
