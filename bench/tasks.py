"""What tasks of Celery cost with our transport: beside kombu's own queue in memory.

``make bench PART=tasks`` starts ``skylark up``, and in this process, for each transport, an
application of Celery and its worker, with four threads. The extra ``celery`` is needed.

``send``          ``apply_async`` of a task, one after the other; nobody runs them
``send and run``  the same with a worker, until the last task has run

The queue in memory stores nothing and leaves the process for nobody: the difference to it is what
the client and the broker take together. Sends wait for the broker, which stores each task before
it answers.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from kombu import pools

import skylark.integrations.kombu  # noqa: F401 - registers the URL
from bench.harness import Case, compile_package, main
from tests.support.up import cluster

#: Tasks of one run.
TASKS: Final = 500
WORKERS: Final = 4
#: The queue in memory sleeps for so long when it is empty, and when the prefetch count is reached.
#: Workers that are not measured poll as well, so it must not be short, nor reached often.
POLL_S: Final = 0.02
PREFETCH: Final = 64  # for each thread
TIMEOUT_S: Final = 120
MEMORY: Final = "memory://"


def keep_logging(**_options: object) -> None:
    """A receiver keeps workers from changing the loggers of this process."""


setup_logging.connect(keep_logging)


class Counter:
    """Counts tasks that ran, from any thread.

    All applications share one: Celery keeps the tasks that a process runs in a global table, so
    the worker of one application may call the function of another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._done = threading.Event()

    def expect(self, count: int) -> None:
        self._done.clear()
        self._left = count

    def count(self, _number: int) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._done.set()

    def wait(self) -> None:
        if not self._done.wait(TIMEOUT_S):
            raise TimeoutError(f"{self._left} tasks did not run in {TIMEOUT_S} s")


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


def cases(stack: ExitStack, url: str, count: int = TASKS) -> list[Case]:
    """Both works with both transports, of so many tasks a run."""
    stack.callback(pools.reset)  # closes the connections of senders
    found, counter = [], Counter()
    for what, has_worker in (("send", False), ("send and run", True)):
        for name, address, floor in (
            ("in memory", MEMORY, None),
            ("Skylark", url, f"{what}, in memory"),
        ):
            site = Site(stack, address, counter, has_worker=has_worker)
            run = partial(site.run, count)
            found.append(Case(f"{what}, {name}", run, count, "task", floor))
    return found


if __name__ == "__main__":
    compile_package()
    with ExitStack() as _stack:
        _home = Path(_stack.enter_context(tempfile.TemporaryDirectory()))
        _namesrv = _stack.enter_context(cluster(_home))
        main("tasks", cases(_stack, f"skylark+rocketmq://{_namesrv}"))
