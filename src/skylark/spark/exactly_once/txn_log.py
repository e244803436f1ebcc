"""Transaction log of exactly-once sinks: appends and reads the records in topic ``SPARK_TXN_LOG``.

The topic is on *one* broker, with a fixed number of queues, and the name of a sink determines its
queue. So two drivers can never use the log of one sink in two places, even while other brokers are
down; if its own broker is down, exactly-once sinks wait. The topic is created on first use. Before
that, the name servers get a record of its broker: they drop the topics of a broker that is down,
and without its log a decided batch would be written again. The broker should flush synchronously: a
decision must not be lost with the power while half messages on other brokers are committed.

Batch records (D, X, A) have the tag ``D.<sink>``, manifests ``M.<sink>``: a reader of batch records
gets nothing else. The key is ``<sink>/<batch>``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Final, NamedTuple, TypeVar

from skylark.admin.errors import NoBrokerError, NotFoundError
from skylark.admin.server_settings import kv_get, kv_put
from skylark.admin.topic_operations import Topics
from skylark.client.consumer.range_reader import RangeTerms, fixed_address, pull_range
from skylark.client.core.broker_calls import Pulled
from skylark.client.core.client_message import Message, SendResult, SendStatus
from skylark.client.producer.producer_settings import RETRY_CODES
from skylark.client.producer.send_retry import SendMode
from skylark.core.backoff import Backoff, Outage
from skylark.core.errors import (
    BrokerError,
    ConfigError,
    RemoteProtocolError,
    SkylarkError,
    SystemBusyError,
    TransportError,
)
from skylark.core.hashing import java_hash
from skylark.spark.exactly_once.commit_protocol import DecisionLostError, StatusView, needs_memory
from skylark.spark.exactly_once.sink_memory import (
    UPGRADE_MARK,
    SinkMemoryTable,
    add_to_memory,
)
from skylark.spark.exactly_once.txn_log_records import (
    LOG_TOPIC,
    Abandon,
    BatchRecord,
    BatchStatus,
    Decision,
    Done,
    LogRecord,
    Manifest,
    SinkMemory,
    decode_record,
    encode_record,
    status_of,
    walk_back,
    walk_back_all,
)
from skylark.spark.outages import OutageWait, is_outage, ride_out
from skylark.spark.sink.sink_client import SinkClient
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.message import MessageRecord, inflate_record, iter_records

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Must never change: it determines the queue of a sink.
QUEUE_COUNT: Final = 16
#: Namespace in the key-value table of the name servers for the broker of the log.
KV_NAMESPACE: Final = "SPARK_TXN"
APPEND_TIMEOUT_S: Final = 5.0
#: How long an append is retried.
PATIENCE_S: Final = 60.0
#: How long a topic that was created just now may be missing in routes; then it is an outage.
MADE_WITHIN_S: Final = 5.0
#: Sinks whose records are read in one pass: their tags are one expression.
SINKS_TOGETHER: Final = 32
_REPEAT: Final = Backoff(first_s=0.1, most_s=2.0)


class Entry(NamedTuple):
    """A record of the log with its offset and store time."""

    offset: int
    time_ms: int
    record: LogRecord


class TxnLog:
    """Reads and appends records of the log."""

    def __init__(
        self,
        client: SinkClient,
        *,
        make: bool = True,
        strict_ack: bool = False,
        outage_s: float = 0.0,
    ) -> None:
        """``make``: create the topic if it is missing; otherwise raise NotFoundError.

        ``strict_ack``: a record whose flush or replication timed out does not count as stored.
        ``outage_s``: how long to wait for servers that do not answer.
        """
        self._client = client
        self._outage_s = outage_s
        self._make_it = make
        self._strict_ack = strict_ack
        self._queues: list[MessageQueue] | None = None
        self.memories = SinkMemoryTable(client)

    # ---- where -----------------------------------------------------------------------------------

    async def find(self) -> list[MessageQueue]:
        """The queues of the log; raises NotFoundError, ConfigError."""
        if self._queues is None:
            self._queues = _checked(await self._ride_out(self._find))
        return self._queues

    async def _ride_out(self, work: Callable[[], Awaitable[T]]) -> T:
        return await ride_out(self._client.clock, self._outage_s, work)

    async def _find(self) -> Sequence[MessageQueue]:
        try:
            return await self._client.queues(LOG_TOPIC, fresh=True)
        except (NotFoundError, NoBrokerError):
            if not self._make_it:
                raise
            return await self._make()

    async def _make(self) -> Sequence[MessageQueue]:
        """Create the topic, or wait for its broker; raises TransportError."""
        clock = self._client.clock
        deadline = clock.monotonic() + (MADE_WITHIN_S if self._outage_s else PATIENCE_S)
        is_made = False
        while True:
            broker = await self._chosen_broker()
            if not is_made and broker in await self._masters():
                topics = Topics(self._client.session)
                await topics.create(LOG_TOPIC, queue_count=QUEUE_COUNT, broker=broker)
                logger.info(
                    "created topic %s, the log of exactly-once sinks, on %s", LOG_TOPIC, broker
                )
                is_made = True
            try:
                return await self._client.queues(LOG_TOPIC, fresh=True)
            except (NotFoundError, NoBrokerError):
                if clock.monotonic() > deadline:
                    raise TransportError(
                        f"broker {broker or 'of any name'} is down, and exactly-once needs it:"
                        f" it has the log {LOG_TOPIC}",
                        hint="start it",
                    ) from None
            await clock.sleep(_REPEAT.first_s)

    async def _chosen_broker(self) -> str | None:
        """The broker for the log; None if no broker is registered."""
        session, key = self._client.session, self._client.namespace.wrap(LOG_TOPIC)
        broker = await kv_get(session, KV_NAMESPACE, key)
        if broker is None:
            broker = min(await self._masters(), default=None)
            if broker is not None:
                await kv_put(session, KV_NAMESPACE, key, broker)
        return broker

    async def _masters(self) -> Collection[str]:
        try:
            return await self._client.session.masters()
        except NoBrokerError:
            return ()

    async def queue_of(self, sink: str) -> MessageQueue:
        """The queue that has all records of a sink."""
        return (await self.find())[abs(java_hash(sink)) % QUEUE_COUNT]

    async def broker(self) -> str:
        """The broker that has the log."""
        return (await self.find())[0].broker_name

    # ---- writing ---------------------------------------------------------------------------------

    async def append(self, record: LogRecord) -> int:
        """Append a record and return its offset; a retry may append it more than once."""
        client = self._client
        queue = await self.queue_of(record.sink)
        kind = "M" if isinstance(record, Manifest) else "D"
        message = Message(
            client.namespace.unwrap(queue.topic),
            encode_record(record),
            tag=f"{kind}.{record.sink}",
            keys=[f"{record.sink}/{record.batch}"],
        )
        state = client.sender.checked(message)
        parcel = await client.sender.parcel(message)

        async def attempt() -> SendResult:
            await client.master(queue)
            began = client.clock.monotonic()
            return await client.sender.send(
                state, parcel, SendMode.SYNC, APPEND_TIMEOUT_S, began, queue
            )

        result = await until_stored(
            attempt,
            Outage(_REPEAT, client.clock, PATIENCE_S),
            OutageWait(client.clock, self._outage_s),
            strict_ack=self._strict_ack,
            on_retry=partial(logger.info, "retrying to append a record to %s: %s", LOG_TOPIC),
        )
        return result.queue_offset

    # ---- reading ---------------------------------------------------------------------------------

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset of a queue of the log, and the one after its last."""
        address = await self._client.master(queue)
        calls = self._client.link.calls
        return await calls.min_offset(address, queue), await calls.max_offset(address, queue)

    async def read_status(self, sink: str, batch: int) -> StatusView:
        """The status of a batch by the log as it is now."""
        return await self._ride_out(partial(self._read_status, sink, batch))

    async def _read_status(self, sink: str, batch: int) -> StatusView:
        queue = await self.queue_of(sink)
        first, end = await self.bounds(queue)
        status = status_of(await self._walk(queue, sink, batch, first, end), batch)
        view = StatusView(status, end, first)
        if needs_memory(view, batch):
            memory = await self.memories.read(queue, sink)
            return StatusView(status, end, first, memory)
        return view

    async def _walk(
        self, queue: MessageQueue, sink: str, batch: int, first: int, end: int
    ) -> list[BatchRecord]:
        walk = walk_back(batch, first, end)
        try:
            low, high = next(walk)
            while True:
                low, high = walk.send(await self._batch_records(queue, (sink,), low, high))
        except StopIteration as stop:
            found: list[BatchRecord] = stop.value
        return found

    async def remember(self, sink: str, memory: SinkMemory) -> None:
        """Raise the memory of a sink to this one."""
        queue = await self.queue_of(sink)
        await self._ride_out(partial(self.memories.raise_to, queue, sink, memory))

    async def known_by_log(self, sinks: Iterable[str]) -> dict[str, SinkMemory]:
        """The last batches of sinks by the log; reads each queue of it once for many sinks."""
        by_queue: dict[MessageQueue, list[str]] = defaultdict(list)
        for sink in sinks:
            by_queue[await self.queue_of(sink)].append(sink)
        found: dict[str, SinkMemory] = {}
        for queue, names in by_queue.items():
            for at in range(0, len(names), SINKS_TOGETHER):
                found |= await self._last_batches(queue, names[at : at + SINKS_TOGETHER])
        return found

    async def _last_batches(
        self, queue: MessageQueue, sinks: Sequence[str]
    ) -> dict[str, SinkMemory]:
        first, end = await self.bounds(queue)
        walk = walk_back_all(sinks, first, end)
        try:
            low, high, wanted = next(walk)
            while True:
                records = await self._batch_records(queue, wanted, low, high)
                low, high, wanted = walk.send(records)
        except StopIteration as stop:
            records_of: Mapping[str, Sequence[BatchRecord]] = stop.value
        found = dict.fromkeys(sinks, SinkMemory())
        for sink in sinks:
            for record in records_of[sink]:
                if not isinstance(record, Abandon):
                    found[sink] = add_to_memory(found[sink], record)
        return found

    async def reaffirm(self) -> None:
        """Raise memories of sinks that know less than the log, and make missing ones once.

        The log of an earlier version has sinks without a memory, so it is read once, whole.
        """
        memories, queue = self.memories, (await self.find())[0]
        if (await memories.read(queue, UPGRADE_MARK)).done < 0:
            await self._upgrade()
            await memories.raise_to(queue, UPGRADE_MARK, SinkMemory(done=0))
        known = await self.known_by_log(await memories.sinks(queue))
        for sink, memory in known.items():
            await self.remember(sink, memory)

    async def _upgrade(self) -> None:
        found: dict[str, SinkMemory] = {}
        async for entry in self.everything():
            record = entry.record
            if isinstance(record, (Decision, Done)):
                found[record.sink] = add_to_memory(found.get(record.sink, SinkMemory()), record)
        for sink, memory in found.items():
            await self.remember(sink, memory)
        if found:
            logger.info("remembering the last batches of %d exactly-once sinks", len(found))

    async def confirm(self, sink: str, batch: int, start: int, end: int) -> BatchStatus:
        """The status of a batch by the records from ``start`` to ``end`` inclusive."""
        queue = await self.queue_of(sink)
        first, _ = await self._ride_out(partial(self.bounds, queue))
        if first > start:  # the driver has slept for days: a decision may have expired since then
            raise DecisionLostError(f"{LOG_TOPIC} has expired while batch {batch} was committed")
        read = partial(self._batch_records, queue, (sink,), start, end + 1)
        return status_of(await self._ride_out(read), batch)

    async def batch_records(self, sink: str) -> list[BatchRecord]:
        """All D, X and A records of a sink that the log still has."""
        queue = await self.queue_of(sink)
        first, end = await self.bounds(queue)
        return await self._batch_records(queue, (sink,), first, end)

    async def _batch_records(
        self, queue: MessageQueue, sinks: Collection[str], low: int, high: int
    ) -> list[BatchRecord]:
        tags = " || ".join(f"D.{sink}" for sink in sinks)
        found = [
            entry.record async for entry in self._entries(queue, low, high, tags)
        ]  # brokers compare tags by hash: records of other sinks may be among them
        return [r for r in found if not isinstance(r, Manifest) and r.sink in sinks]

    async def manifest(self, sink: str, position: int) -> LogRecord:
        """The record at an offset; raises DecisionLostError."""
        return await self._ride_out(partial(self._manifest, sink, position))

    async def _manifest(self, sink: str, position: int) -> LogRecord:
        queue = await self.queue_of(sink)
        async for entry in self._entries(queue, position, position + 1, "*"):
            return entry.record
        raise DecisionLostError(f"{LOG_TOPIC} has nothing at offset {position} of {queue.queue_id}")

    async def everything(self) -> AsyncIterator[Entry]:
        """All records of all sinks, queue by queue."""
        for queue in await self.find():
            first, end = await self.bounds(queue)
            async for entry in self._entries(queue, first, end, "*"):
                yield entry

    async def _entries(
        self, queue: MessageQueue, low: int, high: int, tags: str
    ) -> AsyncIterator[Entry]:
        client = self._client
        address = await client.master(queue)
        pulls = pull_range(
            client.link.calls,
            fixed_address(address),
            queue,
            low,
            high,
            client.clock,
            RangeTerms(expression=tags),
            lambda missing: logger.info("%d records of %s expired", missing.count, LOG_TOPIC),
        )
        try:
            async for pulled in pulls:
                for record in _records(pulled):
                    if low <= record.queue_offset < high:
                        inflate_record(record)
                        yield Entry(
                            record.queue_offset, record.store_timestamp, decode_record(record.body)
                        )
        finally:
            await pulls.aclose()


