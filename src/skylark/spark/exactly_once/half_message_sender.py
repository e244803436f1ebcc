"""Sender of half messages: stores the rows of an exactly-once task, and writes their manifest.

Each row is a message with ``TRAN_MSG``, the resolver's group, its identity and an immunity time,
during which brokers send no check-back for it. Rows are sent in *portions*, a few hundred of one
destination in one request: SEND_HALVES, which only Skylark brokers know
(:mod:`skylark.broker.transaction.half_batches`). If a broker does not know it (3), or a portion
has a row that needs a separate request (13), and for large rows, each row is sent by itself.
Both ways store the same half messages.

A send without a reply may have stored any number of its half messages. Their sequence numbers
become void, and the same rows are sent under new numbers
(:mod:`skylark.spark.exactly_once.txn_log_records`). So it makes no difference whether the broker,
the connection or the task died before, during or after the append. With ``strictAck`` the same
holds for half messages whose flush or replication timed out. Replies that say that nothing was
stored keep the numbers.

Belongs to one event loop; :meth:`HalfMessageSender.put` waits while too much is in flight.
"""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skylark.admin.errors import NoBrokerError
from skylark.client.core.client_message import Message, SendResult
from skylark.client.producer.send_request import Parcel
from skylark.core.errors import (
    BrokerError,
    ConnectError,
    MessageIllegalError,
    NoNameServerError,
    NoRouteError,
    RemoteProtocolError,
    SkylarkError,
)
from skylark.spark.exactly_once.commit_protocol import Prepared
from skylark.spark.exactly_once.half_message_completion import (
    IN_FLIGHT_MAX,
    gather_all,
    is_unknown_request,
)
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.exactly_once.txn_log_records import (
    IDENTITY_PROPERTY,
    MANIFEST_COUNT_MAX,
    RESOLVER_GROUP,
    VOID_COUNT_MAX,
    Manifest,
    differences,
    identity_prefix,
    unique_id,
    unique_prefix,
)
from skylark.spark.sink.row_batcher import Row, RowBatcher, Target, runs_of, take_rows
from skylark.spark.sink.row_encoder import Rows, batch_parts
from skylark.spark.sink.sink_client import SinkClient
from skylark.spark.sink.sink_options import SinkOptions
from skylark.spark.sink.sink_sender import TaskSender, Window
from skylark.wire import properties as names
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.layout import FLAG_TRANSACTION_PREPARED

if TYPE_CHECKING:
    import numpy as np

#: Replies of a broker that has stored nothing.
_NOT_STORED: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.GO_AWAY,
    }
)
#: Rows of one request: all become void if there is no reply, so not too many.
PORTION_COUNT: Final = 256
_PORTION_SIZE: Final = 512 << 10
#: Portions in memory, and requests with portions in flight to one broker.
_PORTIONS_MAX: Final = 32
_PORTIONS_IN_FLIGHT: Final = 8
_WINDOW_FIRST: Final = 64
#: Hex digits of the log offset at the end of a message id.
_LOG_OFFSET_DIGITS: Final = 16


class Portion(msgspec.Struct, frozen=True):
    """Rows of one destination that one request may hold."""

    target: Target
    rows: Rows
    numbers: np.ndarray[Any, Any]  #: indexes among the good rows of their Arrow batch
    size: int
    together: bool  #: False for rows that need a request each

    @property
    def count(self) -> int:
        return len(self.numbers)


def portions(rows: Rows, target: Target, numbers: np.ndarray[Any, Any]) -> Iterator[Portion]:
    """Split the rows of a destination; the rows of a chosen queue keep their order."""
    import numpy as np

    for alone, chosen in runs_of(rows, target, numbers):
        ends = np.cumsum(rows.sizes[chosen])
        first, size = 0, 0
        while first < len(chosen):
            last = int(np.searchsorted(ends, size + _PORTION_SIZE, side="right"))
            last = max(first + 1, min(last, first + PORTION_COUNT))
            before, size = size, int(ends[last - 1])
            yield Portion(target, rows, chosen[first:last], size - before, not alone)
            first = last


