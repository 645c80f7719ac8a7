"""A disk that is full or takes no writes is said in words, at every door, and forgotten once it is mended."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.gateway import GatewayProcess, coterie, running


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of a few megabytes; False where this machine lets nobody mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], capture_output=True
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def until_status(gateway: GatewayProcess, wanted: int) -> str:
    """The answer of /readyz, once it is this one."""
    give_up = time.monotonic() + 60
    with gateway.http() as http:
        while True:
            answer = http.get("/readyz")
            if answer.status_code == wanted:
                return answer.text
            assert time.monotonic() < give_up, answer.text
            time.sleep(0.1)


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\1" * size)
            except OSError:
                size //= 2
    return ballast


def limit_files(pid: int, size: int) -> None:
    """No file may grow beyond this: what a full disk looks like to one process."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_full_disk_is_noticed_and_forgotten(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk) as mounted:
        home = disk / "home"
        with running(home) as gateway, gateway.http() as http:
            until_status(gateway, 200)
            ballast = fill(disk) if mounted else None
            if not mounted:
                limit_files(gateway.process.pid, 0)
            said = until_status(gateway, 503)
            assert "UNAVAILABLE" in said and ("full" in said or "grow" in said), said
            assert http.get("/healthz").status_code == 200
            refused = http.put("/api/agents/main/files/SOUL.md", json={"content": "x" * 200_000})
            assert refused.status_code == 503, refused.text
            assert "Traceback" not in gateway.log.read_text()
            if ballast is not None:
                found = coterie(home, "doctor")
                assert found.returncode == 1 and "full" in found.stdout, found.stdout
                assert "Traceback" not in found.stderr
                ballast.unlink()
            else:
                limit_files(gateway.process.pid, resource.RLIM_INFINITY)
            until_status(gateway, 200)
            sent = http.post("/api/sessions/agent:main:main/messages", json={"message": "hello again"})
            assert sent.status_code == 202, sent.text
            assert "Traceback" not in gateway.log.read_text()
        assert coterie(home, "doctor").returncode == 0


def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk) as mounted:
        home = disk / "home"
        assert coterie(home, "agent", "list").returncode == 0
        if not mounted:
            return  # only who may mount can have one
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for words in (["doctor"], ["agent", "list"], ["remember", "x"], ["serve", "--port", "0"]):
            done = coterie(home, *words)
            assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
            assert "read-only" in (done.stdout + done.stderr).lower()


def test_a_message_for_a_full_disk_is_refused_in_words(home: Path) -> None:
    with running(home) as gateway, gateway.http() as http:
        assert http.post("/api/sessions/agent:main:main/messages", json={"message": "one"}).status_code == 202
        until_status(gateway, 200)
        limit_files(gateway.process.pid, 4096)
        give_up = time.monotonic() + 60
        while True:  # the log has room that it got before
            answer = http.post("/api/sessions/agent:main:main/messages", json={"message": "x" * 50_000})
            if answer.status_code != 202:
                break
            assert time.monotonic() < give_up
        error = answer.json()["error"]
        assert answer.status_code == 503 and error["code"] == "UNAVAILABLE" and error["retryable"], error
        limit_files(gateway.process.pid, resource.RLIM_INFINITY)
        until_status(gateway, 200)
        with gateway.rpc() as rpc:
            run = rpc.call("chat.send", session="agent:main:dm:after", message="hello")["run_id"]
            assert rpc.wait_for("chat", run_id=run, state="final")
        assert "Traceback" not in gateway.log.read_text()
