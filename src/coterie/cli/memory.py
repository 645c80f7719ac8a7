"""coterie remember, recall and memory: what the household knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.clean import escaped
from coterie.cli.connection import Answer, connected, report
from coterie.cli.options import HomeOption, JsonOption
from coterie.cli.output import bar, print_json, print_table, say, say_exactly, say_text
from coterie.core.audience import OWNER

app = typer.Typer(help="Carry memories in and out, count them, index them again.", no_args_is_help=True)

CHUNK = 2_000
"""Entries of an import that are sent at once; after each, the bar moves."""
AsAgent = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="As this agent; without it, only what is global."),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="jsonl or markdown; else by the file's ending."),
]


def remember(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be remembered.")],
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Whose it is; else the default agent's.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="For this agent alone.")] = False,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="File it under this; repeatable.")] = None,
    occurred_at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="When it happened, ISO 8601.")
    ] = None,
    supersedes: Annotated[
        str | None, typer.Option("--supersedes", metavar="ID", help="The memory that this one replaces.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remember something."""
    report(
        home,
        as_json,
        lambda kept: say(f"Remembered for {kept['agent_id']}, {kept['scope']} ({kept['id']})."),
        "memory.remember",
        content=text,
        agent_id=agent,
        scope="private" if private else None,
        tags=tag or None,
        occurred_at=occurred_at,
        supersedes=supersedes,
    )


def recall(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What you want to know.")],
    agent: AsAgent = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="How many.")] = 10,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only with one of these tags.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Not older.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Older than this.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find what was remembered."""
    report(
        home,
        as_json,
        _print_hits,
        "memory.recall",
        query=query,
        agent_id=agent,
        limit=limit,
        tags=tag or None,
        since=since,
        until=until,
    )


def _print_hits(found: Answer) -> None:
    for memory in found["memories"]:
        when = (memory["occurred_at"] or memory["created_at"])[:10]
        source = memory["source_ref"] or memory["id"]
        heard = "" if memory["audience"] == OWNER else f", heard from {memory['audience']}"
        say(f"{when}  {memory['agent_id']}, {memory['scope']}, {source}{heard}")
        say_text("\n".join(f"  {line}" for line in memory["content"].splitlines()))
    if not found["memories"]:
        say("Nothing was found.")
    if found["note"]:
        say(f"note: {found['note']}", err=True)


@app.command("list")
def list_(
    agent: AsAgent = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 200,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show memories in order of arrival."""
    report(home, as_json, _print_memories, "memory.list", agent_id=agent, limit=limit)


def _print_memories(found: Answer) -> None:
    rows = [
        (m["id"], m["agent_id"], m["scope"], m["created_at"][:10], " ".join(m["content"].split())[:100])
        for m in found["memories"]
    ]
    print_table(("Id", "Agent", "Scope", "Day", "Memory"), rows)


