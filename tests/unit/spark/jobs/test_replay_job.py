"""Replay without Spark: which queue goes where, which task sends it, and when."""

from __future__ import annotations

from threading import Event

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import ConfigError
from skylark.spark.jobs.replay_job import SLICE_S, Pace, ReplayOptions, assign_tasks, match_queues
from skylark.wire.bodies.common_body import MessageQueue


def queues(topic: str, **counts: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        for broker, count in counts.items()
        for queue_id in range(count)
    ]


def places(old: list[MessageQueue], new: list[MessageQueue]) -> list[tuple[str, int]]:
    found = match_queues(old, new)
    return [(found[queue].broker_name, found[queue].queue_id) for queue in old]


def test_queues_keep_their_names_where_they_can() -> None:
    assert places(queues("A", a=2), queues("B", a=4, b=4)) == [("a", 0), ("a", 1)]
    assert places(queues("A", a=4), queues("B", a=2)) == [("a", 0), ("a", 1), ("a", 0), ("a", 1)]
    # One that is missing moves all: no new queue shall get more than its share.
    assert places(queues("A", a=2, b=1), queues("B", a=2)) == [("a", 0), ("a", 1), ("a", 0)]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_rows_are_divided_evenly_among_tasks(sizes: list[int], count_max: int) -> None:
    tasks = assign_tasks(sizes, count_max)
    count = min(count_max, len(sizes))
    assert set(tasks) == set(range(count))
    loads = [sum(size for size, task in zip(sizes, tasks, strict=True) if task == at)
             for at in range(count)]  # fmt: skip
    assert max(loads) - min(loads) <= max(sizes)


class Hands:
    """A clock that moves when it is waited on, or when somebody takes his time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        raise AssertionError("pace is a matter of intervals")


class WaitsOn(Event):
    def __init__(self, hands: Hands) -> None:
        super().__init__()
        self._hands = hands

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        assert timeout > 0
        self._hands.now_s += timeout
        return False


def sent(pace: Pace, batches: list[pa.RecordBatch], task: int = 0) -> list[tuple[float, int]]:
    """When how many rows were sent."""
    hands = Hands()
    parts = pace.slices(iter(batches), task, hands, WaitsOn(hands))
    return [(round(hands.now_s - 100, 3), part.num_rows) for part in parts]


def rows(*micros: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"_at": list(micros)})


def test_without_a_pace_batches_stay_whole() -> None:
    assert sent(Pace(), [rows(1, 2, 3), rows(4)]) == [(0.0, 3), (0.0, 1)]


def test_a_rate_is_kept_over_batches() -> None:
    found = sent(Pace(rates={0: 100.0, 1: 5.0}), [rows(*range(150)), rows(*range(50))])
    assert sum(count for _, count in found) == 200
    total = 0
    for at_s, count in found:
        total += count
        assert total <= 100 * (at_s + SLICE_S) + 1
    assert found[-1][0] >= 1.9  # the last of 200 rows is due after 1.99 s
    slow = sent(Pace(rates={0: 100.0, 1: 5.0}), [rows(1, 2, 3)], task=1)
    assert slow == [(0.0, 1), (0.2, 1), (0.4, 1)]


def test_time_is_scaled() -> None:
    second = 1_000_000
    batches = [rows(5 * second, 5 * second, 6 * second), rows(9 * second)]
    pace = Pace(time_scale=2.0, first_micros=5 * second)
    assert sent(pace, batches) == [(0.0, 2), (0.5, 1), (2.0, 1)]
    later = Pace(time_scale=1.0, first_micros=4 * second)  # another queue has older messages
    assert sent(later, batches) == [(1.0, 2), (2.0, 1), (5.0, 1)]


@pytest.mark.parametrize(
    ("rate", "time_scale", "problem"),
    [
        (10.0, 1.0, "exclude each other"),
        (0.0, None, "the rate must be more than 0"),
        (float("nan"), None, "the rate must be more than 0"),
        (None, -1.0, "the time scale must be more than 0"),
        (None, float("inf"), "the time scale must be more than 0"),
    ],
)
def test_an_invalid_pace_is_refused(
    rate: float | None, time_scale: float | None, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        ReplayOptions(lake="x", rate=rate, time_scale=time_scale)


def test_the_sink_sends_to_the_queues_that_are_named() -> None:
    sink = ReplayOptions(lake="x", to_topic="T", namesrv="h:1", keep_ids=True).sink
    assert (sink.topic, sink.explicit_queue, sink.preserve_msg_id) == ("T", True, True)
    assert ReplayOptions(lake="x", namesrv="h:1").sink.topic is None
