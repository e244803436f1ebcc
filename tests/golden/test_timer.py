"""The timer files of a real broker (5.5.0): we write the same bytes, and go on where it stopped.

``data/timer`` holds the used parts of its files: a timed message, and check-points of pop consumers
on their way through the wheel; all were delivered when it was stopped.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.broker.delay import timer_service
from skylark.broker.delay.timer_copies import TimerCopies
from skylark.core.hashing import java_hash
from skylark.core.names import TIMER_TOPIC
from skylark.store.config_files import ConfigFiles
from skylark.store.timer.timer_layout import SLOT, SLOT_COUNT, SLOT_SIZE, UNIT, UNIT_SIZE
from skylark.store.timer.timer_recovery import recover
from skylark.store.timer.timer_store import TimerOptions, TimerStore
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint
from skylark.wire.command import Command
from skylark.wire.frame import decode_frame
from skylark.wire.message import MessageRecord, iter_records
from tests.unit.broker.stored import CALL_TIMEOUT_S, Stored, in_place, texts

DATA = Path(__file__).parent / "data"
TIMER = DATA / "timer"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
STOPPED_MS = 1_794_711_226_000  # its last read time
FILE_SIZE = 1 << 20


def timer_records() -> list[MessageRecord]:
    records = iter_records((TIMER / "commitlog.bin").read_bytes())
    return [record for record in records if record.topic == TIMER_TOPIC]


def golden_slots() -> list[dict[str, int]]:
    return [json.loads(line) for line in (TIMER / "wheel.jsonl").read_text().splitlines()]


def checkpoint() -> TimerCheckpoint:
    return TimerCheckpoint.decode((TIMER / "timercheck").read_bytes())


def test_the_data_is_as_it_was_made() -> None:
    for line in (DATA / "timer.sha256").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest, name


def test_what_we_write_is_what_java_wrote() -> None:
    """Each message placed at the time Java placed it gives the same log and the same wheel."""
    written = (TIMER / "timerlog.bin").read_bytes()
    units = list(UNIT.iter_unpack(written))
    records = timer_records()
    assert len(units) == len(records) == 14
    root = Path("store")
    files = FaultyFileSystem()
    files.make_directories(root)
    options = TimerOptions(log_file_size=FILE_SIZE)
    timer = TimerStore(files, root, ConfigFiles(files, root / "config"), root / "config", options)
    recover(timer, lambda _: None, 0, len(records))
    for record, unit in zip(records, units, strict=True):
        timer.advance(unit[3] + 999)  # the write time is cut to the second
        placed = timer.place(
            int(record.properties["TIMER_OUT_MS"]),
            record.log_offset,
            record.total_size,
            java_hash(record.properties["REAL_TOPIC"]),
            is_delete=False,
        )
        assert placed
    assert timer.log.end == len(written)
    assert files.open_file(root / "timerlog" / f"{0:020d}").read(0, len(written)) == written
    wheel = files.open_file(root / "timerwheel")
    assert wheel.size == 38_707_200
    for slot in golden_slots():
        assert list(SLOT.unpack(wheel.read(slot.pop("index") * SLOT_SIZE, SLOT_SIZE))) == list(
            slot.values()
        )
    assert timer.waiting_count == 14


def install(root: Path, saved: TimerCheckpoint, *, slots: list[dict[str, int]]) -> None:
    """Give the files their full length again."""
    (root / "commitlog").mkdir(parents=True)
    (root / "timerlog").mkdir()
    (root / "config").mkdir()
    for directory in ("commitlog", "timerlog"):
        content = (TIMER / f"{directory}.bin").read_bytes()
        (root / directory / f"{0:020d}").write_bytes(content.ljust(FILE_SIZE, b"\0"))
    with (root / "timerwheel").open("wb") as wheel:
        wheel.truncate(SLOT_COUNT * SLOT_SIZE)
        for slot in slots:
            wheel.seek(slot["index"] * SLOT_SIZE)
            wheel.write(SLOT.pack(*list(slot.values())[1:]))
    (root / "config" / "timercheck").write_bytes(saved.encode().ljust(4_096, b"\0"))
    (root / "config" / "timermetrics").write_bytes((TIMER / "timermetrics").read_bytes())
    topics = DATA / "config" / "java-5.5.0" / "topics.json"
    (root / "config" / "topics.json").write_bytes(topics.read_bytes())  # a master needs one


@asynccontextmanager
async def started(tmp_path: Path, now_ms: int, **given: Any) -> AsyncIterator[Stored]:
    clock = VirtualClock(now_ms)
    network = MemoryNetwork(clock=clock)
    sizes = {"mappedFileSizeCommitLog": str(FILE_SIZE), "mappedFileSizeTimerLog": str(FILE_SIZE)}
    config = load_broker_config(texts(tmp_path, **sizes, **given))
    broker = Broker(config, network=network, clock=clock, in_thread=in_place)
    await broker.start()
    try:
        yield Stored(broker, clock, network)
    finally:
        await broker.stop()


async def revived(world: Stored) -> int:
    await world.clock.advance(5)
    return sum(len(world.records(REVIVE, queue_id)) for queue_id in range(8))


async def test_nothing_is_delivered_again(tmp_path: Path) -> None:
    saved = checkpoint()
    assert saved.last_read_time_ms == STOPPED_MS
    install(tmp_path / "store", saved, slots=golden_slots())
    async with started(tmp_path, STOPPED_MS + 60_000) as world:
        assert await revived(world) == 13
        assert len(world.records(TIMER_TOPIC)) == 14
        timer = world.features.delay.timer
        assert timer is not None
        assert timer.timing_counts() == {REVIVE: 0, "FrameA": 0}
        assert (timer.timer.queue_offset, timer.timer.log.end) == (14, 728)
        answer = await world.send("FrameA", properties="TIMER_DELAY_SEC\x012\x02")
        assert answer.code == 0
        await world.clock.advance(3)
        assert timer.timer.log.end == 728 + UNIT_SIZE
        assert world.records("FrameA")[-1].body == b"hello"


@pytest.mark.parametrize(
    ("flushed", "wheel_is_whole"), [(728, True), (520, True), (0, True), (624, False)]
)
@pytest.mark.parametrize("has_copies", [True, False])
async def test_a_broker_that_stopped_earlier(
    tmp_path: Path,
    flushed: int,
    wheel_is_whole: bool,
    has_copies: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its checkpoint may be behind its timer log, and so may its wheel.

    The copies that it made are in the log, and not made again; without them all are delivered.
    """
    if not has_copies:
        monkeypatch.setattr(timer_service, "find_copies", lambda *_: TimerCopies())
    read_time_ms = 1_794_710_853_000
    saved = TimerCheckpoint(
        last_read_time_ms=read_time_ms,
        last_timer_log_flush_pos=flushed,
        last_timer_queue_offset=14,
        master_timer_queue_offset=14,
    )
    slots = golden_slots()
    due = [slot for slot in slots if slot["time"] * 1_000 >= read_time_ms]
    assert sum(slot["num"] for slot in due) == 5
    if not wheel_is_whole:
        slots = [slot for slot in slots if slot not in due]
        slots.append({**due[0], "lastPos": due[0]["firstPos"], "num": 1})
    install(tmp_path / "store", saved, slots=slots)
    async with started(tmp_path, STOPPED_MS) as world:
        timer = world.features.delay.timer
        assert timer is not None
        assert (timer.timer.queue_offset, timer.timer.log.end) == (14, 728)
        # All five were found; the first may be delivered before the start has ended.
        assert 0 < timer.timer.waiting_count <= 5
        assert await revived(world) == 13 + (0 if has_copies else 5)
        assert timer.timer.waiting_count == 0