@app.command()
def edit(
    memory: Annotated[
        str, typer.Argument(metavar="ID", help="Its id, or as much of its beginning as is unique.")
    ],
    text: Annotated[str | None, typer.Option("--text", help="What it says from now on.")] = None,
    scope: Annotated[str | None, typer.Option("--scope", help="global or private.")] = None,
    pin: Annotated[bool | None, typer.Option("--pin/--unpin", help="Recall it in every turn.")] = None,
    agent: AsAgent = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a memory; what is not given stays."""
    report(
        home,
        as_json,
        lambda changed: say(f"Changed {changed['id']}."),
        "memory.update",
        id=memory,
        content=text,
        scope=scope,
        pinned=pin,
        agent_id=agent,
    )


@app.command()
def forget(
    memory: Annotated[
        str, typer.Argument(metavar="ID", help="Its id, or as much of its beginning as is unique.")
    ],
    agent: AsAgent = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a memory."""
    report(
        home,
        as_json,
        lambda done: say(f"Forgot {done['id']}."),
        "memory.forget",
        id=memory,
        agent_id=agent,
    )


@app.command()
def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Written anew; .md for Markdown, - for stdout.")
    ],
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="This agent's own, private ones included.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every agent's own.")] = False,
    form: FormatOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write memories to a file; with nobody named, those that are global."""
    form = _format(file, form)
    with connected(home) as gateway:
        if everything:
            found = gateway.call("memory.export_all", format=form)
        else:
            found = gateway.call("memory.export", agent_id=agent, format=form)
    if str(file) == "-":
        content = found["content"]
        say_exactly(escaped(content) if form == "jsonl" else content)
        return
    with file.open("w", encoding="utf-8", newline="") as out:
        out.write(found["content"])
    if as_json:
        print_json({"file": str(file), "count": found["count"], "format": form})
    else:
        say(f"Wrote {_many(found['count'])} to {file}.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What an export wrote.", exists=True)],
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Whose entries are; those of others are refused."),
    ] = None,
    form: FormatOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add memories from a file. Nothing is merged: what is there already stays as it is."""
    from coterie.engine.memory import text as memory_text

    kind: Any = _format(file, form)
    with file.open(encoding="utf-8", newline="") as source:
        entries = list(memory_text.read(source.read(), kind))
    added = present = 0
    with connected(home) as gateway, bar("Importing", len(entries)) as move:
        for start in range(0, len(entries), CHUNK):
            some = entries[start : start + CHUNK]
            done = gateway.call("memory.import", content=memory_text.write(some, "jsonl"), agent_id=agent)
            added += done["added"]
            present += done["present"]
            move(start + len(some))
    if as_json:
        print_json({"added": added, "present": present})
    else:
        there = f"; {present} were there already" if present else ""
        say(f"Added {_many(added)}{there}.")


@app.command()
def stats(
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="What this agent sees; else each agent's own."),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count memories by agent, and show how far the vectors are."""
    with connected(home) as gateway:
        found = gateway.call("memory.stats", agent_id=agent)
        counts = found["agents"]
        if agent is None and not as_json:
            # Each agent's own is what that agent sees of itself.
            ids = [a["id"] for a in gateway.call("agents.list")["agents"] if a["state"] == "active"]
            each = [gateway.call("memory.stats", agent_id=name)["agents"] for name in ids]
            counts = [c for name, some in zip(ids, each, strict=True) for c in some if c["agent_id"] == name]
    if as_json:
        print_json(found)
        return
    names = ("shared", "private", "archived", "pinned", "files")
    print_table(
        ("Agent", "Global", "Private", "Archived", "Pinned", "Of files"),
        [(c["agent_id"], *(f"{c[name]:,}" for name in names)) for c in counts],
    )
    vectors = found["vectors"]
    if vectors["model"] is None:
        say("Search goes by words alone.")
    else:
        done = vectors["total"] - vectors["pending"]
        say(f"Vectors of {vectors['model']}: {done:,} of {vectors['total']:,}.")
    if vectors["problem"]:
        say(f"warning: {vectors['problem']}", err=True)


@app.command()
def reindex(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Index every memory again. Search goes on meanwhile; cut short, it goes on where it was."""
    with connected(home) as gateway:
        found = gateway.call("memory.reindex", restart=True)
        with bar("Indexing", found["total"]) as move:
            while found["pending"]:
                found = gateway.call("memory.reindex")
                move(found["total"] - found["pending"])
    if as_json:
        print_json(found)
    else:
        say(f"Indexed {_many(found['total'])}.")


def _format(file: Path, given: str | None) -> str:
    if given is not None:
        if given not in ("jsonl", "markdown"):
            raise typer.BadParameter("the format is jsonl or markdown", param_hint="--format")
        return given
    return "markdown" if file.suffix.lower() in (".md", ".markdown") else "jsonl"


def _many(count: int) -> str:
    return "1 memory" if count == 1 else f"{count:,} memories"
