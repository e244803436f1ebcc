"""Delayed messages from send to delivery: on time, in order, through failures and restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.broker.delay.delay_levels import (
    SCHEDULE_GROUP,
    NotDeliverableError,
    delivery_of,
)
from skylark.core.clock import LoopClock
from skylark.core.errors import StoreError
from skylark.core.hashing import java_hash
from skylark.store.commit_log import Draft
from skylark.store.message_store import MessageStore
from skylark.store.running_flags import StoreFlag
from skylark.store.store_results import PutStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import START_MS, VirtualClock
from skylark.wire.message import (
    MessageRecord,
    Verify,
    decode_record,
    encode_record,
    iter_records,
)
from tests.unit.broker.delay.schedule_world import (
    RARELY,
    ROOT,
    SCHEDULE,
    bodies,
    delayed,
    flush,
    on_disk,
)
from tests.unit.broker.stored import Stored, in_place, stored, texts

GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "store-basic"
S, M, H = 1000, 60_000, 3_600_000
DELAYS_MS = [
    S, 5 * S, 10 * S, 30 * S, M, 2 * M, 3 * M, 4 * M, 5 * M, 6 * M, 7 * M, 8 * M, 9 * M, 10 * M,
    20 * M, 30 * M, H, 2 * H,
]  # fmt: skip


# --- on time --------------------------------------------------------------------------------------


@pytest.mark.spec("broker.13.7")
@pytest.mark.spec("store.12.37")
async def test_a_delayed_message_arrives_on_time(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        answer = await world.send(
            queue_id=1, properties="DELAY\x013\x02TAGS\x01A\x02UNIQ_KEY\x01U\x02"
        )
        assert (answer.code, (answer.ext or {})["queueId"]) == (0, "1")
        queue = world.features.store.queues.get(SCHEDULE, 2)
        assert queue is not None
        (waiting,) = world.records(SCHEDULE, 2)
        entry = queue.read_entry(0)
        assert entry is not None
        assert entry.tags_code == waiting.store_timestamp + 10_000
        await world.clock.advance(ms=9_999)
        assert world.records("T", 1) == []
        await world.clock.advance(ms=1)
        (arrived,) = world.records("T", 1)
        assert arrived.store_timestamp == waiting.store_timestamp + 10_000
        assert arrived.raw_properties == waiting.raw_properties
        names = ("DELAY", "REAL_TOPIC", "REAL_QID", "TAGS")
        assert [arrived.properties[name] for name in names] == ["3", "T", "1", "A"]
        queue = world.features.store.queues.get("T", 1)
        assert queue is not None
        entry = queue.read_entry(0)
        assert entry is not None
        assert entry.tags_code == java_hash("A")


async def test_every_level_is_exact(tmp_path: Path) -> None:
    async with stored(tmp_path, **RARELY) as world:
        await world.clock.advance(ms=123.4)  # not at a whole millisecond
        for level in range(1, 20):
            await delayed(world, level, b"%d" % level)
        sent_ms = world.records(SCHEDULE, 0)[0].store_timestamp
        await world.clock.advance(hours=2)
        arrived = world.records("T")
        assert [record.body for record in arrived] == [b"%d" % level for level in range(1, 20)]
        delays_ms = [record.store_timestamp - sent_ms for record in arrived]
        assert delays_ms == [*DELAYS_MS, 2 * H]  # level 19 acts as 18
        assert arrived[-1].properties["DELAY"] == "18"


async def test_the_copy_has_everything_of_the_message(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await delayed(world, 1, b"b" * 500, "a\x01\u00e9\x02KEYS\x01k\x02", f="1", h="-7", j="3")
        await world.clock.advance(1)
        (waiting,), (arrived,) = world.records(SCHEDULE), world.records("T")
        same = (
            "body", "body_crc", "flag", "sys_flag", "born_timestamp", "born_host", "store_host",
            "reconsume_times", "raw_properties", "magic",
        )  # fmt: skip
        for name in same:
            assert getattr(arrived, name) == getattr(waiting, name), name
        assert (arrived.flag, arrived.sys_flag, arrived.reconsume_times) == (-7, 1, 3)
        assert arrived.prepared_transaction_offset == 0


def golden_log() -> bytes:
    return b"".join(path.read_bytes() for path in sorted((GOLDEN / "commitlog").iterdir()))


@pytest.mark.parametrize(("waiting_at", "arrived_at"), [(17635, 20573), (17960, 63468)])
def test_the_copy_is_byte_for_byte_that_of_java(waiting_at: int, arrived_at: int) -> None:
    """Levels 1 and 2 of a real broker's log (GoldenDelay)."""
    content = golden_log()
    waiting, arrived = (decode_record(content, at) for at in (waiting_at, arrived_at))
    assert (waiting.topic, arrived.topic) == (SCHEDULE, "GoldenDelay")
    draft = delivery_of(waiting)
    ours = encode_record(
        topic=draft.topic,
        queue_id=draft.queue_id,
        body=draft.body,
        properties=draft.properties,
        flag=draft.flag,
        sys_flag=draft.sys_flag,
        born_timestamp=draft.born_timestamp,
        born_host=draft.born_host,
        reconsume_times=draft.reconsume_times,
        prepared_transaction_offset=draft.prepared_transaction_offset,
        queue_offset=arrived.queue_offset,
        log_offset=arrived_at,
        store_timestamp=arrived.store_timestamp,
        store_host=arrived.store_host,
    )
    assert ours == content[arrived_at : arrived_at + arrived.total_size]


