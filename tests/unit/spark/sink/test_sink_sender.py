"""The senders of the sink, with brokers that are busy, down, or refuse rows; in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from skylark.client.core.client_message import Message, SendResult, SendStatus
from skylark.client.producer.send_request import Parcel
from skylark.core.clock import Clock
from skylark.core.errors import (
    BrokerError,
    ConnectionClosedError,
    MessageIllegalError,
    NoNameServerError,
    NoPermissionError,
    NoRouteError,
    SkylarkError,
    SystemBusyError,
)
from skylark.core.hashing import encode_offset_id
from skylark.spark.exactly_once.commit_protocol import Prepared
from skylark.spark.exactly_once.half_message_sender import HalfMessageSender, Portion, portions
from skylark.spark.exactly_once.txn_log import QUEUE_COUNT, TxnLog
from skylark.spark.exactly_once.txn_log_records import LOG_TOPIC, Done, Manifest, sums
from skylark.spark.outages import OutageError
from skylark.spark.sink.row_batcher import RowBatcher, RowRequest
from skylark.spark.sink.row_encoder import RowPlan, RowReader
from skylark.spark.sink.sink_options import SinkOptions
from skylark.spark.sink.sink_sender import UNACKNOWLEDGED_MAX, SinkSender, Window, Written
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.batch import split_batch
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.properties import parse_properties
from tests.unit.spark.sink.test_row_encoder import options

T = TypeVar("T")

RNG = random.Random(1)
STORE_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"

QUEUES = [
    MessageQueue(topic="T", broker_name=f"broker-{name}", queue_id=n)
    for name in "ab"
    for n in range(2)
]


class FakeSender:
    """Takes parcels as a broker would; ``judge`` may raise."""

    def __init__(self, clock: Clock, reject: Callable[[Parcel, MessageQueue], None]) -> None:
        self._clock = clock
        self._outcomes = reject
        self.common = None
        self.bodies: list[tuple[MessageQueue, bytes]] = []
        self.properties: list[dict[str, str]] = []
        self.statuses: list[SendStatus] = []  # of the next answers; then all is well
        self.under_way = 0
        self.size_under_way = 0
        self.most_under_way = 0
        self.most_size = 0

    def state_of(self, topic: str) -> str:
        return topic

    def checked(self, message: Message) -> str:
        return message.topic

    async def parcel(self, message: Message) -> Parcel:
        return Parcel(messages=(message,), properties="", body=message.body)

    async def send(
        self, state: str, parcel: Parcel, mode: object, timeout_s: float, began: float,
        queue: MessageQueue,
    ) -> SendResult:  # fmt: skip
        del state, mode, timeout_s, began
        self.under_way += 1
        self.size_under_way += len(parcel.body)
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.most_size = max(self.most_size, self.size_under_way)
        try:
            await self._clock.sleep(0.01)
            self._outcomes(parcel, queue)
        finally:
            self.under_way -= 1
            self.size_under_way -= len(parcel.body)
        offset = len(self.bodies)
        offset_ids = [encode_offset_id(STORE_HOST, 1_000 + offset)]
        if parcel.code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_HALVES):
            parts = split_batch(parcel.body)
            self.bodies += [(queue, part.body) for part in parts]
            common = parse_properties(parcel.properties)
            self.properties += [common | parse_properties(part.properties) for part in parts]
            offset_ids = [
                encode_offset_id(STORE_HOST, 1_000 + offset + at) for at in range(len(parts))
            ]
        else:
            self.bodies.append((queue, parcel.body))
            self.properties.append(parse_properties(parcel.properties))
        return SendResult(
            status=self.statuses.pop(0) if self.statuses else SendStatus.SEND_OK,
            msg_id="",
            offset_msg_id=",".join(offset_ids),
            queue=queue,
            queue_offset=offset,
        )


class FakeNamespace:
    def wrap(self, name: str) -> str:
        return name

    def unwrap(self, name: str) -> str:
        return name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue


class FakeClient:
    """What Sending needs of a SinkClient."""

    def __init__(self, clock: Clock, reject: Callable[[Parcel, MessageQueue], None]) -> None:
        self.clock = clock
        self.namespace = FakeNamespace()
        self.sender = FakeSender(clock, reject)

    async def expected_queues(
        self, topic: str, *, existed: bool = False, fresh: bool = False
    ) -> Sequence[MessageQueue]:
        assert topic == "T"
        return QUEUES

    async def master(self, queue: MessageQueue) -> str:
        return queue.broker_name


async def passing(clock: VirtualClock, work: Coroutine[Any, Any, T]) -> T:
    """Do the work while time goes by."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        await clock.advance(0.05)
    return task.result()


