"""Numbers of the progress of a group."""

from __future__ import annotations

from skylark.admin.cluster_stats import lag_of
from skylark.admin.consumer_progress import GroupProgress, QueueProgress
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper


def queue(queue_id: int, end: int, committed: int, pulled: int = 0) -> QueueProgress:
    return QueueProgress(
        queue=MessageQueue(topic="T", broker_name="a", queue_id=queue_id),
        broker_offset=end,
        consumer_offset=committed,
        pull_offset=pulled,
        last_time_ms=None,
    )


def test_a_group_is_never_ahead_of_its_queue() -> None:
    """After a topic was deleted and created again, committed offsets are beyond its end."""
    ahead, behind = queue(0, 3, 10), queue(1, 10, 6, 8)
    assert (ahead.lag, ahead.in_flight) == (0, 0)
    assert (behind.lag, behind.in_flight) == (4, 2)
    progress = GroupProgress(group="g", queues=(ahead, behind), consume_tps=0.0)
    assert (progress.lag, progress.in_flight) == (4, 2)


def test_the_lag_of_a_broker_is_that_of_the_queues_with_a_lag() -> None:
    offsets = {
        each.queue: OffsetWrapper(
            broker_offset=each.broker_offset, consumer_offset=each.consumer_offset
        )
        for each in (queue(0, 3, 10), queue(1, 10, 6))
    }
    stats = ConsumeStatsList(
        consume_stats_list=[{"g": [ConsumeStats(offset_table=offsets)]}], total_diff=-3
    )
    assert lag_of(stats) == 4
