"""coterie serve: the gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.options import HomeOption
from coterie.cli.output import say, start_log, to_terminal


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0: on every address. Else gateway.host."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="PORT", min=0, max=65535, help="Else gateway.port. 0: any free one."),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open its page in the browser.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    home: HomeOption = None,
) -> None:
    """Run the gateway: API, channels and workers, until Ctrl-C."""
    import logging

    from coterie.core.errors import Unavailable
    from coterie.engine.household.home import Home

    place = Home.locate(home)
    if place.running_gateway() is not None:
        raise Unavailable(place.holder())
    from coterie.app import Door
    from coterie.app import serve as run
    from coterie.engine.access import ENVIRONMENT

    start_log(logging.DEBUG if verbose else logging.INFO)
    for noisy in ("alembic", "watchfiles", "uvicorn", "websockets", "asyncio", "httpx2", "openai"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

    def announce(door: Door) -> None:
        say(f"Coterie is at {door.url}  (home {place.path})")
        if door.elsewhere:
            say(f"From other machines: {', '.join(door.elsewhere)}")
        page = f"{door.url}/#token={door.token}"
        # What is printed elsewhere than to a person's eyes stays: in a log, in somebody's paste.
        if door.token_is_given:
            say(f"Open {door.url}  (its token is the one in {ENVIRONMENT})")
        elif to_terminal():
            say(f"Open {page}")
        else:
            say(f"Open {door.url}  (its token is in {place.token})")
        if open_browser:
            typer.launch(page)

    run(place, host, port, announce)
