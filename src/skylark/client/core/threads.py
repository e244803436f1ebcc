"""Daemon threads for work that must not block an event loop.

A daemon thread never keeps a program from ending. Threads of ``asyncio.to_thread`` and of a plain
``ThreadPoolExecutor`` can: the interpreter waits for them when the program ends.

======================  ========================================================================
:func:`call_in_thread`  a function of the application, in a new thread
:class:`DaemonExecutor`  short work of the client (compression, DNS), in a few shared threads
:class:`SerialThread`   callbacks of the application, one after the other
:class:`LoopThread`     an event loop that runs until the interpreter ends
======================  ========================================================================
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

from skylark.core.errors import ClientStateError

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

DAEMON_THREADS_MAX = 4
#: How long the end of the interpreter waits for an event loop to return from its last callback.
LOOP_END_S = 1.0

_loop_threads: list[LoopThread] = []  # of this process and, in a forked child, of its parents


def _end_loops() -> None:
    for thread in reversed(_loop_threads):
        thread.end()


# Functions of atexit are called in reverse order. Registered here, when the module is imported,
# this one is called after those of applications, which may still stop their clients.
atexit.register(_end_loops)


def interpreter_ending() -> ClientStateError:
    """The error for calls that no loop will run any more."""
    return ClientStateError(
        "the interpreter is ending",
        hint="stop clients before the program ends, or in a function of atexit",
    )


async def call_in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a function that may block, in a new thread; a cancellation ends only the wait.

    A new thread rather than one of a pool, so that a function that hangs, or waits for another
    call, delays no other call.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)  # type: ignore[arg-type]
        else:
            outcome.set_exception(error)

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function, *args)
        except (StopIteration, SystemExit, KeyboardInterrupt) as raised:
            # A future cannot hold the first; the others would end the loop of the caller.
            error = RuntimeError(f"{_name(function)} raised {raised!r}")
        except BaseException as raised:  # noqa: BLE001 - the caller gets any error
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            logger.debug("%r is closed: the result of %r is dropped", loop, function)

    threading.Thread(target=work, name=f"skylark-{_name(function)}", daemon=True).start()
    return await outcome


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


class DaemonExecutor(ThreadPoolExecutor):
    """An executor with daemon threads; event loops require this base class."""

    def __init__(self, threads_max: int = DAEMON_THREADS_MAX) -> None:
        super().__init__(threads_max)
        self._threads_max = threads_max
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See :meth:`concurrent.futures.Executor.submit`."""
        future: Future[T] = Future()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self._threads_max:
                self._started += 1
                name = f"skylark-work-{self._started}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._work.put(partial(_complete, future, partial(fn, *args, **kwargs)))
        return future

    def _serve(self) -> None:
        while True:
            self._work.get()()
            with self._lock:
                self._idle += 1


def _complete(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - any error belongs into the future
        future.set_exception(error)
    else:
        future.set_result(result)


class SerialThread:
    """Calls functions in one thread, in order; the first call starts the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = False
        self._closed = False

    def post(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call ``function(*args)`` soon and log its errors; ignored after :meth:`close`."""
        with self._lock:
            if self._closed:
                return
            self._calls.put(partial(function, *args))
            if not self._started:
                self._started = True
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def close(self) -> None:
        """End the thread after the calls that wait; returns at once."""
        with self._lock:
            self._closed = True
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                logger.exception("a listener failed")


class LoopThread:
    """An event loop on a daemon thread; an error that escapes a callback does not end it.

    The loop ends when the interpreter does, before that destroys objects: a loop written in C that
    still waits for sockets then may crash the process. Functions that an application registers with
    :mod:`atexit` run before that, unless they were registered before this module was imported: a
    call to the loop then would never be answered, so callers check :attr:`has_ended`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        """``prepare`` is called first, in the thread.

        Raises ClientStateError where the interpreter starts no threads any more: Python 3.12 starts
        none in functions of :mod:`atexit`, other versions do.
        """
        self.loop = loop
        self.has_ended = False  #: or is about to
        self._prepare = prepare
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            loop.close()
            if "shutdown" in str(error):
                raise interpreter_ending() from None
            raise  # the system has no thread left
        _loop_threads.append(self)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is that of the loop."""
        return threading.current_thread() is self._thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        if self._prepare is not None:
            self._prepare()
        while not self.has_ended:
            try:
                self.loop.run_forever()
            except BaseException:  # a hook that calls sys.exit() ends its own call, not all others
                logger.exception("a callback interrupted the loop of a client, which continues")

    def end(self) -> None:
        """End the loop, and wait for that briefly; at the end of the interpreter."""
        if os.getpid() != self._pid:  # a forked child has the loop of its parent, and no thread
            return
        self.has_ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LOOP_END_S)
