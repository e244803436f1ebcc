"""The control loop of clients, and calls between it and the loops of applications.

Heartbeats, lock renewals and rebalancing must continue while an application blocks its event loop.
So they run on a separate loop: :class:`ControlThread`, one daemon thread per process, started with
the first client. Sends and pulls (the *data plane*) run on the loop on which they are called. Calls
between the two::

    data -> control   await control.run(coroutine)      control.post(callback, ...)
    control -> data   Handover(data_loop).post(callback, ...)

:class:`InlineControl` has the same interface and runs everything on the current loop, for tests on
virtual time. The blocking clients have another private loop for their data plane
(:mod:`skylark.client.blocking.event_loop_thread`), because hooks of an application run on it.

**Fork.** A child inherits the sockets of its parent but not its threads. So it must not use the
clients of its parent: :meth:`Control.run` and :meth:`Control.post` raise ClientStateError there.
Clients that the child makes get a new control thread.

**The end.** The thread is a daemon: it never keeps a program from ending. Its loop ends with the
interpreter (:class:`~skylark.client.core.threads.LoopThread`), and would never answer a call after
that: :meth:`Control.run` and :meth:`Control.post` then raise ClientStateError, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, final

from skylark.client.core.threads import LoopThread, interpreter_ending
from skylark.core.errors import ClientStateError
from skylark.net.event_loop import new_event_loop

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREAD_NAME: Final = "skylark-control"
_this_thread = threading.local()


def in_control_thread() -> bool:
    """Whether this is the control thread, which must not wait for a client."""
    return hasattr(_this_thread, "is_control")


def _mark_this_thread() -> None:
    _this_thread.is_control = True


class Control:
    """A loop that no application blocks, and calls to it from other loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pid = os.getpid()
        self.loop = loop  #: where the work runs

    @property
    def has_ended(self) -> bool:
        """Whether the loop runs no more work, because the interpreter is ending."""
        return False

    def check(self) -> None:
        """Raise ClientStateError in a forked child, or when the interpreter is ending."""
        self.check_process()
        if self.has_ended:
            raise interpreter_ending()

    def check_process(self) -> None:
        """Raise ClientStateError in a forked child."""
        if os.getpid() != self._pid:
            raise ClientStateError(
                f"this client belongs to process {self._pid}, from which process {os.getpid()}"
                " was forked",
                hint="make clients after the fork, in the process that uses them",
            )

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run ``work`` on the control loop; the result is awaited on the calling loop.

        Cancelling the wait cancels the work. Raises ClientStateError in a forked child, and after
        the end of the loop.
        """
        try:
            self.check()
            here = asyncio.get_running_loop()
        except BaseException:
            work.close()
            raise
        if here is self.loop:
            task = here.create_task(work)
            task.add_done_callback(_retrieve)
            return task
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_seen(work), self.loop))

    def post(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call ``callback(*args)`` on the control loop soon; from any thread; raises as run()."""
        self.check()
        self.loop.call_soon_threadsafe(callback, *args)


async def _seen(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; its error counts as retrieved even if the waiting task was cancelled."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(_retrieve)
    return await work


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


@final
class ControlThread(Control):
    """A control loop on a daemon thread; :func:`shared_control` returns that of the process."""

    def __init__(self) -> None:
        super().__init__(new_event_loop())
        self._thread = LoopThread(self.loop, THREAD_NAME, _mark_this_thread)

    @property
    def has_ended(self) -> bool:
        return self._thread.has_ended


@final
class InlineControl(Control):
    """Control work on the running loop."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())


class Handover:
    """Calls from other threads into one event loop, in order; one wake-up serves many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False

    def post(self, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
        """Call ``callback(*args)`` on the loop soon; False if the loop is closed."""
        self._waiting.append((callback, args))
        if not self._woken:
            # Two threads may both get here: the loop is woken twice then, which is harmless.
            try:
                self._woken = True
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                self._woken = False
                logger.debug("%r is closed: calls are dropped", self.loop)
                self._waiting.clear()
                return False
            except BaseException:  # an interrupt: the loop may not have been woken
                self._woken = False
                raise
        return True

    def _deliver(self) -> None:
        # The flag first: calls that are added from here on wake the loop again.
        self._woken = False
        for _ in range(len(self._waiting)):
            callback, args = self._waiting.popleft()
            try:
                callback(*args)
            except Exception:
                logger.exception("a call from another thread failed: %r", callback)


class PerProcess(Generic[T]):
    """One object per process, made at the first call; for module level.

    A forked child inherits the memory of its parent but not its threads, so the parent's object
    would never respond. The child makes another one, and keeps the parent's unused, so that the
    garbage collector does not close a loop that belongs to another process.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._own: T | None = None
        self._of_parents: list[T] = []
        if hasattr(os, "register_at_fork"):  # Windows knows no fork
            os.register_at_fork(after_in_child=self._forget_parent)

    def __call__(self) -> T:
        with self._lock:
            if self._own is None:
                self._own = self._make()
            return self._own

    def _forget_parent(self) -> None:
        self._lock = threading.Lock()  # the old one may be held by a thread that is not here
        if self._own is not None:
            self._of_parents.append(self._own)
            self._own = None


#: The control thread of this process.
shared_control: Final = PerProcess(ControlThread)
