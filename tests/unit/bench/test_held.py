"""The benchmark of sends beside held pulls: the pulls really wait, at a real broker."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from bench.harness import BenchError, measure
from bench.held import SEND, TOPIC, hold_pulls, make_case
from bench.path_load.connection import Connection, find_broker
from bench.path_load.rows import Work
from skylark.testing import sync_broker


def test_pulls_wait_and_a_refused_one_is_reported() -> None:
    with sync_broker() as broker, ExitStack() as stack:
        with Connection(broker.namesrv) as namesrv:
            address = find_broker(namesrv, "TBW102")
        producer, consumer = (stack.enter_context(Connection(address)) for _ in range(2))
        with pytest.raises(BenchError, match="not exist"):
            hold_pulls(consumer, TOPIC, 1)
        work = Work(SEND, TOPIC)
        work.run(producer)
        with Connection(address) as waiting:
            hold_pulls(waiting, TOPIC, 8)
            work.run(producer)
            hold_pulls(waiting, TOPIC, 8)  # raises if one of the first was answered without success


def test_both_cases_run() -> None:
    with ExitStack() as stack:
        alone = make_case(stack, "alone", 0)
        beside = make_case(stack, "beside", 8, "alone")
        results = measure([alone, beside], rounds=2, sample_s=0.001)
    assert [result.case for result in results] == ["alone", "beside"]
    assert results[1].ratio is not None
