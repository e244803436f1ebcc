"""Handlers of an application: their binding to topics, and the pool that runs coroutines.

A :class:`Binding` ties a handler to a topic. Two pools run jobs, which are taken in the order in
which they came, ``concurrency`` of them at most at a time:

* :class:`LoopWorkers` are tasks of the application's loop. A task takes job after job, so that a
  handler which never waits costs no task of its own; only when one waits the next task goes on
  with the jobs behind. After some jobs in a row a task gives way to the rest of the loop. Context
  variables that a handler sets stay set for later messages of the same task.
* :class:`~skylark.client.consumer.push.handler_threads.ThreadWorkers` are daemon threads.

What to do before and after a call is the caller's: a job is an object with ``begin``, ``call`` and
``finish`` (:class:`Job`). A handler that raises, or is cancelled by what it waited for, has
failed, and so has one that returns a generator or a coroutine: the code of its result never ran. A
pool never ends because of it. Closing a pool lets running handlers go on and starts no
others. A coroutine that is still there after the time given is cancelled; a thread cannot be, its
result is ignored and it ends with the process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from skylark.client.core.argument_checks import refuse_generator
from skylark.core.clock import Clock, yield_once
from skylark.core.errors import ClientError
from skylark.core.lifecycle import Tasks

log = logging.getLogger(__name__)

#: A message, or a list of them if the subscription has ``batch``, to anything or a coroutine.
Handler: TypeAlias = Callable[[Any], Any]

#: Jobs that a task runs before others of the loop get their turn.
BURST_MAX: Final = 64
#: What a cancelled handler gets to end.
CANCEL_GRACE_S: Final = 1.0


class Binding(msgspec.Struct, frozen=True, eq=False):
    """A handler and how it wants its messages."""

    topic: str  #: as the application knows it
    handler: Handler
    is_async: bool
    batch: int = 1

    @property
    def name(self) -> str:
        return getattr(self.handler, "__qualname__", None) or repr(self.handler)


def bind(topic: str, handler: Handler, batch: int) -> Binding:
    """See :class:`Binding`; raises ClientError for what cannot be called, and for generators."""
    if not callable(handler):
        raise ClientError(f"the handler of topic {topic} is {type(handler).__name__}, no function")
    refuse_generator(f"the handler of topic {topic}", handler)
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
    )
    return Binding(topic, handler, is_async, batch)


def check_result(result: Any) -> None:
    """Raise TypeError for a result whose code has not run: the handler has done nothing yet."""
    if isinstance(result, (Generator, AsyncGenerator)):
        raise TypeError("the handler returned a generator, whose code was not run")
    if isinstance(result, Coroutine):
        result.close()
        raise TypeError(
            "the handler returned a coroutine, which was not awaited: declare it with async def"
        )


class Job(Protocol):
    """One call of a handler."""

    def begin(self) -> bool:
        """About to call; False if it must not be called any more. In the thread of the handler."""

    def call(self) -> Any:
        """Call the handler; a coroutine if it is one."""

    def finish(self, result: Any, error: BaseException | None) -> Coroutine[Any, Any, None] | None:
        """It has returned or raised; more work, if there is any. On the loop."""

    def discard(self) -> None:
        """It will never be called: the pool was closed before its turn. On the loop."""


class LoopWorkers:
    """Jobs of coroutines, on the running loop."""

    def __init__(self, name: str, count: int, clock: Clock, tasks: Tasks) -> None:
        """``tasks`` own what follows a call whose task was cancelled."""
        self._name = name
        self._count = count
        self._clock = clock
        self._follow_ups = tasks
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False  # a task was woken that has not run yet
        self._closed = False
        self.running = 0  #: handlers that have been called and have not ended

    def submit(self, jobs: list[Job]) -> None:
        """Run these after those that wait already."""
        if self._closed:
            for job in jobs:
                job.discard()
            return
        self._ready.extend(jobs)
        if not self._waking:
            self._wake()

    def _wake(self) -> None:
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():  # else somebody cancelled its task
                self._waking = True
                idle.set_result(None)
                return
        if len(self._tasks) < self._count:
            self._waking = True
            task = self._loop.create_task(self._work(), name=f"{self._name}:handler")
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._closed:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s", task.get_name(), error, exc_info=error)
        self._waking = False  # it may have been the one that was woken
        if self._ready:
            self._wake()

    async def _work(self) -> None:
        while not self._closed:
            self._waking = False
            await self._run_jobs()
            if not self._closed:
                idle = self._loop.create_future()
                self._idle.append(idle)
                await idle

    async def _run_jobs(self) -> None:
        """Run jobs until there are none; by itself, so that nothing of them is kept while idle."""
        ready = self._ready
        burst = 0
        while ready:
            job = ready.popleft()
            if ready and not self._waking:
                self._wake()  # runs when this one waits, if it does
            if job.begin():
                # In line, for each message: a coroutine of its own would cost as much again.
                result: Any = None
                error: BaseException | None = None
                self.running += 1
                try:
                    result = await job.call()
                    if result is not None:
                        check_result(result)
                except asyncio.CancelledError as cancelled:
                    if self._ends_task(job, cancelled):
                        raise
                    error = cancelled
                except Exception as raised:  # noqa: BLE001 - any error is the outcome of the job
                    error = raised
                finally:
                    self.running -= 1
                work = job.finish(result, error)
                if work is not None:
                    await work
            burst += 1
            if burst >= BURST_MAX:
                burst = 0
                await yield_once()

    def _ends_task(self, job: Job, cancelled: asyncio.CancelledError) -> bool:
        """Whether the task that called a handler ends with it; else the handler has failed."""
        if self._closed:
            return True  # the wait is over: the result is not used
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return False
        # Not what it waited for was cancelled, but the task: by the handler itself, or because the
        # loop ends. Another task takes over.
        self._follow_up(job.finish(None, cancelled))
        return True

    def _follow_up(self, work: Coroutine[Any, Any, None] | None) -> None:
        if work is not None:
            self._follow_ups.spawn(work, name="finish")

    @property
    def is_current(self) -> bool:
        """Whether a handler of this pool asks."""
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # no loop runs in this thread
            return False

    async def close(self, wait_s: float) -> bool:
        """Start nothing more and wait for what runs; whether all of it ended in time."""
        self._closed = True
        while self._ready:
            self._ready.popleft().discard()
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()
        if await self._wait(wait_s):
            return True
        for task in self._tasks:
            task.cancel(f"{self._name} stops")
        if not await self._wait(CANCEL_GRACE_S):
            log.warning("%s: %d handlers do not end though cancelled", self._name, len(self._tasks))
        return False

    async def _wait(self, wait_s: float) -> bool:
        try:
            async with self._clock.timeout(wait_s):
                while self._tasks:
                    await asyncio.wait(tuple(self._tasks))
        except TimeoutError:
            return False
        return True