async def test_a_store_of_java_is_taken_over() -> None:
    """Its levels 17 and 18 wait; 1 and 2 were delivered, and are not again."""
    disk = FaultyFileSystem()
    disk.copy_in(GOLDEN, ROOT / "store")
    sizes = {
        "mappedFileSizeCommitLog": "32768",
        "mappedFileSizeConsumeQueue": "6000",
        "mapperFileSizeBatchConsumeQueue": "4600",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
        "maxMessageSize": "16384",
        "fileReservedTime": "100000",
    }
    sent_ms = 1_794_710_097_960
    async with on_disk(disk, sent_ms + 60_000, {**sizes, **RARELY}) as world:
        assert world.features.delay.schedule.progress() == {
            1: (3, 3),
            2: (1, 1),
            17: (0, 1),
            18: (0, 2),
        }
        tags = [record.properties["TAGS"] for record in world.records("GoldenDelay")]
        assert tags == ["Lv1", "Lv2"]
        await world.clock.advance(hours=2)
        arrived = world.records("GoldenDelay")
        tags = [record.properties["TAGS"] for record in arrived]
        assert tags == ["Lv1", "Lv2", "Lv17", "Lv18", "Lv99"]
        assert arrived[2].store_timestamp == sent_ms + H
        assert world.features.delay.schedule.progress()[18] == (2, 2)


