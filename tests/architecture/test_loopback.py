"""A test that reaches beyond loopback fails, whoever does it and whoever swallows the error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = "192.0.2.1"
"""An address that nobody has."""

INNER = f'''
import asyncio, shutil, socket, subprocess, sys, threading, urllib.request
from contextlib import suppress

import httpx
import pytest


def connect(host, port=9):
    with suppress(OSError):
        socket.create_connection((host, port), timeout=1).close()


def child(code):
    subprocess.run([sys.executable, "-c", "from contextlib import suppress\\n" + code], check=True)


def in_the_test():
    connect("{OUTSIDE}")


def by_name():
    connect("somewhere.example")


def by_asyncio():
    async def reach():
        with suppress(OSError):
            await asyncio.open_connection("{OUTSIDE}", 9)
    asyncio.run(reach())


def by_datagram():
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(b"x", ("{OUTSIDE}", 9))


def in_a_thread():
    thread = threading.Thread(target=connect, args=("{OUTSIDE}",))
    thread.start()
    thread.join()


def in_a_child():
    child("""
import socket
with suppress(OSError):
    socket.create_connection(("{OUTSIDE}", 9), timeout=1)
""")


def in_the_child_of_a_child():
    child("""
import subprocess, sys
code = "import socket; socket.create_connection(('{OUTSIDE}', 9), timeout=1)"
subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
""")


def on_uvloop():
    child("""
import asyncio, uvloop
async def reach():
    with suppress(OSError):
        await asyncio.open_connection("{OUTSIDE}", 9)
uvloop.run(reach())
""")


def through_libpq():
    child("""
import psycopg
with suppress(OSError, psycopg.Error):
    psycopg.connect("postgresql://somebody@{OUTSIDE}/x?connect_timeout=1")
""")


def in_node():
    subprocess.run(["node", "-e", "require('net').connect(9, '{OUTSIDE}').on('error', () => {{}})"], check=True)


def through_a_proxy():
    with suppress(httpx.HTTPError, OSError):
        httpx.get("http://{OUTSIDE}/", timeout=1)


def through_a_proxy_in_a_child():
    child("""
import urllib.request
with suppress(OSError):
    urllib.request.urlopen("http://{OUTSIDE}/", timeout=1)
""")


REACHING = [
    in_the_test, by_name, by_asyncio, by_datagram, in_a_thread, in_a_child, in_the_child_of_a_child, on_uvloop,
    through_libpq, through_a_proxy, through_a_proxy_in_a_child, *([in_node] if shutil.which("node") else []),
]


@pytest.mark.parametrize("reach", REACHING, ids=lambda reach: reach.__name__)
def test_out(reach):
    reach()


@pytest.fixture
def reaching():
    connect("{OUTSIDE}")
    yield
    connect("{OUTSIDE}")


def test_by_its_fixture(reaching):
    pass


def test_at_home():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect("127.0.0.1", port)
        connect("localhost", port)
        connect("::1", port)
        child(f"import socket; socket.create_connection(('localhost', {{port}})).close()")
        if shutil.which("node"):
            reach = f"require('net').connect({{port}}, '127.0.0.1').on('connect', () => process.exit(3))"
            assert subprocess.run(["node", "-e", reach]).returncode == 3
'''


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[object]]]:
    """A proxy on loopback, which would lead out, and who came to it."""
    came: list[object] = []

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            came.append(self.client_address)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", came
        server.shutdown()
        thread.join()


def test_whoever_reaches_out_fails_its_test(tmp_path: Path, proxy: tuple[str, list[object]]) -> None:
    """With the set-up that all tests have, and proxies in the environment as a company's machine has them."""
    address, came = proxy
    inner = tmp_path / "test_inner.py"
    inner.write_text(INNER)
    names = ("http_proxy", "https_proxy", "all_proxy")
    proxies = {spelled: address for name in names for spelled in (name, name.upper())}
    kept = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "--rootdir", str(tmp_path),
         "-p", "no:cacheprovider", "-rA", "--tb=short", str(inner)],
        cwd=ROOT,
        env={**kept, **proxies},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    by_test = {test: outcome for outcome, test in re.findall(r"^(\w+) \S+::(\S+)", done.stdout, re.M)}
    assert done.returncode == 1, done.stdout + done.stderr
    out = {test: outcome for test, outcome in by_test.items() if test.startswith("test_out")}
    assert len(out) == 12 if shutil.which("node") else 11
    assert set(out.values()) == {"FAILED"}, by_test
    assert by_test["test_by_its_fixture"] == "ERROR"
    assert by_test["test_at_home"] == "PASSED", done.stdout
    assert f"beyond loopback: {OUTSIDE}, by process" in done.stdout, "it says where to and who"
    assert came == []


def test_node_is_here_where_everything_must_be_tested() -> None:
    assert os.environ.get("CI") != "true" or shutil.which("node"), "node is missing"
