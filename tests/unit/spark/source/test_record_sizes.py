"""Samples of record sizes; the messages of the cluster are a table."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from skylark.admin.fan_out import AT_ONCE
from skylark.core.errors import ConnectError
from skylark.spark.source import record_sizes
from skylark.spark.source.offset_planning import BatchPlan
from skylark.spark.source.queue_bounds import ClusterSnapshot
from skylark.spark.source.record_sizes import SAMPLES_MAX, SIZE_AGE_S, RecordSizes
from skylark.spark.source.source_options import source_options
from skylark.spark.source.start_offsets import Sample
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.spark.source.fake_cluster import FakeSession, queue

OPTIONS = source_options({"nameserver": "h:1", "topic": "T"}, streaming=True, environ={})
SNAPSHOT = ClusterSnapshot(addresses={"broker-a": {0: "a:1"}})


class Samples:
    """Samples of messages of 100 bytes and the number of the queue."""

    def __init__(self) -> None:
        self.pulls: Counter[MessageQueue] = Counter()
        self.broken: set[MessageQueue] = set()
        self.active = self.most_active = 0

    async def sample(
        self, _: object, __: str, queue: MessageQueue, start: int, end: int, group: str
    ) -> Sample:
        assert (start, end, group) == (10, 15, OPTIONS.group)
        self.pulls[queue] += 1
        self.active += 1
        self.most_active = max(self.active, self.most_active)
        await asyncio.sleep(0)
        self.active -= 1
        if queue in self.broken:
            raise ConnectError("no")
        return Sample([], [], [100 + queue.queue_id] * 5)


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> Samples:
    samples = Samples()
    monkeypatch.setattr(record_sizes, "sample", samples.sample)
    return samples


def plan(count: int) -> BatchPlan:
    queues = [queue(number) for number in range(count)]
    return BatchPlan(positions=dict.fromkeys(queues, 10), backlogs=dict.fromkeys(queues, 5))


def sizes(session: FakeSession) -> RecordSizes:
    return RecordSizes(session, OPTIONS)  # type: ignore[arg-type]


def test_queues_are_sampled_now_and_then_and_few_at_a_time(samples: Samples) -> None:
    session = FakeSession()
    found = sizes(session)
    for _ in range(3):
        result = asyncio.run(found.sizes(plan(200), SNAPSHOT))
        assert result == {queue(n): 100 + n for n in range(200)}
        assert samples.pulls == dict.fromkeys(result, 1)
    assert 1 < samples.most_active <= AT_ONCE
    asyncio.run(session.clock.advance(SIZE_AGE_S + 1))
    asyncio.run(found.sizes(plan(10), SNAPSHOT))
    assert samples.pulls.total() == 210


def test_many_queues_are_sampled_some_at_each_trigger(samples: Samples) -> None:
    found = sizes(FakeSession())
    for turn in (1, 2, 3):
        result = asyncio.run(found.sizes(plan(2 * SAMPLES_MAX + 5), SNAPSHOT))
        assert samples.pulls.total() == min(turn * SAMPLES_MAX, 2 * SAMPLES_MAX + 5)
        assert result.keys() == plan(2 * SAMPLES_MAX + 5).backlogs.keys()
    assert set(samples.pulls.values()) == {1}


def test_a_queue_without_a_sample_counts_as_the_others(samples: Samples) -> None:
    samples.broken = {queue(0)}
    found = sizes(FakeSession())
    assert asyncio.run(found.sizes(plan(3), SNAPSHOT))[queue(0)] == (101 + 102) // 2
    samples.broken = set()
    assert asyncio.run(found.sizes(plan(3), SNAPSHOT))[queue(0)] == 100
    samples.broken = {queue(0)}
    assert asyncio.run(sizes(FakeSession()).sizes(plan(1), SNAPSHOT)) == {queue(0): 1024}
