"""A batch read: the ranges are fixed when Spark plans, once per ``load()``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from skylark.admin.admin_session import Session
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.source.input_partitions import QueueRange, plan_partitions
from skylark.spark.source.partition_reader import read_partition
from skylark.spark.source.queue_bounds import Surveyor, patiently
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import Resolver
from skylark.spark.source.store_finder import StoreFinder

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
