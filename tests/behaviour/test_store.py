"""The store keeps its word on SQLite and on PostgreSQL: one schema, whole transactions, one truth for all processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, inspect, select, text
from sqlalchemy.exc import IntegrityError

import coterie as package
from coterie.core.agent import Agent, AgentState
from coterie.core.errors import Conflict, CoterieError, Unavailable
from coterie.store import schema
from coterie.store.database import Database
from tests.support.gateway import RpcError, coterie, environment, running
from tests.support.postgres import PostgresServer

AT = "2026-05-01T08:00:00.000000Z"
SOURCE = Path(package.__file__).parent
MIGRATIONS = SOURCE / "store" / "migrations"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Where an empty database is, on each of the two."""
    if request.param == "sqlite":
        return "sqlite:///coterie.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def empty(url: str, tmp_path: Path) -> Iterator[Database]:
    database = Database.connect(url, tmp_path)
    yield database
    database.close()


@pytest.fixture
def database(empty: Database, tmp_path: Path) -> Database:
    """Migrated, with nothing in it."""
    empty.bring_forward(tmp_path / "backups")
    return empty


def agent(agent_id: str, **changes: Any) -> Agent:
    return replace(Agent(agent_id, agent_id, False, AgentState.ACTIVE, {}, AT, AT), **changes)


def contents(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    found = MetaData()
    with database.engine.connect() as connection:
        found.reflect(connection)
        return {
            name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for name, table in found.tables.items()
        }


def shape(database: Database) -> dict[str, Any]:
    """What the database itself says about its tables."""
    look = inspect(database.engine)

    def words(sql: str) -> list[str]:
        return re.findall(r"\w+|<>", sql.replace("::text", "").lower())

    return {
        table: {
            "columns": [(c["name"], str(c["type"]), c["nullable"]) for c in look.get_columns(table)],
            "key": look.get_pk_constraint(table)["constrained_columns"],
            "unique": sorted(tuple(u["column_names"]) for u in look.get_unique_constraints(table)),
            "checks": {str(c["name"]): words(c["sqltext"]) for c in look.get_check_constraints(table)},
            "indexes": sorted(
                (str(i["name"]), tuple(i["column_names"]), bool(i["unique"]))
                for i in look.get_indexes(table)
                if not i.get("duplicates_constraint")
            ),
            "links": sorted(
                (tuple(f["constrained_columns"]), f["referred_table"]) for f in look.get_foreign_keys(table)
            ),
        }
        for table in look.get_table_names()
        if table != "alembic_version"
    }


# The schema


def test_an_empty_database_is_brought_to_the_present_without_a_backup(
    empty: Database, tmp_path: Path
) -> None:
    assert empty.revision() is None
    assert empty.bring_forward(tmp_path / "backups") is None
    assert empty.revision() == schema.HEAD
    assert not (tmp_path / "backups").exists()
    assert {*schema.metadata.tables} <= {*contents(empty)}


def test_bringing_forward_again_changes_nothing(database: Database, tmp_path: Path) -> None:
    with database.write() as tx:
        tx.agents.save([agent("main", is_default=True)])
    before = contents(database), shape(database)
    assert database.bring_forward(tmp_path / "backups") is None
    assert (contents(database), shape(database)) == before


def test_the_migrations_end_where_the_program_begins() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD]


