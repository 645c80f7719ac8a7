"""The command line. Only typer loads at the start; everything else when a command needs it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from coterie import __version__
from coterie.cli import agent, backup, doctor, memory, model, prompt, serve, subagent, token, usage
from coterie.cli.chat import chat
from coterie.cli.options import HomeOption

app = typer.Typer(
    name="coterie",
    help="One service that hosts a household of AI agents. Without a command: a conversation, as `coterie chat`.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("chat")(chat)
app.add_typer(agent.app, name="agent")
app.add_typer(subagent.app, name="subagent")
app.command("remember")(memory.remember)
app.command("recall")(memory.recall)
app.add_typer(memory.app, name="memory")
app.add_typer(token.app, name="token")
app.add_typer(model.app, name="model")
app.add_typer(prompt.app, name="prompt")
app.command("usage")(usage.usage)
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"coterie {__version__}")
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
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away; say nothing more, also not when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        from coterie.core.errors import CoterieError

        if isinstance(error, OSError) and error.errno is not None:
            where = f"{error.filename}: " if error.filename else ""
            typer.echo(f"error: {where}{error.strerror}", err=True)
            sys.exit(1)
        if not isinstance(error, CoterieError):
            raise
        typer.echo(f"error: {error.message}", err=True)
        for problem in (error.details or {}).get("problems", [])[1:]:
            typer.echo(
                f"       {problem['file']} line {problem['line']}: {problem['key']}: {problem['message']}",
                err=True,
            )
        sys.exit(1)
