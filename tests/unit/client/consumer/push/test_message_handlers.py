"""The pool that runs handlers on the loop."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from skylark.client.consumer.push.message_handlers import (
    BURST_MAX,
    Handler,
    LoopWorkers,
    bind,
)
from skylark.core.clock import yield_once
from skylark.core.errors import ClientError
from skylark.core.lifecycle import Tasks
from skylark.testing.virtual_clock import VirtualClock
from tests.unit.client.consumer.jobs import Work
from tests.unit.client.consumer.pushes import until


async def nothing() -> str:
    return "done"


def test_coroutine_functions_are_recognised() -> None:
    class Callable:
        async def __call__(self, message: object) -> None: ...

    async def handler(extra: int, message: object) -> None: ...

    async def simple(message: object) -> None: ...

    assert bind("T", simple, 1).is_async
    assert bind("T", Callable(), 1).is_async
    assert bind("T", functools.partial(handler, 1), 1).is_async
    assert not bind("T", print, 1).is_async
    assert bind("T", print, 1).name == "print"


def test_generator_functions_are_refused() -> None:
    def plain(message: object) -> Iterator[None]:
        yield

    async def asynchronous(message: object) -> AsyncIterator[None]:
        yield

    class Callable:
        def __call__(self, message: object) -> Iterator[None]:
            yield

        def method(self, message: object) -> Iterator[None]:
            yield

    for handler in (
        plain,
        asynchronous,
        Callable(),
        Callable().method,
        functools.partial(plain),
    ):
        with pytest.raises(ClientError, match="topic T must not be a generator function"):
            bind("T", handler, 1)


async def test_a_coroutine_that_returns_a_generator_has_failed() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def returns_generator() -> object:
        return numbers()

    async def returns_coroutine() -> object:
        return nothing()

    async def returns_text() -> object:
        return "text"

    clock = VirtualClock()
    workers = LoopWorkers("g", 2, clock, Tasks("t"))
    jobs = [Work(returns_generator), Work(returns_coroutine), Work(returns_text)]
    workers.submit([*jobs])
    await clock.drain()
    errors = [str(job.ends[0][1]) for job in jobs]
    assert "returned a generator" in errors[0]
    assert "returned a coroutine" in errors[1]
    assert jobs[2].ends == [("text", None)]
    assert await workers.close(1.0)


async def test_handlers_that_never_wait_share_a_task() -> None:
    tasks = Tasks("t")
    workers = LoopWorkers("g", 20, VirtualClock(), tasks)
    seen: set[object] = set()

    async def note() -> None:
        seen.add(asyncio.current_task())

    workers.submit([Work(note) for _ in range(BURST_MAX)])
    for _ in range(5):
        await yield_once()
    assert len(seen) == 1
    assert await workers.close(1.0)


async def test_no_more_than_the_number_run_at_once_and_in_order() -> None:
    clock = VirtualClock()
    workers = LoopWorkers("g", 3, clock, Tasks("t"))
    started: list[int] = []
    running = most = 0

    async def handler(index: int) -> None:
        nonlocal running, most
        started.append(index)
        running += 1
        most = max(most, running)
        await clock.sleep(1)
        running -= 1

    workers.submit([Work(functools.partial(handler, index)) for index in range(7)])
    await clock.drain()
    assert (started, workers.running) == ([0, 1, 2], 3)
    await clock.advance(seconds=3)
    assert (started, most, workers.running) == (list(range(7)), 3, 0)
    assert await workers.close(1.0)


async def test_a_long_burst_lets_others_run() -> None:
    workers = LoopWorkers("g", 1, VirtualClock(), Tasks("t"))
    jobs = [Work(nothing) for _ in range(BURST_MAX * 3)]
    workers.submit(list(jobs))
    turns = 0
    while not jobs[-1].ends:
        await yield_once()
        turns += 1
    assert turns >= 3
    assert await workers.close(1.0)


async def test_a_timeout_of_a_handler_is_its_own() -> None:
    """``asyncio.timeout`` cancels the current task: that must be one of the handler's."""
    workers = LoopWorkers("g", 2, VirtualClock(), Tasks("t"))

    async def handler() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    first, second = Work(handler), Work(nothing)
    workers.submit([first, second])
    await until(lambda: first.ends)
    assert isinstance(first.ends[0][1], TimeoutError)
    assert second.ends == [("done", None)]
    assert await workers.close(1.0)


