"""A household that was backed up while it was busy comes back, whatever happened to its database since."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest

from coterie.store import schema
from tests.support.gateway import GatewayProcess, coterie, running
from tests.support.postgres import PostgresServer

SESSIONS = 4


@dataclass(frozen=True)
class World:
    """Homes as they were left, and what must never be missing."""

    clean: Path
    """Its gateway ended as it should."""
    crashed: Path
    """Its gateway was killed: the newest part of the database is in its log."""
    backup: Path
    before: list[str]
    """What was acknowledged before the backup began."""


def texts(home: Path) -> set[str]:
    """Every message that is stored, as it was said."""
    with closing(sqlite3.connect(f"file:{home}/coterie.db?mode=rw", uri=True)) as database:
        said = database.execute("SELECT content FROM messages WHERE role = 'user'").fetchall()
        waiting = database.execute("SELECT content FROM inbox").fetchall()
    return {row[0] for row in (*said, *waiting)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    home, backup = folder / "home", folder / "household.zip"
    for name, text in {
        "USER.md": "Ada",
        "skills/tea/SKILL.md": "# Tea\n",
        "plugins/dice.py": "X = 1\n",
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    assert coterie(home, "agent", "add", "rose", "--personality", "Knows plants.").returncode == 0
    assert coterie(home, "remember", "The boat is called Zephyr", "--agent", "rose").returncode == 0
    acknowledged: list[str] = []
    enough, done = threading.Semaphore(0), threading.Event()
    gateway = GatewayProcess(home).wait()

    def talk(number: int) -> None:
        with gateway.http() as http:
            count = 0
            while not done.is_set():
                text = f"message {count} of {number}"
                sent = http.post(f"/api/sessions/agent:main:dm:{number}/messages", json={"message": text})
                assert sent.status_code in (200, 202), sent.text
                acknowledged.append(text)
                enough.release()
                count += 1

    with ThreadPoolExecutor(SESSIONS) as pool:
        talks = [pool.submit(talk, number) for number in range(SESSIONS)]
        for _ in range(60):
            assert enough.acquire(timeout=60)
        before = list(acknowledged)
        made = coterie(home, "backup", str(backup), "--json")
        assert made.returncode == 0, made.stderr
        meanwhile = len(acknowledged) - len(before)
        done.set()
        for one in talks:
            one.result(60)
    assert meanwhile > 0, "nobody could write while the backup was made"
    gateway.kill()
    crashed, clean = folder / "crashed", folder / "clean"
    shutil.copytree(home, crashed)
    assert coterie(home, "agent", "list").returncode == 0
    shutil.copytree(home, clean)
    payload = json.loads(made.stdout)
    assert payload["database"]["revision"] == schema.HEAD
    assert payload["database"]["counts"]["agents"] == 2
    assert backup.stat().st_mode & 0o077 == 0
    assert set(before) <= texts(clean)
    return World(clean, crashed, backup, before)


def middle(file: Path, noise: bytes) -> None:
    with file.open("r+b") as opened:
        size = file.stat().st_size
        opened.seek(size // 3 // 4096 * 4096)
        opened.write(noise)


def emptied(home: Path) -> None:
    (home / "coterie.db").write_bytes(b"")


def missing(home: Path) -> None:
    for file in home.glob("coterie.db*"):
        file.unlink()


def truncated(home: Path) -> None:
    os.truncate(home / "coterie.db", (home / "coterie.db").stat().st_size // 2 + 100)


def headless(home: Path) -> None:
    with (home / "coterie.db").open("r+b") as opened:
        opened.write(os.urandom(100))


def noisy(home: Path) -> None:
    file = home / "coterie.db"
    middle(file, os.urandom(file.stat().st_size // 3))


def a_letter(home: Path) -> None:
    (home / "coterie.db").write_text("Dear database,\n" * 1000)


def a_folder(home: Path) -> None:
    missing(home)
    (home / "coterie.db").mkdir()


def somebody_elses(home: Path) -> None:
    missing(home)
    with closing(sqlite3.connect(home / "coterie.db")) as database:
        database.execute("CREATE TABLE recipes (name TEXT)")
        database.commit()


def without_version(home: Path) -> None:
    with closing(sqlite3.connect(home / "coterie.db")) as database:
        database.execute("DELETE FROM alembic_version")
        database.commit()


def restored_by(world: World, home: Path) -> None:
    """What everybody is to find after any damage: the household of the backup, and what was left of the other."""
    done = coterie(home, "restore", str(world.backup))
    assert done.returncode == 0, done.stderr
    assert "What was there before is in" in done.stdout
    [kept] = home.glob("before-restore-*")
    assert (kept / "agents").is_dir()
    healthy = coterie(home, "doctor")
    assert healthy.returncode == 0, healthy.stdout
    assert "the database is whole" in healthy.stdout
    assert set(world.before) <= texts(home)
    assert "Zephyr" in coterie(home, "recall", "boat", "--agent", "rose").stdout
    assert (home / "USER.md").read_text() == "Ada"
    assert (home / "skills/tea/SKILL.md").exists() and (home / "plugins/dice.py").exists()
    assert (home / "agents/rose/SOUL.md").read_text() == "Knows plants.\n"
    assert (home / "token").exists(), "whoever had the token comes in as before"
    for left in (".coterie-tmp-", "restore.json", "restoring-"):
        assert not list(home.rglob(f"{left}*"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (missing, "is missing, but a household lived here"),
        (emptied, "is empty, but a household lived here"),
        (truncated, "the database is damaged"),
        (headless, "the database is damaged"),
        (noisy, "the database is damaged"),
        (a_letter, "the database is damaged: file is not a database"),
        (a_folder, "cannot be used"),
        (somebody_elses, "holds no household, but one lived here"),
        (without_version, "holds no household, but one lived here"),
    ],
)
def test_damage_is_named_and_a_restore_brings_the_household_back(
    world: World, home: Path, damage: Callable[[Path], None], said: str
) -> None:
    shutil.copytree(world.clean, home)
    damage(home)
    for words in (["doctor"], ["serve", "--port", "0"], ["agent", "list"]):
        if words[0] == "agent" and damage is noisy:
            continue  # whether a list meets the noise is a matter of luck
        done = coterie(home, *words)
        said_now = done.stdout + done.stderr
        assert done.returncode == 1, (words, said_now)
        assert said in said_now and "Traceback" not in said_now, (words, said_now)
        assert "coterie restore FILE" in said_now or damage is a_folder
    assert coterie(home, "backup", str(home.parent / "bad.zip")).returncode == 1
    assert not (home.parent / "bad.zip").exists(), "damage must not be kept as if it were a backup"
    if damage in (missing, emptied):
        assert not any(file.stat().st_size for file in home.glob("coterie.db*")), "a new household was begun"
    restored_by(world, home)


@pytest.mark.parametrize("how", ["head", "middle", "gone"])
def test_a_log_that_was_damaged_or_removed_is_noticed(world: World, home: Path, how: str) -> None:
    """SQLite itself would go on without what the log held, and say nothing."""
    shutil.copytree(world.clean, home)
    gateway = GatewayProcess(home).wait()
    with gateway.http() as http:
        for number in range(5):
            sent = http.post("/api/sessions/agent:main:main/messages", json={"message": f"new {number}"})
            assert sent.status_code == 202
    gateway.kill()
    log = home / "coterie.db-wal"
    if how == "gone":
        log.unlink()
    elif how == "head":
        log.write_bytes(os.urandom(32) + log.read_bytes()[32:])
    else:
        log.write_bytes(log.read_bytes()[:5000] + os.urandom(3000) + log.read_bytes()[8000:])
    for _ in range(2):
        found = coterie(home, "doctor")
        assert found.returncode == 1 and "Traceback" not in found.stderr
        assert "lost what was written last: its log" in found.stdout or "its log" in found.stdout, (
            found.stdout
        )
        assert "coterie restore FILE" in found.stdout
    restored_by(world, home)


def test_a_crash_alone_is_no_damage(world: World, home: Path) -> None:
    shutil.copytree(world.crashed, home)
    found = coterie(home, "doctor")
    assert found.returncode == 0, found.stdout
    assert coterie(home, "doctor").returncode == 0
    assert set(world.before) <= texts(home)


def test_one_may_go_on_with_what_is_there(world: World, home: Path) -> None:
    shutil.copytree(world.crashed, home)
    (home / "coterie.db-wal").unlink()
    with running(home) as gateway:
        assert "lost" in gateway.log.read_text()
        assert coterie(home, "doctor").returncode == 1
    assert coterie(home, "doctor", "--fix").returncode == 0
    assert coterie(home, "doctor").returncode == 0


def test_one_may_begin_anew(world: World, home: Path) -> None:
    shutil.copytree(world.clean, home)
    a_letter(home)
    assert coterie(home, "doctor", "--begin-anew").returncode == 0
    listed = coterie(home, "agent", "list", "--json")
    assert [a["id"] for a in json.loads(listed.stdout)["agents"]] == ["main", "rose"], (
        "agent.yaml is still there"
    )
    assert texts(home) == set()
    [kept] = home.glob("before-restore-*")
    assert (kept / "coterie.db").read_text().startswith("Dear database")
    missing(home)
    assert coterie(home, "agent", "list").returncode == 1, "the new one counts as a household, too"


def test_a_fresh_home_is_no_lost_household(home: Path) -> None:
    """Also where a first start was cut off before the database stood, or its files were put there by hand."""
    (home / "agents" / "main").mkdir(parents=True)
    (home / "run").mkdir()
    (home / "run" / "engine.lock").touch()
    (home / "coterie.db").touch()
    assert coterie(home, "agent", "list").returncode == 0


# Restoring


def test_nothing_is_restored_over_a_running_gateway(world: World, home: Path) -> None:
    shutil.copytree(world.clean, home)
    with running(home) as gateway:
        refused = coterie(home, "restore", str(world.backup))
        assert refused.returncode == 1
        assert gateway.url in refused.stderr and str(gateway.process.pid) in refused.stderr
        with gateway.http() as http:
            assert http.get("/readyz").status_code == 200
    assert not list(home.glob("before-restore-*"))


def test_a_household_moves_into_an_empty_home_and_goes_on(world: World, home: Path) -> None:
    done = coterie(home, "restore", str(world.backup))
    assert done.returncode == 0, done.stderr
    assert "before" not in done.stdout
    with running(home) as gateway, gateway.rpc() as rpc:
        run = rpc.call("chat.send", session="agent:main:dm:new", message="hello")["run_id"]
        assert rpc.wait_for("chat", run_id=run, state="final")
        assert (home / "token").exists()
    assert set(world.before) <= texts(home)


class Cut(BaseException):
    """The power goes."""


@pytest.mark.parametrize("at", range(12))
def test_a_restore_that_was_cut_short_is_finished_by_whoever_comes_next(
    world: World, home: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut before its n-th rename. Every state in between leads to the old household or to the restored one."""
    from coterie.engine.household.home import Home
    from coterie.engine.household.restoring import restore

    shutil.copytree(world.clean, home)
    (home / "USER.md").write_text("Eve")
    done = 0
    rename = Path.rename

    def cut(self: Path, target: Path) -> Path:
        nonlocal done
        done += 1
        if done > at:
            raise Cut
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", cut)
        with pytest.raises(Cut):
            restore(Home(home), world.backup)
    listed = coterie(home, "agent", "list")
    assert listed.returncode == 0, listed.stderr
    assert (home / "USER.md").read_text() == ("Eve" if at == 0 else "Ada")
    assert set(world.before) <= texts(home)
    assert coterie(home, "doctor").returncode == 0
    if at:
        [kept] = home.glob("before-restore-*")
        assert (kept / "USER.md").read_text() == "Eve"
        assert set(world.before) <= texts(kept)
    assert not (home / "run" / "restore.json").exists()


