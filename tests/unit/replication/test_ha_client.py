"""The slave's link, with a real store and all kinds of masters."""

from __future__ import annotations

import pytest

from skylark.replication.slave import SlavePhase
from skylark.store.config import BrokerRole
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.ha_frame import HA_BODY_SIZE_MAX, encode_frame_head, encode_report
from tests.support.store_machine import check_store
from tests.unit.replication.sites import HA_HOST, HA_PORT, Peer, Site, log_bytes, site

MASTER, SLAVE = BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE
#: With these the disk loses what was not synced: all of it, a part, all of a second file.
LOSING_SEEDS = (2, 4, 11)


class RawMaster:
    """Accepts slaves and says what the test wants it to say."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    async def listen(self, place: Site) -> None:
        await place.network.listen(self._accept, HA_HOST, HA_PORT)

    def _accept(self) -> Peer:
        self.peers.append(Peer())
        return self.peers[-1]


async def test_a_slave_serves_what_it_copied() -> None:
    async with site() as place:
        master, slave = place.store(MASTER), place.store(SLAVE)
        await place.serve(master, ha_sync_from_start=True)
        client = place.follow(slave, master)
        place.put(master, 60)
        await place.clock.drain()
        check_store(slave, place.ledger)
        info = client.runtime_info().ha_client_runtime_info
        assert info is not None
        assert info.max_offset == master.log.max_offset
        assert info.master_addr == f"{HA_HOST}:{HA_PORT}"
        assert info.last_read_timestamp == place.clock.now_ms()
        assert info.transferred_byte_in_second > master.log.max_offset


async def test_a_cut_link_is_made_again_and_nothing_is_missing() -> None:
    async with site() as place:
        master, slave = place.store(MASTER), place.store(SLAVE)
        await place.serve(master)
        place.follow(slave, master)
        for _ in range(5):
            place.put(master, 20)
            await place.clock.drain()
            assert place.network.cut_all() == 1
            place.put(master, 3)
            await place.clock.advance(ms=200)
            assert log_bytes(slave) == log_bytes(master)
        check_store(slave, place.ledger)


async def test_a_slave_that_was_away_catches_up() -> None:
    async with site() as place:
        disk = FaultyFileSystem()
        master, slave = place.store(MASTER), place.store(SLAVE, disk)
        await place.serve(master)
        client = place.follow(slave, master)
        place.put(master, 20)
        await place.clock.drain()
        await place.stop(client)
        place.close(slave)
        place.put(master, 40)
        slave = place.store(SLAVE, disk)
        place.follow(slave, master)
        await place.clock.drain()
        assert log_bytes(slave) == log_bytes(master)
        check_store(slave, place.ledger)


async def test_a_slave_waits_for_its_master_to_come() -> None:
    async with site() as place:
        master, slave = place.store(MASTER), place.store(SLAVE)
        place.follow(slave, master)
        place.put(master)
        await place.clock.advance(seconds=20)
        assert slave.log.max_offset == 0
        await place.serve(master)
        await place.clock.advance(seconds=5)
        assert slave.log.max_offset == master.log.max_offset


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode_frame_head(0, HA_BODY_SIZE_MAX + 1), "4194305 bytes for offset 0"),
        (encode_frame_head(0, -1), "-1 bytes for offset 0"),
        (encode_frame_head(-8, 4), "4 bytes for offset -8"),
        (encode_frame_head(100, 4) + b"abcd", "begins at 100, where no file here can start"),
        (encode_frame_head(0, 40) + b"garbage!" * 5, "no record begins at 0"),
        (encode_frame_head(0, 9_000) + bytes(9_000), "exceed the end of a file"),
    ],
)
async def test_a_master_that_makes_no_sense_is_left_for_five_seconds(
    data: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site() as place:
        raw = RawMaster()
        await raw.listen(place)
        slave = place.store(SLAVE)
        client = place.follow(slave)
        await place.clock.drain()
        assert raw.peers[0].received == encode_report(0)
        raw.peers[0].send(data)
        await place.clock.drain()
        assert raw.peers[0].is_lost
        assert text in caplog.text
        assert slave.log.max_offset == 0
        await place.clock.advance(ms=4_999)
        assert len(raw.peers) == 1
        await place.clock.advance(ms=1)
        assert len(raw.peers) == 2
        assert client.slave.phase is SlavePhase.FOLLOWING


@pytest.mark.spec("store.12.42")
async def test_a_silent_master_is_left_after_twenty_seconds() -> None:
    async with site() as place:
        raw = RawMaster()
        await raw.listen(place)
        place.follow(place.store(SLAVE))
        await place.clock.advance(ms=19_999)
        assert raw.peers[0].received == encode_report(0) * 4  # at once and every five seconds
        assert not raw.peers[0].is_lost
        await place.clock.advance(ms=1)
        assert raw.peers[0].is_lost


async def test_a_full_disk_is_tried_again() -> None:
    async with site() as place:
        plan = FaultPlan(1)
        master, slave = place.store(MASTER), place.store(SLAVE, FaultyFileSystem(plan))
        await place.serve(master)
        place.put(master, 5)
        plan.at("files.create", nth=1, error=28)
        place.follow(slave, master)
        await place.clock.drain()
        assert slave.log.max_offset == 0
        await place.clock.advance(seconds=5)
        assert log_bytes(slave) == log_bytes(master)


async def lost_tail(place: Site, seed: int) -> tuple[Site, FaultyFileSystem, FaultyFileSystem]:
    """A master that loses power after its slave has everything; both disks as they are then."""
    master_disk, slave_disk = FaultyFileSystem(FaultPlan(seed)), FaultyFileSystem()
    master, slave = place.store(MASTER, master_disk), place.store(SLAVE, slave_disk)
    server = await place.serve(master)
    client = place.follow(slave, master)
    place.put(master, 10)
    await place.clock.advance(seconds=11)  # the flush is thorough: this much is on disk
    place.put(master, 30)
    await place.clock.drain()
    assert slave.log.max_offset == master.log.max_offset
    await place.stop(client)
    await place.stop(server)
    place.close(slave)
    place.abandon(master)
    return place, master_disk.power_loss(), slave_disk


@pytest.mark.parametrize("seed", LOSING_SEEDS)
@pytest.mark.parametrize("grows", [False, True])
async def test_a_slave_ahead_of_a_master_that_lost_power_keeps_everything(
    seed: int, grows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with site() as start:
        place, master_disk, slave_disk = await lost_tail(start, seed)
        master, slave = place.store(MASTER, master_disk), place.store(SLAVE, slave_disk)
        kept = log_bytes(slave)
        assert master.log.max_offset < slave.log.max_offset
        place.ledger.cut(master.log.max_offset)
        if grows:  # beyond the slave: offsets alone show nothing
            place.put(master, 60)
            assert master.log.max_offset > slave.log.max_offset
        await place.serve(master)
        client = place.follow(slave, master)
        await place.clock.advance(seconds=60)
        assert client.slave.phase is SlavePhase.DIVERGED
        assert client.slave.divergence is not None
        assert log_bytes(slave) == kept
        assert "the only copy of acknowledged messages" in caplog.text


@pytest.mark.parametrize("seed", LOSING_SEEDS)
@pytest.mark.parametrize("grows", [False, True])
async def test_with_ha_truncate_ahead_the_slave_becomes_like_its_master(
    seed: int, grows: bool
) -> None:
    async with site() as start:
        place, master_disk, slave_disk = await lost_tail(start, seed)
        master, slave = place.store(MASTER, master_disk), place.store(SLAVE, slave_disk)
        place.ledger.cut(master.log.max_offset)
        if grows:
            place.put(master, 60)
        await place.serve(master, ha_sync_from_start=True)
        client = place.follow(slave, master, ha_truncate_ahead=True)
        await place.clock.advance(seconds=10)
        assert client.slave.phase is SlavePhase.FOLLOWING
        assert log_bytes(slave) == log_bytes(master)
        check_store(slave, place.ledger)


async def test_stopping_amid_an_attempt_leaves_nothing_behind() -> None:
    async with site() as place:
        client = place.follow(place.store(SLAVE))
        await place.stop(client)
        raw = RawMaster()
        await raw.listen(place)
        await place.clock.advance(seconds=10)
        assert raw.peers == []
