"""The composition root: the only file that knows every part."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from coterie import __version__
from coterie.config import Config, ConfigError, Embeddings, values
from coterie.config import Database as DatabaseSection
from coterie.core.errors import Conflict, CoterieError
from coterie.core.turn import Claim
from coterie.engine.doctor import Finding, check_home, check_household
from coterie.engine.gateway import Gateway, Parts
from coterie.engine.household.config_file import STABLE_AFTER
from coterie.engine.household.home import Home
from coterie.engine.household.registry import Registry
from coterie.store.database import Database

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from coterie.core.ports import Embedder, Model, ProviderState
    from coterie.models.catalog import ModelCatalog
    from coterie.store.transaction import Store

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
            stack.enter_context(home.engine_lock())
        database = Database.connect(_database_url(home), home.path)
        stack.callback(database.close)
        lock = contextlib.nullcontext if engine else (lambda: home.engine_lock(wait=30))
        backup = database.bring_forward(home.backups, lock)
        if backup is not None:
            log.info("the database was brought forward; the former one is in %s", backup)
        claim = None
        if engine:
            with database.write() as tx:
                claim = Claim(f"{socket.gethostname()}/{os.getpid()}", tx.meta.count_up("epoch"))
        store = wrap(database)
        registry = Registry(home, store)
        gateway = Gateway(home, store, registry, (parts or usual_parts)(home, registry), claim)
        registry.open(_first_model)
        yield gateway


def usual_parts(home: Home, registry: Registry) -> Parts:
    """What a person's house is made of."""
    from coterie.tools.loader import InstalledTools

    return Parts(
        ConfiguredModels(registry),
        [InstalledTools(home.path / "plugins", lambda: registry.sync.config.plugins.disabled)],
        _embedder,
    )


def _database_url(home: Home) -> str:
    """Where the store is. A broken file must not keep us from it: then the place used last counts."""
    try:
        text = home.config.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        text = ""
    remembered = home.run / "database"
    if remembered.exists() and (not text.strip() or ("database" not in text and _just_saved(home.config))):
        # Emptied by an editor that is about to write it again, lost, or half written: no reason to found a second
        # household.
        return remembered.read_text().strip()
    if "database" not in text:
        # Most files do not say; reading YAML takes longer than everything else at this point.
        url = Config().database.url
    else:
        try:
            url = DatabaseSection.model_validate(values(text).get("database") or {}).url
        except (ConfigError, ValidationError):
            return remembered.read_text().strip() if remembered.exists() else Config().database.url
    if url == Config().database.url:
        remembered.unlink(missing_ok=True)
    elif not remembered.exists() or remembered.read_text().strip() != url:
        remembered.touch(mode=0o600)
        remembered.write_text(url + "\n")
    return url


def _just_saved(path: Path) -> bool:
    try:
        return abs(time.time() - path.stat().st_mtime) < STABLE_AFTER
    except OSError:
        return False


def serve(home: Home, host: str | None, port: int | None, announce: Callable[[str, str], None]) -> None:
    """Run the gateway until it is told to stop."""
    import uvicorn

    from coterie.api.guard import is_loopback
    from coterie.api.head import BoundedHead
    from coterie.api.http import create_app
    from coterie.api.rpc import HARD_LIMIT

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
        url = _url(listening, address[0])

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            from coterie.engine.household.watcher import Watcher

            async with gateway.running():
                watching = asyncio.create_task(
                    Watcher(home, gateway.registry, gateway.brains, gateway.events).run()
                )
                _write_gateway_file(gateway, url)
                announce(url, token)
                try:
                    yield
                finally:
                    home.gateway.unlink(missing_ok=True)
                    watching.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await watching

        config = uvicorn.Config(
            create_app(gateway, lifespan, address[0]),
            http=BoundedHead,
            loop="uvloop",
            ws="websockets-sansio",
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
        uvicorn.Server(config).run(sockets=[listening])


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
            model = self._known[name] = await asyncio.to_thread(catalog.resolve, name)
        return model

    def describe(self, *, only_usable: bool) -> Sequence[ProviderState]:
        return self._catalog().describe(only_usable=only_usable)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made[1].aclose()


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


def _url(listening: socket.socket, host: str) -> str:
    port = listening.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


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
    try:
        with opened(home) as gateway:
            findings.append(Finding("ok", "the store opens and its schema is current"))
            assert isinstance(gateway.store, Database)
            trouble = gateway.store.check()
            findings += [
                Finding("problem", f"the database is damaged: {t}", "restore a backup") for t in trouble
            ]
            findings += check_household(gateway, fix=fix)
    except CoterieError as error:
        findings.append(Finding("problem", error.message))
    return findings
