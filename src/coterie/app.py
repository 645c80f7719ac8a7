"""The composition root: the only file that knows every part."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import __version__
from coterie.config import Embeddings
from coterie.core.errors import Conflict, CoterieError, Damaged
from coterie.core.threads import on_thread
from coterie.core.turn import Claim
from coterie.engine.doctor import (
    RESTORE,
    Finding,
    check_backups,
    check_disk,
    check_home,
    check_household,
    check_life,
)
from coterie.engine.gateway import Gateway, Parts
from coterie.engine.household.home import Home
from coterie.engine.household.life import WAY_OUT, after_a_crash, behind, check_file, lived, started, taken_up
from coterie.engine.household.place import database_file, database_url
from coterie.engine.household.registry import Registry
from coterie.store.database import Database
from coterie.store.engine_claim import engine_claim
from coterie.store.trouble import damaged

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from coterie.core.ports import Embedder, Model, ProviderState
    from coterie.models.catalog import ModelCatalog
    from coterie.store.transaction import Store

SPARE_FILES = 500
"""Files that are no connections of clients: the store's, plug-ins', connections to providers."""
SWITCH_SECONDS = 0.0005

log = logging.getLogger("coterie")
log.addHandler(logging.NullHandler())  # a command speaks for itself; only `serve` shows the log


@contextmanager
def opened(
    home: Home,
    *,
    engine: bool = False,
    parts: Callable[[Home, Registry], Parts] | None = None,
    wrap: Callable[[Store], Store] = lambda store: store,
) -> Iterator[Gateway]:
    """A household, ready to use. With `engine`, this process is the one that runs turns.

    `parts` and `wrap` put other models, tools or a store that fails into it.
    """
    home.prepare()
    with contextlib.ExitStack() as stack:
        if engine:
            stack.enter_context(home.engine_lock(waiting=log.warning))
        if home.restoring.exists():
            from coterie.engine.household.restoring import finish_restore

            finish_restore(home, locked=engine)
        url = database_url(home)
        file = database_file(home, url)
        if file is not None:
            check_file(home, file)
            if engine:
                stack.enter_context(home.database_lock(file))
            if home.in_use.exists() and (engine or not home.engine_is_held()):
                after_a_crash(home, file)
        held = stack.enter_context(engine_claim(url)) if engine and file is None else None
        database = Database.connect(url, home.path)
        stack.callback(taken_up, home, engine=engine)
        stack.callback(database.close)
        stack.enter_context(_damage_in_words(database))
        _bring_forward(home, database, engine=engine)
        claim = less = None
        if engine:
            with database.write() as tx:
                epoch = tx.meta.count_up("epoch")
            claim = Claim(f"{socket.gethostname()}/{os.getpid()}", epoch)
            home.in_use.touch(mode=0o600)
            less = behind(home, epoch - 1)
            if less is not None:
                log.error("%s; `coterie doctor` says what to do", less)
        store = wrap(database)
        registry = Registry(home, store)
        gateway = Gateway(home, store, registry, (parts or usual_parts)(home, registry), claim)
        registry.open(_first_model)
        started(home, claim.epoch if claim is not None else None, less)
        if held is not None and claim is not None:
            held.watch(partial(_is_newest, database, claim), partial(_stop_here, gateway))
        yield gateway


def _stop_here(gateway: Gateway, reason: str) -> None:
    """Somebody else runs the turns now: whatever we still do is refused by the database, so do no more."""
    log.critical("this process no longer runs the household and ends: %s", reason)
    gateway.superseded = reason
    signal.raise_signal(signal.SIGTERM)


def _is_newest(database: Database, claim: Claim) -> bool:
    with database.read() as tx:
        return tx.meta.get("epoch") == str(claim.epoch)


def _bring_forward(home: Home, database: Database, *, engine: bool) -> None:
    if database.revision() is None and lived(home):
        raise Damaged(
            f"the database {database.file or 'that agent.yaml names'} holds no household, but one lived here; {WAY_OUT}"
        )
    lock = contextlib.nullcontext if engine else (lambda: home.engine_lock(wait=30))
    backup = database.bring_forward(home.backups, lock)
    if backup is not None:
        log.info("the database was brought forward; the former one is in %s", backup)


@contextmanager
def _damage_in_words(database: Database) -> Iterator[None]:
    """What fails on values that nobody wrote fails because the database is damaged."""
    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        try:
            found = database.check()
        except CoterieError as worse:
            raise worse from error
        if not found:
            raise
        raise damaged(found[0]) from error


def usual_parts(home: Home, registry: Registry) -> Parts:
    """What a person's house is made of."""
    from coterie.tools.loader import InstalledTools

    return Parts(
        ConfiguredModels(registry),
        [InstalledTools(home.path / "plugins", lambda: registry.sync.config.plugins.disabled)],
        _embedder,
    )


