"""Task side of the sink: sends the Arrow batches of one task; independent of Spark.

The task encodes batches in its own thread, and an event loop thread sends the requests. Too many
requests in flight block the task, and with it Spark. A task ends when everything is acknowledged,
or fails; rows that were stored by then stay stored. ``Written`` has the figures.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from skylark.client.blocking.event_loop_thread import Portal, shared_portal
from skylark.client.core.client_message import Message
from skylark.client.producer.send_request import property_text
from skylark.spark.arrow_batches import cut_batch
from skylark.spark.exactly_once.commit_protocol import DATA_MODULUS, Prepared, admit
from skylark.spark.exactly_once.half_message_sender import HalfMessageSender, Portion, portions
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.outages import ride_out
from skylark.spark.sink.row_batcher import Row, RowBatcher, RowRequest, Target
from skylark.spark.sink.row_encoder import BadRowError, RowPlan, RowReader, Rows, Stamp
from skylark.spark.sink.sink_client import sink_client
from skylark.spark.sink.sink_options import SinkOptions
from skylark.spark.sink.sink_sender import SinkSender, TaskSender, Written
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
SenderT = TypeVar("SenderT", bound=TaskSender[Any])

logger = logging.getLogger(__name__)

#: Requests that are passed to the loop in one call.
_TOGETHER: Final = 8
BAD_BODY_SIZE_MAX: Final = 64 * 1024
REASON_PROPERTY: Final = "BAD_ROW_REASON"
BATCH_PROPERTY: Final = "BAD_ROW_BATCH"


class TaskId(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a task: sink, batch and partition."""

    sink: str
    batch: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sink}/{self.batch}/{self.partition}"


@contextmanager
def open_sender(portal: Portal, make: Callable[[], SenderT]) -> Iterator[SenderT]:
    """Make a sender on the event loop; cancels its requests if the block raises."""

    async def start() -> SenderT:
        return make()

    sender = portal.call(start())
    try:
        yield sender
    except BaseException:
        portal.call(sender.cancel())
        raise


class BadRows:
    """Applies the option ``onBadRow``: fail, skip, or collect for the bad-row topic."""

    def __init__(self, options: SinkOptions, task: TaskId) -> None:
        self._options = options
        self._task = task
        self.count = 0
        self.dead_letters: list[
            tuple[bytes, str]
        ] = []  #: bodies and reasons, for the bad-row topic
        self.dead_letter_count = 0

    def reject(self, position: int, body: bytes | None, reason: str) -> None:
        """Handle a bad row; raises BadRowError with ``onBadRow=fail``.

        ``position`` is the index among all rows of the task.
        """
        name = f"row {position} of partition {self._task.partition}"
        if self._options.on_bad_row == "fail":
            raise BadRowError(
                f"{name} of batch {self._task.batch} cannot be sent: {reason}",
                hint="onBadRow=skip or dlq continues without such rows",
            )
        self.count += 1
        logger.info("skipping %s: %s", name, reason)
        if self._options.on_bad_row == "dlq":
            self.dead_letter_count += 1
            self.dead_letters.append(((body or b"null")[:BAD_BODY_SIZE_MAX], reason))


