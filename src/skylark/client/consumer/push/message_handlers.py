"""Handlers of an application: their binding to topics, and the pool that runs coroutines.

A :class:`Binding` connects a handler to a topic. Two pools run jobs in the order of submission, at
most ``concurrency`` at a time:

* :class:`LoopWorkers` are tasks on the application's loop. A task runs job after job, so a handler
  that never awaits needs no separate task; only when one awaits, the next task continues with the
  jobs behind it. After some jobs in a row a task yields to the rest of the loop.
* :class:`~skylark.client.consumer.push.handler_threads.ThreadWorkers` are daemon threads.

A job is an object with ``begin``, ``call`` and ``finish`` (:class:`Job`), which belong to the
caller. A handler has failed if it raises, if it is cancelled by what it awaits, or if it returns a
generator or a coroutine, whose code never ran. A failed handler never ends a pool. Each call has a
copy of the context, so context variables that a handler sets are not seen by later ones. Closing a
pool starts no more handlers and waits for running ones. After the given time coroutines are
cancelled; threads cannot be, so their results are ignored and they end with the process.
"""

from __future__ import annotations

import abc
import asyncio
import contextvars
import inspect
import logging
import types
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

import msgspec

from skylark.client.core.argument_checks import checks_arguments, refuse_generator
from skylark.core.clock import Clock, yield_once
from skylark.core.errors import ClientError
from skylark.core.lifecycle import Tasks

logger = logging.getLogger(__name__)

#: Takes a message, or a list of them with ``batch``; may be a coroutine function.
Handler: TypeAlias = Callable[[Any], Any]
HandlerT = TypeVar("HandlerT", bound=Handler)

#: Jobs that a task runs before it yields to the loop.
BURST_MAX: Final = 64
#: How long to wait for cancelled handlers.
CANCEL_GRACE_S: Final = 1.0


class Binding(msgspec.Struct, frozen=True, eq=False):
    """A handler, its topic and its batch size."""

    topic: str  #: as the application knows it
    handler: Handler
    is_async: bool
    batch: int = 1

    @property
    def name(self) -> str:
        return getattr(self.handler, "__qualname__", None) or repr(self.handler)


def bind(topic: str, handler: Handler, batch: int) -> Binding:
    """A binding; raises ClientError for a handler that cannot be called with a message."""
    if not callable(handler):
        raise _not_a_handler(topic, handler)
    refuse_generator(f"the handler of topic {topic}", handler)
    _check_signature(topic, handler, batch)
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
    )
    return Binding(topic, handler, is_async, batch)


def _not_a_handler(topic: str, given: object) -> ClientError:
    return ClientError(
        f"the handler of topic {topic} is {type(given).__name__}, no function",
        hint=f"a filter is a keyword: tags={given!r}" if isinstance(given, str) else None,
    )


def _check_signature(topic: str, handler: Handler, batch: int) -> None:
    try:
        signature = inspect.signature(handler)
    except ValueError:  # of some functions in C
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(handler, "__qualname__", None) or repr(handler)
        what = "the message" if batch == 1 else "a list of messages"
        raise ClientError(
            f"the handler of topic {topic}, {name} {signature}, cannot be called with one argument,"
            f" {what}: {error}"
        ) from None


def check_result(result: Any) -> None:
    """Raise TypeError for a generator or a coroutine, whose code has not run."""
    if isinstance(result, (Generator, AsyncGenerator)):
        raise TypeError("the handler returned a generator, whose code was not run")
    if isinstance(result, Coroutine):
        result.close()
        raise TypeError(
            "the handler returned a coroutine, which was not awaited: declare it with async def"
        )


class SubscribeKeywords(TypedDict):
    """The keywords of :meth:`HandlerSubscriptions.subscribe`."""

    tags: str | None
    sql: str | None
    orderly: bool
    batch: int


@checks_arguments
class HandlerSubscriptions(abc.ABC):
    """The method ``subscribe`` of push consumers, asynchronous and blocking."""

    @overload
    def subscribe(
        self,
        topic: str,
        handler: None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        batch: int = 1,
    ) -> Callable[[HandlerT], HandlerT]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        handler: HandlerT,
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        batch: int = 1,
    ) -> HandlerT: ...

    def subscribe(
        self,
        topic: str,
        handler: Any = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        batch: int = 1,
    ) -> Any:
        """Call ``handler`` with the messages of a topic; without one it is a decorator.

        ``tags`` (``"A || B"``) or an ``sql`` condition filter them; ``orderly`` keeps the order of
        each queue, and is the same for all topics of a consumer; with ``batch`` above 1 the
        handler gets lists of at most so many messages. A second subscription with another
        filter is refused; one with the same filter replaces the handler.
        After the start, the queues come with the next rebalance. Raises ClientError.
        """
        add = self._adding(topic, tags=tags, sql=sql, orderly=orderly, batch=batch)

        def add_and_return(function: HandlerT) -> HandlerT:
            add(function)
            return function

        return add_and_return if handler is None else add_and_return(handler)

    @abc.abstractmethod
    def _adding(self, topic: str, **how: Unpack[SubscribeKeywords]) -> Callable[[Handler], None]:
        """Check the arguments of :meth:`subscribe`; returns the function that adds a handler."""


