"""Requests of a sink on their way, to brokers that are busy, gone, or choosy; in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from skylark.client.message import SendResult, SendStatus
from skylark.client.send_frame import Parcel
from skylark.core.clock import Clock
from skylark.core.errors import (
    ConnectionClosedError,
    MessageIllegalError,
    NoPermissionError,
    SkylarkError,
    SystemBusyError,
)
from skylark.core.hashing import encode_offset_id
from skylark.spark.decisions import Manifest
from skylark.spark.exactly_once import Prepared
from skylark.spark.half_sending import HalfSending
from skylark.spark.loads import Cutter, Load, Row, Target
from skylark.spark.rows import RowPlan, RowReader
from skylark.spark.sending import UNACKNOWLEDGED_MAX, Sending, Window, Written
from skylark.spark.sink_options import SinkOptions
from skylark.testing.clock import VirtualClock
from skylark.wire.batch import split_batch
from skylark.wire.bodies.common import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.properties import parse_properties
from tests.unit.spark.test_rows import options

T = TypeVar("T")

RNG = random.Random(1)

QUEUES = [
    MessageQueue(topic="T", broker_name=f"broker-{name}", queue_id=n)
    for name in "ab"
    for n in range(2)
]


class FakeSender:
    """Takes parcels as a broker would; ``judge`` may raise."""

    def __init__(self, clock: Clock, judge: Callable[[Parcel, MessageQueue], None]) -> None:
        self._clock = clock
        self._judge = judge
        self.common = None
        self.bodies: list[tuple[MessageQueue, bytes]] = []
        self.properties: list[dict[str, str]] = []
        self.under_way = 0
        self.size_under_way = 0
        self.most_under_way = 0
        self.most_size = 0

    def state_of(self, topic: str) -> str:
        return topic

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
            self._judge(parcel, queue)
        finally:
            self.under_way -= 1
            self.size_under_way -= len(parcel.body)
        offset = len(self.bodies)
        if parcel.code == RequestCode.SEND_BATCH_MESSAGE:
            self.bodies += [(queue, part.body) for part in split_batch(parcel.body)]
        else:
            self.bodies.append((queue, parcel.body))
            self.properties.append(parse_properties(parcel.properties))
        return SendResult(
            status=SendStatus.SEND_OK,
            msg_id="",
            offset_msg_id=encode_offset_id(b"\x7f\x00\x00\x01\x00\x00\x00\x01", 1_000 + offset),
            queue=queue,
            queue_offset=offset,
        )


class FakeNamespace:
    def wrap(self, name: str) -> str:
        return name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue


class FakeClient:
    """What Sending needs of a SinkClient."""

    def __init__(self, clock: Clock, judge: Callable[[Parcel, MessageQueue], None]) -> None:
        self.clock = clock
        self.namespace = FakeNamespace()
        self.sender = FakeSender(clock, judge)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        assert topic == "T"
        return QUEUES


async def passing(clock: VirtualClock, work: Coroutine[Any, Any, T]) -> T:
    """Do the work while time goes by."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        await clock.advance(0.05)
    return task.result()


async def send_all(clock: VirtualClock, work: Sending, loads: list[Load]) -> Written:
    async def run() -> Written:
        for load in loads:
            await work.put(load)
        return await work.finish()

    return await passing(clock, run())


def accept(parcel: Parcel, queue: MessageQueue) -> None:
    del parcel, queue


def loads_of(opts: SinkOptions, bodies: list[bytes], keys: list[str] | None = None) -> list[Load]:
    columns = {"body": pa.array(bodies, pa.binary())}
    if keys is not None:
        columns["shardingKey"] = pa.array(keys, pa.string())
    numbers = iter(range(1 << 30))
    reader = RowReader(RowPlan(columns=tuple(columns)), opts, {}, lambda: f"{next(numbers):032}")
    rows = reader.read(pa.RecordBatch.from_pydict(columns))
    return list(Cutter(opts).cut(rows, {"T": QUEUES}))


class Refused(list[tuple[int, str]]):
    def __call__(self, load: Load, number: int, reason: str) -> None:
        self.append((int(load.rows.positions[number]), reason))


def sending(client: Any, opts: SinkOptions, refused: Refused | None = None) -> Sending:
    return Sending(client, opts, Cutter(opts), Refused() if refused is None else refused, RNG)


