"""Master and slave with real stores through cuts, delays, full disks and crashes, by seed.

With SYNC_MASTER, inSyncReplicas=2 and SYNC_FLUSH every message that was answered with PUT_OK is on
both when they have met again, whatever loses its power; with ASYNC_FLUSH a slave that has more than
its master says so and keeps it. Everything runs on virtual time in one thread.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from skylark.replication.slave import SlavePhase
from skylark.store.config import BrokerRole, FlushDiskType
from skylark.store.inspection.store_check import check_store as check_files
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from tests.support.store_machine import ROOT, check_store
from tests.unit.replication.sites import QUEUES, Site, log_bytes, site

SEEDS = 8
CAPACITY = 1 << 30


class Run:
    """Two machines, of which either may lose its power."""

    def __init__(self, place: Site, seed: int) -> None:
        self.place = place
        self.rng = random.Random(seed)
        self.plan = FaultPlan(seed)
        place.network = MemoryNetwork(self.plan, clock=place.clock)
        self.synchronous = bool(seed % 2)
        flush = FlushDiskType.SYNC_FLUSH if self.synchronous else FlushDiskType.ASYNC_FLUSH
        self.settings: dict[str, Any] = {"flush_disk_type": flush}
        self.master_disk = FaultyFileSystem(FaultPlan(seed + 1))
        self.slave_disk = FaultyFileSystem(FaultPlan(seed + 2))
        self.acknowledged: list[tuple[int, bytes]] = []  # log offset and body
        self.slave_has_from = 0  # number of the first of these that came after its last power loss
        self.crashes = 0

    async def start(self) -> None:
        await self.start_master()
        self.start_slave()

    async def start_master(self) -> None:
        """Open and serve what the master's disk holds."""
        self.master = self.place.store(BrokerRole.SYNC_MASTER, self.master_disk, **self.settings)
        self.server = await self.place.serve(
            self.master, in_sync_replicas=2, ha_sync_from_start=True, ha_transfer_batch_size=700
        )

    def start_slave(self) -> None:
        self.slave = self.place.store(BrokerRole.SLAVE, self.slave_disk, **self.settings)
        self.client = self.place.follow(self.slave, self.master)

    async def crash_master(self) -> None:
        self.crashes += 1
        await self.place.stop(self.server)
        self.place.abandon(self.master)
        self.master_disk = self.master_disk.power_loss()
        await self.start_master()
        self.place.ledger.cut(self.master.log.max_offset)
        await self.place.stop(self.client)  # what it asks whether logs agree is the old master
        self.client = self.place.follow(self.slave, self.master)

    async def crash_slave(self) -> None:
        self.crashes += 1
        await self.place.stop(self.client)
        self.place.abandon(self.slave)
        self.slave_disk = self.slave_disk.power_loss()
        self.slave_disk.capacity = CAPACITY  # no store opens on a full disk
        self.slave_has_from = len(self.acknowledged)
        self.start_slave()

    def put(self) -> None:
        result = self.place.ledger.put(self.master, self.rng.choice(QUEUES))
        body = self.place.ledger.messages[-1].body
        self.master.when_durable(result, lambda status: self._answered(status, result, body))

    def _answered(self, status: PutStatus, result: PutResult, body: bytes) -> None:
        if status is PutStatus.PUT_OK:
            self.acknowledged.append((result.log_offset, body))

    async def live(self) -> None:
        rng = self.rng
        self.plan.chance("memory.deliver", 0.1, action=FaultAction.DELAY, delay_ms=300)
        self.plan.chance("memory.deliver", 0.1, action=FaultAction.SPLIT)
        self.plan.chance("memory.deliver", 0.02, action=FaultAction.HALVE)
        self.plan.chance("memory.connect", 0.2, error=111)
        for _ in range(60):
            for _ in range(rng.randint(0, 4)):
                self.put()
            await self.place.clock.advance(ms=rng.choice((0, 1, 50, 400, 3_000)))
            kind = rng.random()
            if kind < 0.03:
                await self.crash_master()
            elif kind < 0.06:
                await self.crash_slave()
            elif kind < 0.1:
                self.place.network.cut_all()
            elif kind < 0.2:  # the slave's disk is full, or has space again
                is_full = self.slave_disk.capacity < CAPACITY
                self.slave_disk.capacity = CAPACITY if is_full else 0
        self.plan.clear()
        self.slave_disk.capacity = CAPACITY
        await self.place.clock.advance(seconds=30)


def bodies_at(store: MessageStore, offsets: list[tuple[int, bytes]]) -> bool:
    """Whether all these messages are where their senders were told."""
    for log_offset, body in offsets:
        lease = store.reader.record(log_offset)
        if lease is None:
            return False
        with lease:
            if body not in bytes(lease.view):
                return False
    return True


def check_diverged_slave(run: Run) -> None:
    """It has kept what was acknowledged, perhaps as the only one, and its files are sound."""
    assert run.client.slave.divergence is not None
    assert bodies_at(run.slave, run.acknowledged[run.slave_has_from :])
    run.place.abandon(run.slave)
    report = check_files(ROOT, files=run.slave_disk.kill())
    assert (report.errors, report.log_end) == (0, run.slave.log.max_offset)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_was_acknowledged_is_on_both_or_the_slave_says_that_it_diverged(
    seed: int,
) -> None:
    logging.getLogger("skylark").setLevel(logging.CRITICAL)
    try:
        async with site() as place:
            run = Run(place, seed)
            await run.start()
            await run.live()
            assert run.acknowledged
            if run.client.slave.phase is SlavePhase.DIVERGED:
                assert not run.synchronous
                assert not log_bytes(run.master).startswith(log_bytes(run.slave))
                check_diverged_slave(run)
                return
            assert run.client.slave.phase is SlavePhase.FOLLOWING
            assert run.plan.hit_count > 10
            assert log_bytes(run.slave) == log_bytes(run.master)
            check_store(run.slave, place.ledger)
            if run.synchronous:
                assert bodies_at(run.master, run.acknowledged)
                assert bodies_at(run.slave, run.acknowledged)
    finally:
        logging.getLogger("skylark").setLevel(logging.NOTSET)
