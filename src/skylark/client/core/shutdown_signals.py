"""Ends ``run()`` of a client on SIGTERM or Ctrl-C.

Only this module uses signals, and only in the main thread; in other threads ``run()`` continues
until it is cancelled or its client is stopped. The first signal requests the end and restores the
old handlers, so a second one ends the program at once.
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

    The call may interrupt the thread anywhere, so it must not take locks.
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
