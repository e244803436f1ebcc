"""integrations/taskiq_broker.py: taskiq's own worker beside a real broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from taskiq.api import run_receiver_task

import skylark.testing
from skylark import ConfigError
from skylark.integrations.taskiq_broker import SkylarkBroker
from skylark.testing.local_broker import LocalBroker


@pytest.fixture
async def local() -> AsyncIterator[LocalBroker]:
    async with skylark.testing.broker() as made:
        yield made


@asynccontextmanager
async def worker(broker: SkylarkBroker) -> AsyncIterator[None]:
    """A worker of taskiq, and the side of the application."""
    await broker.startup()
    running = asyncio.create_task(run_receiver_task(broker))
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await broker.shutdown()


async def lag(local: LocalBroker, group: str, topic: str) -> int:
    progress = await local.admin.groups.progress(group, topic)
    return sum(queue.lag for queue in progress.queues)


async def test_tasks_run_and_are_acknowledged(local: LocalBroker) -> None:
    topic = await local.topic("tasks")
    broker = SkylarkBroker(topic, "workers", local.options)
    done: asyncio.Queue[int] = asyncio.Queue()

    @broker.task(task_name="double")
    async def double(number: int) -> None:
        done.put_nowait(2 * number)

    async with worker(broker), asyncio.timeout(60):
        for number in range(5):
            await double.kiq(number)
        assert sorted([await done.get() for _ in range(5)]) == [0, 2, 4, 6, 8]
        while await lag(local, "workers", topic):  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.01)


async def test_a_task_that_was_not_acknowledged_comes_again(local: LocalBroker) -> None:
    topic = await local.topic("tasks")
    begun, done = asyncio.Event(), asyncio.Event()

    def made(runs_through: bool) -> SkylarkBroker:
        broker = SkylarkBroker(topic, "workers", local.options)

        @broker.task(task_name="work")
        async def work() -> None:
            begun.set()
            if runs_through:
                done.set()
            else:
                await asyncio.Event().wait()

        return broker

    first = made(runs_through=False)
    async with asyncio.timeout(60):
        async with worker(first):
            task = first.find_task("work")
            assert task is not None
            await task.kiq()
            await begun.wait()
        async with worker(made(runs_through=True)):
            await done.wait()


async def test_a_delayed_task_comes_later() -> None:
    async with skylark.testing.broker(clock="virtual") as local:
        topic = await local.topic("tasks")
        broker = SkylarkBroker(topic, "workers", local.options)
        seen: list[int] = []

        @broker.task(task_name="later")
        async def later() -> None:
            seen.append(local.clock.now_ms())

        async with worker(broker):
            sent = local.clock.now_ms()
            await later.kicker().with_labels(delay=60).kiq()
            await local.clock.advance(seconds=59)
            assert seen == []
            await local.clock.advance(seconds=3)
            assert len(seen) == 1
            assert 60_000 <= seen[0] - sent <= 62_000
            with pytest.raises(ConfigError, match="the label delay of later is 'soon'"):
                await broker.kick(
                    broker.formatter.dumps(
                        later.kicker().with_labels(delay="soon")._prepare_message()
                    )
                )