def timed_exchange() -> tuple[Command, Command]:
    lines = [
        json.loads(line) for line in (DATA / "frames/send-delay.jsonl").read_text().splitlines()
    ]
    request = next(line for line in lines if "TIMER_DELAY_SEC" in str(line["header"]))
    answer = next(
        line
        for line in lines
        if line["response"]
        and (line["conn"], line["opaque"]) == (request["conn"], request["opaque"])
    )
    first, second = (decode_frame(base64.b64decode(line["raw"])) for line in (request, answer))
    return first, second


async def test_a_timed_send_and_its_delivery(tmp_path: Path) -> None:
    """The same request at the same time: the same handle, the same slot, the same delivery."""
    request, answer = timed_exchange()
    recorded = timer_records()[0]
    delivered = next(
        record
        for record in iter_records((TIMER / "commitlog.bin").read_bytes())
        if record.topic == "FrameA" and record.body == recorded.body
    )
    async with started(tmp_path, recorded.store_timestamp) as world:
        world.add_topic("FrameA", 2)
        ours = await world.client.call(world.address, request, CALL_TIMEOUT_S)
        assert (ours.ext or {})["recallHandle"] == (answer.ext or {})["recallHandle"]
        (stored,) = world.records(TIMER_TOPIC)
        assert stored.properties == recorded.properties
        assert stored.total_size == recorded.total_size
        await world.clock.advance(2)
        (put,) = world.records("FrameA", 1)
        assert put.total_size == delivered.total_size
        own = dict(put.properties)
        # Java's thread came 89 ms after the second.
        assert int(own.pop("TIMER_DEQUEUE_MS")) == 1_794_710_635_000
        assert {**own, "TIMER_DEQUEUE_MS": "1794710635089"} == delivered.properties
        assert (put.queue_id, put.sys_flag, put.flag) == (1, delivered.sys_flag, delivered.flag)
