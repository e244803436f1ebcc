"""Back-pressure by count and bytes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from skylark.client.core.permits import Permits
from skylark.core.clock import LoopClock
from skylark.core.errors import TooManyRequestsError
from skylark.testing.virtual_clock import VirtualClock
from tests.support.loops import eventually


async def test_takers_wait_in_order_for_count_and_bytes() -> None:
    clock = VirtualClock()
    permits = Permits(clock, count_max=2, size_max=100)
    assert permits.try_take(60)
    assert not permits.try_take(60)
    assert permits.try_take(40)
    assert not permits.try_take(0)
    order: list[str] = []

    async def taker(name: str, size: int) -> None:
        await permits.take(size, 10.0)
        order.append(name)

    waiting = [
        asyncio.ensure_future(taker("large", 90)),
        asyncio.ensure_future(taker("small", 1)),
    ]
    await clock.drain()
    permits.give(40)
    await clock.drain()
    assert order == []  # the small one does not overtake
    permits.give(60)
    await clock.drain()
    assert order == ["large", "small"]
    assert (permits.count, permits.size) == (2, 91)
    await asyncio.gather(*waiting)


async def test_what_is_larger_than_the_limit_goes_alone() -> None:
    permits = Permits(VirtualClock(), count_max=9, size_max=10)
    assert permits.try_take(1_000)
    assert not permits.try_take(1)
    permits.give(1_000)
    assert (permits.count, permits.size) == (0, 0)


async def test_giving_up_lets_others_in() -> None:
    clock = VirtualClock()
    permits = Permits(clock, count_max=5, size_max=100)
    permits.try_take(60)
    late = asyncio.ensure_future(permits.take(90, 1.0))
    await clock.drain()
    small = asyncio.ensure_future(permits.take(10, 5.0))
    await clock.advance(seconds=1)
    with pytest.raises(TooManyRequestsError, match="none ended within 1 s"):
        await late
    await small
    assert (permits.count, permits.size) == (2, 70)


async def test_a_cancelled_taker_takes_nothing() -> None:
    clock = VirtualClock()
    permits = Permits(clock, count_max=1, size_max=100)
    permits.try_take(1)
    waiting = asyncio.ensure_future(permits.take(1, 5.0))
    await clock.drain()
    waiting.cancel()
    permits.give(1)  # in the same turn: the permit must not get lost
    await clock.drain()
    assert waiting.cancelled()
    assert (permits.count, permits.size) == (0, 0)
    other = asyncio.ensure_future(permits.take(1, 5.0))
    await other
    second = asyncio.ensure_future(permits.take(1, 5.0))
    await clock.drain()
    permits.give(1)
    second.cancel()  # after it was let in
    await clock.drain()
    assert (permits.count, permits.size) == (0, 0)
    assert clock.timer_count == 0


def test_threads_wait_for_permits_and_give_up_in_time() -> None:
    permits = Permits(LoopClock(), count_max=1, size_max=100, settings="pending_max")
    permits.take_blocking(10, 0.0)
    with pytest.raises(TooManyRequestsError, match="raise pending_max"):
        permits.take_blocking(10, 0.01)
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(permits.take_blocking, 20, 10.0)
        permits.give(10)
        taking.result(10)
    assert (permits.count, permits.size) == (1, 20)
    permits.give(20)
    assert (permits.count, permits.size) == (0, 0)


async def test_threads_and_tasks_share_permits_in_order() -> None:
    clock = LoopClock()
    permits = Permits(clock, count_max=1, size_max=100)
    assert permits.try_take(1)
    order: list[str] = []

    async def task() -> None:
        await permits.take(2, 10.0)
        order.append("task")

    def thread() -> None:
        permits.take_blocking(3, 10.0)
        order.append("thread")

    first = asyncio.ensure_future(task())
    await eventually(lambda: len(permits._waiting) == 1)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(thread)
        await eventually(lambda: len(permits._waiting) == 2)
        await asyncio.wrap_future(pool.submit(permits.give, 1))  # wakes the loop from a thread
        await first
        permits.give(2)
        await asyncio.wrap_future(second)
    assert order == ["task", "thread"]
    assert (permits.count, permits.size) == (1, 3)


def test_many_threads_lose_no_permit() -> None:
    permits = Permits(LoopClock(), count_max=3, size_max=1_000)
    most, lock = 0, threading.Lock()

    def work() -> None:
        nonlocal most
        for _ in range(200):
            permits.take_blocking(5, 30.0)
            with lock:
                most = max(most, permits.count)
            permits.give(5)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result(60)
    assert (permits.count, permits.size) == (0, 0)
    assert most <= 3
