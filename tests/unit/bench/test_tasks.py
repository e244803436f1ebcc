"""The benchmark of the integrations: all cases do their work, at a real broker."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from bench.harness import measure
from bench.tasks import cases
from bench.tasks_load.of_taskiq import RUN, SENT
from bench.tasks_load.of_typed_app import PLAIN, TYPED
from skylark import ClientOptions
from skylark.client.core.instance_registry import instance_count
from skylark.sync import Admin
from skylark.testing import sync_broker

TASKS, MESSAGES = 5, 7


@pytest.mark.timeout(120)
def test_all_cases_run() -> None:
    before = instance_count()
    with sync_broker() as broker:
        with ExitStack() as stack:
            made = cases(stack, broker.namesrv, TASKS, MESSAGES)
            results = measure(made, rounds=2, sample_s=0.001)
        with Admin(ClientOptions(namesrv=broker.namesrv)) as admin:
            sent = {
                topic: sum(queue.max_offset for queue in admin.topics.describe(topic).queues)
                for topic in (SENT, RUN, PLAIN, TYPED)
            }
    assert [result.case for result in results] == [
        "Celery send, in memory",
        "Celery send, Skylark",
        "Celery send and run, in memory",
        "Celery send and run, Skylark",
        "taskiq send, in memory",
        "taskiq send, Skylark",
        "taskiq send and run, in memory",
        "taskiq send and run, Skylark",
        "consume, decoded by hand",
        "consume, TypedApp",
    ]
    assert [result.ratio is None for result in results] == [True, False] * 5
    # A warm-up and two rounds at the least, and a run sends all of its tasks or messages.
    for topic, count in sent.items():
        of_a_run = TASKS if topic in (SENT, RUN) else MESSAGES
        assert count >= 3 * of_a_run
        assert count % of_a_run == 0
    assert instance_count() == before
