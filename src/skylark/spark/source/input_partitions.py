"""Ranges of queues as Spark partitions: one task each.

A :class:`QueueRange` is all that a task needs: the addresses of the broker travel with it, so that
executors ask no name server unless something fails. Order within a partition is that of the queue;
between partitions there is none.

Ranges are cut twice. ``maxRecordsPerPartition`` bounds each; then, if there are still fewer than
``minPartitions``, the large ones are cut in proportion to their size, as Spark does for Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from skylark.spark.source.read_limit import split_limit
from skylark.wire.bodies.common_body import MessageQueue


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """The messages of one queue from offset ``start`` up to ``end``."""

    queue: MessageQueue  #: names as brokers know them
    start: int
    end: int
    addresses: Mapping[int, str] = field(default_factory=dict)  #: broker id -> address
    store_path: str | None = None  #: where the broker's files may be, for tasks that can read them
    store_given: bool = False  #: by the user, who wants to hear if it is of no use

    @property
    def count(self) -> int:
        return self.end - self.start


def cut_ranges(
    ranges: Iterable[QueueRange], *, count_min: int | None, records_max: int | None
) -> list[QueueRange]:
    """The same messages in more ranges, where they are wanted; empty ranges are left out."""
    parts = [each for each in ranges if each.count > 0]
    if records_max is not None:
        parts = [part for each in parts for part in _cut(each, -(-each.count // records_max))]
    if count_min is not None and len(parts) < count_min:
        # One piece each is certain; the others go where the messages are.
        more = split_limit(dict(enumerate(e.count - 1 for e in parts)), count_min - len(parts))
        parts = [part for index, each in enumerate(parts) for part in _cut(each, 1 + more[index])]
    return parts


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    """Near-equal parts."""
    bounds = [whole.start + whole.count * index // count for index in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds)]