async def send_all(clock: VirtualClock, work: SinkSender, requests: list[RowRequest]) -> Written:
    async def run() -> Written:
        for request in requests:
            await work.put(request)
        return await work.finish()

    return await passing(clock, run())


def accept(parcel: Parcel, queue: MessageQueue) -> None:
    del parcel, queue


def loads_of(
    opts: SinkOptions, bodies: list[bytes], keys: list[str] | None = None
) -> list[RowRequest]:
    columns = {"body": pa.array(bodies, pa.binary())}
    if keys is not None:
        columns["shardingKey"] = pa.array(keys, pa.string())
    numbers = iter(range(1 << 30))
    reader = RowReader(RowPlan(columns=tuple(columns)), opts, {}, lambda: f"{next(numbers):032}")
    rows = reader.read(pa.RecordBatch.from_pydict(columns))
    return list(RowBatcher(opts).requests_of(rows, {"T": QUEUES}))


class Refused(list[tuple[int, str]]):
    def __call__(self, request: RowRequest, number: int, reason: str) -> None:
        self.append((int(request.rows.positions[number]), reason))


def sending(client: Any, opts: SinkOptions, refused: Refused | None = None) -> SinkSender:
    return SinkSender(
        client, opts, RowBatcher(opts), Refused() if refused is None else refused, RNG
    )


@pytest.mark.spec("spark.9.26")
async def test_a_busy_broker_slows_the_sink_and_loses_nothing() -> None:
    clock = VirtualClock()

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel, queue
        if clock.monotonic() - began < 5.0:
            raise SystemBusyError("[REJECTREQUEST]system busy", code=2)

    began = clock.monotonic()
    opts = options(batch_size_max=100_000)
    client = FakeClient(clock, reject)
    work = sending(client, opts)
    bodies = [b"%06d" % n + b"x" * 1_000 for n in range(40_000)]  # more than may be under way
    written = await send_all(clock, work, loads_of(opts, bodies))
    assert clock.monotonic() - began > 5.0
    assert written.count == len(bodies)
    assert written.retries > 0
    assert Counter(body for _, body in client.sender.bodies) == Counter(bodies)
    assert client.sender.most_size <= UNACKNOWLEDGED_MAX
    assert client.sender.most_under_way <= 2 * opts.in_flight_max


async def test_requests_in_flight_are_limited() -> None:
    opts = options(in_flight_max=3, batch_count_max=1)
    client = FakeClient(clock := VirtualClock(), accept)
    requests = loads_of(opts, [b"%d" % n for n in range(200)])
    await send_all(clock, sending(client, opts), requests)
    assert client.sender.most_under_way == 6  # three at each of two brokers


async def test_order_holds_though_requests_are_repeated() -> None:
    rng = random.Random(7)

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel, queue
        if rng.random() < 0.4:
            raise SystemBusyError("busy", code=2)

    opts = options(batch_count_max=3)
    client = FakeClient(clock := VirtualClock(), reject)
    keys = [f"k{n % 5}" for n in range(100)]
    requests = loads_of(opts, [b"%03d" % n for n in range(100)], keys)
    await send_all(clock, sending(client, opts), requests)
    lanes: dict[MessageQueue, list[bytes]] = {}
    for queue, body in client.sender.bodies:
        lanes.setdefault(queue, []).append(body)
    assert sum(map(len, lanes.values())) == 100
    for lane in lanes.values():
        assert lane == sorted(lane)


