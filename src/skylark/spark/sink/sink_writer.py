"""Writers of the sink, called by Spark: ``df.write`` and ``df.writeStream`` of format ``rocketmq``.

Spark creates a writer in the driver, pickles it to the tasks, calls ``write`` in each, and then
``commit`` or ``abort`` in the driver; for streams it creates a new writer for every batch. So a
writer has no state but its options. Tasks of a stream get the query id from Spark (it stays the
same after a restart) and return it to the driver in their commit messages.
:mod:`skylark.spark.sink.task_writer` does the work of tasks, and
:mod:`skylark.spark.exactly_once.commit_coordinator` that of the driver.

The rows of a task keep their order per sharding key. ``overwrite`` and the output mode ``complete``
are refused: a topic cannot be emptied.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from skylark.admin.errors import NotFoundError
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.errors import ConfigError
from skylark.spark.exactly_once.commit_coordinator import CommitCoordinator
from skylark.spark.exactly_once.commit_protocol import Prepared
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.outages import ride_out
from skylark.spark.sink.row_encoder import RowPlan, plan_rows
from skylark.spark.sink.sink_client import SinkClient, sink_client
from skylark.spark.sink.sink_options import SinkOptions, read_sink_options
from skylark.spark.sink.sink_sender import Written
from skylark.spark.sink.task_writer import (
    TaskId,
    write_at_least_once,
    write_exactly_once,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class SinkMessage(WriterCommitMessage):
    """Commit message of a task, pickled to the driver."""

    written: Written
    prepared: Prepared | None = None  #: with exactly-once


class SinkWriter:
    """Base of batch and stream writers."""

    #: Whether a writer with the same sink id may come later.
    returns = True

    def __init__(self, options: SinkOptions, plan: RowPlan) -> None:
        self.options = options
        self.plan = plan

    def write_task(self, batches: Iterator[pa.RecordBatch], task: TaskId) -> SinkMessage:
        """Write the rows of one task."""
        if self.options.exactly_once:
            written, prepared = write_exactly_once(batches, self.options, self.plan, task)
            return SinkMessage(written, prepared)
        return SinkMessage(write_at_least_once(batches, self.options, self.plan, task))

    def commit_batch(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Commit a batch whose tasks have all succeeded."""
        found = [message for message in messages if isinstance(message, SinkMessage)]
        logger.info(
            "batch %d: %d rows in %d bytes, %d requests retried, %d bad rows",
            batch,
            sum(message.written.count for message in found),
            sum(message.written.size for message in found),
            sum(message.written.retries for message in found),
            sum(message.written.bad for message in found),
        )
        prepared = [message.prepared for message in found if message.prepared is not None]
        if self.options.exactly_once and prepared:
            coordinator = self._coordinator()
            sink = prepared[0].sink
            commit = coordinator.commit(sink, batch, prepared, returns=self.returns)
            shared_portal().call(commit)

    def abort_batch(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Roll back after a failed task or a failed commit."""
        if not self.options.exactly_once:
            return
        prepared = [
            message.prepared if isinstance(message, SinkMessage) else None for message in messages
        ]
        shared_portal().call(self._coordinator().abort(prepared))

    def _coordinator(self) -> CommitCoordinator:
        return CommitCoordinator(sink_client(self.options), self.options)


class BatchWriter(SinkWriter, DataSourceArrowWriter):
    """Writer of ``df.write``."""

    def __init__(self, options: SinkOptions, plan: RowPlan) -> None:
        super().__init__(options, plan)
        self.sink = options.txn_id or str(uuid.uuid4())
        self.returns = options.txn_id is not None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return self.write_task(iterator, TaskId(sink=self.sink, batch=0, partition=partition))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_batch(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.abort_batch(messages)


class StreamWriter(SinkWriter, DataSourceStreamArrowWriter):
    """Writer of one micro-batch of ``df.writeStream``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        context = TaskContext.get()
        sink = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
        batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
        if context is None or sink is None or batch is None:
            raise ConfigError(
                "Spark does not pass the query and the batch of this task",
                hint="is this a Spark before 4.3?",
            )
        task = TaskId(sink=sink, batch=int(batch), partition=context.partitionId())
        return self.write_task(iterator, task)

    def write_task(self, batches: Iterator[pa.RecordBatch], task: TaskId) -> SinkMessage:
        if task.batch == 0:  # a topic that is missing now has never existed
            client = sink_client(self.options)
            check = partial(_check_topics, client, self.options)
            shared_portal().call(ride_out(client.clock, self.options.outage_timeout_s, check))
        return super().write_task(batches, task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.commit_batch(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        del batchId
        self.abort_batch(messages)


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of a batch; raises SkylarkError."""
    return BatchWriter(*_prepare(options, schema, overwrite))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, strict: bool = False
) -> DataSourceStreamArrowWriter:
    """The writer of one micro-batch; raises SkylarkError.

    ``strict``: refuse a topic that is not found. Spark does not say which batch it plans, and in a
    later one the brokers of the topic may be down. So otherwise the tasks decide, which know it.
    """
    return StreamWriter(*_prepare(options, schema, overwrite, is_strict=strict))


def _prepare(
    given: Mapping[str, str], schema: StructType, overwrite: bool, *, is_strict: bool = True
) -> tuple[SinkOptions, RowPlan]:
    if overwrite:
        raise ConfigError(
            "a topic cannot be overwritten",
            hint='use .mode("append"), for streams .outputMode("append")',
        )
    options = read_sink_options(given)
    types = {field.name: field.dataType.simpleString() for field in schema}
    plan = plan_rows(types, options, has_options=bool(given))
    client = sink_client(options)
    check = partial(_check_cluster, client, options, is_strict=is_strict)
    shared_portal().call(ride_out(client.clock, options.outage_timeout_s, check))
    return options, plan


async def _check_topics(client: SinkClient, options: SinkOptions) -> set[str]:
    """The brokers of the topics of the options; raises NotFoundError."""
    topics = [topic for topic in (options.topic, options.bad_row_topic) if topic is not None]
    return {queue.broker_name for topic in topics for queue in await client.queues(topic)}


async def _check_cluster(client: SinkClient, options: SinkOptions, *, is_strict: bool) -> None:
    """Raise before anything runs if topics are missing or brokers cannot deliver exactly once.

    Unless ``is_strict``, topics may be missing; tasks check the brokers again that they write to.
    """
    try:
        brokers = await _check_topics(client, options)
    except NotFoundError as error:
        if is_strict:
            raise
        logger.info("leaving it to the tasks: %s", error)
        brokers = set()
    if not options.exactly_once:
        return
    brokers.add(log_broker := await TxnLog(client).broker())
    if options.verify:
        logger.warning("txnVerify=true: exactly-once is a best effort, since the index may lag")
    else:
        await client.require_idempotent(sorted(brokers))
    settings = await client.broker_settings(log_broker)
    if settings.get("flushDiskType") != "SYNC_FLUSH":
        logger.info(
            "a power loss at %s may lose commit decisions: set flushDiskType=SYNC_FLUSH there",
            log_broker,
        )