async def test_who_waits_gets_the_message_when_it_is_due(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send(body=b"first")
        await delayed(world, 2)
        pull = await world.begin_pull(1)
        await world.clock.advance(ms=4_999)
        assert not pull.done()
        await world.clock.advance(ms=1)
        assert (await pull).code == 0


async def test_only_levels_with_messages_have_a_timer(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.clock.advance(2)  # what a start has set is over
        idle_count = world.clock.timer_count
        for level in (1, 1, 4):
            world.features.puts.writer.put_own(Draft("T", 0, b"x"), {"DELAY": str(level)})
        assert world.clock.timer_count == idle_count + 2
        await world.clock.advance(30)
        assert len(world.records("T")) == 3
        assert world.clock.timer_count == idle_count


class SteppingClock(VirtualClock):
    """Virtual time whose wall clock can be set."""

    step_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.step_ms


@asynccontextmanager
async def with_a_wall_clock(root: Path) -> AsyncIterator[tuple[Stored, SteppingClock]]:
    clock = SteppingClock()
    network = MemoryNetwork(clock=clock)
    broker = Broker(
        load_broker_config(texts(root)), network=network, clock=clock, in_thread=in_place
    )
    await broker.start()
    world = Stored(broker, clock, network)
    try:
        yield world, clock
    finally:
        await world.client.close()
        await broker.stop()


async def test_the_wall_clock_is_set_forward(tmp_path: Path) -> None:
    async with with_a_wall_clock(tmp_path) as (world, clock):
        await delayed(world, 5)  # a minute
        clock.step_ms = 3_000_000
        await clock.advance(1)
        assert bodies(world) == [b"x"]


async def test_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    """Each message is delivered when the wall clock shows its time, whatever was before it."""
    async with with_a_wall_clock(tmp_path) as (world, clock):
        await delayed(world, 5, b"old")  # a minute
        await clock.advance(30)
        clock.step_ms = -90_000
        await delayed(world, 5, b"new")
        await clock.advance(ms=59_999)
        assert bodies(world) == []
        await clock.advance(1)
        assert bodies(world) == [b"new"]
        await delayed(world, 5, b"last")
        await clock.advance(59)
        assert bodies(world) == [b"new"]
        await clock.advance(ms=501)
        assert bodies(world) == [b"new", b"old"]
        await clock.advance(1)
        assert bodies(world) == [b"new", b"old", b"last"]
        assert world.features.delay.schedule.progress() == {5: (3, 3)}


@pytest.mark.parametrize("orderly", [True, False])
async def test_the_wall_clock_is_set_back_over_restarts(orderly: bool) -> None:
    disk = FaultyFileSystem()
    async with on_disk(disk, START_MS + H) as world:
        await delayed(world, 5, b"old")
    async with on_disk(disk, START_MS, orderly=orderly) as world:
        await delayed(world, 5, b"a")
        await world.clock.advance(61)
        await delayed(world, 5, b"b")
        assert bodies(world) == [b"a"]
        await flush(world.features.store)
        await world.clock.advance(19)
        survived = disk if orderly else disk.kill()
    async with on_disk(survived, START_MS + 90_000) as world:
        await world.clock.advance(30)
        assert bodies(world) == [b"a"]
        await world.clock.advance(2)
        assert bodies(world) == [b"a", b"b"]
    async with on_disk(survived, START_MS + H + 59_000, RARELY) as world:
        await world.clock.drain()
        assert bodies(world) == [b"a", b"b"]
        await world.clock.advance(1)
        assert bodies(world) == [b"a", b"b", b"old"]


# --- many at once ---------------------------------------------------------------------------------


async def test_ten_thousand_due_at_once_do_not_stall_the_loop(tmp_path: Path) -> None:
    """In real time: who shares the loop gets a turn after each slice, at any level."""
    clock = LoopClock()
    config = load_broker_config(texts(tmp_path, messageDelayLevel="1s 1s"))
    broker = Broker(config, network=MemoryNetwork(clock=clock), clock=clock, in_thread=in_place)
    await broker.start()
    try:
        features = broker.features
        for number in range(10_000):
            draft = Draft("T", number % 2, b"%d" % number)
            result = features.puts.writer.put_own(draft, {"DELAY": str(1 + number % 2)})
            assert result.status is PutStatus.PUT_OK
        seen, steps = features.stats.store_stats.put_count, []
        async with clock.timeout(30):
            while seen < 20_000:
                await asyncio.sleep(0)
                steps.append(features.stats.store_stats.put_count - seen)
                seen += steps[-1]
        assert max(steps) <= 200
        for queue_id in (0, 1):
            read = [
                _all_records(features.store, *where)
                for where in [(SCHEDULE, queue_id), ("T", queue_id)]
            ]
            waited = [
                (after.body, after.store_timestamp - before.store_timestamp >= 1000)
                for before, after in zip(*read, strict=True)
            ]
            assert waited == [(b"%d" % number, True) for number in range(queue_id, 10_000, 2)]
    finally:
        await broker.stop()


def _all_records(store: MessageStore, topic: str, queue_id: int) -> list[MessageRecord]:
    records: list[MessageRecord] = []
    while len(records) < store.reader.max_offset(topic, queue_id):
        result = store.reader.get(topic, queue_id, len(records), 10_000, bulk=True)
        records += iter_records(b"".join(result.views))
        result.release()
    return records


# --- failures -------------------------------------------------------------------------------------


async def test_a_full_disk_keeps_the_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with stored(tmp_path) as world:
        for number in range(3):
            await delayed(world, 1, b"%d" % number)
        flags = world.features.store.flags
        flags.set(StoreFlag.DISK_FULL)
        await world.clock.advance(5)
        assert bodies(world) == []
        flags.set(StoreFlag.DISK_FULL, False)
        await world.clock.advance(ms=99)
        await world.clock.advance(ms=1)
        assert bodies(world) == [b"0", b"1", b"2"]
    lines = [line for line in caplog.messages if line.startswith("delay level 1 ")]
    assert lines == [
        "delay level 1 cannot store a message: SERVICE_NOT_AVAILABLE",
        "delay level 1 delivers again",
    ]


async def test_an_unexpected_error_pauses_its_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored(tmp_path) as world:
        await delayed(world, 1, b"a")
        await delayed(world, 1, b"b")
        await delayed(world, 2, b"other")
        reader = world.features.store.reader
        read, failures = reader.record, iter([StoreError("the disk is broken")])

        def failing(log_offset: int) -> object:
            for error in failures:
                raise error
            return read(log_offset)

        monkeypatch.setattr(reader, "record", failing)
        await world.clock.advance(10.999)
        assert bodies(world) == [b"other"]
        await world.clock.advance(0.001)
        assert bodies(world) == [b"other", b"a", b"b"]
    assert "delay level 1 failed and pauses" in caplog.messages


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ("", "it has no destination"),
        ("REAL_TOPIC\x01T\x02", "it has no destination"),
        ("REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02", "its destination queue is invalid"),
        ("REAL_TOPIC\x01T\x02REAL_QID\x019999999999\x02", "its destination queue is invalid"),
        ("REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02", "it is a half message"),
        (
            "REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
            "its destination SCHEDULE_TOPIC_XXXX is not allowed",
        ),
    ],
)
async def test_what_cannot_be_delivered_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, properties: str, reason: str
) -> None:
    async with stored(tmp_path) as world:
        odd = Draft(SCHEDULE, 0, b"odd", f"DELAY\x011\x02{properties}".encode())
        at = world.features.store.put(odd).log_offset
        await delayed(world, 1, b"good")
        await world.clock.advance(1)
        assert bodies(world) == [b"good"]
        assert world.features.delay.schedule.skipped_count == 1
        line = f"skipped message 0 of delay level 1, at log offset {at}: {reason}"
        assert line in caplog.messages