def _records(pulled: Pulled) -> list[MessageRecord]:
    if pulled.offset_delta:
        raise RemoteProtocolError(f"{LOG_TOPIC} must not be a static topic")
    return list(iter_records(pulled.body))


def _checked(queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    brokers = {queue.broker_name for queue in queues}
    if len(brokers) != 1 or len(queues) < QUEUE_COUNT:
        raise ConfigError(
            f"topic {LOG_TOPIC} is on {', '.join(sorted(brokers))} with {len(queues)} queues:"
            f" it must be on one broker, with {QUEUE_COUNT} queues",
            hint="delete it where it has no messages; exactly-once creates it by itself",
        )
    return sorted(queues, key=lambda queue: queue.queue_id)[:QUEUE_COUNT]


async def until_stored(
    attempt: Callable[[], Awaitable[SendResult]],
    refusals: Outage,
    wait: OutageWait,
    *,
    strict_ack: bool,
    on_retry: Callable[[SkylarkError], None],
    retries_max: int | None = None,
) -> SendResult:
    """Repeat a send until it is stored; raises its last error, or OutageError.

    ``refusals`` has the pauses after replies that refuse it, ``wait`` those of outages.
    ``strict_ack`` also repeats it after a flush or replication timeout. ``retries_max`` limits the
    retries, not counting outages and the reply "busy".
    """
    retries = 0
    with wait:
        while True:
            try:
                result = await attempt()
                if result.status is SendStatus.SEND_OK or not strict_ack:
                    return result
                problem: SkylarkError = BrokerError(f"stored with {result.status.value}")
            except SkylarkError as error:
                problem = error
            if is_outage(problem):
                on_retry(problem)
                await wait.pause(problem)
                continue
            wait.over()
            if not may_repeat(problem):
                raise problem
            retries += not isinstance(problem, SystemBusyError)
            if retries_max is not None and retries > retries_max:
                raise problem
            on_retry(problem)
            if not await refusals.pause():
                raise problem


def may_repeat(error: SkylarkError) -> bool:
    """Whether a retry of the request may succeed."""
    if isinstance(error, BrokerError):
        return error.code in RETRY_CODES
    return is_outage(error)
