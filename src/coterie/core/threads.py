"""Threads by purpose: what one kind of work waits for holds up no other.

Each kind has a bounded pool. A tool is different: nobody knows how long it takes, and a thread cannot be stopped. It gets a
thread of its own, which is left behind when the call is given up; turns bound how many there are, and a limit those left.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Literal, ParamSpec, TypeVar

from coterie.core.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")
Purpose = Literal["store", "memory", "files", "operations", "imports"]

SIZES: dict[Purpose, int] = {"store": 8, "memory": 8, "files": 4, "operations": 16, "imports": 1}
"""One import at a time: several SDKs at once would leave the event loop little."""
LEFT_BEHIND = 100
"""Calls that were given up and still run. Beyond it no other begins."""

_numbers = itertools.count(1)
_left: dict[int, str] = {}
"""What was given up and still runs, by number."""
_leaving = threading.Lock()


async def on_thread(purpose: Purpose, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, among its own kind."""
    context = contextvars.copy_context()
    call: Callable[[], T] = partial(context.run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool(purpose), call)


async def on_own_thread(name: str, work: Callable[[], T]) -> T:
    """On a thread of its own. Who is cancelled is free at once, whatever the thread still does."""
    with _leaving:
        if len(_left) >= LEFT_BEHIND:
            names = ", ".join(sorted(set(_left.values()))[:5])
            raise Unavailable(
                f"{len(_left)} calls that were given up still run ({names}); restart Coterie to be rid of them"
            )
    loop, number = asyncio.get_running_loop(), next(_numbers)
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            deliver = partial(_set_result, future, context.run(work))
        except BaseException as error:
            deliver = partial(_set_exception, future, error)
        with _leaving:
            _left.pop(number, None)
            ended.set()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(deliver)

    ended = threading.Event()
    threading.Thread(target=run, name=f"coterie-tool-{name}", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        with _leaving:
            if not ended.is_set():
                _left[number] = name
        raise


@cache
def _pool(purpose: Purpose) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SIZES[purpose], f"coterie-{purpose}")


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
