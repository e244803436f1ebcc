"""Brokers of taskiq, and their workers, on the event loop of the blocking clients."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

from taskiq import AsyncBroker, BrokerMessage, InMemoryBroker
from taskiq.api import run_receiver_task

from bench.harness import Case
from bench.tasks_load.counter import Counter
from skylark import ClientOptions
from skylark.client.blocking.event_loop_thread import shared_loop_thread
from skylark.integrations.taskiq_broker import SkylarkBroker

SENT: Final = "taskiq-send"
RUN: Final = "taskiq-run"


class Dropping(InMemoryBroker):
    """What a send costs taskiq itself: its broker in memory would run the task, too."""

    async def kick(self, message: BrokerMessage) -> None:
        pass


class Site:
    """A started broker of taskiq with a task, and its worker if it needs one."""

    def __init__(self, stack: ExitStack, broker: AsyncBroker, *, runs: bool) -> None:
        self._broker = broker
        self._runs = runs
        self._loop = shared_loop_thread()
        counter = self._counter = Counter()

        @broker.task(task_name="count")
        async def task(number: int) -> None:
            counter.count(number)

        self._task = task
        self._loop.call(broker.startup())
        stack.callback(lambda: self._loop.call(broker.shutdown()))
        if runs and not isinstance(broker, InMemoryBroker):
            worker = self._loop.call_plain(self._start_worker)
            stack.callback(lambda: self._loop.call(self._stop(worker)))

    def run(self, count: int) -> None:
        self._counter.expect(count)
        self._loop.call(self._send(count))
        if self._runs:
            self._counter.wait()

    async def _send(self, count: int) -> None:
        for number in range(count):
            await self._task.kiq(number)

    def _start_worker(self) -> asyncio.Task[None]:
        return asyncio.create_task(run_receiver_task(self._broker))

    async def _stop(self, worker: asyncio.Task[None]) -> None:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


def taskiq_cases(stack: ExitStack, namesrv: str, count: int) -> list[Case]:
    """Both works with both brokers; the topics are there."""
    options = ClientOptions(namesrv=namesrv)
    found = []
    for what, topic, memory in (
        ("taskiq send", SENT, Dropping()),
        ("taskiq send and run", RUN, InMemoryBroker()),
    ):
        for name, broker, floor in (
            ("in memory", memory, None),
            ("Skylark", SkylarkBroker(topic, topic, options), f"{what}, in memory"),
        ):
            site = Site(stack, broker, runs=topic == RUN)
            run = partial(site.run, count)
            found.append(Case(f"{what}, {name}", run, count, "task", floor))
    return found
