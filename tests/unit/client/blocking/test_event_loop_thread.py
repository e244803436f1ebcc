"""The way into the private loop: results, errors, interrupts, wrong callers."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

import pytest

from skylark.client.blocking.event_loop_thread import (
    THREAD_NAME,
    EventLoopThread,
    shared_loop_thread,
)
from skylark.client.core.control_loop import shared_control
from skylark.core.errors import ClientStateError
from tests.unit.client.blocking.interrupts import interrupt_results

WAIT_S = 10


async def thread_name() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise LookupError("not here")


def test_there_is_one_daemon_thread() -> None:
    async def current() -> threading.Thread:
        return threading.current_thread()

    with ThreadPoolExecutor(8) as pool:
        (thread,) = set(pool.map(lambda _: shared_loop_thread().call(current()), range(64)))
    assert (thread.name, thread.daemon) == (THREAD_NAME, True)


def test_errors_reach_the_caller_with_the_place_that_raised_them() -> None:
    with pytest.raises(LookupError, match="not here") as caught:
        shared_loop_thread().call(fail())
    assert caught.traceback[-1].name == "fail"


def test_many_threads_call_at_once() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: shared_loop_thread().call(double(n)), range(1000)))
    assert found == list(range(0, 2000, 2))


def test_a_call_that_is_cancelled_inside_is_an_error_outside() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ClientStateError, match="stopped meanwhile"):
        shared_loop_thread().call(cancelled())


def test_an_interrupt_cancels_the_call() -> None:
    begun, ended = threading.Event(), threading.Event()
    unused: list[None] = []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        assert begun.wait(WAIT_S)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        shared_loop_thread().call(work(), unused.append)
    assert ended.is_set()
    shared_loop_thread().call(thread_name())
    assert unused == []


def test_a_call_from_the_loop_itself_is_refused() -> None:
    portal = shared_loop_thread()

    async def inside() -> None:
        portal.call(fail())

    with pytest.raises(ClientStateError, match=r"would wait for itself.*hand the work to another"):
        portal.call(inside())


def test_a_call_from_the_control_thread_is_refused() -> None:
    portal = shared_loop_thread()

    async def inside() -> None:
        portal.call(thread_name())

    refused = asyncio.run_coroutine_threadsafe(inside(), shared_control().loop)
    with pytest.raises(ClientStateError, match="would wait for itself"):
        refused.result(WAIT_S)


def test_a_forked_child_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = shared_loop_thread()  # made before the fork, also if this test is the first
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(ClientStateError, match="was forked: make clients after the fork"):
        portal.call(fail())


def test_nothing_waits_while_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = shared_loop_thread()
    monkeypatch.setattr("sys.is_finalizing", lambda: True)
    with pytest.raises(ClientStateError, match="the interpreter is ending"):
        portal.call(fail())


class Numbers:
    """An endless generator that knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def __call__(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                yield number
        finally:
            self.closed.set()


def test_iteration_to_the_end() -> None:
    numbers = Numbers()
    assert list(shared_loop_thread().iterate(numbers())) == [0, 1, 2]
    assert numbers.closed.is_set()


def test_leaving_an_iteration_closes_the_source() -> None:
    numbers = Numbers()
    for number in shared_loop_thread().iterate(numbers()):
        assert number == 0
        break
    assert numbers.closed.wait(WAIT_S)


def test_an_iterator_may_be_dropped_on_the_loop_thread() -> None:
    portal, numbers = shared_loop_thread(), Numbers()
    held = [portal.iterate(numbers())]
    assert next(held[0]) == 0
    portal.call_plain(held.clear)
    assert numbers.closed.wait(WAIT_S)


def test_an_iterator_may_be_dropped_on_the_control_thread() -> None:
    portal, numbers = shared_loop_thread(), Numbers()
    held = [portal.iterate(numbers())]
    assert next(held[0]) == 0
    shared_control().post(held.clear)
    assert numbers.closed.wait(WAIT_S)


def test_a_result_that_came_with_an_interrupt_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = shared_loop_thread()
    unused: queue.SimpleQueue[object] = queue.SimpleQueue()
    interrupt_results(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        portal.call(thread_name(), unused.put)
    assert unused.get(timeout=WAIT_S) == THREAD_NAME
    with pytest.raises(KeyboardInterrupt):
        next(portal.iterate(Numbers()(), unused.put))
    assert unused.get(timeout=WAIT_S) == 0


def test_work_of_the_loop_runs_in_daemon_threads() -> None:
    async def names() -> list[tuple[str, bool]]:
        loop = asyncio.get_running_loop()
        threads = await asyncio.gather(
            *(loop.run_in_executor(None, threading.current_thread) for _ in range(50))
        )
        return sorted({(thread.name, thread.daemon) for thread in threads})

    found = EventLoopThread().call(names())
    assert 1 <= len(found) <= 4
    assert all(daemon for _, daemon in found)


def test_a_call_that_wants_to_exit_ends_only_itself() -> None:
    portal = EventLoopThread()

    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        portal.call(leave())
    assert portal.call(thread_name()) == THREAD_NAME
