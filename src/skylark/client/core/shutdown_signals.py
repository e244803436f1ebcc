"""Ends a program on SIGTERM or Ctrl-C while ``run()`` is active.

Nothing else in a client touches signals, and this only in the main thread; elsewhere ``run()`` goes
on until it is cancelled or its client is stopped. The first signal asks for the end and gives the
signals back, so that a second one ends the program at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def call_on_signal(callback: Callable[[], object]) -> AbstractContextManager[None]:
    """Within the block the first SIGINT or SIGTERM calls ``callback`` on the running loop."""
    # Not loop.add_signal_handler, which does not exist on Windows: this wakes the loop as well.
    loop = asyncio.get_running_loop()
    return on_signal(lambda: loop.call_soon_threadsafe(callback))


@contextlib.contextmanager
def on_signal(callback: Callable[[], object]) -> Iterator[None]:
    """Within the block the first SIGINT or SIGTERM calls ``callback``, in the main thread.

    That is between any two steps of what the thread does there: take no lock in it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def give_back() -> None:
        for number, handler in before.items():
            # None: it was not set from Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def received(number: int, frame: FrameType | None) -> None:
        del number, frame
        give_back()
        callback()

    for number in _SIGNALS:
        signal.signal(number, received)
    try:
        yield
    finally:
        give_back()