@dataclass(frozen=True, slots=True)
class Door:
    """Where the gateway is reached, and what opens it."""

    url: str
    """From this machine."""
    elsewhere: tuple[str, ...]
    """From other machines, where that was asked for."""
    token: str
    token_is_given: bool
    """It came from the environment, whose owner knows it."""


def serve(home: Home, host: str | None, port: int | None, announce: Callable[[Door], None]) -> None:
    """Run the gateway until it is told to stop."""
    import uvicorn

    from coterie.api.guard import is_loopback
    from coterie.api.head import protocols
    from coterie.api.http import create_app
    from coterie.api.rpc import HARD_LIMIT
    from coterie.api.visitors import Visitors

    with opened(home, engine=True) as gateway:
        settings = gateway.registry.sync.config.gateway
        address = (host or settings.host, settings.port if port is None else port)
        token = gateway.access.owner_token()
        if token is None:
            if not is_loopback(address[0]):
                raise Conflict(
                    f"{address[0]} can be reached from other machines, and there is no token yet: "
                    "set COTERIE_TOKEN, or start once on 127.0.0.1"
                )
            token = gateway.access.make_owner_token()
        listening = _listen(*address)
        url, *elsewhere = _urls(listening, address[0])
        door = Door(url, tuple(elsewhere), token, gateway.access.owner_token_is_given)

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            from coterie.engine.household.watcher import Watcher

            async with _watched(settings.watchdog_s), gateway.running():
                watching = asyncio.create_task(
                    Watcher(home, gateway.registry, gateway.brains, gateway.events).run()
                )
                _write_gateway_file(gateway, url)
                announce(door)
                try:
                    yield
                finally:
                    home.gateway.unlink(missing_ok=True)
                    watching.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await watching

        def most() -> tuple[int, int]:
            now = gateway.registry.sync.config.gateway
            return now.max_connections, now.max_connections_per_client

        _allow_files(settings.max_connections + SPARE_FILES)
        http, ws = protocols(Visitors(most))
        config = uvicorn.Config(
            create_app(gateway, lifespan, address[0]),
            http=http,
            loop="uvloop",
            ws=ws,
            ws_max_size=HARD_LIMIT,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        # A turn makes thousands of small objects that need no collector; the default looks at them every 700. What is
        # loaded by now stays: looking through all of it would stop every turn for a tenth of a second.
        gc.set_threshold(20_000, 20, 20)
        gc.freeze()
        # A thread that computes (an import, a search) keeps the event loop waiting for so long each time that the loop
        # wants to go on; a request takes several such times.
        sys.setswitchinterval(SWITCH_SECONDS)
        # The server hands the signal on once it has stopped. It must not end us there: the database is still open.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        with contextlib.suppress(SystemExit):
            uvicorn.Server(config).run(sockets=[listening])
        if gateway.superseded is not None:
            raise Conflict(gateway.superseded)


def _watched(seconds: float) -> contextlib.AbstractAsyncContextManager[None]:
    from coterie.engine.watchdog import Watchdog

    if not seconds:
        return contextlib.nullcontext()
    return Watchdog(seconds, supervised=bool(os.environ.get("COTERIE_SUPERVISED"))).watching()


def _embedder(settings: Embeddings) -> Embedder | None:
    from coterie.embedders.choice import embedder

    return embedder(settings)


def _first_model() -> str | None:
    from coterie.models.catalog import first_model

    return first_model()


class ConfiguredModels:
    """The models of the configuration that is in force now. Implements Models."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: tuple[object, ModelCatalog] | None = None
        self._known: dict[str, Model] = {}

    def _catalog(self) -> ModelCatalog:
        from coterie.models.catalog import ModelCatalog, ProviderSettings

        providers = self._registry.sync.config.models.providers
        if self._made is None or self._made[0] != providers:
            settings = {n: ProviderSettings(p.type, p.base_url, p.api_key_env) for n, p in providers.items()}
            self._made = (providers, ModelCatalog(settings))
            self._known.clear()
        return self._made[1]

    async def resolve(self, name: str) -> Model:
        catalog = self._catalog()
        model = self._known.get(name)
        if model is None:
            # The first use imports the provider, which takes a while and must not hold up the loop.
            model = self._known[name] = await on_thread("imports", catalog.resolve, name)
        return model

    def describe(self, *, only_usable: bool) -> Sequence[ProviderState]:
        return self._catalog().describe(only_usable=only_usable)

    def check(self, name: str) -> None:
        self._catalog().check(name)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made[1].aclose()


def _allow_files(count: int) -> None:
    """Each connection is a file to the system, and its usual limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise Conflict(f"cannot listen on {host}:{port}: {reason}; --port chooses another") from None
    listening.listen(2048)
    return listening


def _own_addresses(family: socket.AddressFamily) -> list[str]:
    """This machine's, but for loopback and those that need an interface's name beside them."""
    import ipaddress

    import psutil

    found = (
        ipaddress.ip_address(address.address)
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == family and "%" not in address.address
    )
    return [str(address) for address in found if not address.is_loopback]


def _urls(listening: socket.socket, host: str) -> list[str]:
    """Where this socket is reached: from this machine, then from others."""
    port = listening.getsockname()[1]
    hosts = {"0.0.0.0": ["127.0.0.1"], "::": ["::1"]}.get(host)  # noqa: S104
    hosts = [host] if hosts is None else hosts + _own_addresses(listening.family)
    return [f"http://{f'[{host}]' if ':' in host else host}:{port}" for host in hosts]


def _write_gateway_file(gateway: Gateway, url: str) -> None:
    facts = {
        "url": url,
        "pid": gateway.pid,
        "version": __version__,
        "epoch": gateway.claim.epoch if gateway.claim else None,
    }
    temporary: Path = gateway.home.gateway.with_suffix(".tmp")
    temporary.write_text(json.dumps(facts) + "\n")
    temporary.replace(gateway.home.gateway)


def examine(home: Home, *, fix: bool) -> list[Finding]:
    """Everything the doctor finds."""
    findings = list(check_home(home, fix=fix))
    if not home.path.is_dir() or any(finding.level == "problem" for finding in findings):
        return findings
    findings += check_disk(home)
    findings += check_backups(home)
    running = home.engine_is_held()
    try:
        with opened(home) as gateway:
            findings.append(Finding("ok", "the store opens and its schema is current"))
            database = gateway.store
            assert isinstance(database, Database)
            trouble = database.check(search=not running)
            findings += [Finding("problem", f"the database is damaged: {t}", RESTORE) for t in trouble]
            if not trouble:
                findings.append(Finding("ok", "the database is whole"))
            findings += check_life(gateway, fix=fix)
            findings += check_household(gateway, fix=fix)
    except CoterieError as error:
        advice = RESTORE if isinstance(error, Damaged) else ""
        findings.append(Finding("problem", error.message, advice))
    return findings
