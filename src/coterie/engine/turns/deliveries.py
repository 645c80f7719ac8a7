"""Whether an answer reached whoever asked: a client that repeats its request is shown an old answer only if not."""

from __future__ import annotations

import asyncio
import logging

from coterie.core.errors import CoterieError
from coterie.core.turn import ENDED, TurnJob
from coterie.engine.turns.turns import Turns

log = logging.getLogger("coterie.turns")

PAUSE = 2.0
"""Seconds between two transactions: nobody waits for these, and one serves all answers of that time."""


class Deliveries:
    """Known at once, on disk a moment later."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._unwritten: dict[str, None] = {}
        self._some = asyncio.Event()

    def note(self, run_id: str) -> None:
        """The last byte of its answer was written to somebody who was there."""
        self._unwritten[run_id] = None
        self._some.set()

    def is_open(self, job: TurnJob) -> bool:
        """Somebody may still be waiting for this turn's answer."""
        return job.state not in ENDED or (job.delivered_at is None and job.run_id not in self._unwritten)

    async def keep(self) -> None:
        """Until cancelled; what is left then is written too."""
        try:
            while True:
                await self._some.wait()
                await asyncio.sleep(PAUSE)
                await self._write()
        finally:
            await self._write()

    async def _write(self) -> None:
        self._some.clear()
        run_ids = list(self._unwritten)
        if not run_ids:
            return
        try:
            await self._turns.transact(lambda change: change.delivered(run_ids))
        except CoterieError as error:
            log.warning("what was delivered could not be noted, and will be again: %s", error.message)
            return
        for run_id in run_ids:
            del self._unwritten[run_id]
