"""A household in this process: a real home and a real store, a model that does what the test says, and power cuts."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.app import opened, usual_parts
from coterie.core.events import LAST, ChatEvent
from coterie.core.message import Message
from coterie.core.ports import Model, ProviderState
from coterie.core.tool import Tool
from coterie.engine.gateway import Gateway, Outcome, Parts, Receipt
from coterie.engine.household.home import Home
from coterie.engine.household.registry import Registry
from coterie.engine.turns.active_turn import Approver, nobody_to_ask
from coterie.engine.turns.context import ContextProvider

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction

T = TypeVar("T")
MAIN = "agent:main:main"
SECONDS = 60
"""Nothing here takes that long; a test that waits for something that never comes fails then."""


def run(work: Coroutine[Any, Any, T], seconds: float = SECONDS) -> T:
    """A test's own event loop."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(limited())


async def until(true: Callable[[], object]) -> None:
    """Let everything else go on until something holds."""
    while not true():
        await asyncio.sleep(0.001)


class PowerCut:
    """A store that stops for good at its n-th commit. What comes after never returns, as in a process that is gone."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits = 0
        self.at: int | None = None
        """Which commit is the last one that is tried."""
        self.kept = True
        """Whether that one still reaches the disk."""
        self.happened = asyncio.Event()

    def arm(self, commits: int, *, kept: bool) -> None:
        """Cut the power at the n-th commit from now, before or after it is on disk."""
        self.at = self.commits + commits
        self.kept = kept

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        self.commits += 1
        if self.at is None or self.commits < self.at:
            return await self.store.transact(work)
        if self.commits == self.at and self.kept:
            await self.store.transact(work)
        self.happened.set()
        await asyncio.Event().wait()
        raise AssertionError("the power is off")

    async def settle(self) -> None:
        await self.store.settle()

    async def look(self, work: Callable[[Transaction], T]) -> T:
        return await self.store.look(work)

    def read(self) -> AbstractContextManager[Transaction]:
        return self.store.read()

    def write(self) -> AbstractContextManager[Transaction]:
        return self.store.write()

    def scrub(self) -> bool:
        return self.store.scrub()

    def trouble(self) -> str | None:
        return self.store.trouble()


class GivenTools:
    """Tools that a test brings. Implements ToolSource."""

    version = 0

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def tools(self) -> Mapping[str, Tool]:
        return self._tools


class House:
    def __init__(
        self,
        home: Path,
        model: Model,
        tools: Sequence[Tool] = (),
        context: Sequence[ContextProvider] = (),
        approve: Approver = nobody_to_ask,
    ) -> None:
        self.home = home
        self.model = model
        self.models: dict[str, Model] = {}
        """Models by name; whatever is not here is `model`."""
        self.asked_for: list[str] = []
        """The names of models that turns asked for."""
        self._tools = tools
        self._context = context
        self._approve = approve
        self._running = AsyncExitStack()
        self._stack = ExitStack()
        self._before: set[asyncio.Task[Any]] = set()
        self.gateway: Gateway

    async def start(self) -> None:
        self._before = asyncio.all_tasks()
        self.gateway = self._stack.enter_context(
            opened(Home(self.home), engine=True, parts=self.parts, wrap=self._wrapped)
        )
        await self._running.enter_async_context(self.gateway.running())

    def _wrapped(self, store: Store) -> Store:
        self.power = PowerCut(store)
        return self.power

    def parts(self, home: Home, registry: Registry) -> Parts:
        usual = usual_parts(home, registry)
        tools = [GivenTools(self._tools), *usual.tools]
        return replace(usual, models=self, tools=tools, context=self._context, approve=self._approve)

    async def stop(self) -> None:
        if self.power.happened.is_set():
            await self.crash()
            return
        await self._running.aclose()
        self._stack.close()

    async def crash(self) -> None:
        """Nothing more is committed, by anybody; everything in memory is gone."""
        self.power.at = 0
        me = asyncio.current_task()
        while others := [t for t in asyncio.all_tasks() - self._before if t is not me and not t.done()]:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=0.2)
        self._stack.close()

    async def restart(self) -> None:
        """After a crash: another process, with the next epoch."""
        await self.start()

    # Implements Models

    async def resolve(self, name: str) -> Model:
        self.asked_for.append(name)
        return self.models.get(name, self.model)

    def describe(self, *, only_usable: bool) -> Sequence[ProviderState]:
        return ()

    def check(self, name: str) -> None:
        pass

    async def aclose(self) -> None:
        pass

    # What a person does

    async def send(self, text: str, session: str = MAIN, **more: Any) -> Receipt:
        body_hash = f"{session} {text}" if "key" in more else None
        return await self.gateway.submit(session, text, **{"body_hash": body_hash, **more})

    async def outcome(self, run: Receipt | str) -> Outcome:
        """How a turn ended, once it has."""
        run_id = run if isinstance(run, str) else run.run_id
        await self.events(run_id)
        return await self.gateway.outcome(run_id)

    async def say(self, text: str, session: str = MAIN) -> Outcome:
        """Send and wait for the end."""
        return await self.outcome(await self.send(text, session))

    async def events(self, run_id: str) -> list[ChatEvent]:
        """What somebody who follows a turn from now on sees, to its end."""
        seen = [event async for event in self.gateway.follow(run_id)]
        assert seen[-1].state in LAST, seen
        return seen

    async def history(self, session: str = MAIN) -> list[Message]:
        _, history = await self.gateway.sessions.history(session, limit=100_000)
        return list(history.messages)

    async def idle(self, session: str = MAIN) -> None:
        """Until nothing runs, waits or lies in the backlog of a session."""
        while (await self.gateway.queue(session))[1]:
            await asyncio.sleep(0.002)

    def outbox(self) -> list[tuple[str, str]]:
        """Run and text of what is to leave the house."""
        from coterie.store.database import Database

        database = self.power.store
        assert isinstance(database, Database)
        with database.engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT run_id, content FROM outbox ORDER BY position")
            return [(row[0], row[1]) for row in rows]


@asynccontextmanager
async def household(
    home: Path,
    model: Model,
    *,
    tools: Sequence[Tool] = (),
    context: Sequence[ContextProvider] = (),
    approve: Approver = nobody_to_ask,
    roster: str = "",
    settings: str = "",
) -> AsyncIterator[House]:
    """A household with these agents beside main, as lines of a roster, and other lines of agent.yaml."""
    if "database:" not in settings:  # with another one, nobody lived here yet
        shutil.copytree(_opened_once(), home)
    write_config(home, roster, settings)
    house = House(home, model, tools, context, approve)
    await house.start()
    try:
        yield house
    finally:
        await house.stop()


def write_config(home: Path, roster: str = "", settings: str = "") -> None:
    home.mkdir(parents=True, exist_ok=True)
    lines = ["version: 1", *settings.strip().splitlines()]
    entries = [line.strip() for line in roster.strip().splitlines()]
    if entries:
        lines += ["agents:", "  roster:", *(f"    {entry}" for entry in entries)]
    (home / "agent.yaml").write_text("\n".join(lines) + "\n")


@cache
def _opened_once() -> Path:
    """A home whose tables and folders are there: making them takes longer than most tests."""
    folder = Path(tempfile.mkdtemp(prefix="coterie-home-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with opened(Home(folder / "home")):
        pass
    return folder / "home"
