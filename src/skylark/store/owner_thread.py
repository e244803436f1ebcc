"""What the store asks of the thread that owns it: timers, and a way back from other threads.

The store belongs to one thread, the broker's event loop, and has no lock on its data. Work that
blocks (sync, allocation, commit) runs on a ``concurrent.futures.Executor``; a worker touches only
file handles and never the store's state. Its completion comes back through :data:`Post`::

    owner                                   worker
      submit(handle.sync) ------------------> fdatasync
      state changes  <------- post(finish) -- done

In the broker the scheduler is the loop's clock and ``post`` is ``loop.call_soon_threadsafe``; in
tests both are plain queues that the test turns by hand. A process that belongs to a store calls
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

#: Have a callback run in the owner's thread, soon, and never within the call. Safe in any thread.
Post: TypeAlias = Callable[[Callable[[], None]], object]

#: Have a callback run in the owner's thread whenever a descriptor can be read, until what is
#: returned is called. To be called by the owner.
Watch: TypeAlias = Callable[[int, Callable[[], None]], Callable[[], object]]


class Scheduler(TimeSource, Protocol):
    """Timers in the owner's thread; every :class:`skylark.core.clock.Clock` is one."""

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> TimerHandle:
        """Call ``callback(*args)`` once ``monotonic()`` has reached ``when``."""


def post_when_done(future: Future[T], post: Post, callback: Callable[[Future[T]], None]) -> None:
    """Have the owner run ``callback(future)`` when the worker is done with it."""
    future.add_done_callback(lambda done: post(lambda: callback(done)))


def share_interpreter() -> None:
    """Let the short steps of worker threads in between those of a busy owner.

    A thread that syncs a file needs the interpreter for some microseconds before and after the
    system call. By default a busy owner would let it wait 5 ms each time, many times as long as the
    sync itself, and so would every sender that waits for the sync. For whole processes only: the
    setting is not ours to change in an application that has a store in it.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
