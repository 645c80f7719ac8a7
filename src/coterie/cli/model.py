"""coterie model: which models there are, and whether they answer."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.connection import Answer, report
from coterie.cli.options import HomeOption, JsonOption
from coterie.cli.output import print_table, say, say_error

app = typer.Typer(help="See which models there are, and whether they answer.", no_args_is_help=True)


@app.command("list")
def list_models(
    everything: Annotated[
        bool, typer.Option("--all", help="Also the models of providers that have no key yet.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models that can be used."""
    report(home, as_json, _print_models, "models.list", all=everything)


def _print_models(found: Answer) -> None:
    rows = []
    for model in found["models"]:
        use = "the default" if model["name"] == found["default"] else "an agent's" if model["named"] else ""
        rows.append((model["name"], use, model["reason"] or ""))
    print_table(("Model", "Used as", ""), rows)
    keyless = [p for p in found["providers"] if not p["has_key"]]
    for provider in keyless:
        say(f"{provider['name']} can be used once {' or '.join(provider['key_names'])} is set.")
    if keyless:
        say("A key is set in the environment where the gateway runs, which is then started again.")
    say("Other names work too, as <provider>/<model>: each provider has more than are listed here.")


@app.command("test")
def try_model(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="<provider>/<model>; else the default agent's."),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a model for a word: is the key right, is the name right, does it answer?"""
    if not report(home, as_json, _print_test, "models.test", name=name)["ok"]:
        raise typer.Exit(1)


def _print_test(found: Answer) -> None:
    if found["ok"]:
        say(f"{found['name']} answers ({found['latency_ms']} ms).")
    else:
        say_error(found["message"])
