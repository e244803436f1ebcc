"""Input partitions of a read: each is a range of one queue, read by one task.

A :class:`QueueRange` is all that a task needs: it carries the addresses of the broker, so that
executors ask no name server unless a pull fails. Rows keep the order of the queue within a
partition; there is no order between partitions.

Ranges are cut twice. ``maxRecordsPerPartition`` limits the size of each; then, if there are still
fewer than ``minPartitions``, large ones are cut in proportion to their size, as Spark does for
Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from skylark.admin.admin_session import Session
from skylark.spark.source.offset_planning import split_limit
from skylark.spark.source.source_options import FILE_RECORDS_PER_PARTITION, SourceOptions
from skylark.spark.source.store_finder import StoreFinder
from skylark.wire.bodies.common_body import MessageQueue


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """The messages of one queue from offset ``start`` up to ``end``."""

    queue: MessageQueue  #: names as brokers know them
    start: int
    end: int
    addresses: Mapping[int, str] = field(default_factory=dict)  #: broker id -> address
    store_path: str | None = None  #: the folder of the broker's store, for tasks that can read it
    store_given: bool = False  #: ``storePath`` was given: warn if it cannot be used

    @property
    def count(self) -> int:
        return self.end - self.start


async def plan_partitions(
    session: Session,
    options: SourceOptions,
    finder: StoreFinder,
    addresses: Mapping[str, Mapping[int, str]],
    ranges: Mapping[MessageQueue, tuple[int, int]],
) -> list[QueueRange]:
    """Make partitions of the ranges of queues, cut by the options; none for empty ranges."""
    queues = [queue for queue in sorted(ranges) if ranges[queue][0] < ranges[queue][1]]
    stores: dict[tuple[str, str], str | None] = {}
    for topic, broker in dict.fromkeys((queue.topic, queue.broker_name) for queue in queues):
        at = addresses.get(broker, {})
        stores[topic, broker] = await finder.find(session.wrap(topic), at)
    wholes = [
        QueueRange(
            queue=session.namespace.wrap_queue(queue),
            start=ranges[queue][0],
            end=ranges[queue][1],
            addresses=dict(addresses.get(queue.broker_name, {})),
            store_path=stores[queue.topic, queue.broker_name],
            store_given=options.store_path is not None,
        )
        for queue in queues
    ]
    records_max = options.records_per_partition_max
    if records_max is None and any(each.store_path is not None for each in wholes):
        records_max = FILE_RECORDS_PER_PARTITION
    return cut_ranges(wholes, count_min=options.partitions_min, records_max=records_max)


def cut_ranges(
    ranges: Iterable[QueueRange], *, count_min: int | None, records_max: int | None
) -> list[QueueRange]:
    """Cut ranges by the two options; empty ranges are left out."""
    parts = [each for each in ranges if each.count > 0]
    if records_max is not None:
        parts = [part for each in parts for part in _cut(each, -(-each.count // records_max))]
    if count_min is not None and len(parts) < count_min:
        # One part for each range, and further parts for those with the most messages.
        more = split_limit(dict(enumerate(e.count - 1 for e in parts)), count_min - len(parts))
        parts = [part for index, each in enumerate(parts) for part in _cut(each, 1 + more[index])]
    return parts


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    """Cut a range into ``count`` parts of almost equal size."""
    bounds = [whole.start + whole.count * index // count for index in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds)]
