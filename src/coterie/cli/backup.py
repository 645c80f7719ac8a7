"""coterie backup and coterie restore: the whole household in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import HomeOption, JsonOption
from coterie.cli.output import print_json, say, size


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not exist yet.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the whole household into one file, also while the gateway runs: database, agent.yaml, agents, skills,
    plugins. The token is not in it."""
    from coterie.engine.household.backup import make_backup
    from coterie.engine.household.home import Home

    made = make_backup(Home.locate(home), file.expanduser().absolute())
    if as_json:
        print_json(made.payload())
        return
    say(f"Backed up to {made.file}: {_contents(made.payload())}, {size(made.size)}.")
    if made.left_out:
        say(f"Left out, as they are links or no files: {', '.join(made.left_out[:10])}", err=True)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `coterie backup` made.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a backup into the place of what is in the home folder, which is kept beside it. No gateway may run."""
    from coterie.engine.household.home import Home
    from coterie.engine.household.restoring import restore as put_back

    restored = put_back(Home.locate(home), file.expanduser().absolute())
    if as_json:
        print_json(restored.payload())
        return
    say(f"Restored the household of {restored.created_at}: {_contents(restored.payload())}.")
    if restored.kept is not None:
        say(f"What was there before is in {restored.kept}.")


def _contents(payload: dict[str, Any]) -> str:
    counts = payload["database"]["counts"]
    found = [f"{counts.get(name, 0)} {name}" for name in ("agents", "sessions", "messages", "memories")]
    return ", ".join(found)
