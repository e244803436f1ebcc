"""A batch read: the ranges are fixed when Spark plans, once per ``load()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from skylark.admin.admin_session import Session
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.source.input_partitions import QueueRange, cut_ranges
from skylark.spark.source.partition_reader import read_partition
from skylark.spark.source.queue_bounds import Surveyor, patiently
from skylark.spark.source.source_options import FILE_RECORDS_PER_PARTITION, SourceOptions
from skylark.spark.source.start_offsets import Resolver
from skylark.spark.source.store_finder import StoreFinder
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Asks the cluster for the ends of all queues; raises what keeps it from being read."""
        cluster = shared_cluster(self._options.connection)
        return cluster.run(
            patiently(cluster.session, self._options, lambda: self._plan(cluster.session))
        )

    async def _plan(self, session: Session) -> list[QueueRange]:
        surveyor = Surveyor(session, self._options)
        survey = await surveyor.first_survey()
        resolver = Resolver(session, self._options, survey)
        start = await resolver.start()
        end = await resolver.end(start)
        ranges = {queue: (start[queue], end[queue]) for queue in start}
        finder = StoreFinder(session, self._options)
        return await plan_partitions(session, self._options, finder, survey.addresses, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in tasks; Spark may ask for a partition that is none of ours, if there are none."""
        if not isinstance(partition, QueueRange):
            return iter(())
        return read_partition(partition, self._options, self._columns)


async def plan_partitions(
    session: Session,
    options: SourceOptions,
    finder: StoreFinder,
    addresses: Mapping[str, Mapping[int, str]],
    ranges: Mapping[MessageQueue, tuple[int, int]],
) -> list[QueueRange]:
    """Partitions of these ranges, cut as the options say; none for empty ones."""
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
