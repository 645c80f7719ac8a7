"""The command line. Only typer loads at the start; everything else when a command needs it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from coterie import __version__
from coterie.cli import agent, backup, doctor, memory, model, prompt, serve, subagent, token, usage
from coterie.cli.chat import chat
from coterie.cli.options import HomeOption, examples
from coterie.cli.output import reader_left, say, say_error, say_text

app = typer.Typer(
    name="coterie",
    help="One service that hosts a household of AI agents. Without a command: a conversation, as `coterie chat`.",
    epilog=examples(
        "coterie serve                                the house, for others too",
        "coterie chat                                 talk to the default agent",
        'coterie agent add rose --personality "Knows plants."',
        "coterie COMMAND --help                       more about each",
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command(
    "serve",
    epilog=examples(
        "coterie serve --open",
        "COTERIE_TOKEN=SECRET coterie serve --host 0.0.0.0     for other machines, too",
    ),
)(serve.serve)
app.command(
    "chat",
    epilog=examples(
        "coterie chat",
        'coterie chat --agent rose "Which soil for tomatoes?"',
        "git diff | coterie chat --agent reviewer --json",
    ),
)(chat)
app.add_typer(agent.app, name="agent")
app.add_typer(subagent.app, name="subagent")
app.command(
    "remember", epilog=examples('coterie remember "The boat is blue." --agent rose --private --tag boat')
)(memory.remember)
app.command("recall", epilog=examples('coterie recall "what colour is the boat" --agent rose --limit 3'))(
    memory.recall
)
app.add_typer(memory.app, name="memory")
app.add_typer(token.app, name="token")
app.add_typer(model.app, name="model")
app.add_typer(prompt.app, name="prompt")
app.command("usage", epilog=examples("coterie usage --by agent,model --days 7"))(usage.usage)
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)


def _version(asked: bool) -> None:
    if asked:
        say(f"coterie {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    home: HomeOption = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if home is not None:
        os.environ["COTERIE_HOME"] = str(home)
    if context.invoked_subcommand is None:
        chat()


def main() -> None:
    """Errors are one line on stderr and exit code 1; wrong usage is 2."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        reader_left()
        sys.exit(1)
    except typer.Abort:
        say("Aborted.", err=True)
        sys.exit(1)
    except TyperException as error:
        say_text(_shown(error), err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        from coterie.core.errors import CoterieError

        if isinstance(error, OSError) and error.errno is not None:
            where = f"{error.filename}: " if error.filename else ""
            say_error(f"{where}{error.strerror}")
            sys.exit(1)
        if not isinstance(error, CoterieError):
            import traceback

            say_text(traceback.format_exc().rstrip("\n"), err=True)
            sys.exit(1)
        say_error(error.message)
        for problem in (error.details or {}).get("problems", [])[1:]:
            say(
                f"       {problem['file']} line {problem['line']}: {problem['key']}: {problem['message']}",
                err=True,
            )
        sys.exit(1)


def _shown(error: TyperException) -> str:
    """Wrong usage as typer says it."""
    from io import StringIO

    out = StringIO()
    getattr(error, "show", lambda file: file.write(f"Error: {error}"))(file=out)
    return out.getvalue().rstrip("\n")
