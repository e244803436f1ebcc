"""Sender of the sink (at least once): many requests in flight, each retried until acknowledged.

Belongs to one event loop. :meth:`SinkSender.put` waits while too much is in flight, which slows the
task down to the speed of the brokers; :meth:`SinkSender.finish` waits for the rest and raises the
first failure.

============================  ====================================================================
reply                         action
============================  ====================================================================
stored                        count the rows; with ``strictAck`` a flush or replication timeout is
                              a failure to be retried
busy (2)                      retry after 50 ms to 5 s, until ``deliveryTimeoutMs``
1, 14, 16, 17, 1500           the same, ``retries`` times, to another queue unless order is kept
no answer, no connection,     the same, until ``outageTimeout``
no broker or name server
illegal (13), of a batch      send each row by itself, to find the illegal one
illegal, of one row           it is a bad row
other                         the task fails
============================  ====================================================================

The requests of a lane (one queue whose order is kept) are sent one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

from skylark.client.core.client_message import SendResult
from skylark.client.core.permits import Permits
from skylark.client.producer.send_request import Parcel
from skylark.client.producer.send_retry import SendMode
from skylark.core.backoff import Backoff, Outage
from skylark.core.errors import (
    MessageIllegalError,
    SkylarkError,
    SystemBusyError,
)
from skylark.core.lifecycle import Tasks
from skylark.spark.exactly_once.txn_log import until_stored
from skylark.spark.outages import OutageWait
from skylark.spark.sink.row_batcher import RowBatcher, RowRequest, Target
from skylark.spark.sink.sink_client import SinkClient
from skylark.spark.sink.sink_options import SinkOptions
from skylark.wire.bodies.common_body import MessageQueue

ItemT = TypeVar("ItemT")

logger = logging.getLogger(__name__)

#: Bytes in flight at most.
UNACKNOWLEDGED_MAX: Final = 32 << 20
REPEAT: Final = Backoff(first_s=0.05, most_s=5.0, jitter=0.25)
#: First limit of requests in flight to a broker.
WINDOW_FIRST: Final = 4
_REQUESTS_MAX: Final = 4096


class QueueWritten(msgspec.Struct):
    """Offsets and number of the rows stored in one queue."""

    first: int
    last: int
    count: int = 0


class Written(msgspec.Struct):
    """Figures of what one task has stored; pickled to the driver."""

    count: int = 0
    size: int = 0
    retries: int = 0
    bad: int = 0
    queues: dict[str, QueueWritten] = {}  #: by ``topic/broker/queue``

    def stored(self, request: RowRequest, result: SendResult) -> None:
        """Count an acknowledged request."""
        self.count += request.count
        self.size += request.size
        queue, first = result.queue, result.queue_offset
        last = first + request.count - 1
        key = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
        known = self.queues.setdefault(key, QueueWritten(first, last))
        known.first, known.last = min(known.first, first), max(known.last, last)
        known.count += request.count


class Window:
    """Limit of requests in flight to one broker.

    A broker refuses requests as busy that wait too long in its queue. So the limit halves with
    every refusal, and grows by one after as many stored requests.
    """

    def __init__(self, most: int, first: int = WINDOW_FIRST) -> None:
        self._most = most
        self._limit = min(most, first)
        self._stored = 0
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> Window:
        if self._active >= self._limit or self._waiting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn  # _leave() has counted this request before it wakes it
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        else:
            self._active += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._active -= 1
        while self._waiting and self._active < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._active += 1
                turn.set_result(None)

    def stored(self) -> None:
        """Count an acknowledged request; may raise the limit."""
        self._stored += 1
        if self._stored >= self._limit and self._limit < self._most:
            self._limit += 1
            self._stored = 0

    def refused(self) -> None:
        """Halve the limit: the broker is busy."""
        self._limit = max(1, self._limit // 2)
        self._stored = 0


class TaskSender(ABC, Generic[ItemT]):
    """Base of the senders of one task: limits, retries, and the first failure of any request."""

    def __init__(
        self,
        client: SinkClient,
        options: SinkOptions,
        items_max: int,
        rng: random.Random | None = None,
    ) -> None:
        """``items_max``: how many items may be in flight."""
        self._client = client
        self._options = options
        self._rng = rng or random.Random()
        self._tasks = Tasks("sink", limit=2 * items_max)
        self._permits = Permits(client.clock, count_max=items_max, size_max=UNACKNOWLEDGED_MAX)
        self._turn = self._rng.getrandbits(16)
        self._failure: Exception | None = None

    @abstractmethod
    async def put(self, item: ItemT) -> None:
        """Start sending an item; waits for room, raises the first failure of any item."""

    async def put_all(self, items: Iterable[ItemT]) -> None:
        """Start sending items in their order."""
        for item in items:
            await self.put(item)

    async def cancel(self) -> None:
        """Cancel all requests in flight."""
        await self._tasks.cancel_and_wait()

    async def _take_room(self, size: int) -> None:
        self._raise_failure()
        options = self._options
        timeout_s = 2 * options.delivery_timeout_ms / 1000 + options.outage_timeout_s
        await self._permits.take(size, timeout_s)
        self._raise_failure()

    async def _wait_for_all(self) -> None:
        await self._tasks.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _deliver(self, size: int, work: Callable[[], Awaitable[object]]) -> None:
        """Run ``work`` for an item of ``size`` bytes, unless an earlier one has failed."""
        try:
            if self._failure is None:
                await work()
        except Exception as error:  # noqa: BLE001 - put() and finish() raise it in the task
            self._failure = self._failure or error
        finally:
            self._permits.give(size)

    async def _until_stored(
        self,
        attempt: Callable[[], Awaitable[SendResult]],
        on_retry: Callable[[SkylarkError], None],
    ) -> SendResult:
        """Retry a request until it is stored; see the module. Calls ``on_retry`` each time."""
        clock, options = self._client.clock, self._options
        return await until_stored(
            attempt,
            Outage(REPEAT, clock, options.delivery_timeout_ms / 1000, self._rng),
            OutageWait(clock, options.outage_timeout_s),
            strict_ack=options.strict_ack,
            on_retry=on_retry,
            retries_max=options.retries,
        )

    async def _send(self, target: Target, parcel: Parcel, windows: dict[str, Window]) -> SendResult:
        """Send a request once, to its queue or to the next one of its topic."""
        client, queue = self._client, target.queue
        if queue is None:
            # The topic of bad rows was there when the first batch began; all others were found.
            existed = target.topic == self._options.bad_row_topic
            queues = await client.expected_queues(target.topic, existed=existed)
            self._turn += 1
            queue = queues[self._turn % len(queues)]
        async with windows[queue.broker_name] as window:
            await client.master(queue)
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


#: Called for a row that a broker refuses: request, index of the row, reason.
OnRefused = Callable[[RowRequest, int, str], None]


class SinkSender(TaskSender[RowRequest]):
    """Sends the requests of one task; see the module."""

    def __init__(
        self,
        client: SinkClient,
        options: SinkOptions,
        batcher: RowBatcher,
        on_refused: OnRefused,
        rng: random.Random | None = None,
    ) -> None:
        """If ``on_refused`` raises, the task fails with that error."""
        super().__init__(client, options, _REQUESTS_MAX, rng)
        self._batcher = batcher
        self._on_refused = on_refused
        self._windows: dict[str, Window] = defaultdict(lambda: Window(options.in_flight_max))
        self._lanes: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.written = Written(queues={})

    async def put(self, request: RowRequest) -> None:
        """Start sending a request; waits for room, raises the first failure of any request."""
        await self._take_room(request.size)
        self._tasks.spawn(
            self._deliver(request.size, partial(self._in_lane, request)), name="request"
        )

    async def finish(self) -> Written:
        """Wait until everything is acknowledged."""
        await self._wait_for_all()
        return self.written

    async def _in_lane(self, request: RowRequest) -> None:
        if request.target.queue is None:
            await self._try(request)
        else:
            async with self._lanes[request.target.queue]:
                await self._try(request)

    async def _try(self, request: RowRequest) -> None:
        def on_retry(problem: SkylarkError) -> None:
            self.written.retries += 1
            logger.debug("retrying a request of %d rows: %s", request.count, problem)

        send = partial(self._send, request.target, request.parcel, self._windows)
        try:
            result = await self._until_stored(send, on_retry)
        except MessageIllegalError as error:
            await self._refused(request, error)
        else:
            self.written.stored(request, result)

    async def _refused(self, request: RowRequest, error: MessageIllegalError) -> None:
        if request.count == 1:
            self._on_refused(request, request.numbers[0], f"the broker refuses it: {error.remark}")
            return
        for row in self._batcher.rows(request.rows, request.target, request.numbers):
            size = len(row.body)
            await self._try(
                RowRequest(request.target, row.parcel(), size, request.rows, (row.number,))
            )