def test_the_migrations_build_the_tables_that_the_statements_expect(
    database: Database, url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with database.engine.connect() as connection:
        # Full text is each database's own affair: virtual tables and their shadows have no place in the metadata.
        options = {
            "compare_type": True,
            "include_object": lambda _, name, kind, *__: (
                not (kind in ("table", "index") and str(name).startswith(schema.SEARCH_TABLES))
            ),
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
    # Alembic does not look at CHECK constraints, so the two are also compared as the database tells them.
    if database.file is not None:
        declared = Database.connect("sqlite:///declared.db", tmp_path)
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        declared = Database.connect(server.new_database(), tmp_path)
    try:
        schema.metadata.create_all(declared.engine)
        assert {t: shape(database)[t] for t in schema.metadata.tables} == shape(declared)
    finally:
        declared.close()


def bring_forward(url: str, home: str) -> str:
    database = Database.connect(url, Path(home))
    try:
        database.bring_forward(Path(home) / "backups")
        return str(database.revision())
    finally:
        database.close()


def test_many_processes_may_bring_the_same_database_forward(url: str, tmp_path: Path) -> None:
    with processes(6) as pool:
        found = list(pool.map(bring_forward, [url] * 12, [str(tmp_path)] * 12))
    assert found == [schema.HEAD] * 12
    database = Database.connect(url, tmp_path)
    assert contents(database)["alembic_version"] == [(schema.HEAD,)]
    database.close()


def test_a_migration_that_fails_leaves_nothing_behind(
    empty: Database, tmp_path: Path, path_with_pg_dump: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a table of somebody else in the way, nothing of ours is made beside it, and it was backed up first."""
    monkeypatch.setenv("PATH", path_with_pg_dump)
    with empty.engine.begin() as connection:
        connection.execute(text("CREATE TABLE answers (theirs TEXT)"))
        connection.execute(text("INSERT INTO answers VALUES ('forty-two')"))
    with pytest.raises(Exception, match="answers"):
        empty.bring_forward(tmp_path / "backups")
    assert contents(empty) == {"answers": [("forty-two",)]}
    assert empty.revision() is None
    [backup] = (tmp_path / "backups").iterdir()
    assert b"forty-two" in backup.read_bytes() and backup.stat().st_mode & 0o077 == 0


def test_tables_without_a_version_are_backed_up_before_ours_come_to_them(
    empty: Database, tmp_path: Path, path_with_pg_dump: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path_with_pg_dump)
    with empty.engine.begin() as connection:
        connection.execute(text("CREATE TABLE theirs (word TEXT)"))
        connection.execute(text("INSERT INTO theirs VALUES ('forty-two')"))
    assert empty.bring_forward(tmp_path / "backups") is not None
    assert empty.revision() == schema.HEAD
    [backup] = (tmp_path / "backups").iterdir()
    assert b"forty-two" in backup.read_bytes()
    assert contents(empty)["theirs"] == [("forty-two",)]


# Older and newer


class NextRelease:
    """This program with one migration more, run as a user would run it."""

    def __init__(self, folder: Path, migration: str) -> None:
        self.source = folder / "next"
        shutil.copytree(SOURCE, self.source / "coterie")
        module = self.source / "coterie" / "store" / "schema.py"
        head = f'HEAD = "{schema.HEAD}"'
        assert head in module.read_text()
        module.write_text(module.read_text().replace(head, 'HEAD = "9001"'))
        (self.source / "coterie" / "store" / "migrations" / "versions" / "9001_next.py").write_text(
            f'from alembic import op\nrevision = "9001"\ndown_revision = "{schema.HEAD}"\n\n\n'
            f"def upgrade() -> None:\n    {migration}\n"
        )

    def run(self, home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        inherited = environment(home)
        return subprocess.run(
            [sys.executable, "-m", "coterie", *arguments],
            env={
                **inherited,
                "PYTHONPATH": os.pathsep.join((str(self.source), inherited["PYTHONPATH"])),
                **env,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def settled(url: str, home: Path) -> Iterator[Database]:
    """The store of a household of two, written by this release."""
    home.mkdir()
    (home / "agent.yaml").write_text(f"database: {{url: '{url}'}}\n")
    assert coterie(home, "agent", "add", "dot").returncode == 0
    database = Database.connect(url, home)
    yield database
    database.close()


@pytest.fixture
def path_with_pg_dump(url: str, request: pytest.FixtureRequest) -> str:
    if url.startswith("sqlite"):
        return os.environ["PATH"]
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return f"{server.programs}{os.pathsep}{os.environ['PATH']}"


def test_an_older_database_is_backed_up_then_brought_forward(
    settled: Database, home: Path, tmp_path: Path, path_with_pg_dump: str
) -> None:
    before = contents(settled)
    newer = NextRelease(tmp_path, 'op.execute("CREATE TABLE next_things (id TEXT PRIMARY KEY)")')
    listed = newer.run(home, "agent", "list", PATH=path_with_pg_dump)
    assert listed.returncode == 0, listed.stderr
    assert "dot" in listed.stdout
    assert settled.revision() == "9001"
    assert contents(settled)["agents"] == before["agents"]

    [backup] = (home / "backups").iterdir()
    assert backup.stat().st_mode & 0o077 == 0
    if backup.suffix == ".db":
        with closing(sqlite3.connect(backup)) as copy:
            kept = {table: sorted(copy.execute(f"SELECT * FROM {table}"), key=repr) for table in before}
        assert kept["alembic_version"] == [(schema.HEAD,)]
        assert [row[0] for row in kept["agents"]] == [row[0] for row in before["agents"]]
    else:
        dump = backup.read_text()
        assert "COPY public.agents" in dump and "dot" in dump and "next_things" not in dump

    # And now the present release meets a database from the future.
    after = contents(settled)
    refused = coterie(home, "agent", "list")
    assert refused.returncode == 1
    assert "newer" in refused.stderr and "9001" in refused.stderr and "Traceback" not in refused.stderr
    with pytest.raises(Conflict, match="newer"):
        settled.bring_forward(home / "backups")
    assert contents(settled) == after
    assert len(list((home / "backups").iterdir())) == 1


def test_a_migration_that_fails_half_way_can_be_forgotten(
    settled: Database, home: Path, tmp_path: Path, path_with_pg_dump: str
) -> None:
    before = contents(settled)
    broken = NextRelease(
        tmp_path,
        "op.execute('CREATE TABLE half (id TEXT)'); op.execute('DELETE FROM agents'); op.execute('no')",
    )
    failed = broken.run(home, "agent", "list", PATH=path_with_pg_dump)
    assert failed.returncode == 1
    assert contents(settled) == before
    assert coterie(home, "agent", "list").returncode == 0


def test_without_a_backup_there_is_no_migration(home: Path, tmp_path: Path, postgres_url: str) -> None:
    """Given PostgreSQL but no pg_dump, the database stays as it was and the error says what is missing."""
    home.mkdir()
    (home / "agent.yaml").write_text(f"database: {{url: '{postgres_url}'}}\n")
    assert coterie(home, "agent", "list").returncode == 0
    database = Database.connect(postgres_url, home)
    before = contents(database)
    bare = tmp_path / "bin"
    bare.mkdir()
    newer = NextRelease(tmp_path, 'op.execute("CREATE TABLE next_things (id TEXT)")')
    refused = newer.run(home, "agent", "list", PATH=str(bare))
    assert refused.returncode == 1
    assert "pg_dump" in refused.stderr and "Traceback" not in refused.stderr
    assert contents(database) == before
    database.close()


# What the database itself refuses


@pytest.fixture
def household(database: Database) -> Database:
    with database.write() as tx:
        tx.agents.save([agent("main", is_default=True), agent("dot"), agent("rose", label="Rose")])
    return database


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE agents SET is_default = true WHERE id = 'dot'",
        "UPDATE agents SET state = 'archived' WHERE id = 'main'",
        "UPDATE agents SET is_default = false, state = 'archived' WHERE id = 'main'",
        "UPDATE agents SET state = 'purging' WHERE id = 'main'",
        "UPDATE agents SET state = 'asleep' WHERE id = 'dot'",
        "UPDATE agents SET label_key = 'rose' WHERE id = 'dot'",
        f"INSERT INTO agents VALUES ('dot', 'x', 'x', false, '{{}}', 'active', '{AT}', '{AT}')",
        f"INSERT INTO tokens VALUES ('t', 'owner', NULL, 'x', '{AT}', NULL)",
    ],
)
def test_raw_sql_cannot_break_the_rules(household: Database, statement: str) -> None:
    before = contents(household)
    with pytest.raises(IntegrityError), household.engine.begin() as connection:
        connection.execute(text(statement))
    assert contents(household) == before


def test_an_archived_default_is_impossible(household: Database) -> None:
    with household.write() as tx:
        tx.agents.save([agent("main"), agent("dot", is_default=True)])
    with pytest.raises(IntegrityError), household.engine.begin() as connection:
        connection.execute(text("UPDATE agents SET state = 'archived' WHERE id = 'dot'"))


@pytest.mark.parametrize("label", ["Rose", "rose", "ＲＯＳＥ"])
def test_two_agents_cannot_look_alike(household: Database, label: str) -> None:
    before = contents(household)
    with pytest.raises(Conflict, match="label"), household.write() as tx:
        tx.agents.save([agent("miles", label="Miles"), agent("dot", label=label)])
    assert contents(household) == before


def test_labels_and_the_default_change_places_in_one_save(household: Database) -> None:
    with household.write() as tx:
        tx.agents.save(
            [
                agent("main", label="Rose"),
                agent("dot", label="main"),
                agent("rose", label="dot", is_default=True),
            ]
        )
    with household.read() as tx:
        assert {a.id: a.label for a in tx.agents.all()} == {"main": "Rose", "dot": "main", "rose": "dot"}
        default = tx.agents.default()
    assert default is not None and default.id == "rose"


def test_an_agent_comes_back_as_it_was_saved(household: Database) -> None:
    odd = agent(
        "odd",
        label="Ω 🦊 ‘quoted’; DROP",
        state=AgentState.ARCHIVED,
        spec={"description": "naïve\n\t☕", "memory": {"group": []}, "temperature": 0.1},
    )
    with household.write() as tx:
        tx.agents.save([odd])
    with household.read() as tx:
        assert tx.agents.get("odd") == odd


def test_only_a_row_that_is_being_purged_can_be_removed(household: Database) -> None:
    with household.write() as tx:
        tx.agents.remove("dot")
    with household.read() as tx:
        assert tx.agents.get("dot") is not None
    with household.write() as tx:
        tx.agents.save([agent("dot", state=AgentState.PURGING)])
        tx.agents.remove("dot")
    with household.read() as tx:
        assert tx.agents.get("dot") is None


# Transactions


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_write_is_all_or_nothing(household: Database, stop: type[BaseException]) -> None:
    before = contents(household)

    def give_up_half_way() -> None:
        with household.write() as tx:
            tx.meta.set("a", "1")
            tx.agents.save([agent("miles"), agent("main"), agent("dot", is_default=True)])
            tx.meta.count_up("n")
            raise stop

    with pytest.raises(stop):
        give_up_half_way()
    assert contents(household) == before
    with household.write() as tx:
        assert tx.meta.count_up("n") == 1


def test_a_read_sees_one_moment(database: Database) -> None:
    """Given a reader that has begun, when somebody writes, then the reader still sees what was."""
    with database.write() as tx:
        tx.meta.set("one", "old")
        tx.meta.set("two", "old")
    with database.read() as reader:
        assert reader.meta.get("one") == "old"
        with ThreadPoolExecutor(1) as pool:
            pool.submit(set_both, database).result(30)
        assert reader.meta.get("two") == "old"
        assert reader.meta.get("one") == "old"
    with database.read() as reader:
        assert reader.meta.get("two") == "new"


def set_both(database: Database) -> None:
    with database.write() as tx:
        tx.meta.set("one", "new")
        tx.meta.set("two", "new")


def test_a_reader_does_not_hold_up_a_writer(database: Database) -> None:
    with database.read() as reader:
        reader.meta.get("one")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(set_both, database).result(30)


def test_threads_never_get_the_same_number(database: Database) -> None:
    def count(_: int) -> int:
        with database.write() as tx:
            return tx.meta.count_up("n")

    with ThreadPoolExecutor(12) as pool:
        numbers = list(pool.map(count, range(120)))
    assert sorted(numbers) == list(range(1, 121))


def count_many(url: str, home: str, times: int) -> list[int]:
    database = Database.connect(url, Path(home))
    numbers = []
    try:
        for _ in range(times):
            with database.write() as tx:
                numbers.append(tx.meta.count_up("n"))
    finally:
        database.close()
    return numbers


def test_processes_never_get_the_same_number(database: Database, url: str, tmp_path: Path) -> None:
    with processes(8) as pool:
        found = list(pool.map(count_many, [url] * 8, [str(tmp_path)] * 8, [10] * 8))
    assert sorted(number for numbers in found for number in numbers) == list(range(1, 81))


def read_then_write(home: str, times: int) -> None:
    database = Database.connect("sqlite:///coterie.db", Path(home))
    try:
        for _ in range(times):
            with database.write() as tx:
                seen = int(tx.meta.get("sum") or "0")
                tx.meta.set("sum", str(seen + 1))
    finally:
        database.close()


def test_twenty_processes_that_read_then_write_lose_nothing(tmp_path: Path) -> None:
    """SQLite refuses a transaction that read first and writes later, unless it said so when it began."""
    database = Database.connect("sqlite:///coterie.db", tmp_path)
    database.bring_forward(tmp_path / "backups")
    with processes(20) as pool:
        for done in [pool.submit(read_then_write, str(tmp_path), 5) for _ in range(20)]:
            done.result()
    with database.read() as tx:
        assert tx.meta.get("sum") == "100"
    database.close()


# Trouble from outside


def test_a_lock_that_somebody_else_holds_is_a_typed_error(database: Database, url: str) -> None:
    with held_by_another(database, url)(), pytest.raises(Unavailable) as refused, database.write() as tx:
        tx.meta.set("a", "1")
    assert refused.value.retryable
    with database.write() as tx:
        tx.meta.set("a", "1")


def held_by_another(database: Database, url: str) -> Callable[[], Any]:
    """Another program in the middle of a write."""
    if database.file is not None:
        other = sqlite3.connect(database.file, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        return lambda: closing(other)
    connection = psycopg.connect(url)
    connection.execute("LOCK TABLE meta")
    return lambda: closing(connection)


def test_a_server_that_is_not_there_is_a_typed_error(tmp_path: Path, postgres_url: str) -> None:
    nowhere = re.sub(r":\d+/", ":1/", postgres_url)
    secret = postgres_url.split(":")[2].split("@")[0]
    database = Database.connect(nowhere, tmp_path)
    with pytest.raises(Unavailable) as refused:
        database.bring_forward(tmp_path / "backups")
    assert secret not in refused.value.message
    database.close()


@pytest.fixture
def on_postgresql(postgres_url: str, tmp_path: Path) -> Iterator[Database]:
    database = Database.connect(postgres_url, tmp_path)
    database.bring_forward(tmp_path / "backups")
    yield database
    database.close()


def drop_all_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_lost_connection_is_replaced(on_postgresql: Database, postgres_url: str) -> None:
    """Given connections that the server has dropped, the next transaction gets a new one."""
    drop_all_connections(postgres_url)
    with on_postgresql.write() as tx:
        tx.meta.set("a", "1")
    drop_all_connections(postgres_url)
    with on_postgresql.read() as tx:
        assert tx.meta.get("a") == "1"


def test_a_connection_lost_in_the_middle_is_a_typed_error(on_postgresql: Database, postgres_url: str) -> None:
    def write() -> None:
        with on_postgresql.write() as tx:
            tx.meta.set("a", "1")
            drop_all_connections(postgres_url)
            tx.meta.set("b", "1")

    with pytest.raises(Unavailable):
        write()
    with on_postgresql.read() as tx:
        assert tx.meta.get("a") is None


def test_a_file_that_is_no_database_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "coterie.db").write_bytes(b"this is a letter, not a database\n" * 200)
    database = Database.connect("sqlite:///coterie.db", tmp_path)
    with pytest.raises(CoterieError, match="not a database"):
        database.bring_forward(tmp_path / "backups")
    database.close()


def test_the_database_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Also in a folder that others may read."""
    tmp_path.chmod(0o755)
    database = Database.connect("sqlite:///coterie.db", tmp_path)
    database.bring_forward(tmp_path / "backups")
    with database.write() as tx:
        tx.meta.set("a", "1")
        modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("coterie.db*")}
    assert len(modes) == 3 and set(modes.values()) == {0}
    database.close()


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    database = Database.connect("sqlite:///coterie.db", tmp_path)
    database.bring_forward(tmp_path / "backups")
    assert database.check() == []
    with database.write() as tx:
        for number in range(2000):
            tx.meta.set(f"key{number}", "value" * 20)
    database.close()
    file = tmp_path / "coterie.db"
    with closing(sqlite3.connect(file)) as plain:
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(file.read_bytes())
    data[-3 * 4096 : -4096] = os.urandom(2 * 4096)
    file.write_bytes(data)
    database = Database.connect("sqlite:///coterie.db", tmp_path)
    try:
        trouble = database.check()
    except CoterieError as error:
        trouble = [error.message]
    assert trouble
    database.close()


# A household on PostgreSQL, from the terminal


def test_a_household_can_live_on_postgresql(home: Path, postgres_url: str) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(f"# ours\ndatabase: {{url: '{postgres_url}'}}\n")

    def run(*arguments: str) -> str:
        done = coterie(home, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Added Dot (dot)" in run("agent", "add", "dot", "--label", "Dot", "--personality", "Kind.")
    listed = json.loads(run("agent", "list", "--json"))
    assert [(a["id"], a["state"]) for a in listed["agents"]] == [("main", "active"), ("dot", "active")]
    run("agent", "remove", "dot")
    assert "dot" not in run("agent", "list")
    assert "name: dot" not in (home / "agent.yaml").read_text()
    run("agent", "restore", "dot")
    assert json.loads(run("agent", "info", "dot", "--json"))["soul"] == "Kind.\n"
    assert (home / "agent.yaml").read_text().startswith("# ours\n")
    assert not (home / "coterie.db").exists()

    # A file that breaks while the household lives elsewhere must not found a second one here.
    (home / "agent.yaml").write_text("database: [\n")
    broken = coterie(home, "agent", "list", "--json")
    assert broken.returncode == 0 and "warning" in broken.stderr
    assert [a["id"] for a in json.loads(broken.stdout)["agents"]] == ["main", "dot"]
    (home / "agent.yaml").write_text("")
    emptied = coterie(home, "agent", "list", "--json")
    assert emptied.returncode == 0 and "warning" in emptied.stderr
    assert [a["id"] for a in json.loads(emptied.stdout)["agents"]] == ["main", "dot"]
    assert not (home / "coterie.db").exists()


def test_text_that_postgresql_cannot_hold_is_refused_in_words(home: Path, postgres_url: str) -> None:
    """PostgreSQL knows no NUL character; SQLite does."""
    home.mkdir()
    (home / "agent.yaml").write_text(f"database: {{url: '{postgres_url}'}}\n")
    with running(home) as gateway:
        with pytest.raises(RpcError) as refused, gateway.rpc("cot_\x00_x"):
            pass
        assert refused.value.code == "UNAUTHORIZED"
        with gateway.rpc() as rpc:
            refused_calls: list[tuple[str, dict[str, Any]]] = [
                ("agents.get", {"agent_id": "a\x00"}),
                ("agents.create", {"id": "a\x00"}),
                ("agents.delete", {"agent_id": "\x00"}),
                ("agents.update", {"agent_id": "main", "label": "a\x00"}),
                ("agents.update", {"agent_id": "main", "label": "a", "idempotency_key": "\x00"}),
                ("agents.update", {"agent_id": "main", "spec": {"description": "\x00"}}),
                ("agents.files.get", {"agent_id": "main", "name": "\x00"}),
                ("tokens.create", {"scope": "read", "label": "\x00"}),
                ("tokens.revoke", {"id": "\x00"}),
            ]
            for method, params in refused_calls:
                with pytest.raises(RpcError) as refused:
                    rpc.call(method, **params)
                assert refused.value.code in ("INVALID_REQUEST", "NOT_FOUND"), method
        with gateway.http() as http:
            assert http.get("/api/agents/a%00").status_code in (400, 404)
            assert http.get("/api/agents/main/files/%00").status_code in (400, 404)
        assert "Traceback" not in gateway.log.read_text()


def processes(count: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(count, mp_context=context)


def test_a_second_writer_of_one_process_waits_for_the_first(database: Database) -> None:
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with database.write() as tx:
            tx.meta.count_up("n")
            inside.set()
            leave.wait(30)

    def second() -> int:
        with database.write() as tx:
            return tx.meta.count_up("n")

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first)
        assert inside.wait(30)
        two = pool.submit(second)
        leave.set()
        one.result(30)
        assert two.result(30) == 2
