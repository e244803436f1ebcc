"""Defers SIGINT and SIGTERM in places where an interrupt would do harm.

- ``asyncio.run`` may be interrupted while it creates its loop. An incomplete loop cannot be closed:
  it prints a traceback on stderr when it is deleted.
- Python prints and ignores exceptions in the functions that it calls around ``os.fork``: an
  interrupt there is lost, and the program continues.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Signals that end a program.
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM})


def run_whole(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``asyncio.run(work())``, with signals deferred until the loop exists."""
    with ExitStack() as stack:
        with held_signals():
            runner = stack.enter_context(asyncio.Runner())
            runner.get_loop()
        return runner.run(work())


@contextmanager
def held_signals() -> Iterator[None]:
    """Defer signals that end a program until the end of the block.

    A process forked in the block inherits the mask, and must call ``release_signals``.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Accept the signals again, in a child that was forked within ``held_signals``."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