@pytest.mark.parametrize("woken", [False, True])
async def test_a_cancelled_task_is_replaced(woken: bool) -> None:
    """Whoever cancels all tasks of a loop does not stop its consumers."""
    clock = VirtualClock()
    workers = LoopWorkers("g", 2, clock, Tasks("t"))
    before = asyncio.all_tasks()
    workers.submit([Work(nothing)])
    await clock.drain()
    (task,) = asyncio.all_tasks() - before
    job = Work(nothing)
    if woken:
        workers.submit([job])
    task.cancel()
    await clock.drain()
    if not woken:
        workers.submit([job])
    await clock.drain()
    assert job.ends == [("done", None)]
    task.cancel()
    assert await workers.close(1.0)


async def test_closing_starts_nothing_more() -> None:
    clock = VirtualClock()
    workers = LoopWorkers("g", 1, clock, Tasks("t"))
    gate = asyncio.Event()
    first, second, third = Work(gate.wait), Work(nothing), Work(nothing)
    workers.submit([first, second])
    await clock.drain()
    closing = asyncio.ensure_future(workers.close(10.0))
    await clock.drain()
    workers.submit([third])
    gate.set()
    await clock.drain()
    assert await closing
    assert first.ends == [(True, None)]
    assert (second.ends, second.discarded, third.discarded) == ([], 1, 1)


async def test_a_handler_that_ignores_its_cancellation_does_not_hold_up_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    workers = LoopWorkers("g", 1, clock, Tasks("t"))
    gate = asyncio.Event()

    async def stubborn() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.wait()

    job = Work(stubborn)
    workers.submit([job])
    await clock.drain()
    closing = asyncio.ensure_future(workers.close(5.0))
    await clock.advance(seconds=6)
    assert await closing is False
    assert "1 cancelled handlers have not ended" in caplog.text
    gate.set()
    await clock.drain()


async def test_jobs_that_are_not_wanted_any_more_are_passed_over() -> None:
    workers = LoopWorkers("g", 1, VirtualClock(), Tasks("t"))
    first, second = Work(nothing, wanted=False), Work(nothing)
    workers.submit([first, second])
    for _ in range(3):
        await yield_once()
    assert (first.ends, second.ends) == ([], [("done", None)])
    assert await workers.close(1.0)


async def test_nothing_of_a_failed_handler_is_kept_by_an_idle_task() -> None:
    class Load: ...

    seen: list[weakref.ref[Load]] = []

    async def fail() -> None:
        load = Load()
        seen.append(weakref.ref(load))
        raise ValueError

    workers = LoopWorkers("g", 1, VirtualClock(), Tasks("t"))
    job = Work(fail)
    workers.submit([job])
    for _ in range(3):
        await yield_once()
    assert isinstance(job.ends.pop()[1], ValueError)
    gc.collect()
    assert seen[0]() is None
    assert await workers.close(1.0)


# ---- what a handler must look like ---------------------------------------------------------------


class Handlers:
    """Functions that can or cannot be called with one message."""

    def nothing(self) -> None: ...

    def two(self, message: object, context: object) -> None: ...

    async def two_async(self, message: object, context: object) -> None: ...

    def keyword(self, message: object, *, context: object) -> None: ...

    def one(self, message: object, context: object = None) -> None: ...

    def any_number(self, *messages: object) -> None: ...


@pytest.mark.parametrize("name", ["nothing", "two", "two_async", "keyword"])
def test_a_handler_that_cannot_be_called_with_a_message_is_refused(name: str) -> None:
    with pytest.raises(ClientError, match=rf"Handlers\.{name} .*one argument") as caught:
        bind("T", getattr(Handlers(), name), 1)
    assert "T" in str(caught.value)


def test_other_handlers_are_accepted() -> None:
    given = Handlers()
    kept: list[object] = []
    handlers: tuple[Handler, ...] = (
        given.one, given.any_number, partial(given.two, 1), print, kept.append
    )  # fmt: skip
    for handler in handlers:
        assert bind("T", handler, 1).handler == handler
