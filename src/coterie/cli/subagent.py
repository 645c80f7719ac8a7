"""coterie subagent: what agents do for sessions and for each other."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.connection import Answer, report
from coterie.cli.options import HomeOption, JsonOption
from coterie.cli.output import print_pairs, print_table, say, say_text

app = typer.Typer(help="Look at runs of subagents, stop them, announce them again.", no_args_is_help=True)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id.")]


@app.command("list")
def list_(
    session: Annotated[
        str | None, typer.Option("--session", metavar="KEY", help="Only what this session asked for.")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="queued, running, completed or error.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first, and whether their results got back."""
    report(home, as_json, _print_runs, "subagents.list", requester_session_key=session, status=status)


def _print_runs(found: Answer) -> None:
    if not found["runs"]:
        say("No runs.")
        return
    print_table(
        ("Run", "Agent", "Status", "Announcement", "Task"),
        [
            (
                run["run_id"],
                run["agent_id"],
                run["error"] or run["status"],
                _announcement(run),
                " ".join((run["label"] or run["task"]).split())[:60],
            )
            for run in found["runs"]
        ],
    )


@app.command()
def show(run: RunArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show one run with its result."""
    report(home, as_json, _print_run, "subagents.get", run_id=run)


def _print_run(found: Answer) -> None:
    pairs = [
        ("run", found["run_id"]),
        ("agent", f"{found['agent_id']} ({found['model']})"),
        ("session", found["child_session_key"]),
        ("asked by", found["requester_session_key"] or "a person"),
        ("status", found["status"] + (f": {found['error']}" if found["error"] else "")),
        ("announcement", _announcement(found)),
        ("task", found["task"]),
    ]
    print_pairs(pairs)
    if found["result"]:
        say()
        say_text(found["result"])


@app.command()
def cancel(run: RunArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Stop a run; whoever asked for it is told."""
    report(home, as_json, _print_change, "subagents.cancel", run_id=run)


@app.command()
def retry(run: RunArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Send a blocked announcement on its way again."""
    report(home, as_json, _print_change, "subagents.retry", run_id=run)


def _print_change(found: Answer) -> None:
    say(f"{found['run_id']}: {found['error'] or found['status']}; {_announcement(found)}")


def _announcement(run: Answer) -> str:
    told = run["announcement"]
    if told is None:
        return "not announced"
    return f"{told['state']}: {told['reason']}" if told["reason"] else str(told["state"])
