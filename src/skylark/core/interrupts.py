"""Places that the interrupt key must not find half done.

- ``asyncio.run`` may be interrupted while its loop is being made. Half a loop cannot be closed: it
  complains about itself on stderr, with a traceback, when it is thrown away.
- What is raised in the functions that Python calls around ``os.fork`` is printed and forgotten:
  an interrupt there is lost, and the program goes on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Signals that end programs.
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM})


def run_whole(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``asyncio.run(work())``; interrupts wait until the loop is there."""
    with ExitStack() as stack:
        with held_signals():
            runner = stack.enter_context(asyncio.Runner())
            runner.get_loop()
        return runner.run(work())


@contextmanager
def held_signals() -> Iterator[None]:
    """Have signals that end programs arrive at the end of the block.

    A process forked within inherits the mask: it has to ``release_signals``.
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
    """In the child of a fork within ``held_signals``: let it be ended from now on."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
