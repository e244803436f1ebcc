"""Interface between the store and its owner thread: timers, and callbacks from other threads.

One thread owns the store, the broker's event loop, and the store's data has no lock. Work that
blocks (sync, allocation, commit) runs on a ``concurrent.futures.Executor``; a worker uses only file
handles and never the store's state. It reports its completion through :data:`Post`::

    owner                                   worker
      submit(handle.sync) ------------------> fdatasync
      state changes  <------- post(finish) -- done

In the broker the scheduler is the loop's clock and ``post`` is ``loop.call_soon_threadsafe``; in
tests both are plain queues that the test runs itself. A process that only serves a store calls
:func:`share_interpreter`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeAlias, TypeVar, TypeVarTuple

from skylark.core.clock import TimerHandle, TimeSource

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SWITCH_INTERVAL_S: Final = 0.0001

#: Run a callback in the owner's thread soon, never within the call. Safe in any thread.
Post: TypeAlias = Callable[[Callable[[], None]], object]

#: Run a callback in the owner's thread whenever a descriptor is readable, until the returned
#: function is called. Only the owner calls it.
Watch: TypeAlias = Callable[[int, Callable[[], None]], Callable[[], object]]


class Scheduler(TimeSource, Protocol):
    """Timers in the owner's thread; every :class:`skylark.core.clock.Clock` is one."""

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> TimerHandle:
        """Call ``callback(*args)`` once ``monotonic()`` has reached ``when``."""


def post_when_done(future: Future[T], post: Post, callback: Callable[[Future[T]], None]) -> None:
    """Run ``callback(future)`` in the owner's thread when the worker has finished."""
    future.add_done_callback(lambda done: post(lambda: callback(done)))


def share_interpreter() -> None:
    """Let worker threads get the interpreter sooner while the owner is busy.

    A thread that syncs a file needs the interpreter for some microseconds before and after the
    system call. By default it would wait 5 ms each time for a busy owner, many times as long as the
    sync itself, and so would every put that waits for the sync. Only for processes that belong to a
    store: in an application that embeds one, this setting belongs to the application.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
