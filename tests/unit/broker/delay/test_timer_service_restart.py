"""The timer over restarts: once, unless a power failure takes a copy back, and never early."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.broker.delay import timer_copies
from skylark.core.clock import LoopClock
from skylark.core.names import TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.errors import StoreFullError
from skylark.store.file_system import FileSystem
from skylark.store.timer.timer_store import TimerOptions
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from tests.unit.broker.delay.test_timer_service import bodies, jump, send, service, to_phase
from tests.unit.broker.stored import Stored, await_flushes, in_place, stored, texts

ROOT = Path("disk")
SLOT_COUNT = 7_200
# Sizes that a disk in memory copies quickly.
SMALL = {
    "mappedFileSizeCommitLog": str(256 << 10),
    "mappedFileSizeConsumeQueue": "6000",
    "mappedFileSizeTimerLog": "1100",
    "maxMessageSize": "10000",
}


async def start(
    root: Path, now_ms: int, *, files: FileSystem | None = None, **given: str
) -> Stored:
    clock = VirtualClock(now_ms)
    network = MemoryNetwork(clock=clock)
    config = load_broker_config(texts(root, **given))
    broker = Broker(config, network=network, clock=clock, files=files, in_thread=in_place)
    await broker.start()
    world = Stored(broker, clock, network)
    await_flushes(world)
    return world


async def stop(world: Stored) -> int:
    """An orderly stop; returns the time."""
    await world.client.close()
    await world.broker.stop()
    return world.clock.now_ms()


@asynccontextmanager
async def again(root: Path, now_ms: int, **given: str) -> AsyncIterator[Stored]:
    """A broker on a directory that another one has left."""
    world = await start(root, now_ms, files=None, **given)
    try:
        yield world
    finally:
        await stop(world)


def copied(source: Path, target: Path) -> Path:
    """What a kill at this moment would leave: all that was written, synced or not."""
    shutil.copytree(source, target)
    return target


# ---- orderly -------------------------------------------------------------------------------------


async def test_an_orderly_restart_delivers_each_message_once(tmp_path: Path) -> None:
    world = await start(tmp_path, 1_794_710_000_123)
    for delay_s in (1, 5, 5, 30, 600):
        await send(world, b"%d" % delay_s, TIMER_DELAY_SEC=delay_s)
    await world.clock.advance(6)
    assert bodies(world) == [b"1", b"5", b"5"]
    now_ms = await stop(world)
    async with again(tmp_path, now_ms + 10_000) as world:
        await world.clock.advance(1)
        assert service(world).timing_counts() == {"T": 2}
        assert service(world).facts().congest_count == 2
        await world.clock.advance(20)
        assert bodies(world) == [b"1", b"5", b"5", b"30"]
        await send(world, b"new", TIMER_DELAY_SEC=5)
        now_ms = await stop(world)
    async with again(tmp_path, now_ms + 3_600_000) as world:  # all are overdue
        await world.clock.advance(1)
        assert bodies(world) == [b"1", b"5", b"5", b"30", b"new", b"600"]
        assert service(world).timing_counts() == {"T": 0}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_transient_pool_is_emptied_before_the_timer_is_saved(
    tmp_path: Path, flush: str
) -> None:
    """What was delivered a moment ago is in memory alone when the stop begins."""
    pool = {
        "transientStorePoolEnable": "true",
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": str(256 << 10),
    }
    world = await start(tmp_path, 1_794_710_000_000, files=None, **pool)
    store, real = world.features.store, LoopClock()
    for number in range(20):
        draft = Draft("T", 0, b"%d" % number)
        assert world.features.puts.writer.put_own(draft, {"TIMER_DELAY_SEC": "60"}).status.stored
    deadline = real.monotonic() + 10
    while service(world).timing_counts() != {"T": 20}:
        assert real.monotonic() < deadline
        await world.clock.advance(0.1)
        await real.sleep(0.001)
    hour = "3600000"
    world.context.live.update(
        f"commitIntervalCommitLog={hour}\ncommitCommitLogThoroughInterval={hour}\n"
        "commitCommitLogLeastPages=1000\n",
        world.clock.now_ms(),
    )
    files = store.log.files
    await world.clock.advance(1)  # the last round of commits begins, in a thread
    while files.committed_where < files.wrote_end:
        assert real.monotonic() < deadline + 10
        await real.sleep(0.001)
    await world.clock.advance(59)
    assert service(world).timing_counts() == {"T": 0}
    assert files.committed_where < files.wrote_end
    assert bodies(world) == []
    now_ms = await stop(world)
    async with again(tmp_path, now_ms, **pool) as world:
        await world.clock.advance(20)
        assert bodies(world) == [b"%d" % number for number in range(20)]
        assert service(world).timing_counts() == {"T": 0}


async def test_a_stop_within_a_slot_finishes_it(tmp_path: Path) -> None:
    world = await start(tmp_path, 1_794_710_000_000)
    for number in range(500):
        await send(world, b"%d" % number, TIMER_DELAY_SEC=5)
    timer = service(world)
    steps: list[asyncio.Task[None]] = []
    deliver = timer._deliver_some

    def deliver_and_look() -> bool:
        more = deliver()
        if not steps and world.features.store.reader.max_offset("T", 0) > 100:
            steps.append(asyncio.create_task(timer.stop()))
        return more

    timer._deliver_some = deliver_and_look  # type: ignore[method-assign]
    await world.clock.advance(5)
    await steps[0]
    assert world.features.store.reader.max_offset("T", 0) == 500
    now_ms = await stop(world)
    async with again(tmp_path, now_ms) as world:
        await world.clock.advance(20)
        assert world.features.store.reader.max_offset("T", 0) == 500


async def test_weeks_of_silence_lose_nothing(tmp_path: Path) -> None:
    """Longer than a lap of the wheel: a new message waits until its slot is free."""
    world = await start(tmp_path, 1_794_710_000_000, timerMaxDelaySec="900000")
    await send(world, b"old", TIMER_DELAY_SEC=100)
    now_ms = await stop(world)
    lap_ms = 1_209_600_000
    async with again(tmp_path, now_ms + lap_ms, timerStopDequeue="true") as world:
        await send(world, b"new", TIMER_DELAY_SEC=100)  # the same slot, a lap later
        await world.clock.advance(5)
        assert service(world).enqueue_lag() == 1
        world.context.live.update("timerStopDequeue=false", 0)
        await world.clock.advance(5)
        assert (bodies(world), service(world).enqueue_lag()) == ([b"old"], 0)
        await world.clock.advance(100)
        assert bodies(world) == [b"old", b"new"]


async def test_a_clock_that_was_set_back_loses_nothing(tmp_path: Path) -> None:
    world = await start(tmp_path, 1_794_710_000_000)
    await send(world, b"a", TIMER_DELAY_SEC=1)
    await world.clock.advance(3)
    now_ms = await stop(world)
    async with again(tmp_path, now_ms - 3_600_000) as world:
        await send(world, b"b", TIMER_DELAY_SEC=15)
        await world.clock.advance(14)
        assert bodies(world) == [b"a"]
        await world.clock.advance(2)
        assert bodies(world) == [b"a", b"b"]


async def test_a_clock_that_was_set_back_repeats_nothing(tmp_path: Path) -> None:
    """Done slots that are in the future again stay done, also over restarts."""
    world = await start(tmp_path, 1_794_710_000_000)
    for delay_s in range(1, 6):
        await send(world, b"%d" % delay_s, TIMER_DELAY_SEC=delay_s)
    await world.clock.advance(10)
    jump(world, -60)
    await send(world, b"again", TIMER_DELAY_SEC=53)  # a slot that is done
    await world.clock.advance(20)
    expected = [b"1", b"2", b"3", b"4", b"5"]
    assert bodies(world) == expected
    now_ms = await stop(world)
    async with again(tmp_path, now_ms) as world:
        await world.clock.advance(20)
        assert bodies(world) == expected
        copied(tmp_path / "store", tmp_path / "killed" / "store")
        now_ms = world.clock.now_ms()
    for root in (tmp_path, tmp_path / "killed"):
        async with again(root, now_ms) as world:
            await world.clock.advance(60)
            assert bodies(world) == [*expected, b"again"]


# ---- killed --------------------------------------------------------------------------------------


async def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Copies of the directory, taken all along, are stores of brokers that were killed."""
    copies: list[tuple[Path, int, set[bytes], set[bytes]]] = []
    async with stored(tmp_path / "alive") as world:
        await to_phase(world, 0)
        sent: set[bytes] = set()
        for number in range(12):
            body = b"%d" % number
            await send(world, body, TIMER_DELAY_MS=700 * (number % 5 + 1))
            sent.add(body)
            await world.clock.advance(ms=650)
            if number % 3 == 2:
                root = tmp_path / str(number)
                copied(tmp_path / "alive" / "store", root / "store")
                moment = (root, world.clock.now_ms(), set(sent), set(bodies(world)))
                copies.append(moment)
    for root, now_ms, sent, delivered in copies:
        async with again(root, now_ms) as world:
            assert set(bodies(world)) == delivered
            await world.clock.advance(20)
            counts = Counter(bodies(world))
            assert counts == Counter(sent)
            for record in world.records("T"):
                due_ms = int(record.properties["TIMER_OUT_MS"]) + 1_000
                assert record.store_timestamp >= due_ms
            assert service(world).facts().congest_count == 0


