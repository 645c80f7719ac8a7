"""coterie usage: what was used, and what it cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from coterie.cli.connection import connected
from coterie.cli.options import HomeOption, JsonOption
from coterie.cli.output import print_json, print_table, say

BAR = 40


def usage(
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="KEYS", help="Any of day, agent, model, session, audience, with commas between."
        ),
    ] = "day,agent,model",
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, help="How far back.")] = 30,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only this agent's turns.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show turns, tokens and cost, with a plot by day."""
    from datetime import UTC, datetime, timedelta

    keys = [key.strip() for key in by.split(",") if key.strip()]
    since = (datetime.now(UTC) - timedelta(days=days)).date().isoformat()
    with connected(home) as gateway:
        found = gateway.call("usage.summary", by=keys, since=since, agent_id=agent)
        daily = (
            found
            if keys == ["day"]
            else gateway.call("usage.summary", by=["day"], since=since, agent_id=agent)
        )
    if as_json:
        print_json(found)
        return
    if not found["rows"]:
        say(f"No turns in the last {days} days.")
        return
    _plot(daily["rows"])
    rows = [(*(str(row[key] or "") for key in keys), *_figures(row)) for row in found["rows"]]
    rows.append((*("in all" if i == 0 else "" for i in range(len(keys))), *_figures(found["total"])))
    print_table(
        (*(key.capitalize() for key in keys), "Turns", "Tokens in", "Cached", "Tokens out", "Cost"), rows
    )


def _plot(rows: list[dict[str, Any]]) -> None:
    """Tokens by day, one bar each."""
    most = max((row["input_tokens"] + row["output_tokens"] for row in rows), default=0) or 1
    say("Tokens by day")
    for row in rows:
        count = row["input_tokens"] + row["output_tokens"]
        say(f"{row['day']}  {'#' * max(1, round(count / most * BAR)):<{BAR}}  {count:,}")


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['turns']:,}",
        f"{row['input_tokens']:,}",
        f"{row['cached_tokens']:,}",
        f"{row['output_tokens']:,}",
        _cost(row),
    )


def _cost(row: dict[str, Any]) -> str:
    """What is known of it: a sum over turns of unknown price is no sum."""
    unknown = row["unpriced_turns"]
    if row["cost"] is None or (unknown and not row["cost"]):
        return "unknown"
    if not unknown:
        return f"${row['cost']:.4f}"
    turns = "1 turn" if unknown == 1 else f"{unknown:,} turns"
    return f"at least ${row['cost']:.4f} ({turns} of unknown price)"