async def test_a_batch_that_is_refused_is_sent_row_by_row() -> None:
    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del queue
        if b"poison" in parcel.body:
            raise MessageIllegalError("the message is illegal", code=13)

    opts = options()
    client, refused = FakeClient(clock := VirtualClock(), reject), Refused()
    requests = loads_of(opts, [b"a", b"poison", b"b"])
    written = await send_all(clock, sending(client, opts, refused), requests)
    assert written.count == 2
    assert refused == [(1, "the broker refuses it: the message is illegal")]
    assert [body for _, body in client.sender.bodies] == [b"a", b"b"]


@pytest.mark.parametrize(
    "error",
    [ConnectionClosedError("gone"), NoNameServerError("none"), NoRouteError("no broker")],
    ids=lambda error: type(error).__name__,
)
async def test_rows_wait_for_a_cluster_that_is_away(error: SkylarkError) -> None:
    clock = VirtualClock()
    began = clock.monotonic()

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel, queue
        if clock.monotonic() - began < 200:
            raise error

    opts = options(retries=3, batch_count_max=1)
    client = FakeClient(clock, reject)
    bodies = [b"%d" % n for n in range(20)]
    written = await send_all(clock, sending(client, opts), loads_of(opts, bodies))
    assert written.count == 20
    assert Counter(body for _, body in client.sender.bodies) == Counter(bodies)


async def test_a_task_fails_after_a_long_outage_with_one_clear_error() -> None:
    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        raise ConnectionClosedError("the broker closed the connection")

    opts = options(outage_timeout_ms=60_000)
    clock = VirtualClock()
    with pytest.raises(OutageError, match="did not answer for 60 s: the broker closed"):
        await send_all(clock, sending(FakeClient(clock, reject), opts), loads_of(opts, [b"a"]))


@pytest.mark.parametrize(("error", "attempts"), [(NoPermissionError("no", code=16), 4)])
async def test_failures_end_the_task_after_their_retries(
    error: SkylarkError, attempts: int
) -> None:
    tried: list[str] = []

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel
        tried.append(queue.broker_name)
        raise error

    opts = options(retries=3)
    work = sending(FakeClient(clock := VirtualClock(), reject), opts)
    with pytest.raises(type(error)):
        await send_all(clock, work, loads_of(opts, [b"a"]))
    assert len(tried) == attempts
    assert {*tried} == {"broker-a", "broker-b"}


async def test_a_window_halves_and_grows() -> None:
    window = Window(16)
    window.refused()
    window.refused()
    window.refused()
    assert window._limit == 1
    for _ in range(200):
        window.stored()
    assert window._limit == 16


class FakeLog:
    def __init__(self) -> None:
        self.records: list[Manifest] = []

    async def append(self, record: Manifest) -> int:
        self.records.append(record)
        return len(self.records) - 1


def halves_of(
    opts: SinkOptions, bodies: list[bytes], keys: list[str] | None = None
) -> list[Portion]:
    columns = {"body": pa.array(bodies, pa.binary())}
    if keys is not None:
        columns["shardingKey"] = pa.array(keys, pa.string())
    rows = RowReader(RowPlan(columns=tuple(columns)), opts, {}, None).read(
        pa.RecordBatch.from_pydict(columns)
    )
    return [
        portion
        for target, numbers in RowBatcher(opts).targets(rows, {"T": QUEUES})
        for portion in portions(rows, target, numbers)
    ]


