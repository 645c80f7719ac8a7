"""Refuses connections beyond loopback, and writes each attempt down for the test that runs.

Python imports a module of this name at its start where its folder is on PYTHONPATH, so that every Python process that
a test starts is guarded as the test itself is. Audit events show the sockets that Python opens; two libraries open
theirs in C, and are asked before they do. Only what every interpreter has loaded anyway is imported at the top.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

RECORD = "LOOPBACK_RECORD"
"""The environment variable that names the file of attempts; without it there is no guard."""


def guard() -> None:
    """In this process, from now on."""
    if hasattr(sys, "loopback_is_guarded"):
        return
    sys.loopback_is_guarded = True  # type: ignore[attr-defined]
    sys.addaudithook(_heard)
    sys.meta_path.insert(0, _Importing())
    for name in _IN_C.keys() & sys.modules.keys():
        _IN_C[name](sys.modules[name])


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if isinstance(address, tuple):  # else it is a path, or a socket that is connected already
            _check(address[0])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        _check(arguments[0])


def _check(host: object) -> None:
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if isinstance(host, str) and not _stays_here(host):
        _write_down(host)
        raise OSError(f"a test may not reach beyond loopback: {host}")


def _stays_here(host: str) -> bool:
    from ipaddress import IPv6Address, ip_address

    if not host or host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified


def _write_down(host: str) -> None:
    from traceback import extract_stack

    stack = [f"{frame.filename}:{frame.lineno}" for frame in extract_stack()[:-3]][-12:]
    said = (
        f"{host}, by process {os.getpid()} ({' '.join(sys.argv)[:200]!r}) at {' < '.join(reversed(stack))}\n"
    )
    record = os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(record, said.encode("utf-8", "replace"))
    finally:
        os.close(record)


# Connections that are made in C


def _uvloop(module: Any) -> None:
    loop = module.Loop

    def asked(name: str, host_of: Callable[..., object]) -> None:
        made = getattr(loop, name)

        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            _check(host_of(*arguments, **options))
            return made(self, *arguments, **options)

        setattr(loop, name, method)

    asked("getaddrinfo", lambda host, *_, **__: host)
    asked("create_connection", lambda factory, host=None, *_, **__: host)
    asked(
        "create_datagram_endpoint",
        lambda factory, local_addr=None, remote_addr=None, **__: remote_addr and remote_addr[0],
    )


def _libpq(module: Any) -> None:
    connect = module.connect

    def asked(conninfo: str) -> Any:
        from psycopg.conninfo import conninfo_to_dict

        given = conninfo_to_dict(conninfo)
        for host in str(given.get("hostaddr") or given.get("host") or "").split(","):
            if not host.startswith(("/", "@")):
                _check(host)
        return connect(conninfo)

    module.connect = asked


_IN_C: dict[str, Callable[[Any], None]] = {"uvloop": _uvloop, "psycopg.generators": _libpq}


class _Importing:
    """Arms such a module when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        arm = _IN_C.get(name)
        if arm is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = _both(loader.exec_module, arm)
                return spec
        return None


def _both(load: Callable[[Any], None], arm: Callable[[Any], None]) -> Callable[[Any], None]:
    def load_and_arm(module: Any) -> None:
        load(module)
        arm(module)

    return load_and_arm


if RECORD in os.environ:
    guard()
