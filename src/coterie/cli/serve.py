"""coterie serve: the gateway."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from coterie.cli.options import HomeOption


def serve(
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; else gateway.host.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port; else gateway.port. 0: any free one.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the web page.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    home: HomeOption = None,
) -> None:
    """Run the gateway: API, channels and workers, until Ctrl-C."""
    import logging

    from coterie.app import serve as run
    from coterie.cli.log import log_to
    from coterie.engine.household.home import Home

    log_to(logging.StreamHandler(sys.stderr), logging.DEBUG if verbose else logging.INFO)
    for noisy in ("alembic", "watchfiles", "uvicorn", "websockets", "asyncio", "httpx2", "openai"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    place = Home.locate(home)

    def announce(url: str, token: str) -> None:
        page = f"{url}/#token={token}"
        typer.echo(f"Coterie is at {url}  (home {place.path})")
        typer.echo(f"Open {page}")
        sys.stdout.flush()
        if open_browser:
            typer.launch(page)

    run(place, host, port, announce)
