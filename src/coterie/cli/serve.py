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

    from coterie.core.errors import Unavailable
    from coterie.engine.household.home import Home

    place = Home.locate(home)
    if place.running_gateway() is not None:
        raise Unavailable(place.holder())
    from coterie.app import serve as run

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s  %(message)s",
        stream=sys.stderr,
    )
    for noisy in ("alembic", "watchfiles", "uvicorn", "websockets", "asyncio", "httpx2", "openai"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

    def announce(url: str, token: str) -> None:
        page = f"{url}/#token={token}"
        typer.echo(f"Coterie is at {url}  (home {place.path})")
        typer.echo(f"Open {page}")
        sys.stdout.flush()
        if open_browser:
            typer.launch(page)

    run(place, host, port, announce)
