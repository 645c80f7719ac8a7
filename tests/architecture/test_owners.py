"""One owner for each thing that changes: only Turns writes turn jobs, only the resolver decides a call."""

from __future__ import annotations

import ast
import asyncio
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from coterie.core.ports import ModelRequest
from coterie.core.turn import TurnState
from coterie.store.database import Database
from coterie.testing import Scripted, call
from tests.support.house import MAIN, FunctionModel, House, household, last_user, run, until

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
WRITES = "store/turn_writes.py"
OWNER = "engine/turns/change.py"
RESOLVER = "core/policy.py"
RUNNER = "engine/turns/tool_calls.py"
_RAW = re.compile(r"\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM|REPLACE\s+INTO)\s+\"?turn_jobs\b", re.I)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not name.startswith("store/migrations/"):
            yield name, ast.parse(file.read_text(encoding="utf-8"))


# What the source says


def writers(tree: ast.Module) -> list[int]:
    """Lines that insert into, update or delete from the table of turn jobs."""
    aliases = {"turn_jobs"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _ends_with(node.value, aliases):
            aliases |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in ("insert", "update", "delete"):
            if any(_ends_with(one, aliases) for one in (*node.args, _owner(node))):
                found.append(node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _RAW.search(node.value):
            found.append(node.lineno)
    return found


def imports(tree: ast.Module, module: str) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and (node.module or "") == module)
        or (isinstance(node, ast.Import) and any(alias.name == module for alias in node.names))
        for node in ast.walk(tree)
    )


def makers(tree: ast.Module, name: str) -> list[int]:
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == name]


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _owner(node: ast.Call) -> ast.expr:
    return node.func.value if isinstance(node.func, ast.Attribute) else node.func


def _ends_with(node: ast.expr, names: set[str]) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in names) or (
        isinstance(node, ast.Name) and node.id in names
    )


def test_only_one_module_has_statements_that_write_turn_jobs() -> None:
    assert [name for name, tree in modules() if writers(tree)] == [WRITES]


def test_only_turns_uses_it() -> None:
    assert [name for name, tree in modules() if imports(tree, "coterie.store.turn_writes")] == [OWNER]
    assert [name for name, tree in modules() if makers(tree, "TurnChange")] == ["engine/turns/turns.py"]


def test_only_the_resolver_makes_decisions() -> None:
    assert [name for name, tree in modules() if makers(tree, "Decision")] == [RESOLVER]


def test_only_one_place_calls_tools() -> None:
    """Of those that know what a tool is; a client of the gateway calls methods."""
    tools = [
        name
        for name, tree in modules()
        if name.startswith(("engine/", "tools/", "core/"))
        and any(_called(n) == "call" for n in ast.walk(tree) if isinstance(n, ast.Call))
    ]
    assert tools == [RUNNER]


@pytest.mark.parametrize(
    "source",
    [
        "update(schema.turn_jobs).values(state='done')",
        "_j = schema.turn_jobs\n_END = delete(_j)",
        "from coterie.store.schema import turn_jobs\nturn_jobs.insert()",
        "connection.exec_driver_sql('UPDATE turn_jobs SET state = 1')",
    ],
)
def test_a_second_writer_would_be_seen(source: str) -> None:
    assert writers(ast.parse(source))


# What happens


def test_every_write_of_a_turn_job_comes_from_its_owner(tmp_path: Path) -> None:
    """A day in a household, with an eye on every statement: asked, steered, handed on, stopped, wiped, recovered."""
    strangers: list[str] = []
    writes: list[str] = []

    def watch(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if _RAW.search(statement):
            writes.append(statement.split()[0])
            if not any(frame.filename.endswith(OWNER) for frame in traceback.extract_stack()):
                strangers.append(statement)

    def watched(house: House) -> None:
        database = house.power.store
        assert isinstance(database, Database)
        event.listen(database.engine, "before_cursor_execute", watch)

    async def story() -> None:
        day = Day()
        async with household(
            tmp_path / "home", FunctionModel(day.reply), roster="- {name: rose}\n- {name: miles}"
        ) as house:
            watched(house)
            await day.morning(house)
            await house.crash()
            day.gate.set()
            await house.restart()
            watched(house)
            await house.idle()
            assert (await house.say("still there?")).state is TurnState.DONE

    run(story())
    assert strangers == []
    assert {"INSERT", "UPDATE"} <= set(writes)


class Day:
    """What the model does with each message of the story below."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[str] = []

    async def reply(self, request: ModelRequest) -> Scripted:
        asked = last_user(request)
        self.begun.append(asked)
        answered = request.messages[-1].role == "tool"
        if asked.startswith("wait") and not answered:
            await self.gate.wait()
        if answered or asked.startswith("["):
            return "done"
        match asked:
            case "ask rose":
                return call("agents_message", {"agentId": "rose", "content": "what is it?"})
            case "spawn":
                return call("subagents_spawn", {"task": "count"})
            case "switch":
                return call("agents_switch", {"agentId": "miles", "message": "here they come"})
            case "two rounds":
                return [call("system_time"), call("system_time")]
        return "done"

    async def morning(self, house: House) -> None:
        for text in ("hello", "ask rose", "spawn", "switch", "two rounds"):
            assert (await house.say(text)).state is TurnState.DONE
        await house.idle()
        await self._stopped(house)
        held = await house.send("wait for the crash")
        await until(lambda: "wait for the crash" in self.begun)
        await house.send("and this one waits behind it")
        assert held.status == "started"

    async def _stopped(self, house: House) -> None:
        """Aborted, taken back, cleared and deleted."""
        running = await house.send("wait one")
        await until(lambda: "wait one" in self.begun)
        waiting = await house.send("never mind")
        assert await house.gateway.cancel_queued(waiting.run_id) == "cancelled"
        assert await house.gateway.abort(running.run_id) == "aborted"
        for number, wipe in enumerate((house.gateway.sessions.clear, house.gateway.sessions.delete)):
            session = await house.gateway.sessions.create()
            await house.send(f"wait {number}", session.id)
            await until(lambda text=f"wait {number}": text in self.begun)  # type: ignore[misc]
            await house.send("behind it", session.id)
            await wipe(session.id)
        assert not house.gateway.sessions.running(await house.gateway.sessions.get(MAIN))
