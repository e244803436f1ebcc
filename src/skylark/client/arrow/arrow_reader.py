"""Topics as Arrow: ranges of messages in record batches, decoded by the column.

::

    async for batch in read_arrow("T", options, start=datetime(2026, 11, 1), columns=["body"]):
        ...

:func:`read_arrow` reads all queues of a topic, some at a time, up to where they end when it is
called. Each batch is of one queue, in order; batches of different queues come as they arrive.
:func:`read_range` reads a range of one queue over connections that the caller has. Both give the
columns below, by default the first fourteen; all may be null.

==========================================  ==================  ===================================
topic, brokerName                           string
queueId, queueOffset                        int32, int64
msgId                                       string              ``UNIQ_KEY``, else the offset id
tags, keys                                  string
body                                        binary              decompressed
bornTimestamp, storeTimestamp               timestamp[us, UTC]
bornHost                                    string              ``ip:port``
reconsumeTimes, sysFlag                     int32               as stored
properties                                  map<string,string>
commitLogOffset, preparedTransactionOffset  int64               these and below only on request
offsetMsgId, storeHost, shardingKey         string
flag, bodyCrc, storeSize                    int32
deliverTimestamp                            timestamp[us, UTC]  ``TIMER_DELIVER_MS``
==========================================  ==================  ===================================

No object is created per message: see :mod:`skylark.client.arrow.record_rows` and
:mod:`skylark.client.arrow.arrow_columns`. Invalid UTF-8 becomes U+FFFD.
Compressed bodies are inflated one by one, and a batch ends where they grow beyond 32 MiB.

**Missing messages.** Requested messages that have expired raise
:class:`~skylark.client.errors.MissingError`; for a range of one queue, ``on_missing`` can be called
instead.

**Memory.** A queue holds an answer that is decoded and one that is under way (4 MiB each); four
queues are read at a time, and as many batches wait for the caller.

pyarrow is an extra, loaded when it is first needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from skylark.client.consumer.range_reader import (
    Find,
    OnMissing,
    RangeTerms,
    end_tasks,
    fixed_address,
    pull_range,
)
from skylark.client.core.argument_checks import describe, fits, refused, shown
from skylark.client.core.broker_calls import BrokerCalls, Pulled
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import ClientOptions, given_options
from skylark.client.core.client_runtime import ClientRuntime
from skylark.client.core.instance_registry import open_instance
from skylark.client.core.validation import check_topic
from skylark.client.errors import Missing, MissingError
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import ClientError, ConfigError
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.tag import SUBSCRIBE_ALL, parse_tags
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.compress import decompress_body
from skylark.wire.layout import FLAG_COMPRESSED

if TYPE_CHECKING:
    import pyarrow as pa

    from skylark.client.arrow.record_rows import Rows

#: A bound of a range: a name, a time, or the offset of each (broker name, queue id).
Bound: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[tuple[str, int], int]

_COLUMNS: Final = Sequence[str] | None
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

QUEUES_AT_ONCE: Final = 4
#: Queues whose bounds are requested concurrently.
_RESOLVED_AT_ONCE: Final = 256
#: Smaller responses are decoded together: Apache brokers send 32 messages at a time.
DECODE_SIZE_MIN: Final = 512 * 1024
#: A batch with inflated bodies ends when they are larger than this.
INFLATED_BATCH_SIZE: Final = 32 * 1024 * 1024


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute  # seen as pa.compute from here on
    except ImportError as error:
        raise ClientError(
            "reading topics as Arrow needs pyarrow", hint='pip install "skylark-mq[arrow]"'
        ) from error
    return pa


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of batches with these columns; raises ConfigError for unknown names."""
    from skylark.client.arrow.arrow_columns import make_schema

    return make_schema(_pyarrow(), columns)


# ---- decoding ------------------------------------------------------------------------------------


