"""The private event loop of the blocking clients, and calls to it from other threads.

One daemon thread for the whole process runs the loop; it starts with the first client that needs
it. A call hands a coroutine over and waits for its end::

    result = shared_loop_thread().call(producer.send(message))

Many threads may call at once; one wake-up of the loop serves many calls.

**Interrupts.** Ctrl-C, or any other error that a signal handler raises in a waiting thread, cancels
the call, waits a moment for its end, and is raised. A result that can no longer be returned can be
put back (``unused``).

**Calls from the private loop** (in a hook) would wait for themselves forever, so they raise
ClientStateError. So do calls from the control thread, for which the private loop would wait.

**Fork.** The child has no such thread and must not touch the parent's connections: every call
through the parent's loop thread raises ClientStateError there, and new clients get a new one.

**The end.** The loop ends with the interpreter, after the functions that the application has
registered with :mod:`atexit` (:class:`LoopThread`). Calls after that, such as those of an iterator
that is cleaned up, raise ClientStateError.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, final

from skylark.client.blocking.caller_errors import ABOUT_SERVERS, without_frames
from skylark.client.core.control_loop import (
    Handover,
    PerProcess,
    in_control_thread,
)
from skylark.client.core.threads import DaemonExecutor, LoopThread, interpreter_ending
from skylark.core.errors import ClientStateError
from skylark.net.event_loop import new_event_loop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger(__name__)

THREAD_NAME: Final = "skylark-sync"
#: How long to wait for the end of an interrupted call.
CANCEL_GRACE_S: Final = 1.0
# A waiting thread wakes up periodically. On Windows a signal does not interrupt a thread that waits
# for a lock; elsewhere it may arrive just before the wait.
_WAIT_SLICE_S: Final = 0.25 if sys.platform == "win32" else 1.0


class _Call(Generic[T]):
    """One call: started, ended and cancelled on the loop, awaited in another thread."""

    __slots__ = ("_error", "_latch", "_result", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self._latch = threading.Lock()
        self._latch.acquire()

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = ClientStateError("the client was stopped meanwhile")
        else:
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
        self._latch.release()

    def cancel(self, unused: Callable[[T], object] | None) -> None:
        """Cancel the call; ``unused`` gets the result if there is one anyway."""
        if self._task is None:  # the caller was interrupted before it could hand it over
            self._work.close()
            self._latch.release()
            return
        self._task.cancel()
        if unused is not None:
            self._task.add_done_callback(partial(_give_back, unused))

    def wait(self) -> None:
        """Wait for its end; an error of a signal handler ends the wait."""
        while not self._latch.acquire(timeout=_WAIT_SLICE_S):
            pass

    def wait_briefly(self) -> None:
        self._latch.acquire(timeout=CANCEL_GRACE_S)

    def outcome(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it holds this frame, and this frame would hold it
        return self._result  # type: ignore[return-value]


@final
class EventLoopThread:
    """The private loop of this process; :func:`shared_loop_thread` returns it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = new_event_loop()
        self.loop.set_default_executor(DaemonExecutor())
        self._handover = Handover(self.loop)
        self._thread = LoopThread(self.loop, THREAD_NAME)

    def check(self) -> None:
        """Raise ClientStateError if a call would never end, or would use sockets of a parent."""
        if os.getpid() != self._pid:
            raise ClientStateError(
                f"this client belongs to process {self._pid}, from which process {os.getpid()}"
                " was forked",
                hint="make clients after the fork, in the process that uses them",
            )
        if self._must_not_wait:
            raise ClientStateError(
                "a blocking call from the client's own loop would wait for itself",
                hint="hooks must not call clients; hand the work to another thread",
            )
        if self._thread.has_ended or sys.is_finalizing():
            raise interpreter_ending()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is that of the loop."""
        return self._thread.is_current

    @property
    def _must_not_wait(self) -> bool:
        return self.is_current or in_control_thread()

    def call(self, work: Coroutine[Any, Any, T], unused: Callable[[T], object] | None = None) -> T:
        """Run ``work`` on the loop and wait for it.

        ``unused`` is called on the loop with a result that an interrupted caller does not get.
        """
        try:
            self.check()
        except ClientStateError:
            work.close()
            raise
        call = _Call(work)
        try:
            self._handover.post(call.begin)
            call.wait()
        except BaseException:
            self._handover.post(call.cancel, unused)
            call.wait_briefly()
            raise
        return call.outcome()

    def call_plain(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function on the loop and wait for it."""

        async def work() -> T:
            return function(*args)

        return self.call(work())

    def post(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call ``callback(*args)`` on the loop soon."""
        self._handover.post(callback, *args)

    def iterate(
        self, source: AsyncGenerator[T, None], unused: Callable[[T], object] | None = None
    ) -> Iterator[T]:
        """The values of an asynchronous generator; closing the iterator ends it.

        ``unused`` as in :meth:`call`.
        """

        def give_back(found: list[T]) -> None:
            if found and unused is not None:
                unused(found[0])

        try:
            while True:
                found: list[T] = self.call(_next_of(source), give_back)
                if not found:
                    return
                yield found[0]
        except ABOUT_SERVERS as error:
            raise without_frames(error) from error.__cause__
        finally:
            self._close(source)

    def _close(self, source: AsyncGenerator[Any, None]) -> None:
        if self._must_not_wait:  # cleaned up by the garbage collector, which runs in any thread
            self.post(self._end_soon, source)
            return
        with contextlib.suppress(ClientStateError):  # in a forked child, or at the very end
            self.call(_end_of(source))

    def _end_soon(self, source: AsyncGenerator[Any, None]) -> None:
        self.loop.create_task(_end_of(source))


def _give_back(unused: Callable[[T], object], task: asyncio.Task[T]) -> None:
    if not task.cancelled() and task.exception() is None:
        unused(task.result())


async def _next_of(source: AsyncGenerator[T, None]) -> list[T]:
    """The next value, in a list that is empty at the end."""
    async for value in source:
        return [value]
    return []


async def _end_of(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


#: The loop thread of this process.
shared_loop_thread: Final = PerProcess(EventLoopThread)

# Former names, which the Spark package still uses.
Portal = EventLoopThread
shared_portal = shared_loop_thread
