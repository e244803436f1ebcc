"""What one task of the sink does with its Arrow batches; knows nothing of Spark.

The task reads batches in its own thread and makes requests of them; a loop thread sends them. What
is too much under way holds the task, and with it Spark, back. A task ends when everything is
acknowledged, or fails; what it had stored by then stays. ``Written`` says what it did.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from skylark.client.blocking.event_loop_thread import Portal, shared_portal
from skylark.client.core.client_message import Message
from skylark.client.producer.send_request import property_text
from skylark.spark.cluster_client import client_options
from skylark.spark.exactly_once.commit_protocol import AbandonedError, Prepared
from skylark.spark.exactly_once.half_message_sender import HalfSending, Portion, portions
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.sink.row_batcher import Cutter, Load, Row, Target
from skylark.spark.sink.row_encoder import BadRowError, RowPlan, RowReader, Rows, Stamp
from skylark.spark.sink.sink_client import SinkClient, shared_client
from skylark.spark.sink.sink_options import SinkOptions
from skylark.spark.sink.sink_sender import Sending, Written
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Requests that are handed to the loop together.
_TOGETHER: Final = 8
BAD_BODY_SIZE_MAX: Final = 64 * 1024
REASON_PROPERTY: Final = "BAD_ROW_REASON"
BATCH_PROPERTY: Final = "BAD_ROW_BATCH"


class TaskId(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of which batch of which sink."""

    sink: str
    batch: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sink}/{self.batch}/{self.partition}"


def sink_client(options: SinkOptions) -> SinkClient:
    """The client of this process for a sink."""
    return shared_client(client_options(options.connection), options.producer_group)


class BadRows:
    """What is done with rows that cannot be messages."""

    def __init__(self, options: SinkOptions, task: TaskId) -> None:
        self._options = options
        self._task = task
        self.count = 0
        self.letters: list[tuple[bytes, str]] = []  #: bodies and reasons, for the other topic
        self.letter_count = 0

    def judge(self, position: int, body: bytes | None, reason: str) -> None:
        """A row is bad; raises BadRowError if that fails the task.

        ``position`` counts all rows of the task.
        """
        name = f"row {position} of partition {self._task.partition}"
        if self._options.on_bad_row == "fail":
            raise BadRowError(
                f"{name} of batch {self._task.batch} cannot be a message: {reason}",
                hint="onBadRow=skip or dlq goes on without such rows",
            )
        self.count += 1
        log.info("%s is left out: %s", name, reason)
        if self._options.on_bad_row == "dlq":
            self.letter_count += 1
            self.letters.append(((body or b"null")[:BAD_BODY_SIZE_MAX], reason))


class _Task:
    """What both ways to deliver have in common."""

    def __init__(self, options: SinkOptions, plan: RowPlan, task: TaskId) -> None:
        self.options = options
        self.task = task
        self.portal: Portal = shared_portal()
        self.client = sink_client(options)
        self.cutter = Cutter(options)
        self.bad = BadRows(options, task)
        self.reader = RowReader(
            plan,
            options,
            self.client.sender.common or {},
            None if options.exactly_once else self.client.sender.next_id,
        )
        self._row_count = 0

    def read(self, batch: pa.RecordBatch) -> Rows:
        """The good rows of a batch; the others have got what they deserve."""
        stamp = Stamp(f"{self.task}/", self._row_count) if self.options.stamp_id else None
        rows = self.reader.read(batch, stamp)
        rows.first = self._row_count
        bodies = batch.column("body")
        for position, reason in sorted(rows.bad.items()):
            body = bodies[position].as_py()
            raw = body.encode() if isinstance(body, str) else body
            self.bad.judge(rows.first + position, raw, reason)
        self._row_count += batch.num_rows
        return rows

    def queues(self, rows: Rows) -> dict[str, Sequence[MessageQueue]]:
        """The queues of all topics of the rows; raises NotFoundError."""

        async def find() -> dict[str, Sequence[MessageQueue]]:
            topics = self.cutter.topics(rows) if len(rows.positions) else []
            return {topic: await self.client.queues(topic) for topic in topics}

        return self.portal.call(find())


def write_at_least_once(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, plan: RowPlan, task_id: TaskId
) -> Written:
    """Send all rows; returns when every one of them is acknowledged."""
    task = _Task(options, plan, task_id)
    portal = task.portal

    def refused(load: Load, number: int, reason: str) -> None:
        body = load.rows.bodies[number].as_py()
        task.bad.judge(load.rows.first + int(load.rows.positions[number]), body, reason)

    async def start() -> Sending:
        return Sending(task.client, options, task.cutter, refused)

    sending = portal.call(start())

    async def put(loads: list[Load]) -> None:
        for load in loads:
            await sending.put(load)

    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = task.read(batch)
            for loads in _together(task.cutter.cut(rows, task.queues(rows)), _TOGETHER):
                portal.call(put(loads))
            portal.call(put(_letters(task)))
        written = portal.call(sending.finish())
        portal.call(put(_letters(task)))  # rows that a broker has refused
        written = portal.call(sending.finish())
    except BaseException:
        portal.call(sending.cancel())
        raise
    written.bad = task.bad.count
    written.count -= task.bad.letter_count
    return written


def write_exactly_once(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, plan: RowPlan, task_id: TaskId
) -> tuple[Written, Prepared]:
    """Store all rows as half messages, unless the batch is decided already."""
    task = _Task(options, plan, task_id)
    portal = task.portal
    prepared = Prepared(
        sink=task_id.sink,
        batch=task_id.batch,
        partition=task_id.partition,
        attempt=secrets.token_hex(8),
        count=0,
    )
    txn_log = TxnLog(task.client, strict_ack=options.strict_ack)
    standing = portal.call(txn_log.look(task_id.sink, task_id.batch)).standing
    if standing.abandoned:
        raise AbandonedError(task_id.sink, task_id.batch)
    if standing.decision is not None:
        for _ in batches:
            pass  # Spark wants to see its rows taken
        return Written(queues={}), msgspec.structs.replace(prepared, already=True)

    def refused(row: Row, reason: str) -> None:
        task.bad.judge(row.position, row.body, reason)

    async def start() -> HalfSending:
        return HalfSending(task.client, options, prepared, refused)

    sending = portal.call(start())

    async def put(portions: list[Portion]) -> None:
        for portion in portions:
            await sending.put(portion)

    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = task.read(batch)
            queues = task.queues(rows)
            for part in _together(_portions(task, rows, queues), _TOGETHER):
                portal.call(put(part))
        prepared = portal.call(sending.finish(txn_log))
    except BaseException:
        portal.call(sending.cancel())
        raise
    written = Written(
        count=prepared.count, size=sending.size, retries=sending.retries, bad=task.bad.count,
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
        task.portal.call(task.client.require_idempotent(brokers))
    for target, numbers in task.cutter.targets(rows, queues):
        yield from portions(rows, target, numbers)


def _letters(task: _Task) -> list[Load]:
    """Bad rows as messages to the other topic."""
    letters, task.bad.letters = task.bad.letters, []
    topic = task.options.bad_row_topic
    if not letters or topic is None:
        return []
    rows = Rows(0)
    loads = []
    for body, reason in letters:
        message = Message(
            topic, body, properties={REASON_PROPERTY: reason, BATCH_PROPERTY: str(task.task)}
        )
        text = property_text(message, task.client.sender.next_id(), task.client.sender.common)
        row = Row(0, 0, Target(topic), body, 0, text, 0)
        loads.append(Load(row.target, row.parcel(), len(body), rows, (0,)))
    return loads


def _together(items: Iterable[T], count: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, count)):
        yield part
