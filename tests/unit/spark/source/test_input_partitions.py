"""Input partitions: ranges of queues, cut by the options."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.spark.source.input_partitions import QueueRange, cut_ranges
from skylark.wire.bodies.common_body import MessageQueue


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def whole(queue_id: int, start: int, end: int) -> QueueRange:
    return QueueRange(queue=queue(queue_id), start=start, end=end, addresses={0: "h:1"})


def offsets_of(parts: list[QueueRange]) -> list[tuple[int, int]]:
    return [
        (part.queue.queue_id, offset) for part in parts for offset in range(part.start, part.end)
    ]


@pytest.mark.spec("spark.9.19")
def test_ranges_are_cut() -> None:
    ranges = [whole(0, 0, 1000), whole(1, 500, 1500), whole(2, 7, 7)]
    eight = cut_ranges(ranges, count_min=8, records_max=None)
    assert [part.count for part in eight] == [250] * 8
    assert offsets_of(eight) == offsets_of(ranges)
    small = cut_ranges(ranges, count_min=None, records_max=300)
    assert [part.count for part in small] == [250] * 8
    assert cut_ranges(ranges, count_min=None, records_max=None) == ranges[:2]
    assert cut_ranges([], count_min=4, records_max=10) == []
    assert pickle.loads(pickle.dumps(eight)) == eight


@given(
    st.lists(st.integers(0, 500), max_size=8), st.integers(1, 40), st.none() | st.integers(1, 100)
)
@settings(max_examples=200, deadline=None)
def test_cut_ranges_hold_the_same_messages(
    sizes: list[int], count_min: int, records_max: int | None
) -> None:
    ranges = [whole(index, 10, 10 + size) for index, size in enumerate(sizes)]
    parts = cut_ranges(ranges, count_min=count_min, records_max=records_max)
    assert offsets_of(parts) == offsets_of(ranges)
    assert all(part.count > 0 for part in parts)
    assert len(parts) >= min(count_min, sum(sizes))
    assert records_max is None or all(part.count <= records_max for part in parts)


def test_large_ranges_are_cut_more() -> None:
    parts = cut_ranges([whole(0, 0, 900), whole(1, 0, 100)], count_min=10, records_max=None)
    counts = [sum(part.queue.queue_id == number for part in parts) for number in (0, 1)]
    assert counts == [8, 2]
