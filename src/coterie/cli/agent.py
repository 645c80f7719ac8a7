"""coterie agent: who lives here."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from coterie.cli.connection import Answer, connected, report
from coterie.cli.options import AgentArgument, HomeOption, JsonOption, YesOption, examples
from coterie.cli.output import ask, at_terminal, confirm, print_json, print_pairs, print_table, say, size

app = typer.Typer(
    help="Manage the household: add, show, change, archive and restore agents.", no_args_is_help=True
)

LabelOption = Annotated[
    str | None, typer.Option("--label", metavar="NAME", help="Display name; else the id.")
]
EmojiOption = Annotated[str | None, typer.Option("--emoji", metavar="EMOJI", help="One emoji.")]
PersonalityOption = Annotated[
    str | None,
    typer.Option(
        "--personality", metavar="TEXT", help="Who it is and how it speaks: the text of its SOUL.md."
    ),
]
DescriptionOption = Annotated[
    str | None, typer.Option("--description", metavar="TEXT", help="What it is for, in a line.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="P/M", help="<provider>/<model>; else the global default.")
]
ExtendsOption = Annotated[
    str | None, typer.Option("--extends", metavar="ID", help="An agent whose settings it starts from.")
]
SkillOption = Annotated[
    list[str] | None,
    typer.Option("--skill", metavar="NAME", help="A skill it may use; repeat for more. None given: all."),
]
SystemPromptOption = Annotated[
    str | None, typer.Option("--system-prompt", metavar="TEXT", help="Instead of IDENTITY.md and SOUL.md.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other key of the roster entry; the value is YAML."),
]


@app.command("list")
def list_(
    archived: Annotated[bool, typer.Option("--all", "-a", help="Archived agents too.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who lives here."""
    report(home, as_json, _print_agents, "agents.list", include_archived=archived or None)


def _print_agents(found: Answer) -> None:
    rows = [
        (
            ("* " if a["is_default"] else "  ") + a["id"],
            " ".join(filter(None, (a["emoji"], a["label"]))),
            a["state"],
            a["model"] or "default",
            ", ".join(a["skills"]) or "none",
            a["description"] or "",
        )
        for a in found["agents"]
    ]
    print_table(("  Id", "Name", "State", "Model", "Skills", "Description"), rows)
    if any(a["state"] == "discovered" for a in found["agents"]):
        say("A discovered agent is a folder that no roster names; `coterie agent add ID` adds it.")


