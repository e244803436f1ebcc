"""Packing of small ranges into partitions."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.spark.source import range_packing
from skylark.spark.source.input_partitions import QueueRange
from skylark.spark.source.range_packing import (
    COST_MAX,
    PULL_COST,
    QueueRanges,
    RangePacker,
    pack_ranges,
)
from skylark.spark.source.source_options import source_options
from skylark.spark.source.start_offsets import Sample
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.spark.source.fake_cluster import FakeSession

SMALL = {"T": 100}


def part(queue_id: int, count: int) -> QueueRange:
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=queue_id)
    return QueueRange(queue=queue, start=0, end=count, addresses={0: "a:1"}, store_path="/store")


def ranges_of(packs: list[QueueRange | QueueRanges]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for pack in packs:
        ranges = pack.ranges if isinstance(pack, QueueRanges) else (pack,)
        found += [(each.queue.queue_id, each.count) for each in ranges]
    return found


def test_thousands_of_small_queues_are_a_few_tasks() -> None:
    parts = [part(number, 5) for number in range(2_000)]
    packs = pack_ranges(parts, SMALL, count_min=2, count_max=None)
    assert len(packs) == -(-2_000 * (PULL_COST + 5) // COST_MAX)
    assert ranges_of(packs) == [(number, 5) for number in range(2_000)]
    assert pickle.loads(pickle.dumps(packs)) == packs
    first = packs[0]
    assert isinstance(first, QueueRanges)
    assert {each.store_path for each in first.ranges} == {None}  # small ranges are pulled
    given = [replace(each, store_given=True) for each in parts]
    (whole,) = pack_ranges(given, SMALL, count_min=1, count_max=1)
    assert isinstance(whole, QueueRanges)
    assert {each.store_path for each in whole.ranges} == {"/store"}


def test_large_ranges_stay_alone_and_keep_their_files() -> None:
    parts = [part(0, COST_MAX), part(1, 5), part(2, 5), part(3, COST_MAX)]
    packs = pack_ranges(parts, SMALL, count_min=1, count_max=None)
    assert [isinstance(pack, QueueRanges) for pack in packs] == [False, True, False]
    assert packs[0] == parts[0]


def test_large_messages_are_large_ranges() -> None:
    parts = [part(number, 50) for number in range(8)]
    assert len(pack_ranges(parts, {"T": 1 << 20}, count_min=2, count_max=None)) == 8
    assert len(pack_ranges(parts, {"T": 100}, count_min=2, count_max=None)) == 2


def test_cores_stay_busy() -> None:
    parts = [part(number, 50) for number in range(16)]
    for cores in (1, 2, 4, 8, 16, 64):
        packs = pack_ranges(parts, SMALL, count_min=cores, count_max=None)
        assert len(packs) == min(cores, 16)


def test_at_most_so_many_partitions() -> None:
    parts = [part(number, COST_MAX) for number in range(16)]
    for count in (1, 3, 5, 16):
        packs = pack_ranges(parts, SMALL, count_min=2, count_max=count)
        assert len(packs) <= count
        assert ranges_of(packs) == [(number, COST_MAX) for number in range(16)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 200_000), min_size=1, max_size=40),
    st.integers(1, 16),
    st.none() | st.integers(1, 16),
)
def test_packs_hold_all_ranges_in_order(
    counts: list[int], count_min: int, count_max: int | None
) -> None:
    parts = [part(number, count) for number, count in enumerate(counts)]
    packs = pack_ranges(parts, SMALL, count_min=count_min, count_max=count_max)
    assert ranges_of(packs) == list(enumerate(counts))
    if count_max is not None:
        assert len(packs) <= count_max
    else:
        assert len(packs) >= min(count_min, len(parts))


async def test_sizes_are_sampled_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = FakeSession()
    options = source_options({"nameserver": "h:1", "topic": "T"}, streaming=True, environ={})
    asked: list[int] = []

    async def sample(*arguments: Any) -> Any:
        asked.append(arguments[2].queue_id)
        return Sample([0], [0], [1 << 20])

    monkeypatch.setattr(range_packing, "sample", sample)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    packer = RangePacker(session, options)
    few = [part(number, 50) for number in range(2)]
    assert await packer.pack(few) == few
    assert asked == []
    many = [part(number, 50) for number in range(100)]
    for _ in range(3):
        assert len(await packer.pack(many)) == 100
    assert asked == [0, 25, 50, 75]
    await session.clock.advance(60)
    await packer.pack(many)
    assert len(asked) == 8
