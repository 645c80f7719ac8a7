"""coterie doctor: finds what is wrong, and mends what can be mended."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.options import HomeOption, JsonOption
from coterie.cli.output import print_json, say


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the home folder, agent.yaml, the store and every agent's files."""
    from coterie.app import examine
    from coterie.engine.household.home import Home

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