@app.command()
def info(name: AgentArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show one agent: identity, model, tools, skills, settings, files, and where each comes from."""
    with connected(home) as household:
        agent = household.call("agents.get", agent_id=name)
        if as_json:
            print_json(agent)
            return
        tools = household.call("tools.effective", agent_id=agent["id"])["tools"] if agent["effective"] else []
    _print_info(agent, tools)


@app.command(
    epilog=examples(
        'coterie agent add rose --label Rose --personality "Knows plants. Speaks softly."',
        "coterie agent add coder --model openai/gpt-5.2 --set 'tool_allowlist=[\"files_*\"]'",
    )
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new agent's id: a-z, 0-9 and '-'.")],
    label: LabelOption = None,
    emoji: EmojiOption = None,
    personality: PersonalityOption = None,
    description: DescriptionOption = None,
    model: ModelOption = None,
    extends: ExtendsOption = None,
    skill: SkillOption = None,
    system_prompt: SystemPromptOption = None,
    settings: SetOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an agent with a folder of its own."""
    spec = _spec(description, model, extends, skill, system_prompt, settings)
    if personality is None and at_terminal() and not as_json:
        from coterie.core.agent import check_new_id

        check_new_id(name)
        personality = ask(f"Who is {label or name}? A sentence or two (empty for later)")
    report(
        home,
        as_json,
        lambda found: _tell(f"Added {found['label']} ({found['id']}).", found),
        "agents.create",
        id=name,
        label=label,
        emoji=emoji,
        soul=personality or None,
        spec=spec or None,
    )


@app.command(
    epilog=examples(
        'coterie agent edit rose --description "Tends the garden"',
        "coterie agent edit rose --set temperature=0.2 --set model=null",
    )
)
def edit(
    name: AgentArgument,
    label: LabelOption = None,
    emoji: EmojiOption = None,
    personality: PersonalityOption = None,
    description: DescriptionOption = None,
    model: ModelOption = None,
    extends: ExtendsOption = None,
    skill: SkillOption = None,
    system_prompt: SystemPromptOption = None,
    settings: SetOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change an agent; what is not given stays. `--set key=null` takes a key back."""
    spec = _spec(description, model, extends, skill, system_prompt, settings)
    identity = {"emoji": emoji} if emoji is not None else None
    if not spec and label is None and identity is None and personality is None:
        raise typer.BadParameter("nothing to change; see --help")
    report(
        home,
        as_json,
        lambda found: _tell(f"Changed {found['label']} ({found['id']}).", found),
        "agents.update",
        agent_id=name,
        label=label,
        identity=identity,
        soul=personality,
        spec=spec or None,
    )


@app.command()
def default(name: AgentArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Make an agent the one that answers when nobody is named."""
    report(
        home,
        as_json,
        lambda found: say(f"{found['default_id']} is the default agent now."),
        "agents.set_default",
        agent_id=name,
    )


@app.command()
def remove(name: AgentArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Archive an agent: it leaves the roster, its folder stays. `restore` brings it back."""
    done = f"Archived {name}. `coterie agent restore {name}` brings it back."
    report(home, as_json, lambda _: say(done), "agents.delete", agent_id=name)


@app.command()
def restore(name: AgentArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Bring an archived agent back."""
    report(home, as_json, lambda _: say(f"Restored {name}."), "agents.restore", agent_id=name)


@app.command()
def purge(
    name: AgentArgument, yes: YesOption = False, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Delete an agent, what it remembers, its conversations and its folder for good. Asks first."""
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("this deletes for good; say --yes")
        what = "its folder, its conversations and everything it remembers"
        confirm(f"Delete {name}, {what}, for good?")

    def tell(done: dict[str, Any]) -> None:
        say(f"Purged {name}.")
        if done["traces_left"]:
            say("Somebody reads the database: its log is emptied when the gateway starts next.")
        if done["backups"]:
            say(f"These backups still hold it: {', '.join(done['backups'])}")

    report(home, as_json, tell, "agents.purge", agent_id=name)


@app.command()
def apply(yes: YesOption = False, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Bring agent.yaml and the registry together now. With --yes also what is held for your word."""
    if report(home, as_json, _print_applied, "agents.apply", yes=yes)["problems"]:
        raise typer.Exit(1)


def _print_applied(found: Answer) -> None:
    for heading in ("changes", "warnings", "held", "problems"):
        for line in found[heading]:
            say(f"{heading.removesuffix('s')}: {line}", err=heading == "problems")
    if not any(found.values()):
        say("agent.yaml and the registry agree.")


def _spec(
    description: str | None,
    model: str | None,
    extends: str | None,
    skill: list[str] | None,
    system_prompt: str | None,
    settings: list[str] | None,
) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for pair in settings or []:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--set")
        from coterie.config import ConfigError, values

        try:
            spec[key.strip()] = values(f"value: {value}").get("value")
        except ConfigError as error:
            raise typer.BadParameter(
                f"{value!r} is not YAML: {error.problems[0].message}", param_hint="--set"
            ) from None
    given = {
        "description": description,
        "model": model,
        "extends": extends,
        "skills": skill or None,
        "system_prompt": system_prompt,
    }
    return {**spec, **{key: value for key, value in given.items() if value is not None}}


def _tell(done: str, agent: Answer) -> None:
    """What was done, and what of it has no effect."""
    say(done)
    for warning in agent["warnings"]:
        say(f"warning: {warning}", err=True)


def _print_info(agent: Answer, tools: list[Answer]) -> None:
    identity = agent["identity"]
    name = " ".join(filter(None, (identity["emoji"], agent["label"])))
    say(f"{name} ({agent['id']}){', the default agent' if agent['is_default'] else ''}")
    archived = (
        f"; `coterie agent restore {agent['id']}` brings it back" if agent["state"] == "archived" else ""
    )
    pairs = [("state", agent["state"] + archived), ("folder", agent["folder"])]
    pairs += [(key, identity[key]) for key in ("creature", "vibe") if identity[key]]
    pairs += _effective(agent, tools)
    shown = {"model"} if agent["effective"] else set()
    pairs += [(key, _short(value)) for key, value in agent["spec"].items() if key not in shown]
    memories = agent["memories"]
    if any(memories[key] for key in ("shared", "private", "archived", "of_others")):
        kinds = (
            ("global", "shared"),
            ("private", "private"),
            ("archived", "archived"),
            ("shared by others", "of_others"),
        )
        pairs.append(
            ("memories", ", ".join(f"{memories[key]:,} {word}" for word, key in kinds if memories[key]))
        )
    for one in agent["audiences"] or []:
        pairs.append(("outside", f"{one['audience']}: {_count(one, 'sessions')}, {_count(one, 'memories')}"))
    print_pairs(pairs)
    soul = agent["soul"].strip()
    if soul:
        first = next(
            (line for line in soul.splitlines() if line.strip() and not line.startswith("#")),
            soul.splitlines()[0],
        )
        say()
        say(f"“{_short(first)}”")
    print_table(
        ("File", "State", "Size"),
        [(f["name"], f["state"], size(f["size"]) if f["state"] != "missing" else "") for f in agent["files"]],
    )
    for warning in agent["warnings"]:
        say(f"warning: {warning}", err=True)


def _effective(agent: Answer, tools: list[Answer]) -> list[tuple[str, str]]:
    """What its next turn would have, from the resolver that turns use, and why."""
    effective, origins = agent["effective"], agent["origins"]
    if not effective:
        return []

    def listed(key: str) -> str:
        return f"{', '.join(effective[key]) or 'none'} ({origins[key]})"

    pairs = [("model", f"{effective['model']} ({origins['model']})"), ("tools", listed("tools"))]
    refused: dict[str, list[str]] = {}
    for tool in tools:
        if tool["verdict"] != "allow":
            why = f"{'a person is asked' if tool['verdict'] == 'ask' else 'not allowed'}: {tool['reason']}"
            refused.setdefault(why, []).append(tool["name"])
    pairs += [("", f"{', '.join(names)} ({why})") for why, names in refused.items()]
    return [*pairs, ("skills", listed("skills")), ("agents", listed("agents"))]


def _count(one: dict[str, Any], what: str) -> str:
    """With the word for one of them where it is one."""
    number = one[what]
    return f"{number:,} {what if number != 1 else {'sessions': 'session', 'memories': 'memory'}[what]}"


def _short(value: Any) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:99] + "…"
