"""Rows of an exactly-once task on their way as half messages, and the manifest of where they are.

Rows travel in *portions*, a few hundred of one destination in one request: SEND_HALVES, which only
a Skylark broker knows (:mod:`skylark.broker.transaction.half_batches`). Where a broker does not
(3), or finds something in a portion that needs a request of its own (13), and for large rows, each
row is a send by itself. In both forms the halves are the same.

A send that got no answer may have stored any number of its halves. Their numbers become void, all
of them, and the same rows are sent under the next ones: see
:mod:`skylark.spark.exactly_once.half_message_completion`. So it makes no difference whether broker,
connection or task died before, within or after the append. With ``strictAck`` the same goes for
halves whose flush or replica was late.

Belongs to one event loop; :meth:`HalfSending.put` waits while too much is under way.
"""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skylark.client.core.client_message import Message, SendResult, SendStatus
from skylark.client.core.permits import Permits
from skylark.client.producer.send_request import Parcel
from skylark.client.producer.send_retry import SendMode
from skylark.core.backoff import Outage
from skylark.core.errors import (
    BrokerError,
    ConnectError,
    MessageIllegalError,
    RemoteProtocolError,
    SkylarkError,
    SystemBusyError,
)
from skylark.core.lifecycle import Tasks
from skylark.spark.exactly_once.commit_protocol import Prepared
from skylark.spark.exactly_once.half_message_completion import (
    IN_FLIGHT_MAX,
    all_of,
    is_unknown_request,
)
from skylark.spark.exactly_once.txn_log import TxnLog, may_repeat
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
from skylark.spark.sink.row_batcher import Cutter, Row, Target, runs_of, some
from skylark.spark.sink.row_encoder import Rows, batch_parts
from skylark.spark.sink.sink_client import SinkClient
from skylark.spark.sink.sink_options import SinkOptions
from skylark.spark.sink.sink_sender import REPEAT, UNACKNOWLEDGED_MAX, Window
from skylark.wire import properties as names
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.layout import FLAG_TRANSACTION_PREPARED

if TYPE_CHECKING:
    import numpy as np

#: Answers of a broker that has stored nothing.
_NOT_STORED: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.GO_AWAY,
    }
)
#: Rows of one request: what gets no answer becomes void, so not too many.
PORTION_COUNT: Final = 256
_PORTION_SIZE: Final = 512 << 10
#: Portions that are there at a time, and of these under way at one broker.
_PORTIONS_MAX: Final = 32
_PORTIONS_IN_FLIGHT: Final = 8
_WINDOW_FIRST: Final = 64
#: Hex digits of a log offset, at the end of the id of a message.
_LOG_OFFSET_DIGITS: Final = 16


class Portion(msgspec.Struct, frozen=True):
    """Some rows of one destination."""

    target: Target
    rows: Rows
    numbers: np.ndarray[Any, Any]  #: among the good rows of their batch
    size: int
    together: bool  #: whether one request may hold them

    @property
    def count(self) -> int:
        return len(self.numbers)


def portions(rows: Rows, target: Target, numbers: np.ndarray[Any, Any]) -> Iterator[Portion]:
    """Cut the rows of a destination; those of a queue that is given stay in their order."""
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