class Job(Protocol):
    """One call of a handler."""

    def begin(self) -> bool:
        """Called just before; returns whether to call the handler. In the thread of the handler."""

    def call(self) -> Any:
        """Call the handler; returns a coroutine if it is one."""

    def finish(self, result: Any, error: BaseException | None) -> Coroutine[Any, Any, None] | None:
        """The handler has returned or raised; returns follow-up work or None. On the loop."""

    def discard(self) -> None:
        """The handler will not be called: ``begin`` said so, or the pool is closed. On the loop."""


class LoopWorkers:
    """Runs jobs of coroutine functions on the running loop."""

    def __init__(self, name: str, count: int, clock: Clock, tasks: Tasks) -> None:
        """``tasks`` own the follow-up work of calls whose task was cancelled."""
        self._name = name
        self._count = count
        self._clock = clock
        self._follow_ups = tasks
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[Job, asyncio.Task[None]] = {}  # jobs whose handlers wait
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False  # a task was woken that has not run yet
        self._closed = False
        self.running = 0  #: handlers that have been called and have not ended

    def submit(self, jobs: list[Job]) -> None:
        """Run these jobs after those that wait."""
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
            if not idle.done():  # else its task was cancelled
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
            logger.error("%s failed: %s", task.get_name(), error, exc_info=error)
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
        """Run jobs until none is left; a separate function, so that an idle task keeps no job."""
        ready = self._ready
        burst = 0
        while ready:
            job = ready.popleft()
            if ready and not self._waking:
                self._wake()  # runs when this one waits, if it does
            if job.begin():
                # Inline, because another coroutine per message would double the cost.
                result: Any = None
                error: BaseException | None = None
                self.running += 1
                try:
                    result = await self._call(job)
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
            else:
                job.discard()
            burst += 1
            if burst >= BURST_MAX:
                burst = 0
                await yield_once()

    @types.coroutine
    def _call(self, job: Job) -> Generator[Any, Any, Any]:
        """Await the coroutine of a handler, each step of it in a copy of the context."""
        run = contextvars.copy_context().run
        handler = run(job.call)
        step, argument = handler.send, None
        task = asyncio.current_task()
        assert task is not None
        try:
            while True:
                waits_for = run(step, argument)
                self._running[job] = task
                try:
                    argument = yield waits_for
                    step = handler.send
                except BaseException as error:  # noqa: BLE001 - the handler gets any error
                    step, argument = handler.throw, error
        except StopIteration as end:
            return end.value
        finally:
            self._running.pop(job, None)

    def cancel(self, is_wanted: Callable[[Job], bool]) -> list[Job]:
        """Cancel handlers that wait; returns their jobs, whose handlers end in a later turn."""
        wanted = [job for job in self._running if is_wanted(job)]
        for job in wanted:
            task = self._running.pop(job)
            task.cancel(f"{self._name}: the handler took longer than consume_timeout")
        return wanted

    def _ends_task(self, job: Job, cancelled: asyncio.CancelledError) -> bool:
        """Whether the task that called a handler ends with it; else the handler has failed."""
        if self._closed:
            return True  # the wait is over: the result is not used
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return False
        # The task itself was cancelled, by the handler or because the loop ends. Another task
        # continues.
        self._follow_up(job.finish(None, cancelled))
        return True

    def _follow_up(self, work: Coroutine[Any, Any, None] | None) -> None:
        if work is not None:
            self._follow_ups.spawn(work, name="finish")

    @property
    def is_current(self) -> bool:
        """Whether the running task belongs to this pool."""
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # no loop runs in this thread
            return False

    async def close(self, wait_s: float) -> bool:
        """Start no more jobs, and wait for running ones; whether all ended in time."""
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
            logger.warning("%s: %d cancelled handlers have not ended", self._name, len(self._tasks))
        return False

    async def _wait(self, wait_s: float) -> bool:
        try:
            async with self._clock.timeout(wait_s):
                while self._tasks:
                    await asyncio.wait(tuple(self._tasks))
        except TimeoutError:
            return False
        return True
