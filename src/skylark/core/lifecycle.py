"""Ordered start and stop of components, and ownership of background tasks.

:class:`Lifecycle` starts components in the order in which they were added and stops them in
reverse, so that each can use those added before it. :class:`Tasks` owns background tasks: every
task has exactly one owner, which keeps a reference, reports a failure once, and ends it.
:func:`join` waits for a task that has several waiters, or that must outlive them.

Invariants:

- A component whose ``start`` raises must clean up itself and is not stopped; those started before
  it are. The caller gets the first error; errors of the clean-up are logged.
- ``stop`` continues after an error and raises all errors at the end, as an ``ExceptionGroup``. It
  may be called at any time and again, and does nothing if nothing runs. A running start ends after
  the component that is starting: what was started is stopped, and the start raises LifecycleError.
- A cancellation does not interrupt a clean-up: the rest is stopped before it is raised.
- The error of a task is logged, or collected while the owner ends; never both and never neither.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol, TypeVar

from skylark.core.errors import ClientStateError, SkylarkError

logger = logging.getLogger(__name__)

T = TypeVar("T")

TASK_COUNT_MAX = 10_000


class LifecycleError(SkylarkError):
    """Started twice, or used after its end."""


class TaskLimitError(LifecycleError):
    """The owner runs as many tasks as its limit allows."""

    retriable: ClassVar[bool] = True


class Component(Protocol):
    """An object that is started and stopped."""

    async def start(self) -> None:
        """Start; if this raises, nothing keeps running."""

    async def stop(self) -> None:
        """Stop all work and release all resources."""


C = TypeVar("C", bound=Component)


class State(enum.Enum):
    """State of a :class:`Lifecycle`, which runs once."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Lifecycle:
    """Ordered start and stop of components; is itself a component."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.NEW
        self._components: list[tuple[str, Component]] = []
        self._started: list[tuple[str, Component]] = []
        self._lock = asyncio.Lock()  # a stop waits for a start under way, and for another stop
        self._stop_requested = False

    def add(self, component: C, name: str | None = None) -> C:
        """Append a component to the order, and return it."""
        if self.state is not State.NEW:
            raise LifecycleError(f"{self.name} is {self.state.value}: nothing can be added")
        self._components.append((name or type(component).__name__, component))
        return component

    async def start(self) -> None:
        async with self._lock:
            if self.state is not State.NEW:
                raise LifecycleError(f"{self.name} cannot start: it is {self.state.value}")
            self.state = State.RUNNING
            for name, component in self._components:
                logger.debug("%s: starting %s", self.name, name)
                try:
                    await component.start()
                except BaseException:
                    await self._undo_start()
                    raise
                self._started.append((name, component))
                if self._stop_requested:
                    await self._undo_start()
                    raise LifecycleError(f"{self.name} was stopped while it started")
            logger.debug("%s: started", self.name)

    async def stop(self) -> None:
        self._stop_requested = True
        async with self._lock:
            if self.state is State.NEW:
                self.state = State.STOPPED
            if self.state is State.STOPPED:
                return
            self.state = State.STOPPED
            errors, cancelled = await self._stop_started()
            logger.debug("%s: stopped", self.name)
        if cancelled is not None:
            for error in errors:
                logger.error("%s: %s", self.name, error, exc_info=error)
            raise cancelled
        if errors:
            raise ExceptionGroup(f"{self.name} did not stop cleanly", errors)

    async def _undo_start(self) -> None:
        self.state = State.STOPPED
        errors, _ = await self._stop_started()
        for error in errors:
            logger.error("%s: undoing a failed start: %s", self.name, error, exc_info=error)

    async def _stop_started(self) -> tuple[list[Exception], asyncio.CancelledError | None]:
        errors: list[Exception] = []
        cancelled: asyncio.CancelledError | None = None
        while self._started:
            name, component = self._started.pop()
            logger.debug("%s: stopping %s", self.name, name)
            try:
                await component.stop()
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception as error:  # noqa: BLE001 - the other components must stop too
                error.add_note(f"while {self.name} stopped {name}")
                errors.append(error)
        return errors, cancelled


class Tasks:
    """The owner of background tasks.

    ``limit`` bounds how many may run at once; a task counts until the turn of the loop after its
    end. None is for an owner whose tasks each have a permit: an ending task returns its permit, and
    the next task may start with it, before the old one is removed here.

    ``on_failure`` is called for every task that fails (after it was logged); errors of tasks that
    fail while the owner ends are raised by :meth:`cancel_and_wait` instead.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int | None = TASK_COUNT_MAX,
        on_failure: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        self.name = name
        self.limit = limit
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._ending = False
        self._errors: list[Exception] = []  # of tasks that failed while ending

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        return self._closed

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run a coroutine as a task of this owner.

        Raises LifecycleError after :meth:`close` and TaskLimitError at the limit; the coroutine
        is closed then, so that it does not linger un-awaited.
        """
        if self._closed:
            work.close()
            raise LifecycleError(f"{self.name} is closed: {name} cannot start")
        if self.limit is not None and len(self._tasks) >= self.limit:
            work.close()
            raise TaskLimitError(
                f"{self.name} already runs {self.limit} tasks: {name} cannot start"
            )
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def close(self) -> None:
        """Refuse new tasks; running ones continue."""
        self._closed = True

    async def wait(self) -> None:
        """Wait until no task is left but the caller."""
        while tasks := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(tasks)

    async def cancel_and_wait(self) -> None:
        """Close, cancel all tasks and wait for their end; raises their errors.

        May be called from one of the tasks, which is not cancelled. Further calls wait, too, and
        raise new errors only.
        """
        self.close()
        self._ending = True
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel(f"{self.name} ends")
        await self.wait()
        errors, self._errors = self._errors, []
        if errors:
            raise ExceptionGroup(f"tasks of {self.name} failed while ending", errors)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._ending and isinstance(error, Exception):
            error.add_note(f"in task {task.get_name()}")
            self._errors.append(error)
            return
        logger.error("task %s failed: %s", task.get_name(), error, exc_info=error)
        if self._on_failure is not None:
            self._on_failure(task.get_name(), error)


async def join(task: asyncio.Future[T]) -> T:
    """The result of ``task``, which continues if the caller is cancelled.

    If the task itself is cancelled, because its client stops, this raises ClientStateError.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise ClientStateError("the client was stopped meanwhile") from None
        raise