async def send_halves(
    reject: Callable[[Parcel, MessageQueue], None],
    bodies: list[bytes],
    statuses: Sequence[SendStatus] = (),
    **more: Any,
) -> tuple[Prepared, Manifest, FakeSender]:
    client: Any = FakeClient(clock := VirtualClock(), reject)
    client.sender.statuses += statuses
    who = Prepared(sink="s", batch=4, partition=1, attempt="00000000000000aa", count=0)
    opts = options(delivery="exactly-once", **more)
    work = HalfMessageSender(client, opts, who, lambda row, reason: None, random.Random(1))
    log: Any = FakeLog()

    async def run() -> Prepared:
        for portion in halves_of(opts, bodies):
            await work.put(portion)
        return await work.finish(log)

    prepared = await passing(clock, run())
    (manifest,) = log.records
    return prepared, manifest, client.sender


def numbers_of(sender: FakeSender) -> dict[int, dict[str, str]]:
    """The halves that were stored, by number."""
    found = {int(p["_SPARK_TX"].rpartition(":")[2]): p for p in sender.properties}
    assert len(found) == len(sender.properties)
    return found


def test_portions_are_limited_and_large_rows_are_sent_alone() -> None:
    opts = options(delivery="exactly-once", compress_over=10_000)
    found = halves_of(opts, [b"x"] * 600 + [b"y" * 9_000] * 100 + [b"z" * 10_000])
    assert [(p.count, p.together) for p in found] == [
        (256, True), (256, True), (146, True), (42, True), (1, False),
    ]  # fmt: skip
    assert sum(p.size for p in found) == 600 + 900_000 + 10_000
    assert max(p.size for p in found) <= 512 << 10


def test_halves_of_a_queue_keep_their_order() -> None:
    opts = options(delivery="exactly-once", compress_over=100)
    bodies = [b"%d" % n + b"x" * (200 if n in (2, 3, 5) else 0) for n in range(8)]
    found = halves_of(opts, bodies, ["key"] * 8)
    assert [(p.numbers.tolist(), p.together) for p in found] == [
        ([0, 1], True), ([2, 3], False), ([4], True), ([5], False), ([6, 7], True),
    ]  # fmt: skip


async def test_with_strict_ack_a_late_replica_gives_other_numbers() -> None:
    late, bodies = [SendStatus.FLUSH_SLAVE_TIMEOUT], [b"a", b"b"]
    prepared, manifest, _ = await send_halves(accept, bodies, late)
    assert (prepared.void, sums(manifest.seqs)) == ((), [0, 1])
    prepared, manifest, sender = await send_halves(accept, bodies, late, strict_ack=True)
    assert (prepared.void, sums(manifest.seqs)) == ((0, 1), [2, 3])
    assert sums(manifest.log_offsets) == [1_002, 1_003]
    assert sorted(numbers_of(sender)) == [0, 1, 2, 3]
    with pytest.raises(BrokerError, match="stored with FLUSH_SLAVE_TIMEOUT"):
        await send_halves(accept, bodies, late * 3, strict_ack=True, retries=2)


@pytest.mark.parametrize(("strict", "offset"), [(False, 0), (True, 1)])
async def test_with_strict_ack_a_late_flush_appends_a_record_again(
    strict: bool, offset: int
) -> None:
    client: Any = FakeClient(clock := VirtualClock(), accept)
    client.sender.statuses.append(SendStatus.FLUSH_DISK_TIMEOUT)
    log = TxnLog(client, strict_ack=strict)
    log._queues = [
        MessageQueue(topic=LOG_TOPIC, broker_name="broker-a", queue_id=n)
        for n in range(QUEUE_COUNT)
    ]
    assert await passing(clock, log.append(Done(sink="s", batch=4))) == offset


async def test_halves_wait_for_a_cluster_that_is_away() -> None:
    failures = iter(range(40))

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel, queue
        if next(failures, None) is not None:
            raise NoRouteError("no broker")

    prepared, _, sender = await send_halves(reject, [b"%d" % n for n in range(100)], retries=3)
    assert (prepared.count, prepared.void) == (100, ())  # nothing was stored meanwhile
    assert len(sender.bodies) == 100


