"""Operations of a test's own: a file in a folder that the gateway's process looks into as well."""

from __future__ import annotations

from pathlib import Path

SLOW = '''
"""Operations that take as long as a test wants."""

import asyncio
import time
from pathlib import Path

from coterie.api.operation import Post, operation
from coterie.api.shapes import Answer, Change, Params
from coterie.engine.gateway import Gateway


class Look(Params):
    until: str


class Do(Change):
    until: str
    done: str


class Done(Answer):
    count: int


@operation("slow.look", "read")
async def slow_look(gateway: Gateway, params: Look) -> Done:
    """Waits for a file."""
    try:
        while not Path(params.until).exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        Path(params.until).with_suffix(".cancelled").touch()
        raise
    return Done(count=0)


@operation("slow.look_on_a_thread", "read")
def slow_look_on_a_thread(gateway: Gateway, params: Look) -> Done:
    """Waits for a file."""
    while not Path(params.until).exists():
        time.sleep(0.01)
    return Done(count=0)


@operation("slow.do", "write", http=Post("/api/slow"))
async def slow_do(gateway: Gateway, params: Do) -> Done:
    """Says in a file that it began, waits for another, and says that it is done."""
    done = Path(params.done)
    with done.open("a") as file:
        file.write("begun ")
    while not Path(params.until).exists():
        await asyncio.sleep(0.01)
    with done.open("a") as file:
        file.write("done ")
    return Done(count=done.read_text().count("done"))
'''


def added(folder: Path, **sources: str) -> dict[str, str]:
    """The environment of a process that finds these files among its operations."""
    operations = folder / "operations"
    operations.mkdir(parents=True)
    for name, source in sources.items():
        (operations / f"{name}.py").write_text(source)
    (folder / "sitecustomize.py").write_text(
        f"import coterie.api.operations as found\n\nfound.__path__.append({str(operations)!r})\n"
    )
    return {"PYTHONPATH": str(folder)}
