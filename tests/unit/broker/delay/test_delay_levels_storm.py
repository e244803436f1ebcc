"""Delay levels in crash loops on a wall clock that is set: never early, never late, never lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.virtual_clock import START_MS
from tests.unit.broker.delay.schedule_world import delayed, on_disk

DELAYS_MS = {1: 1_000, 2: 5_000, 3: 10_000}
LATE_MS_MAX = 1_000


@pytest.mark.parametrize("seed", range(6))
async def test_a_storm(seed: int) -> None:
    """Each life ends by a kill or a power failure, and the next begins at any time around it."""
    rng = random.Random(seed)
    disk, now_ms = FaultyFileSystem(FaultPlan(seed)), START_MS + 600_000
    given = {"flushDiskType": "SYNC_FLUSH"}
    due_ms: dict[bytes, int] = {}
    for _ in range(6):
        async with on_disk(disk, now_ms, given, orderly=False) as world:
            for _ in range(rng.randrange(3, 8)):
                for _ in range(rng.randrange(3)):
                    level, body = rng.choice([1, 2, 3]), b"%d" % len(due_ms)
                    await delayed(world, level, body)
                    sent = world.records("SCHEDULE_TOPIC_XXXX", level - 1)[-1]
                    due_ms[body] = sent.store_timestamp + DELAYS_MS[level]
                if rng.random() < 0.3:
                    world.clock._start_ms += rng.randrange(-20_000, 8_000)
                await world.clock.advance(ms=rng.randrange(1_000, 4_000))
                delivered = {record.body for record in world.records("T")}
                late_ms = world.clock.now_ms() - LATE_MS_MAX
                missing = {body for body, due in due_ms.items() if due <= late_ms} - delivered
                assert not missing
            now_ms = world.clock.now_ms()
            survived = disk.kill() if rng.random() < 0.5 else disk.power_loss()
        disk = survived
        now_ms += rng.randrange(-15_000, 15_000)
    async with on_disk(disk, max(due_ms.values()), given) as world:
        await world.clock.advance(2)
        records = world.records("T")
        assert Counter(record.body for record in records) == Counter(due_ms.keys())
        for record in records:
            assert record.store_timestamp >= due_ms[record.body], record.body