async def test_a_portion_without_an_answer_gets_other_numbers() -> None:
    seen: list[Parcel] = []

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del queue
        seen.append(parcel)
        if len(seen) == 1:
            raise ConnectionClosedError("gone before the answer came")
        if len(seen) == 2:
            raise SystemBusyError("busy", code=2)

    bodies = [b"%d" % number for number in range(4)]
    prepared, manifest, sender = await send_halves(reject, bodies)
    assert [parcel.code for parcel in seen] == [RequestCode.SEND_HALVES] * 3
    assert prepared.count == 4
    assert prepared.void == (0, 1, 2, 3)  # not those that were refused: they are not there
    stored = numbers_of(sender)
    assert list(stored) == [4, 5, 6, 7]
    assert all(p["PGROUP"] == "SPARK_TXN" for p in stored.values())
    assert all(p["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "900" for p in stored.values())
    assert len({p["UNIQ_KEY"] for p in stored.values()}) == 4
    assert sums(manifest.seqs) == [4, 5, 6, 7]
    assert sums(manifest.log_offsets) == [1_000, 1_001, 1_002, 1_003]
    assert sums(manifest.queue_offsets) == [0, 1, 2, 3]


async def test_a_broker_without_portions_gets_halves_one_by_one() -> None:
    asked: Counter[int] = Counter()

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del queue
        asked[parcel.code] += 1
        if parcel.code == RequestCode.SEND_HALVES:
            raise BrokerError("request type 9002 not supported", code=3)

    prepared, manifest, sender = await send_halves(reject, [b"%d" % n for n in range(600)])
    assert prepared.count == 600
    assert prepared.void == ()
    assert asked[RequestCode.SEND_MESSAGE_V2] == 600
    assert asked[RequestCode.SEND_HALVES] <= 3  # what was under way when it was found out
    stored = numbers_of(sender)
    assert all(p["TRAN_MSG"] == "true" and p["PGROUP"] == "SPARK_TXN" for p in stored.values())
    assert set(sums(manifest.seqs)) == set(stored)
    assert Counter(body for _, body in sender.bodies) == Counter(b"%d" % n for n in range(600))


async def test_a_portion_that_is_refused_is_sent_row_by_row() -> None:
    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del queue
        if parcel.code == RequestCode.SEND_HALVES or parcel.body == b"2":
            raise MessageIllegalError("illegal", code=13)

    prepared, manifest, sender = await send_halves(reject, [b"%d" % n for n in range(4)])
    assert prepared.count == 3  # the one that is refused by itself is a bad row
    assert sorted(body for _, body in sender.bodies) == [b"0", b"1", b"3"]
    assert len(manifest.targets) == 3


async def test_a_half_without_an_answer_gets_another_number() -> None:
    lost: list[str] = []

    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        del queue
        if parcel.code == RequestCode.SEND_HALVES:
            raise BrokerError("request type 9002 not supported", code=3)
        identity = parse_properties(parcel.properties)["_SPARK_TX"]
        if parcel.body == b"1" and not lost:
            lost.append(identity)
            raise ConnectionClosedError("gone before the answer came")
        if parcel.body == b"2" and len(lost) == 1:
            lost.append(identity)
            raise SystemBusyError("busy", code=2)

    prepared, manifest, sender = await send_halves(reject, [b"%d" % n for n in range(4)])
    assert prepared.count == 4
    assert prepared.void == (5,)  # only the one whose outcome is unknown
    stored = numbers_of(sender)
    assert sorted(stored) == [4, 6, 7, 8]  # 0 to 3 were those of the request that was refused
    assert len({p["UNIQ_KEY"] for p in stored.values()}) == 4
    assert sums(manifest.seqs) == [4, 8, 6, 7]  # row 1 became number 8


async def test_too_many_rows_without_an_answer_fail_the_task() -> None:
    def reject(parcel: Parcel, queue: MessageQueue) -> None:
        raise ConnectionClosedError("gone")

    with pytest.raises(SkylarkError):
        await send_halves(reject, [b"x"] * 20_000)
