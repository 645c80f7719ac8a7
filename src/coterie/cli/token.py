"""coterie token: who may come in."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.options import HomeOption, JsonOption

app = typer.Typer(help="Make, list and revoke access tokens.", no_args_is_help=True)


@app.command()
def create(
    scope: Annotated[str, typer.Option("--scope", help="read, write or admin.")],
    label: Annotated[str | None, typer.Option("--label", help="A reminder of what it is for.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token. It is shown this once."""
    from coterie.cli.connection import connected
    from coterie.cli.output import print_json
    from coterie.core.token import SCOPES

    if scope not in SCOPES:
        raise typer.BadParameter(f"{scope!r} is none of {', '.join(SCOPES)}", param_hint="--scope")
    with connected(home) as gateway:
        made = gateway.call("tokens.create", scope=scope, label=label)
    if as_json:
        print_json(made)
    else:
        typer.echo(made["token"])
        typer.echo(
            f"Scope {made['scope']}. Keep it now: it is not shown again. Id for revoking: {made['id']}",
            err=True,
        )


@app.command("list")
def list_(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show every token, without its secret."""
    from coterie.cli.connection import connected
    from coterie.cli.output import print_json, print_table

    with connected(home) as gateway:
        found = gateway.call("tokens.list")
    if as_json:
        print_json(found)
        return
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
    from coterie.cli.connection import connected
    from coterie.cli.output import print_json

    with connected(home) as gateway:
        done = gateway.call("tokens.revoke", id=token_id)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"Revoked {token_id}.")