class ArrowDecoder:
    """Makes record batches from pull responses of one queue."""

    def __init__(
        self,
        queue: MessageQueue,
        columns: Sequence[str] | None = None,
        *,
        tags: str | None = None,
        inflate: bool = True,
    ) -> None:
        """``tags``: removes messages with other tags, which brokers may send (equal hash).

        Without ``inflate`` compressed bodies stay as they are.
        """
        self.schema = arrow_schema(columns)
        self._pa = _pyarrow()
        self._queue = queue
        self._names: list[str] = self.schema.names
        self._raw_tags = _raw_tags(tags)
        self._inflate = inflate and "body" in self._names

    def decode(
        self, body: bytes, start: int, end: int, offset_delta: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the messages in ``body`` from offset ``start`` up to ``end``; perhaps none.

        Raises RemoteProtocolError for bytes that are not messages.
        """
        from skylark.client.arrow.record_rows import rows_of

        rows = rows_of(body, start, end, self._raw_tags, offset_delta)
        if not len(rows):
            return
        if self._inflate and (rows.columns.sys_flag & FLAG_COMPRESSED).any():
            for first, after, bodies in _inflated(rows):
                yield self._batch(rows.part(first, after), self._pa.array(bodies))
        else:
            yield self._batch(rows)

    def _batch(self, rows: Rows, bodies: pa.Array | None = None) -> pa.RecordBatch:
        from skylark.client.arrow.arrow_columns import ColumnMaker

        maker = ColumnMaker(self._pa, self._queue, rows, bodies)
        arrays = [maker.make(name) for name in self._names]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _raw_tags(tags: str | None) -> tuple[bytes, ...]:
    try:
        return tuple(tag.encode() for tag in parse_tags(tags).tags)
    except FilterSyntaxError as error:
        raise ConfigError(f"tags {tags!r}: {error.problem}", hint=error.hint) from error


def _inflated(rows: Rows) -> Iterator[tuple[int, int, list[bytes]]]:
    """Runs of rows with decompressed bodies of limited size, as (first, end, bodies)."""
    columns = rows.columns
    starts, sizes = columns.body_start.tolist(), columns.body_size.tolist()
    view = memoryview(rows.buffer)
    bodies: list[bytes] = []
    first = total = 0
    for row, sys_flag in enumerate(columns.sys_flag.tolist()):
        body = bytes(view[starts[row] : starts[row] + sizes[row]])
        if sys_flag & FLAG_COMPRESSED:
            body = decompress_body(body, sys_flag)
        if bodies and total + len(body) > INFLATED_BATCH_SIZE:
            yield first, row, bodies
            first, total, bodies = row, 0, []
        bodies.append(body)
        total += len(body)
    yield first, len(rows), bodies


# ---- one queue -----------------------------------------------------------------------------------


async def read_range(
    calls: BrokerCalls,
    address: str | Find,
    queue: MessageQueue,
    start: int,
    end: int,
    *,
    tags: str | None = None,
    columns: Sequence[str] | None = None,
    terms: RangeTerms | None = None,
    on_missing: OnMissing | None = None,
    clock: Clock | None = None,
    inflate: bool = True,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The messages of a queue from offset ``start`` up to ``end``.

    ``queue`` has names as brokers know them. ``tags`` overrides the expression of ``terms``.
    Missing messages are passed to ``on_missing``; without it they raise MissingError. Without
    ``inflate`` compressed bodies stay as they are.
    """
    decoder = ArrowDecoder(queue, columns, tags=tags, inflate=inflate)
    terms = terms or RangeTerms()
    if tags is not None:
        terms = msgspec.structs.replace(
            terms, expression=tags or SUBSCRIBE_ALL, expression_type="TAG"
        )
    find = fixed_address(address) if isinstance(address, str) else address
    held: list[Pulled] = []
    held_size = 0
    answers = pull_range(calls, find, queue, start, end, clock or LoopClock(), terms, on_missing)
    async with aclosing(answers):
        async for pulled in answers:
            if held and pulled.offset_delta != held[0].offset_delta:
                for batch in _decode_held(decoder, held, start, end):
                    yield batch
            held_size = held_size + len(pulled.body) if held else len(pulled.body)
            held.append(pulled)
            if held_size >= DECODE_SIZE_MIN:
                for batch in _decode_held(decoder, held, start, end):
                    yield batch
    for batch in _decode_held(decoder, held, start, end):
        yield batch


def _decode_held(
    decoder: ArrowDecoder, held: list[Pulled], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Decode the held responses together, and clear the list."""
    if held:
        body = b"".join([each.body for each in held]) if len(held) > 1 else held[0].body
        delta = held[0].offset_delta
        held.clear()
        yield from decoder.decode(body, start, end, delta)


# ---- a topic -------------------------------------------------------------------------------------


def read_arrow(
    topic: str,
    options: ClientOptions | None = None,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    tags: str | None = None,
    columns: Sequence[str] | None = None,
    runtime: ClientRuntime | None = None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The messages of a topic between two bounds, as an async iterator of record batches.

    A time means messages stored at or after it (``start``), or before it (``end``). Queues that a
    mapping of offsets leaves out are read from their beginning, or to their end. Nothing that is
    stored after the call is read. ``tags``: ``A || B``. Raises ClientError, MissingError among
    them, BrokerError and TransportError; wrong arguments at once, the rest while reading.
    """
    check_topic(topic)
    options = given_options(options)
    for name, given, kind in (("tags", tags, str | None), ("columns", columns, _COLUMNS)):
        if not fits(given, kind):
            raise refused(name, given, describe(kind))
    arrow_schema(columns)
    _raw_tags(tags)
    for name, bound in (("start", start), ("end", end)):
        if not fits(bound, Bound):
            wanted = "earliest, latest, a time or offsets: {(broker, queue): offset}"
            raise ConfigError(f"{name} is {wanted}, not {shown(bound)}")
        if isinstance(bound, Mapping) and min(bound.values(), default=0) < 0:
            raise ConfigError(f"{name} has an offset below 0")
    return _read_topic(topic, options, start, end, tags, columns, runtime)


async def _read_topic(
    topic: str,
    options: ClientOptions,
    start: Bound,
    end: Bound,
    tags: str | None,
    columns: Sequence[str] | None,
    runtime: ClientRuntime | None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with open_instance(options, runtime) as (instance, link):
        route = await link.lookup.subscribe_route(instance.namespace.wrap(topic))
        ranges = await _resolve(link, route.subscribe, start, end)
        async with aclosing(_read_ranges(instance, link, ranges, tags, columns)) as batches:
            async for batch in batches:
                yield batch


class _Range(msgspec.Struct, frozen=True):
    queue: MessageQueue
    start: int
    end: int


async def _read_ranges(
    instance: ClientInstance,
    link: BrokerConnections,
    ranges: Sequence[_Range],
    tags: str | None,
    columns: Sequence[str] | None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The batches of all ranges, some of which are read concurrently."""
    todo = deque(ranges)
    slots = asyncio.Semaphore(QUEUES_AT_ONCE)
    # Batches, and tasks that have ended; the semaphore bounds it.
    arrived: asyncio.Queue[Any] = asyncio.Queue()

    async def work() -> None:
        while todo:
            each = todo.popleft()
            batches = read_range(
                link.calls,
                _finder(instance, link, each.queue),
                each.queue,
                each.start,
                each.end,
                tags=tags,
                columns=columns,
                clock=link.clock,
            )
            async with aclosing(batches):
                async for batch in batches:
                    await slots.acquire()
                    arrived.put_nowait(batch)

    loop = asyncio.get_running_loop()
    workers = [loop.create_task(work()) for _ in range(min(QUEUES_AT_ONCE, len(ranges)))]
    for worker in workers:
        worker.add_done_callback(arrived.put_nowait)
    try:
        left = len(workers)
        while left:
            found = await arrived.get()
            if isinstance(found, asyncio.Task):
                found.result()
                left -= 1
            else:
                slots.release()
                yield found
    finally:
        await end_tasks(workers)


def _finder(instance: ClientInstance, link: BrokerConnections, queue: MessageQueue) -> Find:
    async def find(attempt: int) -> str:
        if attempt:
            await instance.refresh_route(queue.topic)
        return (await link.lookup.reader_of(queue)).address

    return find


# ---- bounds --------------------------------------------------------------------------------------


async def _resolve(
    link: BrokerConnections, queues: Sequence[MessageQueue], start: Bound, end: Bound
) -> list[_Range]:
    """The ranges that are not empty."""
    known = {(queue.broker_name, queue.queue_id) for queue in queues}
    for bound in (start, end):
        if isinstance(bound, Mapping) and not bound.keys() <= known:
            raise ClientError(
                f"topic {queues[0].topic} has no queues {sorted(bound.keys() - known)}",
                hint=f"it has {sorted(known)}",
            )
    gate = asyncio.Semaphore(_RESOLVED_AT_ONCE)

    async def resolved(queue: MessageQueue) -> _Range:
        async with gate:
            return await _range(link, queue, start, end)

    ranges = await asyncio.gather(*map(resolved, queues))
    return [each for each in ranges if each.start < each.end]


async def _range(link: BrokerConnections, queue: MessageQueue, start: Bound, end: Bound) -> _Range:
    address = (await link.lookup.reader_of(queue)).address
    low = await link.calls.min_offset(address, queue)
    high = await link.calls.max_offset(address, queue)
    first = await _offset(link, address, queue, start, low, high, otherwise=low)
    last = min(high, await _offset(link, address, queue, end, low, high, otherwise=high))
    if first < low and first < last:
        missing = Missing(queue=queue, wanted=first, available=low, count=min(low, last) - first)
        raise MissingError(missing)
    if first > high:
        raise ClientError(
            f"offset {first} of {queue} is after its end, {high}",
            hint="was the topic deleted and created again?",
        )
    return _Range(queue, first, last)


async def _offset(
    link: BrokerConnections,
    address: str,
    queue: MessageQueue,
    bound: Bound,
    low: int,
    high: int,
    *,
    otherwise: int,
) -> int:
    if isinstance(bound, Mapping):
        return bound.get((queue.broker_name, queue.queue_id), otherwise)
    if isinstance(bound, datetime):
        offset = await link.calls.search_offset(address, queue, _time_ms(bound))
        return max(low, min(high, offset))
    return low if bound == "earliest" else high


def _time_ms(time: datetime) -> int:
    """Milliseconds, rounded up: neither bound means messages of the millisecond before."""
    micros = (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    return -(-micros // 1000)
