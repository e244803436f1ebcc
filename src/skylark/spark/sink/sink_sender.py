"""Requests of a sink on their way: many at a time, each until it is acknowledged. At least once.

Belongs to one event loop. :meth:`Sending.put` waits while too much is under way, so whoever makes
the requests is slowed to what the brokers take; :meth:`Sending.finish` waits for the rest and
raises the first failure, if there was one.

============================  ====================================================================
answer                        what follows
============================  ====================================================================
stored                        the rows count, also with a late flush or replica unless
                              ``strictAck``
busy (2)                      again after 50 ms to 5 s, for ``deliveryTimeoutMs``
1, 14, 16, 17, 1500, no       the same, ``retries`` times, at another queue unless order counts
answer, no connection
illegal (13), of a batch      each row by itself, to find out which one is meant
illegal, of one row           it is a bad row
other                         the task fails
============================  ====================================================================

The requests of a lane, one queue in which order counts, follow each other one by one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

import msgspec

from skylark.client.core.client_message import SendResult, SendStatus
from skylark.client.core.permits import Permits
from skylark.client.producer.send_retry import SendMode
from skylark.core.backoff import Backoff, Outage
from skylark.core.errors import (
    BrokerError,
    MessageIllegalError,
    SkylarkError,
    SystemBusyError,
)
from skylark.core.lifecycle import Tasks
from skylark.spark.exactly_once.txn_log import may_repeat
from skylark.spark.sink.row_batcher import Cutter, Load
from skylark.spark.sink.sink_client import SinkClient
from skylark.spark.sink.sink_options import SinkOptions
from skylark.wire.bodies.common_body import MessageQueue

log = logging.getLogger(__name__)

#: Bytes that may be under way.
UNACKNOWLEDGED_MAX: Final = 32 << 20
REPEAT: Final = Backoff(first_s=0.05, most_s=5.0, jitter=0.25)
#: Requests under way at a broker of which nothing is known yet.
WINDOW_FIRST: Final = 4
_REQUESTS_MAX: Final = 4096


class QueueWritten(msgspec.Struct):
    """What was stored in one queue."""

    first: int
    last: int
    count: int = 0


class Written(msgspec.Struct):
    """What one task has stored."""

    count: int = 0
    size: int = 0
    retries: int = 0
    bad: int = 0
    queues: dict[str, QueueWritten] = {}  #: by ``topic/broker/queue``

    def stored(self, load: Load, result: SendResult) -> None:
        """Count a request that was acknowledged."""
        self.count += load.count
        self.size += load.size
        queue, first = result.queue, result.queue_offset
        last = first + load.count - 1
        key = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
        known = self.queues.setdefault(key, QueueWritten(first, last))
        known.first, known.last = min(known.first, first), max(known.last, last)
        known.count += load.count


class Window:
    """How many requests may be under way at one broker.

    What lies before a broker for too long it refuses as busy, so few are sent to one that is slow:
    the number halves with every refusal, and grows slowly with what is stored.
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
                await turn  # whoever wakes us has counted us in
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
        """A request was acknowledged."""
        self._stored += 1
        if self._stored >= self._limit and self._limit < self._most:
            self._limit += 1
            self._stored = 0

    def refused(self) -> None:
        """The broker is busy."""
        self._limit = max(1, self._limit // 2)
        self._stored = 0


#: Called for a row that a broker refuses, by load and number.
OnRefused = Callable[[Load, int, str], None]


class Sending:
    """See the module."""

    def __init__(
        self,
        client: SinkClient,
        options: SinkOptions,
        cutter: Cutter,
        on_refused: OnRefused,
        rng: random.Random | None = None,
    ) -> None:
        """``on_refused`` may raise: then the task fails with that."""
        self._client = client
        self._options = options
        self._cutter = cutter
        self._on_refused = on_refused
        self._rng = rng or random.Random()
        self._tasks = Tasks("sink", limit=2 * _REQUESTS_MAX)
        self._permits = Permits(client.clock, count_max=_REQUESTS_MAX, size_max=UNACKNOWLEDGED_MAX)
        self._windows: dict[str, Window] = defaultdict(lambda: Window(options.in_flight_max))
        self._lanes: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._turn = self._rng.getrandbits(16)
        self._failure: Exception | None = None
        self.written = Written(queues={})

    async def put(self, load: Load) -> None:
        """Have a request sent; waits for room, raises the first failure of any request."""
        self._raise_failure()
        await self._permits.take(load.size, 2 * self._options.delivery_timeout_ms / 1000)
        self._raise_failure()
        self._tasks.spawn(self._deliver(load), name="request")

    async def finish(self) -> Written:
        """Wait until everything is acknowledged."""
        await self._tasks.wait()
        self._raise_failure()
        return self.written

    async def cancel(self) -> None:
        """Give up what is under way."""
        await self._tasks.cancel_and_wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _deliver(self, load: Load) -> None:
        try:
            if self._failure is None:
                await self._in_lane(load)
        except Exception as error:  # noqa: BLE001 - whatever it is, the task hears of it
            self._failure = self._failure or error
        finally:
            self._permits.give(load.size)

    async def _in_lane(self, load: Load) -> None:
        if load.target.queue is None:
            await self._try(load)
        else:
            async with self._lanes[load.target.queue]:
                await self._try(load)

    async def _try(self, load: Load) -> None:
        clock, options = self._client.clock, self._options
        outage = Outage(REPEAT, clock, options.delivery_timeout_ms / 1000, self._rng)
        retries = 0
        while True:
            try:
                result = await self._attempt(load)
                if result.status is SendStatus.SEND_OK or not options.strict_ack:
                    self.written.stored(load, result)
                    return
                problem: SkylarkError = BrokerError(f"stored with {result.status.value}")
            except MessageIllegalError as error:
                await self._refused(load, error)
                return
            except SkylarkError as error:
                if not may_repeat(error):
                    raise
                problem = error
            retries += not isinstance(problem, SystemBusyError)
            pause_s = outage.next_pause_s()
            if retries > options.retries or pause_s is None:
                raise problem
            self.written.retries += 1
            log.debug("a request of %d rows is repeated: %s", load.count, problem)
            await clock.sleep(pause_s)

    async def _attempt(self, load: Load) -> SendResult:
        client = self._client
        queue = load.target.queue
        if queue is None:
            queues = await client.queues(load.target.topic)
            self._turn += 1
            queue = queues[self._turn % len(queues)]
        async with self._windows[queue.broker_name] as window:
            try:
                result = await client.sender.send(
                    client.sender.state_of(load.target.topic),
                    load.parcel,
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

    async def _refused(self, load: Load, error: MessageIllegalError) -> None:
        if load.count == 1:
            self._on_refused(load, load.numbers[0], f"the broker refuses it: {error.remark}")
            return
        for row in self._cutter.rows(load.rows, load.target, load.numbers):
            size = len(row.body)
            await self._try(Load(load.target, row.parcel(), size, load.rows, (row.number,)))
