"""The benchmark of Celery's tasks: both transports do their work."""

from __future__ import annotations

from contextlib import ExitStack

from bench.harness import measure
from bench.tasks import cases
from skylark.client.core.instance_registry import instance_count
from skylark.testing import sync_broker


def test_all_cases_run() -> None:
    before = instance_count()
    with sync_broker() as broker, ExitStack() as stack:
        made = cases(stack, f"skylark+rocketmq://{broker.namesrv}", 5)
        results = measure(made, rounds=2, sample_s=0.001)
    assert [result.case for result in results] == [
        "send, in memory",
        "send, Skylark",
        "send and run, in memory",
        "send and run, Skylark",
    ]
    assert [result.ratio is None for result in results] == [True, False, True, False]
    assert instance_count() == before
