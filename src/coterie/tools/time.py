"""What time it is."""

from __future__ import annotations

from datetime import datetime

from coterie.core.tool import tool


@tool(safe_to_repeat=True)
def system_time() -> str:
    """Tell the current date, time, zone and weekday."""
    now = datetime.now().astimezone()
    return f"{now.isoformat(timespec='seconds')} {now:%A}"
