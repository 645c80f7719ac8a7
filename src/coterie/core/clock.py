"""Times as they are stored and sent: ISO 8601 in UTC, so that text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def now_iso(*, offset_us: int = 0) -> str:
    moment = datetime.now(UTC) + timedelta(microseconds=offset_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
