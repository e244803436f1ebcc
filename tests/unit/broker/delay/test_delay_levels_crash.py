"""Delayed messages through restarts and crashes: once, again only if the disk lost the copy."""

from __future__ import annotations

import contextlib

import pytest

from skylark.store.config_files import DELAY_OFFSETS, ConfigFiles
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.virtual_clock import START_MS
from skylark.wire.codes import RequestCode
from tests.unit.broker.delay.schedule_world import (
    LAZY,
    ROOT,
    SCHEDULE,
    bodies,
    delayed,
    flush,
    on_disk,
    saved_offsets,
)

HOUR_MS = 3_600_000


@pytest.mark.spec("store.12.37")
@pytest.mark.parametrize("flush_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_delivered_once_across_restarts(flush_type: str) -> None:
    disk = FaultyFileSystem()
    given = {**LAZY, "flushDiskType": flush_type}
    async with on_disk(disk, given=given) as world:
        await delayed(world, 3, b"a")
        await delayed(world, 99, b"late")
        await world.clock.advance(10)
        await world.clock.drain()
        assert world.features.store.reader.max_offset(SCHEDULE, 17) == 1
    assert saved_offsets(disk) == {3: 1, 18: 0}
    async with on_disk(disk, START_MS + 60_000, given) as world:
        await world.clock.advance(60)
        assert bodies(world) == [b"a"]
        await delayed(world, 3, b"b")
    # While it does not run, both become due.
    async with on_disk(disk, START_MS + 3 * HOUR_MS, given) as world:
        await world.clock.drain()
        await flush(world.features.store)
        assert bodies(world) == [b"a", b"b", b"late"]
        assert world.features.delay.schedule.progress() == {3: (2, 2), 18: (1, 1)}
    assert saved_offsets(disk) == {3: 2, 18: 1}


async def test_after_kill_nothing_is_lost_and_nothing_comes_twice() -> None:
    disk = FaultyFileSystem()
    async with on_disk(disk, orderly=False) as world:
        await delayed(world, 1, b"a")
        await world.clock.advance(1)
        await flush(world.features.store)
        await world.clock.advance(19)  # delivered, on disk, saved
        assert saved_offsets(disk) == {1: 1}
        await delayed(world, 1, b"b")
        await delayed(world, 3, b"c")
        await world.clock.advance(2)
        assert bodies(world) == [b"a", b"b"]
        killed = disk.kill()
    async with on_disk(killed, START_MS + 22_000) as world:
        await world.clock.drain()
        assert bodies(world) == [b"a", b"b"]
        await world.clock.advance(ms=7_999)
        assert len(bodies(world)) == 2
        await world.clock.advance(ms=1)
        assert bodies(world) == [b"a", b"b", b"c"]
    assert saved_offsets(killed) == {1: 2, 3: 1}


async def test_what_power_loss_takes_back_is_delivered_again() -> None:
    """The delivery is in the log, the disk does not have it, and the offsets are saved."""
    taken_back = 0
    for seed in range(12):
        disk = FaultyFileSystem(FaultPlan(seed))
        async with on_disk(disk, given=LAZY, orderly=False) as world:
            await delayed(world, 1, b"a")
            await delayed(world, 1, b"b")
            await delayed(world, 2, b"other")
            await flush(world.features.store)
            await world.clock.advance(30)
            assert bodies(world) == [b"a", b"b", b"other"]
            assert world.features.delay.schedule.progress() == {1: (2, 2), 2: (1, 1)}
            assert saved_offsets(disk) == {1: 0, 2: 0}  # saved indeed, no further than the disk
            survived = disk.power_loss()
        # The clock is back at the start, so that nothing is due yet.
        async with on_disk(survived, START_MS, LAZY) as world:
            left = bodies(world)
            await world.clock.advance(31)
            assert sorted(bodies(world)) == [b"a", b"b", b"other"], seed
            taken_back += left != [b"a", b"b", b"other"]
    assert taken_back > 0


@pytest.mark.parametrize("ends_by", ["kill", "power_loss"])
async def test_a_crash_loop_delivers_each_message_once(ends_by: str) -> None:
    """Each life is shorter than the time between two saves of the progress."""
    disk, now_ms, sent = FaultyFileSystem(FaultPlan(1)), START_MS, 0
    given = {"flushDiskType": "SYNC_FLUSH"}
    for _ in range(8):
        async with on_disk(disk, now_ms, given, orderly=False) as world:
            for level in (1, 1, 2, 3) * 5:
                await delayed(world, level, b"%d" % sent)
                sent += 1
            await world.clock.advance(4)
            now_ms = world.clock.now_ms()
            survived = disk.kill() if ends_by == "kill" else disk.power_loss()
        disk = survived
    async with on_disk(disk, now_ms, given) as world:
        await world.clock.advance(20)
        assert sorted(map(int, bodies(world))) == list(range(sent))


async def test_a_crash_loop_after_a_long_life_reads_little_of_the_log() -> None:
    """The progress is saved at start, with the place in the log to begin at next time."""
    disk = FaultyFileSystem()
    async with on_disk(disk) as world:
        await delayed(world, 18, b"late")
        await delayed(world, 1, b"a")
        for _ in range(50):
            await world.send("T", b"x" * 1_000)
        await world.clock.advance(5)
        end = world.features.store.log.max_offset
    async with on_disk(disk, START_MS + 60_000, orderly=False) as world:
        await world.clock.drain()
        table = ConfigFiles(disk, ROOT / "store/config").load(DELAY_OFFSETS)
        assert (table.offset_table, table.log_offset, table.runs) == ({1: 1, 18: 0}, end, None)


async def test_the_answer_to_slaves_has_what_java_has() -> None:
    async with on_disk(FaultyFileSystem()) as world:
        await delayed(world, 1)
        await world.clock.advance(30)
        answer = await world.call(RequestCode.GET_ALL_DELAY_OFFSET)
        assert answer.body is not None
        assert b"offsetTable" in answer.body
        assert b"logOffset" not in answer.body
        assert b"runs" not in answer.body


@pytest.mark.parametrize("flush_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_offsets_are_saved_when_the_disk_has_the_deliveries(flush_type: str) -> None:
    plan = FaultPlan(2)
    disk = FaultyFileSystem(plan)
    async with on_disk(disk, given={"flushDiskType": flush_type}) as world:
        await delayed(world, 1, b"a")
        await world.clock.advance(0.5)
        log = world.features.store.log
        while log.files.flushed_where < log.max_offset:
            await flush(world.features.store)
        plan.chance("files.sync", 1.0, action=FaultAction.ERROR)
        await world.clock.advance(5)
        assert world.features.delay.schedule.progress() == {1: (1, 1)}
        assert world.features.delay.schedule.snapshot().offset_table == {1: 0}
        plan.clear()
        await world.clock.advance(20)  # the disk is tried again, then the offsets are saved
        assert saved_offsets(disk) == {1: 1}


async def test_every_crash_point_of_a_delivery_leaves_it_deliverable() -> None:
    """The machine stops at the n-th operation on the disk, for every n, and loses power."""
    stops = 0
    for nth in range(1, 200):
        disk = FaultyFileSystem(FaultPlan(nth))
        async with on_disk(disk, orderly=False) as world:
            await delayed(world, 1, b"a")
            await flush(world.features.store)
            disk.plan.at("files.*", nth=nth, action=FaultAction.CUT)
            with contextlib.suppress(Exception):
                await world.clock.advance(25)
            reached = not disk.alive
            survived = disk.power_loss()
        survived.plan.clear()
        async with on_disk(survived, START_MS + 30_000) as world:
            await world.clock.advance(1)
            assert bodies(world) == [b"a"], nth
        if not reached:
            break
        stops += 1
    assert stops > 5