def test_a_restore_that_was_killed_while_it_unpacked_has_changed_nothing(world: World, home: Path) -> None:
    shutil.copytree(world.clean, home)
    (home / "restoring-20260101T000000Z-abcd" / "home").mkdir(parents=True)
    assert "a restore was cut off" in coterie(home, "doctor").stdout
    assert coterie(home, "doctor", "--fix").returncode == 0
    assert not list(home.glob("restoring-*"))
    (home / "restoring-20260101T000000Z-abcd" / "home").mkdir(parents=True)
    restored_by(world, home)


def rewritten(backup: Path, target: Path, change: Callable[[zipfile.ZipInfo, bytes], bytes | None]) -> Path:
    """The same backup with other contents; None leaves an entry out."""
    with zipfile.ZipFile(backup) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            data = change(entry, old.read(entry))
            if data is not None:
                new.writestr(entry, data)
    return target


def newer(entry: zipfile.ZipInfo, data: bytes) -> bytes:
    return data.replace(schema.HEAD.encode(), b"9999") if entry.filename == "manifest.json" else data


def test_a_newer_backup_is_refused_and_an_older_one_is_brought_forward(
    world: World, home: Path, tmp_path: Path
) -> None:
    refused = coterie(home, "restore", str(rewritten(world.backup, tmp_path / "newer.zip", newer)))
    assert refused.returncode == 1 and "newer Coterie" in refused.stderr
    assert not (home / "agent.yaml").exists()


