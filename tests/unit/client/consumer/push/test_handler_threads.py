"""The pool that runs handlers in threads."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from skylark.client.consumer.push import handler_threads as thread_workers
from skylark.client.consumer.push.handler_threads import ThreadWorkers
from skylark.core.clock import LoopClock
from skylark.core.lifecycle import Tasks
from skylark.testing.virtual_clock import VirtualClock
from tests.unit.client.consumer.jobs import Work
from tests.unit.client.consumer.pushes import until


async def nothing() -> None: ...


async def test_functions_run_in_daemon_threads_at_the_same_time() -> None:
    workers = ThreadWorkers("g", 3, LoopClock(), Tasks("t"))
    together = threading.Barrier(3, timeout=10)
    daemons: list[bool] = []

    def handler() -> int:
        daemons.append(threading.current_thread().daemon)
        return together.wait()

    jobs = [Work(handler) for _ in range(3)]
    workers.submit(list(jobs))
    await until(lambda: all(job.ends for job in jobs))
    assert sorted(job.ends[0][0] for job in jobs) == [0, 1, 2]
    assert daemons == [True, True, True]
    assert await workers.close(1.0)


async def test_what_a_function_raises_ends_no_thread() -> None:
    workers = ThreadWorkers("g", 1, LoopClock(), Tasks("t"))

    def leave() -> None:
        raise SystemExit(3)

    jobs = [Work(leave), Work(lambda: nothing()), Work(lambda: 5)]
    workers.submit(list(jobs))
    await until(lambda: jobs[2].ends)
    assert isinstance(jobs[0].ends[0][1], SystemExit)
    assert isinstance(jobs[1].ends[0][1], TypeError)
    assert jobs[2].ends == [(5, None)]
    assert await workers.close(1.0)


async def test_a_thread_that_hangs_is_left_behind() -> None:
    clock = VirtualClock()
    tasks = Tasks("t")
    workers = ThreadWorkers("g", 1, clock, tasks)
    begun, gate = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        gate.wait(10)

    first, second = Work(hang), Work(lambda: None)
    workers.submit([first, second])
    await until(begun.is_set)
    closing = asyncio.ensure_future(workers.close(30.0))
    await clock.advance(seconds=31)
    assert await closing is False
    tasks.close()
    gate.set()
    await until(lambda: second.discarded)
    assert first.ends == []  # too late


async def test_functions_that_return_at_once_share_few_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_workers, "FEW_PER_S", -1)  # a slow machine has quick functions, too
    workers = ThreadWorkers("g", 20, LoopClock(), Tasks("t"))
    used: set[int] = set()
    jobs = [Work(lambda: used.add(threading.get_ident())) for _ in range(20_000)]
    for start in range(0, len(jobs), 100):
        workers.submit(list(jobs[start : start + 100]))
    await until(lambda: not workers.running)
    assert all(job.ends == [(None, None)] for job in jobs)
    assert len(used) == 1
    assert await workers.close(1.0)


async def test_functions_that_block_have_all_threads_and_later_ones_still_run() -> None:
    workers = ThreadWorkers("g", 8, LoopClock(), Tasks("t"))
    gate = threading.Event()
    stuck = [Work(lambda: gate.wait(10)) for _ in range(7)]
    for job in stuck:  # one by one: each comes while those before it block
        workers.submit([job])
    quick = [Work(threading.get_ident) for _ in range(500)]
    workers.submit(list(quick))
    await until(lambda: all(job.ends for job in quick))
    assert not any(job.ends for job in stuck)
    assert len({job.ends[0][0] for job in quick}) == 1  # the only thread that was left
    gate.set()
    await until(lambda: not workers.running)
    assert all(job.ends == [(True, None)] for job in stuck)
    assert await workers.close(1.0)


async def test_a_single_thread_runs_everything_in_order() -> None:
    workers = ThreadWorkers("g", 1, LoopClock(), Tasks("t"))
    order: list[int] = []
    workers.submit([Work(lambda number=number: order.append(number)) for number in range(300)])
    await until(lambda: not workers.running)
    assert order == list(range(300))
    assert await workers.close(1.0)


async def test_threads_go_to_sleep_when_functions_become_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = ThreadWorkers("g", 6, LoopClock(), Tasks("t"))
    gate = threading.Event()
    workers.submit([Work(lambda: gate.wait(10)) for _ in range(4)])
    await until(lambda: workers.working >= 4)
    monkeypatch.setattr(thread_workers, "FEW_PER_S", -1)  # whatever this machine does is many
    monkeypatch.setattr(thread_workers, "MANY_PER_S", 0)
    seen: list[int] = []
    fewer = threading.Event()

    def quick() -> None:
        seen.append(workers.working)
        if seen[-1] < 4:
            fewer.set()
        fewer.wait(0.0001)  # releases the interpreter, so that the standby has its turn

    workers.submit([Work(quick) for _ in range(50_000)])
    gate.set()
    await until(fewer.is_set)
    assert max(seen) >= 4
    assert len(seen) < 40_000  # jobs still waited
    await until(lambda: not workers.running)
    assert await workers.close(1.0)


@pytest.mark.parametrize("seed", range(20))
async def test_no_job_is_left_lying_while_threads_sleep(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that seemed too many a moment ago block, and the jobs behind them must run."""
    monkeypatch.setattr(thread_workers, "MANY_PER_S", 1)
    rng = random.Random(seed)
    workers = ThreadWorkers("g", rng.choice((3, 4)), LoopClock(), Tasks("t"))
    first, second = threading.Event(), threading.Event()
    workers.submit([Work(lambda: first.wait(10)) for _ in range(2)])
    await until(lambda: workers.working >= 2)
    quick = [Work(lambda: None) for _ in range(rng.randint(100, 2_500))]
    slow = [Work(lambda: second.wait(10)) for _ in range(2)]
    last = [Work(lambda: None) for _ in range(rng.randint(1, 5))]
    workers.submit([*quick, *slow, *last])
    first.set()
    await until(lambda: all(job.ends for job in last))
    assert not any(job.ends for job in slow)
    second.set()
    await until(lambda: not workers.running)
    assert await workers.close(1.0)


