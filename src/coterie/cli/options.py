"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="The home folder; else COTERIE_HOME, else ~/.coterie.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the RPC payload as JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AgentArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="An agent's id; `default` is the default agent.")
]


def examples(*lines: str) -> str:
    """What stands below a command's help."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