async def test_what_the_checkpoint_knows_is_not_repeated(tmp_path: Path) -> None:
    """The checkpoint moves when the log is on disk, ten seconds later at most."""
    async with stored(tmp_path / "alive") as world:
        await_flushes(world)
        for delay_s in (1, 40):
            await send(world, b"%d" % delay_s, TIMER_DELAY_SEC=delay_s)
        await world.clock.advance(20)
        copied(tmp_path / "alive" / "store", tmp_path / "killed" / "store")
        now_ms = world.clock.now_ms()
    async with again(tmp_path / "killed", now_ms) as world:
        await world.clock.advance(60)
        assert bodies(world) == [b"1", b"40"]
        assert service(world).timing_counts() == {"T": 0}


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "timerwheel timerlog"])
async def test_files_that_were_lost_are_made_again(tmp_path: Path, lost: str) -> None:
    world = await start(tmp_path, 1_794_710_000_000)
    for delay_s in (1, 40, 80):
        await send(world, b"%d" % delay_s, TIMER_DELAY_SEC=delay_s, UNIQ_KEY=f"U{delay_s}")
    await world.clock.advance(10)
    now_ms = await stop(world)
    for name in lost.split():
        path = tmp_path / "store" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    async with again(tmp_path, now_ms) as world:
        await world.clock.advance(20)
        assert bodies(world) == [b"1"]
        now_ms = await stop(world)
    async with again(tmp_path, now_ms) as world:
        await world.clock.advance(60)
        assert bodies(world) == [b"1", b"40", b"80"]