class HalfSending:
    """One attempt to write one partition."""

    def __init__(
        self,
        client: SinkClient,
        options: SinkOptions,
        prepared: Prepared,
        on_refused: Callable[[Row, str], None],
        rng: random.Random | None = None,
    ) -> None:
        """``prepared`` names the attempt; ``on_refused`` hears of rows that a broker refuses."""
        self._client = client
        self._options = options
        self._prepared = prepared
        self._on_refused = on_refused
        self._rng = rng or random.Random()
        self._cutter = Cutter(options)
        who = (prepared.sink, prepared.batch, prepared.partition, prepared.attempt)
        self._identity = identity_prefix(*who)
        self._unique = unique_prefix(*who)
        self._common = names.encode_properties(
            {
                names.PROPERTY_PGROUP: client.namespace.wrap(RESOLVER_GROUP),
                names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: str(options.immunity_sec),
            }
        )
        self._tasks = Tasks("sink", limit=2 * _PORTIONS_MAX)
        self._permits = Permits(client.clock, count_max=_PORTIONS_MAX, size_max=UNACKNOWLEDGED_MAX)
        self._windows: dict[str, Window] = defaultdict(lambda: Window(IN_FLIGHT_MAX, _WINDOW_FIRST))
        self._portion_windows: dict[str, Window] = defaultdict(lambda: Window(_PORTIONS_IN_FLIGHT))
        self._one_by_one = False  # a broker does not know portions
        self._turn = self._rng.getrandbits(16)
        self._next_seq = 0
        self._void: list[int] = []
        self._failure: Exception | None = None
        self._queues: dict[tuple[str, str, int], int] = {}
        # One entry per row, in their order; a target of -1 is a row that was refused.
        self._targets, self._log_offsets = array("i"), array("q")
        self._queue_offsets, self._seqs = array("q"), array("q")
        self.ordered = False
        self.size = 0
        self.retries = 0

    async def put(self, portion: Portion) -> None:
        """Have rows sent; waits for room, raises the first failure of any row."""
        await self._permits.take(portion.size, 2 * self._options.delivery_timeout_ms / 1000)
        if self._failure is not None:
            raise self._failure
        number = len(self._targets)
        self._targets.extend([-1] * portion.count)
        for column in (self._log_offsets, self._queue_offsets, self._seqs):
            column.extend([0] * portion.count)
        self.ordered = self.ordered or portion.target.queue is not None
        self._tasks.spawn(self._deliver(number, portion), name="halves")

    async def finish(self, log: TxnLog) -> Prepared:
        """Wait for all acknowledgements and write down where the halves are."""
        await self._tasks.wait()
        if self._failure is not None:
            raise self._failure
        rows = [number for number, target in enumerate(self._targets) if target >= 0]
        manifests = [
            await log.append(self._manifest(chunk, rows[first : first + MANIFEST_COUNT_MAX]))
            for chunk, first in enumerate(range(0, len(rows), MANIFEST_COUNT_MAX))
        ]
        prepared = self._prepared
        return Prepared(
            sink=prepared.sink,
            batch=prepared.batch,
            partition=prepared.partition,
            attempt=prepared.attempt,
            count=len(rows),
            manifests=tuple(manifests),
            void=tuple(sorted(self._void)),
        )

    async def cancel(self) -> None:
        """Give up what is under way."""
        await self._tasks.cancel_and_wait()

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

    async def _deliver(self, number: int, portion: Portion) -> None:
        """Send rows, the first of which is the task's row ``number``."""
        try:
            if self._failure is None and not await self._try_together(number, portion):
                rows = self._cutter.rows(portion.rows, portion.target, portion.numbers)
                work = [self._deliver_row(number + at, row) for at, row in enumerate(rows)]
                await all_of(work)
        except Exception as error:  # noqa: BLE001 - whatever it is, the task hears of it
            self._failure = self._failure or error
        finally:
            self._permits.give(portion.size)

    async def _try_together(self, number: int, portion: Portion) -> bool:
        """Whether all rows are stored; False if they have to be sent one by one."""
        if not portion.together or self._one_by_one or portion.count == 1:
            return False
        try:
            seq, result = await self._until_stored(
                portion.count, partial(self._send_portion, portion)
            )
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

    async def _send_portion(self, portion: Portion, seq: int) -> SendResult:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows, numbers = portion.rows, portion.numbers
        suffixes = [self._suffix(seq + at) for at in range(portion.count)]
        texts = pc.binary_join_element_wise(some(rows.texts, numbers), pa.array(suffixes), "")
        data, ends = batch_parts(some(rows.bodies, numbers), texts, rows.flags[numbers])
        parcel = Parcel(
            messages=(Message(portion.target.topic, b""),) * portion.count,
            properties=self._common,
            body=bytes(data[ends[0] : ends[-1]]),
            code=RequestCode.SEND_HALVES,
        )
        return await self._send(portion.target, parcel, self._portion_windows)

    # ---- rows ------------------------------------------------------------------------------------

    async def _deliver_row(self, number: int, row: Row) -> None:
        if self._failure is not None:
            return
        try:
            seq, result = await self._until_stored(1, partial(self._send_row, row))
        except MessageIllegalError as error:
            self._on_refused(row, f"the broker refuses it: {error.remark}")
        else:
            self._stored(number, seq, 1, result)
            self.size += len(row.body)

    async def _send_row(self, row: Row, seq: int) -> SendResult:
        suffix = f"{_HALF}{self._common}{self._suffix(seq)}"
        parcel = row.parcel(suffix, FLAG_TRANSACTION_PREPARED)
        return await self._send(row.target, parcel, self._windows)

    # ---- both ------------------------------------------------------------------------------------

    def _suffix(self, seq: int) -> str:
        return (
            f"UNIQ_KEY\x01{unique_id(self._unique, seq)}\x02"
            f"{IDENTITY_PROPERTY}\x01{self._identity}{seq}\x02"
        )

    async def _until_stored(
        self, count: int, attempt: Callable[[int], Awaitable[SendResult]]
    ) -> tuple[int, SendResult]:
        """Try until so many rows are stored; the number of the first, and where it is."""
        clock, options = self._client.clock, self._options
        outage = Outage(REPEAT, clock, options.delivery_timeout_ms / 1000, self._rng)
        retries, seq = 0, self._draw(count)
        while True:
            try:
                result = await attempt(seq)
                if result.status is SendStatus.SEND_OK or not options.strict_ack:
                    return seq, result
                problem: SkylarkError = BrokerError(f"stored with {result.status.value}")
            except SkylarkError as error:
                if not may_repeat(error):
                    raise
                problem = error
            retries += not isinstance(problem, SystemBusyError)
            pause_s = outage.next_pause_s()
            if retries > options.retries or pause_s is None:
                raise problem
            if not _stored_nothing(problem):
                self._make_void(range(seq, seq + count))
                seq = self._draw(count)
            self.retries += 1
            await clock.sleep(pause_s)

    async def _send(self, target: Target, parcel: Parcel, windows: dict[str, Window]) -> SendResult:
        client, queue = self._client, target.queue
        if queue is None:
            queues = await client.queues(target.topic)
            self._turn += 1
            queue = queues[self._turn % len(queues)]
        async with windows[queue.broker_name] as window:
            try:
                result = await client.sender.send(
                    client.sender.state_of(target.topic),
                    parcel,
                    SendMode.SYNC,
                    self._options.send_timeout_ms / 1000,
                    client.clock.monotonic(),
                    queue,
                )
            except SystemBusyError:
                window.refused()
                raise
            window.stored()
            return result

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
        """The first of so many new numbers."""
        self._next_seq += count
        return self._next_seq - count

    def _make_void(self, seqs: range) -> None:
        if len(self._void) + len(seqs) > VOID_COUNT_MAX:
            raise BrokerError(
                f"{VOID_COUNT_MAX} rows of one task got no answer",
                hint="is a broker overloaded? raise sendTimeoutMs",
            )
        self._void.extend(seqs)


_HALF: Final = names.encode_properties({names.PROPERTY_TRAN_MSG: "true"})


def _log_offsets(result: SendResult, count: int) -> list[int]:
    """Where the halves are: the ids of messages end with it. Raises RemoteProtocolError."""
    ids = (result.offset_msg_id or result.msg_id).split(",")
    try:
        found = [int(text[-_LOG_OFFSET_DIGITS:], 16) for text in ids]
    except ValueError as error:
        raise RemoteProtocolError(f"a broker names a message {ids[0]:.100}") from error
    if len(found) != count:
        raise RemoteProtocolError(f"a broker has stored {len(found)} of {count} half messages")
    return found


def _stored_nothing(error: SkylarkError) -> bool:
    """Whether the half is surely not there."""
    if isinstance(error, BrokerError):
        return error.code in _NOT_STORED
    return isinstance(error, ConnectError)
