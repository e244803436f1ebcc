"""Replication as one object: master and slave put together as a broker does."""

from __future__ import annotations

from skylark.core.errors import ConnectError
from skylark.replication.config import ReplicationConfig
from skylark.replication.service import Replication
from skylark.store.config import BrokerRole
from skylark.store.message_store import MessageStore
from skylark.wire.command import Command
from tests.unit.replication.sites import HA_ADDRESS, HA_HOST, HA_PORT, Site, log_bytes, site

MASTER_ADDRESS = "127.0.0.1:10911"


async def nobody(address: str, request: Command) -> Command:
    raise ConnectError(f"{address} does not answer {request.code}")


def make(place: Site, store: MessageStore, master: Replication | None = None) -> Replication:
    async def call(address: str, request: Command) -> Command:
        assert master is not None
        assert address == MASTER_ADDRESS
        return master.log_check(request)

    config = ReplicationConfig(in_sync_replicas=2)
    return Replication(
        store, config, place.network, place.clock, call=nobody if master is None else call
    )


async def test_a_slave_follows_once_it_knows_its_master() -> None:
    async with site() as place:
        master_store = place.store(BrokerRole.SYNC_MASTER)
        slave_store = place.store(BrokerRole.SLAVE)
        master = make(place, master_store)
        slave = make(place, slave_store, master)
        await master.start(HA_HOST, HA_PORT)
        await slave.start(HA_HOST, HA_PORT)
        await place.clock.advance(seconds=30)
        assert slave.status.phase == "STOPPED"
        for _ in range(2):  # the second time its end is compared
            slave.set_master(HA_ADDRESS, MASTER_ADDRESS)
            await place.clock.drain()
            assert slave.status.phase == "FOLLOWING"
            place.put(master_store, 3)
            assert master.status.waiting_count == 3
            await place.clock.drain()
            assert log_bytes(slave_store) == log_bytes(master_store)
            slave.set_master(None, None)
            await place.clock.drain()
        assert len(place.statuses) == 6
        assert master.status.slave_count == 0
        await slave.stop()
        await master.stop()


async def test_the_status_of_a_master_tells_how_far_its_slaves_are() -> None:
    async with site() as place:
        master_store = place.store(BrokerRole.SYNC_MASTER)
        master = make(place, master_store)
        assert master.runtime_info().master
        await master.start(HA_HOST, HA_PORT)
        slave = make(place, place.store(BrokerRole.SLAVE), master)
        await slave.start(HA_HOST, HA_PORT)
        slave.set_master(HA_ADDRESS, MASTER_ADDRESS)
        await place.clock.drain()
        place.put(master_store, 1)
        status = master.status
        assert (status.slave_count, status.in_sync_count, status.waiting_count) == (1, 1, 1)
        assert status.behind_bytes == master_store.log.max_offset
        await place.clock.drain()
        assert master.status.behind_bytes == 0
        assert master.runtime_info().in_sync_slave_nums == 1
        client_info = slave.runtime_info().ha_client_runtime_info
        assert client_info is not None
        assert client_info.max_offset == master_store.log.max_offset
        await slave.stop()
        place.put(master_store, 1)
        await place.clock.advance(seconds=3)
        assert master.status.timeout_count == 1
        await master.stop()


async def test_a_slave_with_a_log_does_not_follow_a_master_that_gives_no_answer() -> None:
    async with site() as place:
        master_store = place.store(BrokerRole.ASYNC_MASTER)
        slave_store = place.store(BrokerRole.SLAVE)
        master = make(place, master_store)
        await master.start(HA_HOST, HA_PORT)
        slave = make(place, slave_store)
        await slave.start(HA_HOST, HA_PORT)
        slave.set_master(HA_ADDRESS, MASTER_ADDRESS)
        place.put(master_store, 2)
        await place.clock.drain()
        copied = slave_store.log.max_offset
        assert copied == master_store.log.max_offset  # empty: nothing to compare
        place.network.cut_all()
        place.put(master_store, 2)
        await place.clock.advance(seconds=30)
        assert slave_store.log.max_offset == copied
        assert slave.status.phase in ("WAITING", "CONNECTING", "CHECKING")
        await slave.stop()
        await master.stop()