def test_hostile_and_broken_files_are_refused_before_anything_is_touched(
    world: World, home: Path, tmp_path: Path
) -> None:
    shutil.copytree(world.clean, home)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in home.rglob("*") if "run" not in p.parts)
    hostile = tmp_path / "hostile.zip"

    def added(
        name: str, data: bytes = b"x", mode: int = stat.S_IFREG | 0o600, kind: int = zipfile.ZIP_STORED
    ) -> None:
        shutil.copy(world.backup, hostile)
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        entry.compress_type = kind
        with zipfile.ZipFile(hostile, "a") as archive:
            archive.writestr(entry, data)

    def refused(why: str) -> None:
        done = coterie(home, "restore", str(hostile))
        assert done.returncode == 1, why
        assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr, (why, done.stderr)
        after = sorted((str(p), p.stat().st_mtime_ns) for p in home.rglob("*") if "run" not in p.parts)
        assert after == before, why

    for name in (
        "home/../../evil", "/etc/evil", "home//etc/evil", "home/agents/../../evil", "home/./x", "home/a\\..\\b",
        "home/run/restore.json", "home/token", "home/backups/x", "evil", "home/agents/a\nb", "home/" + "a" * 300,
        "home/.ssh/key", "home/before-restore-1/x", "home/restoring-1/x", "home/agents/" + "d/" * 600 + "x",
    ):  # fmt: skip
        added(name)
        refused(name)
    added("home/agents/link", b"/etc/passwd", stat.S_IFLNK | 0o777)
    refused("a link")
    added("home/agents/pipe", b"", stat.S_IFIFO | 0o600)
    refused("a pipe")
    added("home/bomb", b"\0" * 20_000_000, kind=zipfile.ZIP_DEFLATED)
    refused("a bomb")
    added("home/agents/rose", b"a file where a folder is")
    refused("a file and a folder")
    shutil.copy(world.backup, hostile)
    with hostile.open("r+b") as file:
        file.seek(hostile.stat().st_size // 2)
        file.write(os.urandom(200))
    refused("flipped bytes")
    hostile.write_bytes(world.backup.read_bytes()[:-200])
    refused("cut off")
    hostile.write_bytes(b"PK nothing of the kind")
    refused("no archive")
    rewritten(world.backup, hostile, lambda e, d: None if e.filename == "database" else d)
    refused("no database")
    rewritten(world.backup, hostile, lambda e, d: b"[1" if e.filename == "manifest.json" else d)
    refused("no contents")
    rewritten(world.backup, hostile, lambda e, d: d[: len(d) // 2] if e.filename == "database" else d)
    refused("half a database")
    rewritten(
        world.backup,
        hostile,
        lambda e, d: (
            b"database: {url: 'sqlite:////etc/coterie.db'}\n" if e.filename == "home/agent.yaml" else d
        ),
    )
    refused("a database elsewhere")
    assert not Path("/etc/coterie.db").exists()
    hostile.unlink()
    refused("no file")


# While it runs


@pytest.mark.parametrize("how", ["removed", "replaced", "emptied", "noise"])
def test_damage_under_a_running_gateway_is_told_to_whoever_writes(world: World, home: Path, how: str) -> None:
    shutil.copytree(world.clean, home)
    file = home / "coterie.db"
    with running(home) as gateway, gateway.http() as http:
        assert http.get("/readyz").status_code == 200
        if how == "removed":
            file.unlink()
        elif how == "replaced":
            shutil.copy(file, home / "other")
            (home / "other").rename(file)
        elif how == "emptied":
            os.truncate(file, 0)
        else:
            size = file.stat().st_size
            with file.open("r+b") as opened:
                opened.seek(4096)
                opened.write(os.urandom(size - 4096))
        answer = until_refused(http)
        error = answer.json()["error"]
        assert answer.status_code == 503 and error["code"] == "UNAVAILABLE", error
        assert "coterie restore FILE" in error["message"] and "retryable" not in error
        ready = http.get("/readyz")
        assert ready.status_code == 503 and "coterie restore FILE" in ready.json()["error"]["message"]
        assert http.get("/healthz").status_code == 200
        assert "Traceback" not in gateway.log.read_text(), gateway.log.read_text()
    restored_by(world, home)


def until_refused(http: httpx.Client) -> httpx.Response:
    for number in range(10_000):
        answer = http.post(f"/api/sessions/agent:main:dm:x{number}/messages", json={"message": "hello"})
        if answer.status_code != 202:
            return answer
    raise AssertionError("messages were taken that nobody keeps")


def test_one_database_file_has_one_gateway_though_two_homes_name_it(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for one in (home, other):
        one.mkdir()
        (one / "agent.yaml").write_text(f"database: {{url: 'sqlite:///{tmp_path}/shared.db'}}\n")
    with running(home):
        refused = coterie(other, "serve", "--port", "0")
        assert refused.returncode == 1 and "another home's Coterie" in refused.stderr
    with running(other) as gateway, gateway.http() as http:
        assert http.get("/readyz").status_code == 200


def test_a_second_gateway_says_at_once_who_holds_the_home(gateway: GatewayProcess) -> None:
    """It does not even wait for its imports: no lock is tried, no port is opened."""
    refused = coterie(gateway.home, "serve", "--port", "0")
    assert refused.returncode == 1
    assert gateway.url in refused.stderr and str(gateway.process.pid) in refused.stderr


def test_a_gateway_that_waits_for_another_process_says_so(home: Path) -> None:
    import fcntl

    assert coterie(home, "agent", "list").returncode == 0
    with (home / "run" / "engine.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        gateway = GatewayProcess(home)
        while f"process {os.getpid()}" not in gateway.log.read_text():
            assert gateway.process.poll() is None, gateway.log.read_text()
    try:
        gateway.wait()
    finally:
        gateway.stop()


# By the clock


def test_backups_are_made_by_the_clock_and_so_many_are_kept(world: World, home: Path) -> None:
    shutil.copytree(world.clean, home)
    (home / "agent.yaml").write_text(
        (home / "agent.yaml").read_text() + "backup: {every: 1m, keep: 2, folder: kept}\n"
    )
    for hour in range(3):
        (home / "kept").mkdir(exist_ok=True)
        (home / "kept" / f"household-20260101T0{hour}0000Z.zip").write_bytes(b"old")
    (home / "kept" / "mine.zip").write_bytes(b"not theirs to remove")
    with running(home) as gateway, gateway.rpc() as rpc:
        while (report := rpc.call("status")["backup"])["last_success"] is None:
            assert report["last_failure"] is None, report
        made = Path(report["file"])
        while len(list((home / "kept").glob("household-*"))) > 2:
            pass
    assert sorted(p.name for p in (home / "kept").iterdir()) == [
        "household-20260101T020000Z.zip",
        made.name,
        "mine.zip",
    ]
    assert f"the newest backup is of {report['last_success']}: {made}" in coterie(home, "doctor").stdout
    assert coterie(home, "restore", str(made)).returncode == 0
    assert set(world.before) <= texts(home)


def test_a_backup_by_the_clock_that_fails_is_said(world: World, home: Path) -> None:
    shutil.copytree(world.clean, home)
    (home / "agent.yaml").write_text(
        (home / "agent.yaml").read_text() + "backup: {every: 1m, folder: USER.md/kept}\n"
    )
    with running(home) as gateway, gateway.rpc() as rpc:
        while (report := rpc.call("status")["backup"])["last_failure"] is None:
            pass
        assert report["last_success"] is None and report["reason"]
        assert "Traceback" not in gateway.log.read_text()
    assert "the last backup failed" in coterie(home, "doctor").stdout


@pytest.mark.parametrize("line", ["every: 0h", "every: daily", "keep: 0", "folder: agents", "folder: ../x"])
def test_settings_that_make_no_sense_are_refused(home: Path, line: str) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text(f"backup:\n  {line}\n")
    found = coterie(home, "doctor")
    assert found.returncode == 1 and "agent.yaml line 2: backup." in found.stdout, found.stdout


# PostgreSQL


@pytest.fixture
def pg_home(home: Path, postgres_url: str) -> Path:
    home.mkdir()
    (home / "agent.yaml").write_text(f"database: {{url: '{postgres_url}'}}\n")
    return home


@pytest.fixture
def programs(postgres_server: PostgresServer) -> str:
    return f"{postgres_server.programs}{os.pathsep}{os.environ['PATH']}"


def test_a_household_on_postgresql_is_backed_up_and_restored(
    pg_home: Path, tmp_path: Path, programs: str, postgres_url: str
) -> None:
    file = tmp_path / "b.zip"
    assert coterie(pg_home, "remember", "The boat is called Zephyr").returncode == 0
    with running(pg_home, PATH=programs):
        made = coterie(pg_home, "backup", str(file), PATH=programs)
        assert made.returncode == 0, made.stderr
        assert coterie(pg_home, "restore", str(file), PATH=programs).returncode == 1
    assert coterie(pg_home, "remember", "The boat has sunk").returncode == 0
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE alembic_version")
    for words in (["agent", "list"], ["doctor"]):
        lost = coterie(pg_home, *words)
        assert lost.returncode == 1 and "holds no household" in lost.stdout + lost.stderr
        assert "Traceback" not in lost.stderr
    restored = coterie(pg_home, "restore", str(file), PATH=programs)
    assert restored.returncode == 0, restored.stderr
    listed = coterie(pg_home, "memory", "list").stdout
    assert "Zephyr" in listed and "sunk" not in listed
    [kept] = pg_home.glob("before-restore-*")
    assert (kept / "database.dump").stat().st_size
    assert coterie(pg_home, "doctor").returncode == 0


def test_without_postgresqls_programs_there_is_a_sentence(pg_home: Path, tmp_path: Path) -> None:
    assert coterie(pg_home, "agent", "list").returncode == 0
    (tmp_path / "bin").mkdir()
    done = coterie(pg_home, "backup", str(tmp_path / "b.zip"), PATH=str(tmp_path / "bin"))
    assert done.returncode == 1 and "pg_restore was not found" in done.stderr
    assert not list(tmp_path.glob("*.zip")) and not list(tmp_path.glob(".coterie*"))


def test_a_database_has_one_gateway_wherever_it_runs(pg_home: Path, tmp_path: Path) -> None:
    """Given a second home, as on another machine, neither its gateway nor its chat runs turns beside the first."""
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(pg_home / "agent.yaml", other / "agent.yaml")
    with running(pg_home) as first:
        for words in (["serve", "--port", "0"], ["chat", "hello"]):
            refused = coterie(other, *words)
            assert refused.returncode == 1, refused.stdout
            assert "another gateway runs on this PostgreSQL database" in refused.stderr
            assert str(first.process.pid) in refused.stderr and "Traceback" not in refused.stderr
        assert coterie(other, "agent", "list").returncode == 0
        first.kill()
        with running(other) as second, second.http() as http:
            assert http.get("/readyz").status_code == 200


def test_a_gateway_that_lost_its_lock_takes_it_again_or_ends(
    pg_home: Path, tmp_path: Path, postgres_url: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(pg_home / "agent.yaml", other / "agent.yaml")

    def drop() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'coterie engine%'"
            )

    with running(pg_home) as first:
        drop()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            while not connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'coterie engine%'"
            ).fetchone():
                assert first.process.poll() is None
        with first.rpc() as rpc:
            run = rpc.call("chat.send", session="agent:main:dm:a", message="hello")["run_id"]
            assert rpc.wait_for("chat", run_id=run, state="final")
        # Now somebody else is faster.
        os.kill(first.process.pid, 19)
        drop()
        with running(other) as second:
            os.kill(first.process.pid, 18)
            assert first.process.wait(60) == 1
            assert "no longer runs the household" in first.log.read_text()
            with second.rpc() as rpc:
                run = rpc.call("chat.send", session="agent:main:dm:b", message="hello")["run_id"]
                assert rpc.wait_for("chat", run_id=run, state="final")


def test_the_guide_says_what_the_doctor_says() -> None:
    """Every sentence that the tests above wait for stands in the guide."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "backup.md").read_text()
    for said in (
        "is missing, but a household lived here",
        "is empty, but a household lived here",
        "the database is damaged: file is not a database",
        "holds no household, but one lived here",
        "the database lost what was written last",
        "coterie doctor --begin-anew",
    ):
        assert said in guide
