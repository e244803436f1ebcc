"""Task side of the mirror job: sends rows and returns the offset pairs of where they were stored.

The sender of the sink sends the rows (:mod:`skylark.spark.sink.sink_sender`) and counts them in a
:class:`~skylark.spark.sink.sink_sender.Written`; :class:`Placed` also records the offset of each
row. An Arrow batch is sent and acknowledged as a whole before its offset pairs are returned, so a
task has only one batch in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.client_message import SendResult
from skylark.spark.sink.row_batcher import RowBatcher, RowRequest
from skylark.spark.sink.row_encoder import SINK_TYPES, BadRowError, RowPlan, RowReader, Rows
from skylark.spark.sink.sink_options import SinkOptions
from skylark.spark.sink.sink_sender import SinkSender, Written
from skylark.spark.sink.task_writer import sink_client

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

PAIR_SCHEMA: Final = (
    "sourceTopic string, sourceBroker string, sourceQueueId int, sourceOffset bigint,"
    " targetTopic string, targetBroker string, targetQueueId int, targetOffset bigint,"
    " count bigint"
)


class Placed(Written):
    """Records the offsets at which the rows of the current batch are stored."""

    offsets: Any = None  #: offset of each row, by its index in the batch

    def stored(self, request: RowRequest, result: SendResult) -> None:
        import numpy as np

        Written.stored(self, request, result)
        positions = request.rows.positions[np.asarray(request.numbers)]
        self.offsets[positions] = result.queue_offset + np.arange(request.count)


def send_rows(
    batches: Iterator[pa.RecordBatch], *, source_topic: str, options: SinkOptions
) -> Iterator[pa.RecordBatch]:
    """Send the rows of :func:`skylark.spark.jobs.mirror_job.mirrored_rows`; yields offset runs."""
    import numpy as np

    portal, client = shared_portal(), sink_client(options)
    topic = options.topic
    assert topic is not None
    batcher = RowBatcher(options)

    def refused(request: RowRequest, number: int, reason: str) -> None:
        raise _bad_row(int(request.rows.positions[number]), reason)

    async def start() -> SinkSender:
        return SinkSender(client, options, batcher, refused)

    sending = portal.call(start())
    placed = sending.written = Placed(queues={})
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            plan = RowPlan(columns=tuple(name for name in batch.schema.names if name in SINK_TYPES))
            reader = RowReader(plan, options, client.sender.common or {}, client.sender.next_id)
            rows = reader.read(batch)
            _require_good(rows)
            placed.offsets = np.full(batch.num_rows, -1)
            queues = {topic: portal.call(client.queues(topic))}
            for request in batcher.requests_of(rows, queues):
                portal.call(sending.put(request))
            portal.call(sending.finish())
            yield offset_runs(batch, placed.offsets, source_topic, topic)
    except BaseException:
        portal.call(sending.cancel())
        raise


def _require_good(rows: Rows) -> None:
    for position, reason in rows.bad.items():
        raise _bad_row(position, reason)


def _bad_row(position: int, reason: str) -> BadRowError:
    return BadRowError(f"row {position} of a batch cannot be mirrored: {reason}")


def offset_runs(
    batch: pa.RecordBatch, offsets: np.ndarray[Any, Any], source_topic: str, target_topic: str
) -> pa.RecordBatch:
    """Group the rows of a batch into runs in which source and target offsets are consecutive."""
    import numpy as np
    import pyarrow as pa

    sources = batch.column("sourceOffset").to_numpy()
    breaks = (np.diff(sources) != 1) | (np.diff(offsets) != 1)
    for name in ("sourceBroker", "sourceQueueId", "brokerName", "queueId"):
        codes = batch.column(name).dictionary_encode().indices.to_numpy()
        breaks |= np.diff(codes) != 0
    firsts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    counts = np.diff(np.concatenate((firsts, [batch.num_rows])))
    taken = batch.take(pa.array(firsts))
    count = len(firsts)
    return pa.RecordBatch.from_pydict(
        {
            "sourceTopic": pa.array([source_topic] * count, pa.string()),
            "sourceBroker": taken.column("sourceBroker"),
            "sourceQueueId": taken.column("sourceQueueId"),
            "sourceOffset": taken.column("sourceOffset"),
            "targetTopic": pa.array([target_topic] * count, pa.string()),
            "targetBroker": taken.column("brokerName"),
            "targetQueueId": taken.column("queueId"),
            "targetOffset": pa.array(offsets[firsts], pa.int64()),
            "count": pa.array(counts, pa.int64()),
        }
    )
