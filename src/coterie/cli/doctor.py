"""coterie doctor: finds what is wrong, and mends what can be mended."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.options import HomeOption, JsonOption
from coterie.cli.output import print_json, say


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended.")] = False,
    begin_anew: Annotated[
        bool,
        typer.Option(
            "--begin-anew",
            help="Put what is left of the database aside; the next start makes an empty one. Files stay.",
        ),
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the home folder, the disk, agent.yaml, the database and every agent's files."""
    from coterie.app import examine
    from coterie.engine.household.home import Home

    if begin_anew:
        from coterie.engine.household.restoring import begin_anew as put_aside

        kept = put_aside(Home.locate(home))
        where = f"; what was left of the old one is in {kept}" if kept is not None else ""
        say(f"The next start begins with an empty database{where}.", err=as_json)
    findings = examine(Home.locate(home), fix=fix)
    if as_json:
        print_json({"findings": [f.payload() for f in findings]})
    else:
        marks = {"ok": "ok     ", "fixed": "fixed  ", "warning": "warning", "problem": "PROBLEM"}
        for finding in findings:
            say(f"{marks[finding.level]}  {finding.message}")
            if finding.advice:
                say(f"         {finding.advice}")
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)