class HalfMessageSender(TaskSender[Portion]):
    """Sends the rows of one attempt to write one partition."""

    def __init__(
        self,
        client: SinkClient,
        options: SinkOptions,
        prepared: Prepared,
        on_refused: Callable[[Row, str], None],
        rng: random.Random | None = None,
    ) -> None:
        """``prepared`` has the attempt; ``on_refused`` is called for rows that a broker refuses."""
        super().__init__(client, options, _PORTIONS_MAX, rng)
        self._prepared = prepared
        self._on_refused = on_refused
        self._batcher = RowBatcher(options)
        who = (prepared.sink, prepared.batch, prepared.partition, prepared.attempt)
        self._identity = identity_prefix(*who)
        self._unique = unique_prefix(*who)
        self._common = names.encode_properties(
            {
                names.PROPERTY_PGROUP: client.namespace.wrap(RESOLVER_GROUP),
                names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: str(options.immunity_sec),
            }
        )
        self._windows: dict[str, Window] = defaultdict(lambda: Window(IN_FLIGHT_MAX, _WINDOW_FIRST))
        self._portion_windows: dict[str, Window] = defaultdict(lambda: Window(_PORTIONS_IN_FLIGHT))
        self._one_by_one = False  # a broker does not know SEND_HALVES
        self._next_seq = 0
        self._void: list[int] = []
        self._queues: dict[tuple[str, str, int], int] = {}
        # One entry per row, in order; a target of -1 is a refused row.
        self._targets, self._log_offsets = array("i"), array("q")
        self._queue_offsets, self._seqs = array("q"), array("q")
        self.ordered = False
        self.size = 0
        self.retries = 0

    async def put(self, portion: Portion) -> None:
        """Start sending rows; waits for room, raises the first failure of any row."""
        await self._take_room(portion.size)
        number = len(self._targets)
        self._targets.extend([-1] * portion.count)
        for column in (self._log_offsets, self._queue_offsets, self._seqs):
            column.extend([0] * portion.count)
        self.ordered = self.ordered or portion.target.queue is not None
        work = partial(self._send_rows, number, portion)
        self._tasks.spawn(self._deliver(portion.size, work), name="halves")

    async def finish(self, log: TxnLog) -> Prepared:
        """Wait for all acknowledgements and append the manifests to the log."""
        await self._wait_for_all()
        rows = [number for number, target in enumerate(self._targets) if target >= 0]
        manifests = [
            await log.append(self._manifest(chunk, rows[first : first + MANIFEST_COUNT_MAX]))
            for chunk, first in enumerate(range(0, len(rows), MANIFEST_COUNT_MAX))
        ]
        void = tuple(sorted(self._void))
        return msgspec.structs.replace(
            self._prepared, count=len(rows), manifests=tuple(manifests), void=void
        )

    def _manifest(self, chunk: int, rows: list[int]) -> Manifest:
        prepared = self._prepared
        return Manifest(
            sink=prepared.sink,
            batch=prepared.batch,
            partition=prepared.partition,
            attempt=prepared.attempt,
            chunk=chunk,
            ordered=self.ordered,
            queues=tuple(self._queues),
            targets=tuple(self._targets[number] for number in rows),
            log_offsets=differences([self._log_offsets[number] for number in rows]),
            queue_offsets=differences([self._queue_offsets[number] for number in rows]),
            seqs=differences([self._seqs[number] for number in rows]),
        )

    # ---- portions --------------------------------------------------------------------------------

    async def _send_rows(self, number: int, portion: Portion) -> None:
        """Send rows; ``number`` is the place of the first one in the task, counted from 0."""
        if not await self._try_together(number, portion):
            rows = self._batcher.rows(portion.rows, portion.target, portion.numbers)
            await gather_all([self._send_row(number + at, row) for at, row in enumerate(rows)])

    async def _try_together(self, number: int, portion: Portion) -> bool:
        """Send a portion in one request; False if its rows must be sent one by one."""
        if not portion.together or self._one_by_one or portion.count == 1:
            return False
        try:
            seq, result = await self._numbered(portion.count, partial(self._attempt, portion))
        except MessageIllegalError:
            return False
        except BrokerError as error:
            if not is_unknown_request(error):
                raise
            self._one_by_one = True
            return False
        self._stored(number, seq, portion.count, result)
        self.size += portion.size
        return True

    async def _attempt(self, portion: Portion, seq: int) -> SendResult:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows, numbers = portion.rows, portion.numbers
        suffixes = [self._suffix(seq + at) for at in range(portion.count)]
        texts = pc.binary_join_element_wise(take_rows(rows.texts, numbers), pa.array(suffixes), "")
        data, ends = batch_parts(take_rows(rows.bodies, numbers), texts, rows.flags[numbers])
        parcel = Parcel(
            messages=(Message(portion.target.topic, b""),) * portion.count,
            properties=self._common,
            body=bytes(data[ends[0] : ends[-1]]),
            code=RequestCode.SEND_HALVES,
        )
        return await self._send(portion.target, parcel, self._portion_windows)

    # ---- rows ------------------------------------------------------------------------------------

    async def _send_row(self, number: int, row: Row) -> None:
        if self._failure is not None:
            return
        try:
            seq, result = await self._numbered(1, partial(self._attempt_row, row))
        except MessageIllegalError as error:
            self._on_refused(row, f"the broker refuses it: {error.remark}")
        else:
            self._stored(number, seq, 1, result)
            self.size += len(row.body)

    async def _attempt_row(self, row: Row, seq: int) -> SendResult:
        suffix = f"{_HALF}{self._common}{self._suffix(seq)}"
        parcel = row.parcel(suffix, FLAG_TRANSACTION_PREPARED)
        return await self._send(row.target, parcel, self._windows)

    # ---- both ------------------------------------------------------------------------------------

    def _suffix(self, seq: int) -> str:
        return (
            f"UNIQ_KEY\x01{unique_id(self._unique, seq)}\x02"
            f"{IDENTITY_PROPERTY}\x01{self._identity}{seq}\x02"
        )

    async def _numbered(
        self, count: int, attempt: Callable[[int], Awaitable[SendResult]]
    ) -> tuple[int, SendResult]:
        """Retry until ``count`` rows are stored; the first sequence number and its result."""
        seq = self._draw(count)

        def on_retry(problem: SkylarkError) -> None:
            nonlocal seq
            if not _stored_nothing(problem):
                self._make_void(range(seq, seq + count))
                seq = self._draw(count)
            self.retries += 1

        result = await self._until_stored(lambda: attempt(seq), on_retry)
        return seq, result

    def _stored(self, number: int, seq: int, count: int, result: SendResult) -> None:
        queue: MessageQueue = self._client.namespace.wrap_queue(result.queue)
        key = (queue.topic, queue.broker_name, queue.queue_id)
        target = self._queues.setdefault(key, len(self._queues))
        log_offsets = _log_offsets(result, count)
        end, offset = number + count, result.queue_offset
        self._targets[number:end] = array("i", [target] * count)
        self._log_offsets[number:end] = array("q", log_offsets)
        self._queue_offsets[number:end] = array("q", range(offset, offset + count))
        self._seqs[number:end] = array("q", range(seq, seq + count))

    def _draw(self, count: int) -> int:
        """Reserve ``count`` sequence numbers; returns the first."""
        self._next_seq += count
        return self._next_seq - count

    def _make_void(self, seqs: range) -> None:
        if len(self._void) + len(seqs) > VOID_COUNT_MAX:
            raise BrokerError(
                f"{VOID_COUNT_MAX} rows of one task got no reply",
                hint="is a broker overloaded? raise sendTimeoutMs",
            )
        self._void.extend(seqs)


_HALF: Final = names.encode_properties({names.PROPERTY_TRAN_MSG: "true"})


def _log_offsets(result: SendResult, count: int) -> list[int]:
    """Log offsets of half messages, read from their ids; raises RemoteProtocolError."""
    ids = (result.offset_msg_id or result.msg_id).split(",")
    try:
        found = [int(text[-_LOG_OFFSET_DIGITS:], 16) for text in ids]
    except ValueError as error:
        raise RemoteProtocolError(f"a broker sent the message id {ids[0]:.100}") from error
    if len(found) != count:
        raise RemoteProtocolError(f"a broker stored {len(found)} of {count} half messages")
    return found


def _stored_nothing(error: SkylarkError) -> bool:
    """Whether the half message was certainly not stored."""
    if isinstance(error, BrokerError):
        return error.code in _NOT_STORED
    return isinstance(error, (ConnectError, NoBrokerError, NoNameServerError, NoRouteError))
