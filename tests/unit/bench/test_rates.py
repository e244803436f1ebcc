"""The figures of the benchmark at everyday rates, from what its Java program prints."""

from __future__ import annotations

from typing import Any

import pytest

from bench.compare_load.idle_pulls import idle_pulls, wake_one_by_one
from bench.harness import BenchError
from bench.path_load.connection import Connection, find_broker, max_offset
from bench.rates import BUCKET_STEP, EVERYDAY, RATES, time_figures
from skylark.testing import sync_broker


def times(at_ms: int, buckets: dict[str, int]) -> dict[str, Any]:
    return {"event": "times", "at_ms": at_ms, "count": 0, "failed": 0, "buckets": buckets}


def test_percentiles_are_those_of_all_records_of_the_measured_time() -> None:
    warm_up = times(0, {"600": 1_000})
    measured = [times(100, {"100": 500, "200": 480}), times(200, {"200": 10, "300": 10})]
    figures = time_figures("publish", [warm_up, *measured], 50, 250)
    assert figures == {
        "publish p50": pytest.approx(BUCKET_STEP**100.5 / 1_000),
        "publish p99": pytest.approx(BUCKET_STEP**200.5 / 1_000),
        "publish p99.9": pytest.approx(BUCKET_STEP**300.5 / 1_000),
    }


def test_a_client_that_reported_no_times_has_no_figures() -> None:
    with pytest.raises(BenchError, match="measure for longer"):
        time_figures("publish", [times(0, {"1": 1}), times(100, {})], 50, 250)


def test_each_rate_has_a_row_with_goals() -> None:
    paced = [row for row in EVERYDAY.rows if row.kind == "paced"]
    assert [row.options["rate"] for row in paced] == list(RATES)
    for row in paced:
        assert sum(figure.goal is not None for figure in row.figures) == 5
    assert {row.kind for row in EVERYDAY.rows} == set(EVERYDAY.measures)


def test_idle_pulls_are_held_and_a_message_wakes_one_of_another_topic() -> None:
    """A real broker: refusals raise, and every message is answered together with its pull."""
    with sync_broker() as broker:
        idle, woken = broker.topic(queue_count=4), broker.topic(queue_count=1)
        with Connection(broker.namesrv) as namesrv:
            address = find_broker(namesrv, idle)
        with idle_pulls(address, idle, 4, 50):
            count = wake_one_by_one(address, woken, 0.05)
            with Connection(address) as connection:
                assert count == max_offset(connection, woken, 0) > 0
