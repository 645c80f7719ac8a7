"""What a command needs of the household: to call a method and to print what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.output import print_json, say

if TYPE_CHECKING:
    import asyncio

    from coterie.cli.client import Answering

Answer = dict[str, Any]


class Connection:
    """A client for code that has no event loop."""

    def __init__(self, runner: asyncio.Runner, client: Answering) -> None:
        self._runner = runner
        self._client = client

    def call(self, method: str, **params: Any) -> Answer:
        return self._runner.run(self._client.call(method, **params))


@contextmanager
def connected(home: Path | None) -> Iterator[Connection]:
    """The household that a command is about."""
    import asyncio

    from coterie.cli.client import visited
    from coterie.engine.household.home import Home

    with asyncio.Runner() as runner:
        visit = visited(Home.locate(home))
        connection = Connection(runner, runner.run(visit.__aenter__()))
        try:
            for problem in connection.call("status")["config"]["problems"]:
                say(f"warning: {problem}; the last good configuration is in force", err=True)
            yield connection
        finally:
            runner.run(visit.__aexit__(None, None, None))


def report(
    home: Path | None, as_json: bool, show: Callable[[Answer], object], method: str, **params: Any
) -> Answer:
    """Call one method and print what it answers: as it is for programs, by `show` for people."""
    with connected(home) as household:
        answer = household.call(method, **params)
    (print_json if as_json else show)(answer)
    return answer