def test_a_half_message_has_no_delivery() -> None:
    record = decode_record(golden_log(), 17635)
    record.raw_properties = b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02"
    with pytest.raises(NotDeliverableError):
        delivery_of(record)


async def test_a_message_that_has_become_too_long_is_delivered_all_the_same() -> None:
    disk = FaultyFileSystem()
    async with on_disk(disk) as world:
        await delayed(world, 3, b"x" * 5_000)
        await delayed(world, 3, b"short")
    async with on_disk(disk, START_MS + 60_000, {"maxMessageSize": "4000"}) as world:
        await world.clock.drain()
        assert bodies(world) == [b"x" * 5_000, b"short"]


# --- settings -------------------------------------------------------------------------------------


async def test_a_changed_table_of_levels() -> None:
    disk = FaultyFileSystem()
    async with on_disk(disk) as world:
        for level in (2, 3, 18):
            await delayed(world, level, b"%d" % level)
    given = {"messageDelayLevel": "1s 20s"}
    async with on_disk(disk, START_MS + 1_000, {**given, **RARELY}) as world:
        await delayed(world, 2, b"new")
        await delayed(world, 3, b"capped")
        await world.clock.advance(hours=2)
        arrivals = [(r.body, r.store_timestamp - START_MS) for r in world.records("T")]
        assert arrivals == [
            (b"2", 5_000),
            (b"3", 10_000),  # a level that there is no more: as its entry says
            (b"new", 21_000),
            (b"capped", 21_000),
            (b"18", 2 * H),
        ]
    # A shorter delay counts for those that wait already.
    disk = FaultyFileSystem()
    async with on_disk(disk) as world:
        await delayed(world, 3)
    async with on_disk(disk, START_MS + 1_000, {"messageDelayLevel": "1s 5s 2s"}) as world:
        await world.clock.advance(ms=999)
        assert bodies(world) == []
        await world.clock.advance(ms=501)
        assert bodies(world) == [b"x"]


async def test_checksums_of_properties_are_computed_again() -> None:
    def sound(record: MessageRecord, content: bytes) -> bool:
        return decode_record(content, verify=Verify.PROPERTY).body == record.body

    disk = FaultyFileSystem()
    async with on_disk(disk, given={"enabledAppendPropCRC": "true"}) as world:
        await delayed(world, 1, b"a")
        await delayed(world, 3, b"b")
        await world.clock.advance(1)
        (first,) = world.records("T")
        lease = world.features.store.reader.record(first.log_offset)
        assert lease is not None
        with lease:
            assert sound(first, bytes(lease.view))
        assert first.raw_properties.count(b"__CRC32#") == 1
    async with on_disk(disk, START_MS + 60_000) as world:
        await world.clock.drain()
        assert "__CRC32#" in world.records(SCHEDULE, 2)[0].properties
        assert "__CRC32#" not in world.records("T")[1].properties


async def test_a_broker_that_becomes_a_master_again_goes_on(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        schedule = world.features.delay.schedule
        await delayed(world, 1, b"a")
        await world.clock.drain()
        await schedule.stop()
        await delayed(world, 1, b"b")
        await world.clock.advance(5)
        assert bodies(world) == []
        schedule.start()
        await world.clock.drain()
        assert bodies(world) == [b"a", b"b"]


async def test_a_slave_does_not_deliver() -> None:
    disk = FaultyFileSystem()
    async with on_disk(disk) as world:
        await delayed(world, 1)
    async with on_disk(disk, START_MS + M, {"brokerRole": "SLAVE", "brokerId": "1"}) as world:
        await world.clock.advance(60)
        assert bodies(world) == []
        assert world.features.delay.schedule.progress() == {1: (0, 1)}


# --- numbers --------------------------------------------------------------------------------------


async def test_statistics_and_progress(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for level in (1, 1, 2):
            await delayed(world, level)
        await world.clock.advance(1)
        stats, schedule = world.features.stats.broker_stats, world.features.delay.schedule
        read = stats.group_gets[SCHEDULE, SCHEDULE_GROUP]
        arrived = world.records("T")
        assert (read.count, read.times) == (2, 2)
        assert read.size == sum(record.total_size for record in arrived)
        assert stats.topic_puts[SCHEDULE].count == 3  # sent
        assert stats.topic_puts["T"].count == 2  # delivered
        assert stats.user_put_count == 2
        assert schedule.progress() == {1: (2, 2), 2: (0, 1)}
