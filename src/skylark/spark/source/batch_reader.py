"""Reader of a batch query: plans the ranges of queues once per ``load()``, reads them in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from skylark.admin.admin_session import Session
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.source.input_partitions import QueueRange, plan_partitions
from skylark.spark.source.partition_reader import read_partition
from skylark.spark.source.queue_bounds import ClusterInspector, with_retries
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import OffsetResolver
from skylark.spark.source.store_finder import StoreFinder

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads a topic from its starting to its ending offsets; called by Spark."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read, by the offsets that brokers report now; raises SkylarkError."""
        cluster = shared_cluster(self._options.connection)
        return cluster.run(
            with_retries(cluster.session, self._options, lambda: self._plan(cluster.session))
        )

    async def _plan(self, session: Session) -> list[QueueRange]:
        inspector = ClusterInspector(session, self._options)
        snapshot = await inspector.first_snapshot()
        resolver = OffsetResolver(session, self._options, snapshot)
        start = await resolver.start()
        end = await resolver.end(start)
        ranges = {queue: (start[queue], end[queue]) for queue in start}
        finder = StoreFinder(session, self._options)
        return await plan_partitions(session, self._options, finder, snapshot.addresses, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in tasks. Without partitions Spark calls it with one that is not a QueueRange."""
        if not isinstance(partition, QueueRange):
            return iter(())
        return read_partition(partition, self._options, self._columns)