@pytest.mark.spec("spark.9.26")
async def test_a_busy_broker_slows_the_sink_and_loses_nothing() -> None:
    clock = VirtualClock()

    def judge(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel, queue
        if clock.monotonic() - began < 5.0:
            raise SystemBusyError("[REJECTREQUEST]system busy", code=2)

    began = clock.monotonic()
    opts = options(batch_size_max=100_000)
    client = FakeClient(clock, judge)
    work = sending(client, opts)
    bodies = [b"%06d" % n + b"x" * 1_000 for n in range(40_000)]  # more than may be under way
    written = await send_all(clock, work, loads_of(opts, bodies))
    assert clock.monotonic() - began > 5.0
    assert written.count == len(bodies)
    assert written.retries > 0
    assert Counter(body for _, body in client.sender.bodies) == Counter(bodies)
    assert client.sender.most_size <= UNACKNOWLEDGED_MAX
    assert client.sender.most_under_way <= 2 * opts.in_flight_max


async def test_what_is_under_way_is_bounded() -> None:
    opts = options(in_flight_max=3, batch_count_max=1)
    client = FakeClient(clock := VirtualClock(), accept)
    loads = loads_of(opts, [b"%d" % n for n in range(200)])
    await send_all(clock, sending(client, opts), loads)
    assert client.sender.most_under_way == 6  # three at each of two brokers


async def test_order_holds_though_requests_are_repeated() -> None:
    rng = random.Random(7)

    def judge(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel, queue
        if rng.random() < 0.4:
            raise SystemBusyError("busy", code=2)

    opts = options(batch_count_max=3)
    client = FakeClient(clock := VirtualClock(), judge)
    keys = [f"k{n % 5}" for n in range(100)]
    loads = loads_of(opts, [b"%03d" % n for n in range(100)], keys)
    await send_all(clock, sending(client, opts), loads)
    lanes: dict[MessageQueue, list[bytes]] = {}
    for queue, body in client.sender.bodies:
        lanes.setdefault(queue, []).append(body)
    assert sum(map(len, lanes.values())) == 100
    for lane in lanes.values():
        assert lane == sorted(lane)


async def test_a_batch_that_is_refused_is_sent_row_by_row() -> None:
    def judge(parcel: Parcel, queue: MessageQueue) -> None:
        del queue
        if b"poison" in parcel.body:
            raise MessageIllegalError("the message is illegal", code=13)

    opts = options()
    client, refused = FakeClient(clock := VirtualClock(), judge), Refused()
    loads = loads_of(opts, [b"a", b"poison", b"b"])
    written = await send_all(clock, sending(client, opts, refused), loads)
    assert written.count == 2
    assert refused == [(1, "the broker refuses it: the message is illegal")]
    assert [body for _, body in client.sender.bodies] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(NoPermissionError("no", code=16), 4), (ConnectionClosedError("gone"), 4)],
)
async def test_failures_end_the_task_after_their_retries(
    error: SkylarkError, attempts: int
) -> None:
    tried: list[str] = []

    def judge(parcel: Parcel, queue: MessageQueue) -> None:
        del parcel
        tried.append(queue.broker_name)
        raise error

    opts = options(retries=3)
    work = sending(FakeClient(clock := VirtualClock(), judge), opts)
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


async def test_a_half_without_an_answer_gets_another_number() -> None:
    lost: list[str] = []

    def judge(parcel: Parcel, queue: MessageQueue) -> None:
        del queue
        identity = parse_properties(parcel.properties)["_SPARK_TX"]
        if parcel.body == b"1" and not lost:
            lost.append(identity)
            raise ConnectionClosedError("gone before the answer came")
        if parcel.body == b"2" and len(lost) == 1:
            lost.append(identity)
            raise SystemBusyError("busy", code=2)

    client: Any = FakeClient(clock := VirtualClock(), judge)
    who = Prepared(sink="s", batch=4, partition=1, attempt="00000000000000aa", count=0)
    work = HalfSending(client, options(delivery="exactly-once"), who, lambda row, reason: None)
    log: Any = FakeLog()

    async def run() -> Prepared:
        for number in range(4):
            body = b"%d" % number
            await work.put(Row(number, number, Target("T"), body, 0, "WAIT\x01true\x02", 0))
        return await work.finish(log)

    prepared = await passing(clock, run())
    assert prepared.count == 4
    assert prepared.void == (1,)  # only of the one whose outcome nobody knows
    (manifest,) = log.records
    stored = {p["_SPARK_TX"]: p for p in client.sender.properties}
    assert sorted(int(each.rpartition(":")[2]) for each in stored) == [0, 2, 3, 4]
    assert all(p["TRAN_MSG"] == "true" and p["PGROUP"] == "SPARK_TXN" for p in stored.values())
    assert len({p["UNIQ_KEY"] for p in stored.values()}) == 4
    assert sum(manifest.seqs[:2]) == 4  # row 1 became number 4
    assert len(manifest.log_offsets) == 4
