"""Replication as one object: master and slave put together as a broker does."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.core.errors import ConnectError
from skylark.replication.config import ReplicationConfig
from skylark.replication.replication_service import Replication
from skylark.store.config import BrokerRole
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutStatus
from skylark.wire.command import Command
from tests.unit.replication.sites import HA_ADDRESS, HA_HOST, HA_PORT, Site, log_bytes, site

MASTER_ADDRESS = "127.0.0.1:10911"


async def nobody(address: str, request: Command) -> Command:
    raise ConnectError(f"{address} does not answer {request.code}")


def make(
    place: Site,
    store: MessageStore,
    master: Replication | None = None,
    *,
    named: bool = True,
    **settings: Any,
) -> Replication:
    async def call(address: str, request: Command) -> Command:
        assert master is not None
        assert address == MASTER_ADDRESS
        return master.log_check(request)

    config = ReplicationConfig(**{"in_sync_replicas": 2, **settings})
    return Replication(
        store,
        config,
        place.network,
        place.clock,
        call=nobody if master is None else call,
        has_name_servers=lambda: named,
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


@pytest.mark.parametrize("named", [True, False], ids=["name servers", "no name servers"])
async def test_a_master_known_by_its_ha_port_is_asked_when_its_other_port_is_known(
    named: bool,
) -> None:
    async with site() as place:
        master_store = place.store(BrokerRole.ASYNC_MASTER)
        slave_store = place.store(BrokerRole.SLAVE)
        master = make(place, master_store)
        await master.start(HA_HOST, HA_PORT)
        slave = make(place, slave_store, master, named=named, ha_master_address=HA_ADDRESS)
        await slave.start(HA_HOST, HA_PORT)
        place.put(master_store, 2)
        await place.clock.drain()
        assert log_bytes(slave_store) == log_bytes(master_store)  # empty: nothing to compare
        place.network.cut_all()
        place.put(master_store, 2)
        await place.clock.advance(seconds=30)
        assert (slave_store.log.max_offset == master_store.log.max_offset) is not named
        slave.set_master(None, MASTER_ADDRESS)
        await place.clock.advance(seconds=5)
        assert slave.status.phase == "FOLLOWING"
        assert log_bytes(slave_store) == log_bytes(master_store)
        await slave.stop()
        await master.stop()


async def test_how_many_slaves_are_waited_for_may_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site() as place:
        store = place.store(BrokerRole.SYNC_MASTER)
        master = make(place, store, in_sync_replicas=1)
        await master.start(HA_HOST, HA_PORT)
        assert caplog.text.count("does not wait for slaves") == 1
        place.put(store)
        await place.clock.drain()
        assert place.statuses == [PutStatus.PUT_OK]
        master.follow(ReplicationConfig(in_sync_replicas=2))
        place.put(store)
        await place.clock.drain()
        assert master.status.waiting_count == 1
        master.follow(ReplicationConfig(in_sync_replicas=2, slave_timeout=500))
        await place.clock.advance(seconds=0.5)
        assert place.statuses[1:] == [PutStatus.FLUSH_SLAVE_TIMEOUT]
        place.put(store)
        await place.clock.drain()
        master.follow(ReplicationConfig(in_sync_replicas=1))
        assert place.statuses[2:] == [PutStatus.PUT_OK], "nobody is needed any more"
        assert caplog.text.count("does not wait for slaves") == 2
        await master.stop()
        master.follow(ReplicationConfig(in_sync_replicas=2))
        assert store.replicas is None


async def test_links_follow_changed_intervals() -> None:
    async with site() as place:
        master = make(place, place.store(BrokerRole.ASYNC_MASTER))
        await master.start(HA_HOST, HA_PORT)
        slave = make(place, place.store(BrokerRole.SLAVE), master)
        await slave.start(HA_HOST, HA_PORT)
        slave.set_master(HA_ADDRESS, MASTER_ADDRESS)
        await place.clock.drain()
        slave.follow(ReplicationConfig(ha_housekeeping_interval=1_000))
        await place.clock.advance(seconds=1)
        assert slave.status.is_cut_off, "the master says nothing within 5 s"
        master.follow(ReplicationConfig(ha_send_heartbeat_interval=400))
        await place.clock.advance(seconds=3)
        for _ in range(10):
            await place.clock.advance(seconds=1)
            assert slave.status.is_following
        await slave.stop()
        await master.stop()
