"""Rows of an exactly-once task on their way as half messages, and the manifest of where they are.

See :mod:`skylark.spark.halves` for numbers that become void. Belongs to one event loop;
:meth:`HalfSending.put` waits while too much is under way.
"""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from skylark.client.message import SendResult
from skylark.client.permits import Permits
from skylark.client.send_plan import SendMode
from skylark.core.errors import (
    BrokerError,
    ConnectError,
    MessageIllegalError,
    SkylarkError,
    SystemBusyError,
)
from skylark.core.hashing import decode_offset_id
from skylark.core.lifecycle import Tasks
from skylark.spark.decisions import (
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
from skylark.spark.exactly_once import Prepared
from skylark.spark.halves import IN_FLIGHT_MAX
from skylark.spark.loads import Row
from skylark.spark.sending import UNACKNOWLEDGED_MAX, Backoff, Window
from skylark.spark.sink_client import SinkClient
from skylark.spark.sink_options import SinkOptions
from skylark.spark.txn_log import TxnLog, may_repeat
from skylark.wire import properties as names
from skylark.wire.bodies.common import MessageQueue
from skylark.wire.codes import ResponseCode
from skylark.wire.layout import FLAG_TRANSACTION_PREPARED

#: Answers of a broker that has stored nothing.
_NOT_STORED: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.GO_AWAY,
    }
)
_REQUESTS_MAX: Final = 1024
_WINDOW_FIRST: Final = 64


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
        who = (prepared.sink, prepared.batch, prepared.partition, prepared.attempt)
        self._identity = identity_prefix(*who)
        self._unique = unique_prefix(*who)
        self._common = names.encode_properties(
            {
                names.PROPERTY_TRAN_MSG: "true",
                names.PROPERTY_PGROUP: client.namespace.wrap(RESOLVER_GROUP),
                names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: str(options.immunity_sec),
            }
        )
        self._tasks = Tasks("sink", limit=4 * _REQUESTS_MAX)
        self._permits = Permits(client.clock, count_max=_REQUESTS_MAX, size_max=UNACKNOWLEDGED_MAX)
        self._windows: dict[str, Window] = defaultdict(lambda: Window(IN_FLIGHT_MAX, _WINDOW_FIRST))
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

    async def put(self, row: Row) -> None:
        """Have a row sent; waits for room, raises the first failure of any row."""
        await self._permits.take(len(row.body), 2 * self._options.delivery_timeout_ms / 1000)
        if self._failure is not None:
            raise self._failure
        number = len(self._targets)
        self._targets.append(-1)
        for column in (self._log_offsets, self._queue_offsets, self._seqs):
            column.append(0)
        self.ordered = self.ordered or row.target.queue is not None
        self._tasks.spawn(self._deliver(number, row), name="half")

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

    # ---- one row ---------------------------------------------------------------------------------

    async def _deliver(self, number: int, row: Row) -> None:
        try:
            if self._failure is None:
                await self._try(number, row)
        except MessageIllegalError as error:
            self._refuse(row, f"the broker refuses it: {error.remark}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the task hears of it
            self._failure = self._failure or error
        finally:
            self._permits.give(len(row.body))

    def _refuse(self, row: Row, reason: str) -> None:
        try:
            self._on_refused(row, reason)
        except SkylarkError as error:
            self._failure = self._failure or error

    async def _try(self, number: int, row: Row) -> None:
        clock, options = self._client.clock, self._options
        deadline = clock.monotonic() + options.delivery_timeout_ms / 1000
        backoff = Backoff(self._rng)
        retries, seq = 0, self._draw()
        while True:
            try:
                result = await self._attempt(row, seq)
            except SkylarkError as error:
                if not may_repeat(error):
                    raise
                retries += not isinstance(error, SystemBusyError)
                pause_s = backoff.next_s()
                if retries > options.retries or clock.monotonic() + pause_s > deadline:
                    raise
                if not _stored_nothing(error):
                    self._make_void(seq)
                    seq = self._draw()
                self.retries += 1
                await clock.sleep(pause_s)
            else:
                self._stored(number, seq, result)
                self.size += len(row.body)
                return

    async def _attempt(self, row: Row, seq: int) -> SendResult:
        client, queue = self._client, row.target.queue
        if queue is None:
            queues = await client.queues(row.target.topic)
            self._turn += 1
            queue = queues[self._turn % len(queues)]
        suffix = (
            f"{self._common}UNIQ_KEY\x01{unique_id(self._unique, seq)}\x02"
            f"{IDENTITY_PROPERTY}\x01{self._identity}{seq}\x02"
        )
        async with self._windows[queue.broker_name] as window:
            try:
                result = await client.sender.send(
                    client.sender.state_of(row.target.topic),
                    row.parcel(suffix, FLAG_TRANSACTION_PREPARED),
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

    def _stored(self, number: int, seq: int, result: SendResult) -> None:
        queue: MessageQueue = self._client.namespace.wrap_queue(result.queue)
        key = (queue.topic, queue.broker_name, queue.queue_id)
        self._targets[number] = self._queues.setdefault(key, len(self._queues))
        offset_id = result.offset_msg_id or result.msg_id
        self._log_offsets[number] = decode_offset_id(offset_id).log_offset
        self._queue_offsets[number] = result.queue_offset
        self._seqs[number] = seq

    def _draw(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _make_void(self, seq: int) -> None:
        if len(self._void) >= VOID_COUNT_MAX:
            raise BrokerError(
                f"{VOID_COUNT_MAX} rows of one task got no answer",
                hint="is a broker overloaded? raise sendTimeoutMs",
            )
        self._void.append(seq)


def _stored_nothing(error: SkylarkError) -> bool:
    """Whether the half is surely not there."""
    if isinstance(error, BrokerError):
        return error.code in _NOT_STORED
    return isinstance(error, ConnectError)
