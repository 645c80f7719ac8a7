"""Where a home's database is."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import ValidationError

from coterie.config import Config, ConfigError, Database, values
from coterie.engine.household.config_file import STABLE_AFTER
from coterie.engine.household.home import Home

SQLITE = "sqlite:///"


def database_url(home: Home) -> str:
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
    try:
        url = url_in(text)
    except (ConfigError, ValidationError):
        return remembered.read_text().strip() if remembered.exists() else Config().database.url
    if url == Config().database.url:
        remembered.unlink(missing_ok=True)
    elif not remembered.exists() or remembered.read_text().strip() != url:
        remembered.touch(mode=0o600)
        remembered.write_text(url + "\n")
    return url


def url_in(text: str) -> str:
    """What a configuration says about it."""
    if "database" not in text:
        # Most files do not say; reading YAML takes longer than everything else at this point.
        return Config().database.url
    return Database.model_validate(values(text).get("database") or {}).url


def _just_saved(path: Path) -> bool:
    try:
        return abs(time.time() - path.stat().st_mtime) < STABLE_AFTER
    except OSError:
        return False


def database_file(home: Home, url: str) -> Path | None:
    """The SQLite file; None on PostgreSQL."""
    return home.path / url.removeprefix(SQLITE) if url.startswith(SQLITE) else None
