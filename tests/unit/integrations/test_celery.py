"""integrations/kombu.py below Celery: its own worker, in this process and as one of its own."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject
from celery.signals import setup_logging
from kombu import pools
from kombu.exceptions import OperationalError

import skylark.integrations.kombu  # registers the URL
import skylark.testing
from skylark.client.core.instance_registry import instance_count
from skylark.sync import Admin
from skylark.testing.thread_broker import ThreadBroker
from tests.interop.process import draw_port
from tests.support.up import cluster

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60


def keep_logging(**_options: object) -> None:
    """A receiver keeps workers from changing the loggers of other tests."""


setup_logging.connect(keep_logging)


Application = Callable[..., Any]


@pytest.fixture
def application() -> Iterator[Application]:
    """Makes applications whose connections are closed at the end."""
    made = []

    def application(namesrv: str, **settings: Any) -> Any:
        app = celery.Celery("shop", broker=f"skylark+rocketmq://{namesrv}", set_as_current=False)
        app.conf.update(
            task_ignore_result=True,
            broker_connection_timeout=1.0,
            worker_cancel_long_running_tasks_on_connection_loss=True,  # else Celery warns
            **settings,
        )
        made.append(app)
        return app

    yield application
    pools.reset()
    for app in made:
        app.close()


def add(app: Any, function: Callable[..., object], **settings: Any) -> Any:
    """Make a function a task of this application alone."""
    return app.task(name=function.__name__, shared=False, **settings)(function)


@contextmanager
def worker(app: Any, pool: str = "threads") -> Iterator[Any]:
    # The ping needs a result backend.
    with start_worker(app, pool=pool, concurrency=2, perform_ping_check=False) as running:
        yield running


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadBroker]:
    before = instance_count()
    with skylark.testing.sync_broker() as made:
        yield made
    assert instance_count() == before


def wait_until(is_true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline, f"not in {TIMEOUT_S} s: {what}"
        time.sleep(0.02)


# ---- a worker in this process --------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_tasks_run_and_are_acknowledged(
    application: Application, broker: ThreadBroker, pool: str
) -> None:
    app = application(broker.namesrv, task_default_queue=broker.topic("tasks"))
    done: queue.Queue[int] = queue.Queue()

    def double(number: int) -> None:
        done.put(2 * number)

    task = add(app, double)
    for number in range(50):
        task.delay(number)
    with worker(app, pool):
        found = sorted(done.get(timeout=TIMEOUT_S) for _ in range(50))
        assert found == list(range(0, 100, 2))
    topic = app.conf.task_default_queue
    with Admin(broker.options) as admin:
        wait_until(lambda: admin.groups.progress(f"workers-{topic}", topic).lag == 0, "no lag")


def test_a_countdown_a_retry_and_a_requeue_come_when_they_should(
    application: Application, broker: ThreadBroker
) -> None:
    app = application(broker.namesrv, task_default_queue=broker.topic("tasks"), task_acks_late=True)
    called: queue.Queue[tuple[str, float]] = queue.Queue()

    def later() -> None:
        called.put(("later", time.time()))

    def retried(self: Any) -> None:
        called.put((f"retried {self.request.retries}", time.time()))
        if not self.request.retries:
            raise self.retry(countdown=2)

    def requeued(self: Any) -> None:
        again = self.request.delivery_info["redelivered"]
        called.put((f"requeued {again}", time.time()))
        if not again:
            raise Reject(requeue=True)

    tasks = add(app, later), add(app, retried, bind=True), add(app, requeued, bind=True)
    with worker(app):
        begun = time.time()
        tasks[0].apply_async(countdown=2)
        tasks[1].delay()
        tasks[2].delay()
        at = dict(called.get(timeout=TIMEOUT_S) for _ in range(5))
    assert at["later"] >= begun + 2
    assert at["retried 1"] >= at["retried 0"] + 2
    assert at["requeued True"] > at["requeued False"]
    assert called.empty()


def test_a_worker_that_stops_finishes_its_task_and_leaves_the_others(
    application: Application, broker: ThreadBroker
) -> None:
    app = application(
        broker.namesrv,
        task_default_queue=broker.topic("tasks"),
        task_acks_late=True,
        worker_prefetch_multiplier=1,
    )
    begun, go_on = threading.Event(), threading.Event()
    ran: list[int] = []

    def work(number: int) -> None:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        ran.append(number)

    task = add(app, work)
    for number in range(6):
        task.delay(number)
    with worker(app, "solo"):
        assert begun.wait(TIMEOUT_S)
        threading.Timer(0.5, go_on.set).start()  # the worker is told to stop before
    first = list(ran)
    assert first
    with worker(app):
        wait_until(lambda: len(set(ran)) == 6, "the rest")
    assert sorted(ran) == list(range(6))  # none of them twice


# ---- workers of their own ------------------------------------------------------------------------


class Processes:
    """Workers of ``tests/support/celery_tasks.py`` with the default pool, which forks."""

    def __init__(self, namesrv: str, folder: Path, queue_name: str) -> None:
        self.queue = queue_name
        self.output = folder / "output"
        self.output.touch()
        self._log = folder / "log"
        self._environ = {
            **os.environ,
            "TASKS_QUEUE": queue_name,
            "TASKS_BROKER": f"skylark+rocketmq://{namesrv}",
            "TASKS_OUTPUT": str(self.output),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    @contextmanager
    def run(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "tests.support.celery_tasks"),
                    *("worker", "--concurrency", "2", *arguments),
                ],
                env=self._environ,
                cwd=self.output.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)

    def until(self, line: str, count: int = 1) -> None:
        wait_until(lambda: self.lines().count(line) >= count, line)

    def __str__(self) -> str:
        return self._log.read_text()


@pytest.fixture
def processes(broker: ThreadBroker, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(broker.namesrv, tmp_path, broker.topic("tasks"))
    yield made
    sys.stdout.write(str(made))  # shown with a failure


def test_processes_of_the_pool_send_tasks_too(
    application: Application, broker: ThreadBroker, processes: Processes
) -> None:
    app = application(broker.namesrv, task_default_queue=processes.queue)
    for number in range(8):
        app.send_task("parent", (number,))
    # New children are forked while the connection of the worker is open.
    with processes.run("--max-tasks-per-child", "3") as worker_process:
        wait_until(lambda: len(processes.lines()) == 8, "8 lines")
        worker_process.terminate()
        assert worker_process.wait(TIMEOUT_S) == 0
    assert sorted(processes.lines()) == [f"child {number}" for number in range(8)]


def test_a_task_whose_worker_is_killed_runs_in_another(
    application: Application, broker: ThreadBroker, processes: Processes
) -> None:
    app = application(broker.namesrv, task_default_queue=processes.queue)
    app.send_task("hang_once")
    with processes.run() as killed:
        processes.until("hangs")
        assert killed.wait(TIMEOUT_S) == -9
    with processes.run():
        processes.until("came again")


def test_a_worker_outlives_its_broker(application: Application, tmp_path: Path) -> None:
    ports = ("--namesrv-port", str(draw_port()), "--broker-port", str(draw_port((-2, 0, 1))))
    home = tmp_path / "home"
    home.mkdir()
    done: queue.Queue[int] = queue.Queue()

    def note(number: int) -> None:
        done.put(number)

    with ExitStack() as stack:
        with cluster(home, *ports) as namesrv:
            app = application(namesrv)
            task = add(app, note)
            task.delay(1)
            running = ExitStack()
            stack.push(running)
            running.enter_context(worker(app))
            assert done.get(timeout=TIMEOUT_S) == 1
        with pytest.raises(OperationalError):
            task.apply_async((2,), retry=False)
        with cluster(home, *ports):
            task.apply_async((3,), retry_policy={"max_retries": 50, "interval_step": 0.1})
            assert done.get(timeout=TIMEOUT_S) == 3
            running.close()
