"""Applications of Celery, and their workers with four threads, in this process."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from kombu import pools

import skylark.integrations.kombu  # noqa: F401 - registers the URL
from bench.harness import Case
from bench.tasks_load.counter import Counter

WORKERS: Final = 4
#: The queue in memory sleeps for so long when it is empty, and when the prefetch count is reached.
#: Workers that are not measured poll as well, so it must not be short, nor reached often.
POLL_S: Final = 0.02
PREFETCH: Final = 64  # for each thread
MEMORY: Final = "memory://"


def keep_logging(**_options: object) -> None:
    """A receiver keeps workers from changing the loggers of this process."""


setup_logging.connect(keep_logging)


class Site:
    """An application of Celery with one transport; its worker, if it has one, runs already."""

    def __init__(self, stack: ExitStack, url: str, counter: Counter, *, has_worker: bool) -> None:
        self._counter = counter if has_worker else None
        app = celery.Celery("bench", broker=url, set_as_current=False)
        app.conf.update(
            broker_transport_options={"polling_interval": POLL_S},
            worker_prefetch_multiplier=PREFETCH,
            task_default_queue="run" if has_worker else "send",
            task_ignore_result=True,
        )
        self._task: Any = app.task(name="count", shared=False, typing=False)(counter.count)
        self._producer = stack.enter_context(app.producer_pool.acquire(block=True))
        if has_worker:
            stack.enter_context(
                start_worker(app, pool="threads", concurrency=WORKERS, perform_ping_check=False)
            )

    def run(self, count: int) -> None:
        if self._counter is not None:
            self._counter.expect(count)
        for number in range(count):
            self._task.apply_async((number,), producer=self._producer)
        if self._counter is not None:
            self._counter.wait()


def celery_cases(stack: ExitStack, namesrv: str, count: int) -> list[Case]:
    """Both works with both transports.

    All applications share one counter: Celery keeps the tasks that a process runs in a global
    table, so the worker of one application may call the function of another.
    """
    stack.callback(pools.reset)  # closes the connections of senders
    found, counter = [], Counter()
    for what, has_worker in (("Celery send", False), ("Celery send and run", True)):
        for name, url, floor in (
            ("in memory", MEMORY, None),
            ("Skylark", f"skylark+rocketmq://{namesrv}", f"{what}, in memory"),
        ):
            site = Site(stack, url, counter, has_worker=has_worker)
            run = partial(site.run, count)
            found.append(Case(f"{what}, {name}", run, count, "task", floor))
    return found