class _Task:
    """Base of both delivery modes: client, batcher and encoder of one task."""

    def __init__(self, options: SinkOptions, plan: RowPlan, task: TaskId) -> None:
        self.options = options
        self.task = task
        self.portal: Portal = shared_portal()
        self.client = sink_client(options)
        self.batcher = RowBatcher(options)
        self.bad = BadRows(options, task)
        self.reader = RowReader(
            plan,
            options,
            self.client.sender.common or {},
            None if options.exactly_once else self.client.sender.next_id,
        )
        self._row_count = 0

    def encoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
        """The rows of the batches, encoded in parts of limited size."""
        for batch in batches:
            for part in cut_batch(batch):
                if part.num_rows:
                    yield self._encode(part)

    def _encode(self, batch: pa.RecordBatch) -> Rows:
        """Encode a batch; bad rows are handled by ``onBadRow``."""
        stamp = Stamp(f"{self.task}/", self._row_count) if self.options.stamp_id else None
        rows = self.reader.read(batch, stamp)
        rows.first = self._row_count
        bodies = batch.column("body")
        for position, reason in sorted(rows.bad.items()):
            body = bodies[position].as_py()
            raw = body.encode() if isinstance(body, str) else body
            self.bad.reject(rows.first + position, raw, reason)
        self._row_count += batch.num_rows
        return rows

    def queues(self, rows: Rows) -> dict[str, Sequence[MessageQueue]]:
        """The queues of all topics of the rows; raises NotFoundError.

        A topic of the options existed when batch 0 of a stream began: if it is not found in a
        later batch, its brokers are down, and the task waits for them. So it does for a broker
        that rows name and that is not registered.
        """
        topics = self.batcher.topics(rows) if len(rows.positions) else []
        named = self.batcher.named_brokers(rows)

        def existed(topic: str) -> bool:
            return self.task.batch > 0 and topic == self.options.topic

        return self.ask(lambda: self.client.queues_of_rows(topics, named, existed))

    def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` on the event loop, through outages."""
        wait_s = self.options.outage_timeout_s
        return self.portal.call(ride_out(self.client.clock, wait_s, work))


def write_at_least_once(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, plan: RowPlan, task_id: TaskId
) -> Written:
    """Send all rows; returns when every row is acknowledged."""
    task = _Task(options, plan, task_id)
    portal = task.portal

    def refused(request: RowRequest, number: int, reason: str) -> None:
        body = request.rows.bodies[number].as_py()
        task.bad.reject(request.rows.first + int(request.rows.positions[number]), body, reason)

    def make() -> SinkSender:
        return SinkSender(task.client, options, task.batcher, refused)

    with open_sender(portal, make) as sender:
        for rows in task.encoded(batches):
            for requests in _together(task.batcher.requests_of(rows, task.queues(rows)), _TOGETHER):
                portal.call(sender.put_all(requests))
            portal.call(sender.put_all(_bad_row_requests(task)))
        portal.call(sender.finish())
        portal.call(sender.put_all(_bad_row_requests(task)))  # that a broker has refused meanwhile
        written = portal.call(sender.finish())
    written.bad = task.bad.count
    written.count -= task.bad.dead_letter_count
    return written


class Fingerprint:
    """A sum over the rows of a task, the same in any order and partition of the rows."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, rows: Rows, topic: str | None) -> None:
        """Add the good rows of an Arrow batch; ``topic`` is that of the options."""
        bodies, texts = rows.bodies.to_pylist(), rows.texts.to_pylist()
        topics = [topic] * len(bodies) if rows.topics is None else rows.topics.to_pylist()
        for body, text, name, flag in zip(bodies, texts, topics, rows.flags.tolist(), strict=True):
            head = f"{name}\0{flag}\0{text}\0".encode()
            digest = hashlib.blake2b(head, digest_size=8)
            digest.update(body)
            self.value += int.from_bytes(digest.digest(), "big")
        self.value %= DATA_MODULUS


def write_exactly_once(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, plan: RowPlan, task_id: TaskId
) -> tuple[Written, Prepared]:
    """Store all rows as half messages, unless the batch was decided before."""
    task = _Task(options, plan, task_id)
    portal = task.portal
    prepared = Prepared(
        sink=task_id.sink,
        batch=task_id.batch,
        partition=task_id.partition,
        attempt=secrets.token_hex(8),
        count=0,
    )
    txn_log = TxnLog(task.client, strict_ack=options.strict_ack, outage_s=options.outage_timeout_s)
    view = portal.call(txn_log.read_status(task_id.sink, task_id.batch))
    # A stamp has the number of the partition, which may differ when the rows are the same.
    has_data = options.txn_id is not None and not options.stamp_id
    data = Fingerprint() if has_data else None
    if not admit(task_id.sink, task_id.batch, view):
        # Spark expects the task to consume its rows.
        if data is not None:
            for rows in task.encoded(batches):
                data.add(rows, options.topic)
        for _ in batches:
            pass
        prepared = msgspec.structs.replace(prepared, already=True, data=data and data.value)
        return Written(queues={}), prepared

    def refused(row: Row, reason: str) -> None:
        task.bad.reject(row.position, row.body, reason)

    def make() -> HalfMessageSender:
        return HalfMessageSender(task.client, options, prepared, refused)

    with open_sender(portal, make) as sender:
        for rows in task.encoded(batches):
            if data is not None:
                data.add(rows, options.topic)
            for part in _together(_portions(task, rows, task.queues(rows)), _TOGETHER):
                portal.call(sender.put_all(part))
        prepared = portal.call(sender.finish(txn_log))
    prepared = msgspec.structs.replace(prepared, data=data and data.value)
    written = Written(
        count=prepared.count, size=sender.size, retries=sender.retries, bad=task.bad.count,
        queues={},
    )  # fmt: skip
    return written, prepared


def _portions(
    task: _Task, rows: Rows, queues: dict[str, Sequence[MessageQueue]]
) -> Iterator[Portion]:
    if not queues:
        return
    if not task.options.verify:
        brokers = sorted({queue.broker_name for each in queues.values() for queue in each})
        task.ask(lambda: task.client.require_idempotent(brokers))
    for target, numbers in task.batcher.targets(rows, queues):
        yield from portions(rows, target, numbers)


def _bad_row_requests(task: _Task) -> list[RowRequest]:
    """Requests that send the collected bad rows to the bad-row topic."""
    dead_letters, task.bad.dead_letters = task.bad.dead_letters, []
    topic = task.options.bad_row_topic
    if not dead_letters or topic is None:
        return []
    rows = Rows(0)
    requests = []
    for body, reason in dead_letters:
        message = Message(
            topic, body, properties={REASON_PROPERTY: reason, BATCH_PROPERTY: str(task.task)}
        )
        text = property_text(message, task.client.sender.next_id(), task.client.sender.common)
        row = Row(0, 0, Target(topic), body, 0, text, 0)
        requests.append(RowRequest(row.target, row.parcel(), len(body), rows, (0,)))
    return requests


def _together(items: Iterable[T], count: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, count)):
        yield part
