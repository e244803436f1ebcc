"""Running a coroutine so that the interrupt key finds either no event loop, or a whole one.

``asyncio.run`` may be interrupted while its loop is being made. Half a loop cannot be closed: it
complains about itself on stderr, with a traceback, when it is thrown away.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_whole(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``asyncio.run(work())``; interrupts wait until the loop is there."""
    with ExitStack() as stack:
        with _held_signals():
            runner = stack.enter_context(asyncio.Runner())
            runner.get_loop()
        return runner.run(work())


@contextmanager
def _held_signals() -> Iterator[None]:
    """Have signals that end programs arrive at the end of the block."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