async def test_a_system_without_threads_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = 2
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        nonlocal refusals
        if refusals and thread.name.startswith("poor"):
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    clock = VirtualClock()
    workers = ThreadWorkers("poor", 4, clock, Tasks("t"))
    jobs = [Work(lambda: 5) for _ in range(3)]
    workers.submit(list(jobs))  # neither a worker nor a standby
    assert (workers.working, refusals) == (0, 0)
    assert "can't start new thread; handlers run in 0 threads" in caplog.text
    await clock.advance(seconds=thread_workers.NO_THREADS_PAUSE_S)
    await until(lambda: all(job.ends == [(5, None)] for job in jobs))
    assert await workers.close(1.0)


async def test_a_standby_that_cannot_be_followed_still_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def two_at_most(thread: threading.Thread) -> None:
        if thread.name.startswith("poor"):
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", two_at_most)
    workers = ThreadWorkers("poor", 4, LoopClock(), Tasks("t"))
    gate = threading.Event()
    jobs = [Work(lambda: gate.wait(10)) for _ in range(3)]
    workers.submit(list(jobs))
    await until(lambda: workers.working == 2)
    gate.set()
    await until(lambda: not workers.running)
    late = Work(lambda: 7)
    workers.submit([late])
    await until(lambda: late.ends == [(7, None)])
    assert await workers.close(1.0)


async def test_a_closed_pool_takes_no_jobs_and_its_threads_end() -> None:
    workers = ThreadWorkers("pool-that-ends", 4, LoopClock(), Tasks("t"))
    jobs = [Work(lambda: None) for _ in range(50)]
    workers.submit(list(jobs))
    await until(lambda: not workers.running)
    assert await workers.close(1.0)
    late = Work(lambda: None)
    workers.submit([late])
    assert (late.discarded, late.ends) == (1, [])
    await until(lambda: not any(t.name.startswith("pool-that-ends") for t in threading.enumerate()))
