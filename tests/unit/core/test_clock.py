"""core/clock.py: the real clocks on both loops, and the timeout block on virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest

from skylark.core.clock import Clock, LoopClock, SystemClock, Timeout, TimeSource, yield_once
from skylark.testing.virtual_clock import VirtualClock
from tests.support.loops import on_both_loops


@pytest.mark.parametrize("source", [SystemClock(), LoopClock()])
def test_reads_the_machine_clocks(source: TimeSource) -> None:
    before_ms, before = time.time_ns() // 1_000_000, time.monotonic()
    assert before_ms <= source.now_ms() <= time.time_ns() // 1_000_000
    assert before <= source.monotonic() <= time.monotonic()


@pytest.mark.parametrize("source", [SystemClock(), LoopClock()])
def test_steady_time_is_the_wall_time_without_its_steps(
    source: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_ms = source.steady_ms()
    assert abs(before_ms - source.now_ms()) < 60_000  # tests run with a sound clock
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 3_600 * 1_000_000_000)
    assert 0 <= source.steady_ms() - before_ms < 60_000
    assert 0 <= LoopClock().steady_ms() - source.steady_ms() <= 1_000  # all clocks agree


async def test_virtual_steady_time_advances_with_the_clock() -> None:
    clock = VirtualClock(1_000)
    await clock.advance(seconds=5)
    assert (clock.now_ms(), clock.steady_ms()) == (6_000, 6_000)


def test_system_clock_needs_no_loop_but_timers_do() -> None:
    assert not hasattr(SystemClock(), "call_at")
    with pytest.raises(RuntimeError, match="no running event loop"):
        LoopClock().call_later(1.0, print)


@on_both_loops
async def test_monotonic_moves_within_one_turn_of_the_loop() -> None:
    clock = LoopClock()
    before = clock.monotonic()
    while time.monotonic() < before + 0.0005:
        pass
    assert clock.monotonic() - before >= 0.0005


@on_both_loops
async def test_timers_run_in_order_of_time() -> None:
    clock: Clock = LoopClock()
    ran: list[str] = []
    done = asyncio.get_running_loop().create_future()
    start = clock.monotonic()
    clock.call_at(start + 0.030, done.set_result, None)
    clock.call_at(start + 0.020, ran.append, "second")
    clock.call_later(0.010, ran.append, "first")
    cancelled = clock.call_later(0.005, ran.append, "never")
    cancelled.cancel()
    overdue = clock.call_at(start - 5.0, ran.append, "overdue")
    assert ran == []  # never inside call_at
    await done
    assert ran == ["overdue", "first", "second"]
    assert cancelled.cancelled()
    assert not overdue.cancelled()
    assert clock.monotonic() - start >= 0.029


@on_both_loops
async def test_sleep_and_timeout_in_real_time() -> None:
    clock = LoopClock()
    start = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - start >= 0.009
    with pytest.raises(TimeoutError, match=r"no result within 0\.01 s"):
        await clock.wait_for(clock.sleep(30.0), 0.01)
    assert clock.monotonic() - start < 10.0
    assert await clock.wait_for(asyncio.sleep(0, "value"), 30.0) == "value"


async def test_sleep_zero_gives_way_once() -> None:
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "callback")
    await LoopClock().sleep(0)
    assert ran == ["callback"]


async def test_cancelled_sleep_leaves_no_timer() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(60.0))
    await yield_once()
    assert clock.timer_count == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.timer_count == 0


async def test_timeout_that_is_not_reached_leaves_no_timer() -> None:
    clock = VirtualClock()
    async with clock.timeout(60.0) as limit:
        assert clock.timer_count == 1
    assert clock.timer_count == 0
    assert not limit.expired


async def test_no_limit() -> None:
    clock = VirtualClock()
    async with clock.timeout(None):
        assert clock.timer_count == 0


async def test_timeout_turns_its_own_cancellation_into_timeout_error() -> None:
    clock = VirtualClock()

    limit = clock.timeout(5.0)

    async def body() -> None:
        async with limit:
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(body())
    await clock.advance(4.999)
    assert not task.done()
    await clock.advance(ms=1)
    assert task.done()
    with pytest.raises(TimeoutError, match=r"no result within 5\.0 s") as raised:
        task.result()
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert limit.expired
    assert task.cancelling() == 0


async def test_foreign_cancellation_passes_through() -> None:
    clock = VirtualClock()

    async def body() -> None:
        async with clock.timeout(5.0):
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(body())
    await clock.drain()
    task.cancel("from outside")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.timer_count == 0


async def test_foreign_cancellation_wins_when_both_arrive_together() -> None:
    clock = VirtualClock()

    limits: list[Timeout] = []

    async def body() -> None:
        async with clock.timeout(5.0) as limit:
            limits.append(limit)
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(body())
    await clock.drain()
    limits[0]._expire(task)  # in the same turn of the loop as the cancellation
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


async def test_nested_timeouts_only_the_expired_one_raises() -> None:
    clock = VirtualClock()
    seen: list[str] = []

    async def body() -> None:
        async with clock.timeout(10.0) as outer:
            try:
                async with clock.timeout(1.0):
                    await clock.sleep(60.0)
            except TimeoutError:
                seen.append("inner")
            await clock.sleep(5.0)
            seen.append("went on")
            assert not outer.expired

    task = asyncio.create_task(body())
    await clock.advance(7.0)
    await task
    assert seen == ["inner", "went on"]


async def test_wait_for_cancels_what_it_waited_for() -> None:
    clock = VirtualClock()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(clock.wait_for(future, 2.0))
    await clock.advance(2.0)
    with pytest.raises(TimeoutError):
        await task
    assert future.cancelled()


async def test_timeout_is_for_one_use() -> None:
    clock = VirtualClock()
    limit = clock.timeout(1.0)
    async with limit:
        pass
    with pytest.raises(RuntimeError, match="once"):
        await limit.__aenter__()