@pytest.mark.parametrize("is_far_back", [False, True])
async def test_without_a_checkpoint_everything_is_placed_again(
    tmp_path: Path, is_far_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was delivered comes again only if its copy is too far back in the log to be found."""
    if is_far_back:
        monkeypatch.setattr(timer_copies, "SCAN_SIZE_MAX", 1_000)
    world = await start(tmp_path, 1_794_710_000_000, files=None, **SMALL)
    for delay_s in (1, 40):
        await send(world, b"%d" % delay_s, TIMER_DELAY_SEC=delay_s)
    await world.clock.advance(10)
    for _ in range(60):
        await world.send("Other", bytes(9_000))
    assert len(world.features.store.log.files.files) == 3
    now_ms = await stop(world)
    (tmp_path / "store" / "config" / "timercheck").unlink()
    async with again(tmp_path, now_ms, **SMALL) as world:
        await world.clock.advance(60)
        again_count = 2 if is_far_back else 1
        assert bodies(world) == [b"1"] * again_count + [b"40"]


@pytest.mark.parametrize("life_s", [1.7, 6.0])
@pytest.mark.parametrize("flush_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_crash_loop_delivers_each_message_once(flush_type: str, life_s: float) -> None:
    """Each life may be shorter than the time until the checkpoint has its deliveries."""
    files, now_ms, sent = FaultyFileSystem(FaultPlan(1)), 1_794_710_000_000, 0
    settings = {**SMALL, "flushDiskType": flush_type, "timerRollWindowSlot": "4"}
    for _ in range(4):
        world = await start(ROOT, now_ms, files=files, **settings)
        for delay_s in (0, 1, 1, 2, 3, 7) * 3:
            answer = await send(world, b"%d" % sent, TIMER_DELAY_SEC=delay_s)
            assert answer.code == 0
            sent += 1
        await world.clock.advance(life_s)
        now_ms = world.clock.now_ms()
        files = files.kill()
        await abandon(world)
    world = await start(ROOT, now_ms, files=files, **settings)
    await world.clock.advance(20)
    assert sorted(map(int, bodies(world))) == list(range(sent))
    assert service(world).timing_counts() == {"T": 0}
    assert not service(world)._delivery.copies  # they are not kept
    await stop(world)


# ---- power loss ----------------------------------------------------------------------------------


@pytest.fixture
def short_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    options = partial(TimerOptions, slot_count=SLOT_COUNT)
    monkeypatch.setattr("skylark.broker.config.TimerOptions", options)


async def abandon(world: Stored) -> None:
    """End a broker whose disk is dead."""
    await world.client.close()
    with pytest.raises(Exception):  # noqa: B017, PT011
        await world.broker.stop()


async def some_work(world: Stored, draw: random.Random, sent: dict[bytes, int]) -> None:
    """Send, and let time pass; what was acknowledged is in ``sent`` with the time it wants."""
    for _ in range(draw.randrange(5, 25)):
        if draw.random() < 0.7:
            body = b"%d" % len(sent)
            delay_ms = draw.randrange(1, 9_000)
            deliver_ms = world.clock.now_ms() + delay_ms
            answer = await send(world, body, TIMER_DELIVER_MS=deliver_ms)
            assert answer.code == 0
            sent[body] = deliver_ms
        else:
            await world.clock.advance(ms=draw.randrange(1, 3_000))


@pytest.mark.usefixtures("short_wheel")
@pytest.mark.parametrize("seed", range(8))
async def test_power_is_lost_again_and_again(seed: int) -> None:
    """With SYNC_FLUSH, what was acknowledged is delivered, whatever the disk had of the timer."""
    draw = random.Random(seed)
    files = FaultyFileSystem(FaultPlan(seed))
    now_ms = 1_794_710_000_000
    sent: dict[bytes, int] = {}
    settings = {**SMALL, "flushDiskType": "SYNC_FLUSH", "timerRollWindowSlot": "4"}
    for loss in range(4):
        world = await start(ROOT, now_ms, files=files, **settings)
        await some_work(world, draw, sent)
        now_ms = world.clock.now_ms()
        files = files.power_loss() if loss % 3 else files.kill()
        await abandon(world)
    world = await start(ROOT, now_ms, files=files, **settings)
    await world.clock.advance(30)
    assert Counter(record.body for record in world.records("T")) == Counter(sent.keys())
    for record in world.records("T"):
        assert record.store_timestamp >= sent[record.body]
    timer = service(world)
    assert (timer.enqueue_lag(), timer.facts().congest_count) == (0, 0)
    await stop(world)


@pytest.mark.usefixtures("short_wheel")
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_the_wall_clock_is_set_again_and_again(seed: int, crashes: bool) -> None:
    """Never early, late by less than the precision and a second; twice only after a crash."""
    draw = random.Random(seed)
    files = FaultyFileSystem(FaultPlan(seed))
    now_ms = 1_794_710_000_000
    sent: dict[bytes, int] = {}
    settings = {**SMALL, "flushDiskType": "SYNC_FLUSH", "timerRollWindowSlot": "4"}
    for _ in range(5):
        world = await start(ROOT, now_ms, files=files, **settings)
        for _ in range(5):
            await some_work(world, draw, sent)
            jump(world, draw.choice([0, -30, -7, -2, 3, 20]))
            await world.clock.advance(ms=draw.randrange(1_000, 3_000))
            arrived = {record.body for record in world.records("T")}
            late_ms = world.clock.now_ms() - 2_000
            assert not {body for body, due_ms in sent.items() if due_ms <= late_ms} - arrived
        now_ms = world.clock.now_ms() + draw.randrange(-20_000, 20_000)
        if crashes:
            files = files.power_loss() if draw.random() < 0.5 else files.kill()
            await abandon(world)
        else:
            await stop(world)
    world = await start(ROOT, max(now_ms, *sent.values()), files=files, **settings)
    await world.clock.advance(5)
    arrived_counts = Counter(record.body for record in world.records("T"))
    assert arrived_counts.keys() == sent.keys()
    assert crashes or set(arrived_counts.values()) == {1}
    for record in world.records("T"):
        assert record.store_timestamp >= sent[record.body]
    timer = service(world)
    assert (timer.enqueue_lag(), timer.facts().congest_count) == (0, 0)
    await stop(world)


@pytest.mark.usefixtures("short_wheel")
@pytest.mark.parametrize("seed", range(4))
async def test_power_loss_with_asynchronous_flush(seed: int) -> None:
    """What the log still has of the timer topic is delivered, also if its delivery was lost."""
    draw = random.Random(seed)
    files = FaultyFileSystem(FaultPlan(seed))
    world = await start(ROOT, 1_794_710_000_000, files=files, **SMALL)
    sent: dict[bytes, int] = {}
    for _ in range(3):
        await some_work(world, draw, sent)
    now_ms = world.clock.now_ms()
    files = files.power_loss()
    await abandon(world)
    world = await start(ROOT, now_ms, files=files, **SMALL)
    kept = {record.body for record in world.records(TIMER_TOPIC)}
    await world.clock.advance(20)
    assert {record.body for record in world.records("T")} == kept
    await stop(world)


# ---- trouble with the disk -----------------------------------------------------------------------


@pytest.mark.usefixtures("short_wheel")
async def test_no_room_for_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFileSystem()
    world = await start(ROOT, 1_794_710_000_000, files=files, **SMALL)
    timer = service(world).timer

    def full() -> None:
        raise StoreFullError("no room", path=ROOT)

    with monkeypatch.context() as patch:
        patch.setattr(timer.wheel, "prepare", full)
        await send(world, b"a", TIMER_DELAY_SEC=5)
        await world.clock.advance(2)
        assert service(world).enqueue_lag() == 1
    await world.clock.advance(1)
    assert service(world).enqueue_lag() == 0
    await world.clock.advance(5)
    assert bodies(world) == [b"a"]
    await stop(world)


@pytest.mark.usefixtures("short_wheel")
async def test_syncs_that_fail_are_repeated() -> None:
    plan = FaultPlan(3)
    files = FaultyFileSystem(plan)
    world = await start(ROOT, 1_794_710_000_000, files=files, **SMALL)
    await send(world, b"a", TIMER_DELAY_SEC=40)
    timer = service(world)
    await world.clock.advance(ms=500)
    failures: list[Any] = []
    write = timer.timer.checkpoint.write

    def failing(checkpoint: Any) -> None:
        if len(failures) < 2:
            failures.append(checkpoint)
            raise StoreFullError("no room", path=ROOT)
        write(checkpoint)

    timer.timer.checkpoint.write = failing  # type: ignore[method-assign]
    await world.clock.advance(15)
    assert len(failures) == 2
    assert timer.timer.checkpoint.saved.last_timer_queue_offset == 1
    now_ms = world.clock.now_ms()
    files = files.power_loss()
    await abandon(world)
    world = await start(ROOT, now_ms, files=files, **SMALL)
    await world.clock.advance(60)
    assert bodies(world) == [b"a"]
    await stop(world)


async def test_expired_files_of_the_timer_log_go(tmp_path: Path) -> None:
    settings = {"mappedFileSizeTimerLog": "700", "mappedFileSizeCommitLog": "20000"}
    settings |= {"maxMessageSize": "10000"}
    async with stored(tmp_path, **settings) as world:
        for number in range(60):
            await send(world, b"x" * 500, TIMER_DELAY_SEC=1 + number % 7)
        await world.clock.advance(20)
        directory = tmp_path / "store" / "timerlog"
        assert len(list(directory.iterdir())) == 5  # 13 units in each file
        files = world.features.store.log.files
        while len(files.files) > 1:
            files.retire_oldest(world.clock.monotonic())
        await world.clock.advance(31)
        assert [path.name for path in directory.iterdir()] == [f"{4 * 700:020d}"]
        await send(world, b"more", TIMER_DELAY_SEC=2)
        await world.clock.advance(3)
        assert bodies(world)[-1] == b"more"


async def test_a_jump_of_the_clock_is_no_restart(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await send(world, b"a", TIMER_DELAY_SEC=100)
        await world.clock.drain()
        jump(world, 3_600)
        await send(world, b"b", TIMER_DELAY_SEC=1)  # wakes the timer
        await world.clock.advance(2)
        assert bodies(world) == [b"a", b"b"]
