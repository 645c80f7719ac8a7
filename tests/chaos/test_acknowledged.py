"""An acknowledged message is on disk: it survives a kill in the same moment, and the sync comes first."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.acknowledged import kill_after_acknowledgement
from tests.chaos.house import furnish, mock_model
from tests.support.gateway import GatewayProcess, Rpc, running

CALLS = "fsync,fdatasync,read,recvfrom,recvmsg,write,writev,sendto,sendmsg"


def test_killed_on_acknowledgement_answered_after_restart(tmp_path: Path) -> None:
    """Given a message whose acknowledgement just came, when the gateway is killed, then it is answered once."""
    with mock_model() as model:
        result = asyncio.run(kill_after_acknowledgement(5, tmp_path / "home", model))
    assert result.kept, result.table()
    assert result.facts["messages acknowledged"] == 5


def test_synced_before_acknowledged(tmp_path: Path) -> None:
    """Between the arrival of a message and its acknowledgement, the write-ahead log is synced."""
    _need_strace()
    home, log = tmp_path / "home", tmp_path / "calls"
    with mock_model() as model:
        furnish(home, model.url)
        # Uncompressed, so that the acknowledgement can be read in the trace.
        with running(home) as gateway, gateway.socket(compression=None) as socket:
            rpc = Rpc(socket)
            rpc.call("connect", auth={"token": gateway.token})
            rpc.call("chat.send", session="agent:main:main", message="hello")
            rpc.wait_for("chat", state="final")
            with _traced(gateway, log):
                rpc.call("chat.send", session="agent:main:main", message="once more")
    lines = log.read_text(errors="replace").splitlines()
    answered, door = next(
        (place, found[1])
        for place, line in enumerate(lines)
        if (found := re.search(r'(?:write|writev|sendto|sendmsg)\((\d+)<.*\\"res\\".*\\"message_id\\"', line))
    )
    arrived = max(
        place
        for place, line in enumerate(lines[:answered])
        if re.search(rf"(?:read|recvfrom|recvmsg)\({door}<", line)
    )
    synced = [place for place in _syncs(lines) if arrived < place < answered]
    assert synced, "\n".join(lines[arrived : answered + 1])


def _syncs(lines: list[str]) -> Iterator[int]:
    """Where a sync of the write-ahead log returned."""
    under_way: set[str] = set()
    for place, line in enumerate(lines):
        thread = line.split()[0]
        if re.search(r"f(?:data)?sync\(\d+<[^>]*-wal>", line):
            if "unfinished" in line:
                under_way.add(thread)
            elif line.endswith("= 0"):
                yield place
        elif thread in under_way and "resumed" in line:
            under_way.discard(thread)
            if line.endswith("= 0"):
                yield place


@contextmanager
def _traced(gateway: GatewayProcess, log: Path) -> Iterator[None]:
    command = ["strace", "-f", "-y", "-s", "400", "-e", f"trace={CALLS}", "-o", str(log)]
    strace = subprocess.Popen([*command, "-p", str(gateway.process.pid)], stderr=subprocess.PIPE, text=True)
    assert strace.stderr is not None
    try:
        said = strace.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace may not look at another process here: {said.strip()}")
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait()
        strace.stderr.close()


def _need_strace() -> None:
    if shutil.which("strace") is not None:
        return
    if os.environ.get("CI") == "true" and shutil.which("apt-get") is not None:
        pytest.fail("install strace: it shows that messages are synced before they are acknowledged")
    pytest.skip("strace is not installed")
