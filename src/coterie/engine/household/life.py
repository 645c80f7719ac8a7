"""Whether a household lived in this home before: a database that is missing or empty is then no fresh start.

`run/household.json` is written once the first database stands, and counts the engine's starts along with it. A
database that knows fewer starts than its home has lost what came last.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from coterie.core.errors import Damaged, Unavailable
from coterie.engine.household.home import Home
from coterie.store.log_file import trouble_in_log

WAY_OUT = (
    "`coterie restore FILE` brings a backup back; `coterie doctor --begin-anew` begins with an empty one "
    "and keeps agents, files and what is left of the old one"
)


def read(home: Home) -> dict[str, Any]:
    try:
        found = json.loads(home.life.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(home: Home, **facts: Any) -> None:
    temporary = home.temporary()  # many commands may come first at once
    with temporary.open("w") as file:
        file.write(json.dumps(facts) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(home.life)
    home.sweep()


def lived(home: Home) -> bool:
    """Whether a database must be there. The lock's file counts for homes from before there was the other."""
    facts = read(home)
    if facts.get("begin_anew"):
        return False
    return bool(facts) or home.life.exists() or (home.run / "registry.lock").is_file()


def started(home: Home, epoch: int | None, lost: str | None = None) -> None:
    """A household stands here. With an epoch, its engine was started once more; `lost` is what it then lacked."""
    facts = read(home)
    if epoch is None and facts and not facts.get("begin_anew"):
        return
    known = 0 if facts.get("begin_anew") else facts.get("epoch", 0)
    try:
        write(home, epoch=max(known, epoch or 0), lost=lost or facts.get("lost"))
    except OSError as error:
        raise Unavailable(f"{home.life} cannot be written: {error.strerror}") from error


def accept(home: Home, epoch: int) -> None:
    """Go on with what is there."""
    write(home, epoch=epoch)


def check_file(home: Home, file: Path) -> None:
    """Refuse a file that cannot be the database of a household that lived here, before SQLite touches it.

    SQLite makes a new database of a file that is missing or empty, and throws away the log beside it. Nobody may open
    the file to look: closing it again would drop the locks that SQLite has on it in this process.
    """
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        state = "missing"
    except OSError as error:
        raise Unavailable(f"the database {file} cannot be read: {error.strerror}") from error
    else:
        if not os.access(file, os.R_OK | os.W_OK):
            raise Unavailable(
                f"the database {file} may not be read and written by this account; "
                "change its owner, or its permissions with `chmod 600`"
            )
        if size:
            return
        state = "empty"
    if lived(home):
        raise Damaged(f"the database {file} is {state}, but a household lived here; {WAY_OUT}")


def after_a_crash(home: Home, file: Path) -> None:
    """The last gateway was cut off, so the database's log must be there: look at it before SQLite takes it up."""
    log = Path(f"{file}-wal")
    trouble = trouble_in_log(log) if log.exists() else "its log is gone, though the last gateway was cut off"
    # Somebody who was beside that gateway may have taken the log up meanwhile; then this file is gone, too.
    if trouble is not None and home.in_use.exists():
        if log.exists():
            home.backups.mkdir(mode=0o700, exist_ok=True)
            shutil.copy(log, home.backups / f"damaged-log-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        write(home, **{**read(home), "lost": f"the database lost what was written last: {trouble}"})
    home.in_use.unlink(missing_ok=True)


def taken_up(home: Home, *, engine: bool = False) -> None:
    """Whoever closes the database last takes its log up: nobody shall miss it, though a gateway died meanwhile."""
    if home.in_use.exists() and (engine or not home.engine_is_held()):
        home.in_use.unlink(missing_ok=True)


def behind(home: Home, epoch: int) -> str | None:
    """What a database lacks that knows fewer starts than its home, now or when it was last started."""
    facts = read(home)
    if facts.get("lost"):
        return str(facts["lost"])
    known = 0 if facts.get("begin_anew") else facts.get("epoch", 0)
    if epoch >= known:
        return None
    return (
        f"the database knows {epoch} starts of this household, and there were {known}: its newest part was lost, "
        "or an older file was put in its place"
    )
