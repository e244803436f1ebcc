"""The master's HA port, with real stores and all kinds of slaves."""

from __future__ import annotations

import logging
import struct

import pytest

from skylark.replication.config import ReplicationConfig
from skylark.replication.ha_server import HaServer
from skylark.replication.master import BURST_SIZE
from skylark.store.config import BrokerRole, FlushDiskType
from skylark.store.store_results import PutStatus
from skylark.wire.ha_frame import HaFrameBuffer, encode_report
from tests.unit.replication.sites import HA_HOST, HA_PORT, connect, log_bytes, site

MASTER, SYNC, SLAVE = BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.SLAVE
OK = PutStatus.PUT_OK


async def test_a_slave_gets_the_log_of_its_master_and_what_is_added() -> None:
    async with site() as place:
        master, slave = place.store(MASTER), place.store(SLAVE)
        place.put(master, 50)
        server = await place.serve(master, ha_sync_from_start=True)
        place.follow(slave, master)
        await place.clock.drain()
        assert len(master.log.files.files) > 1
        assert log_bytes(slave) == log_bytes(master)
        place.put(master)
        await place.clock.drain()
        assert log_bytes(slave) == log_bytes(master)
        (info,) = server.runtime_info().ha_connection_info
        assert info.slave_ack_offset == info.transfer_from_where == master.log.max_offset
        assert (info.diff, info.in_sync) == (0, True)
        assert info.transferred_byte_in_second == master.log.max_offset


@pytest.mark.spec("store.12.44")
async def test_a_synchronous_put_is_answered_when_a_slave_has_it() -> None:
    async with site() as place:
        master, slave = place.store(SYNC), place.store(SLAVE)
        await place.serve(master, in_sync_replicas=2)
        client = place.follow(slave)
        await place.clock.drain()
        place.put(master, 10)
        assert place.statuses == []
        await place.clock.drain()
        assert place.statuses == [OK] * 10
        assert slave.log.max_offset == master.log.max_offset
        await place.stop(client)
        place.put(master)
        await place.clock.advance(ms=2_999)
        assert len(place.statuses) == 10
        await place.clock.advance(ms=1)
        assert place.statuses[10:] == [PutStatus.FLUSH_SLAVE_TIMEOUT]
        assert int(place.statuses[10].code) == 12
        lease = master.reader.record(place.ledger.messages[-1].log_offset)
        assert lease is not None  # stored all the same
        lease.release()


@pytest.mark.spec("store.12.44")
async def test_one_in_sync_replica_is_the_master_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as place:
        master = place.store(SYNC)
        await place.serve(master)
        place.put(master)
        assert place.statuses == [OK]
        assert "does not wait for slaves with inSyncReplicas=1" in caplog.text


@pytest.mark.spec("store.12.44")
async def test_the_mode_of_4x_answers_at_once_that_there_is_no_slave() -> None:
    async with site() as place:
        master = place.store(SYNC)
        await place.serve(master, ha_compatible4x=True)
        place.put(master)
        assert [int(status.code) for status in place.statuses] == [11]
        slave = place.store(SLAVE)
        place.follow(slave)
        await place.clock.drain()
        place.put(master)
        await place.clock.drain()
        assert place.statuses[1:] == [OK]


async def test_messages_that_do_not_wait_are_sent_as_well() -> None:
    async with site() as place:
        master, slave = place.store(SYNC), place.store(SLAVE)
        await place.serve(master, in_sync_replicas=2)
        place.follow(slave)
        await place.clock.drain()
        result = place.ledger.put(master, ("TopicA", 0))
        master.when_durable(result, place.statuses.append, wait=False)
        assert place.statuses == [OK]
        await place.clock.drain()
        assert slave.log.max_offset == master.log.max_offset


async def test_with_sync_flush_a_slave_gets_only_what_is_on_disk() -> None:
    async with site() as place:
        master = place.store(SYNC, flush_disk_type=FlushDiskType.SYNC_FLUSH)
        slave = place.store(SLAVE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
        server = await place.serve(master, in_sync_replicas=2)
        place.follow(slave)
        await place.clock.drain()
        result = place.ledger.put(master, ("TopicA", 0))
        server.wake()
        await place.clock.drain()
        assert slave.log.max_offset == 0
        master.when_durable(result, place.statuses.append)
        await place.clock.drain()
        assert place.statuses == [OK]
        assert slave.log.files.flushed_where == master.log.max_offset


async def test_two_slaves_are_waited_for_with_three_replicas() -> None:
    async with site() as place:
        master = place.store(SYNC)
        await place.serve(master, in_sync_replicas=3)
        place.follow(place.store(SLAVE))
        await place.clock.drain()
        place.put(master)
        await place.clock.drain()
        assert place.statuses == []
        place.follow(place.store(SLAVE))
        await place.clock.drain()
        assert place.statuses == [OK]


@pytest.mark.spec("store.12.43")
async def test_the_last_whole_report_counts_however_it_is_split() -> None:
    async with site() as place:
        master = place.store(SYNC)
        server = await place.serve(master, in_sync_replicas=2)
        place.put(master, 2)
        first, second = (it.end for it in place.ledger.messages)
        peer = await connect(place)
        peer.send(encode_report(0))
        await place.clock.drain()
        (slave,) = server.master.slaves
        peer.send(encode_report(0) + encode_report(first))
        await place.clock.drain()
        assert slave.ack_offset == first
        assert place.statuses == [OK]
        peer.send(encode_report(second)[:3])
        await place.clock.drain()
        assert slave.ack_offset == first
        peer.send(encode_report(second)[3:])
        await place.clock.drain()
        assert slave.ack_offset == second
        assert place.statuses == [OK, OK]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">q", -1),
        encode_report(0) + encode_report(1 << 62),
        b"GET / HTTP/1.1\r\n\r\n" * 100,
        b"\x16\x03\x01" * 1_000,
        b"\xff" * 64,
    ],
)
async def test_a_hostile_slave_loses_its_connection_and_nobody_else_anything(data: bytes) -> None:
    async with site() as place:
        master, slave = place.store(SYNC), place.store(SLAVE)
        await place.serve(master, in_sync_replicas=2)
        place.follow(slave)
        await place.clock.drain()
        peer = await connect(place)
        peer.send(data)
        await place.clock.drain()
        place.put(master, 5)
        await place.clock.drain()
        assert place.statuses == [OK] * 5
        assert log_bytes(slave) == log_bytes(master)
        await place.clock.advance(seconds=21)
        assert peer.is_lost


async def test_a_slave_that_reads_nothing_pins_one_burst_at_most() -> None:
    async with site() as place:
        master = place.store(MASTER, mapped_file_size_commit_log=1 << 20)
        server = await place.serve(master, ha_sync_from_start=True)
        peer = await connect(place)
        assert peer.transport is not None
        peer.transport.pause_reading()
        peer.send(encode_report(0))
        for _ in range(4):
            for _ in range(1_000):
                place.put(master)
            await place.clock.drain()
        assert master.log.max_offset > BURST_SIZE
        (slave,) = server.master.slaves
        assert slave.next_offset <= BURST_SIZE + 65_536
        assert sum(file.leases for file in master.log.files.files) <= BURST_SIZE // 32_768 + 2
        await place.clock.advance(seconds=20)
        peer.transport.resume_reading()
        await place.clock.drain()
        assert peer.is_lost
        assert sum(file.leases for file in master.log.files.files) == 0


async def test_a_slave_that_never_acknowledges_is_not_waited_for_longer_than_others() -> None:
    async with site() as place:
        master = place.store(SYNC)
        server = await place.serve(master, in_sync_replicas=2)
        peer = await connect(place)
        peer.send(encode_report(0))
        place.put(master, 3)
        for _ in range(5):
            await place.clock.advance(seconds=5)
            peer.send(encode_report(0))  # lives, and says that it has nothing
        assert place.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT] * 3
        assert not peer.is_lost
        assert server.waiters is not None
        assert server.waiters.waiting_count == 0


async def test_a_connection_that_got_nothing_acknowledges_nothing() -> None:
    """Any program can connect to the HA port and report the end of the log."""
    async with site() as place:
        master = place.store(SYNC)
        await place.serve(master, in_sync_replicas=2)
        place.put(master)
        stranger = await connect(place)
        stranger.send(encode_report(master.log.max_offset))
        await place.clock.drain()
        stranger.send(encode_report(master.log.max_offset))
        await place.clock.drain()
        assert place.statuses == []
        await place.clock.advance(seconds=3)
        assert place.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]


async def test_one_slave_too_many_is_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as place:
        master = place.store(MASTER)
        config = ReplicationConfig()
        server = HaServer(master, config, place.network, place.clock, slaves_max=2)
        await server.start(HA_HOST, HA_PORT)
        peers = [await connect(place) for _ in range(3)]
        await place.clock.drain()
        assert [peer.is_lost for peer in peers] == [False, False, True]
        assert "is beyond the limit of" in caplog.text
        await server.stop()


async def test_the_log_names_a_slave_by_its_address(caplog: pytest.LogCaptureFixture) -> None:
    """The number of a connection would be taken for a broker id."""
    async with site() as place:
        with caplog.at_level(logging.INFO, "skylark.replication.ha_server"):
            server = await place.serve(place.store(MASTER))
            peer = await connect(place)
            await place.clock.drain()
            assert peer.transport is not None
            host, port = peer.transport.get_extra_info("sockname")
            await place.stop(server)
        assert f"slave {host}:{port} connected" in caplog.messages
        text = f"closing the connection to slave {host}:{port}: the master stops"
        assert text in caplog.messages


async def test_a_stopped_server_lets_nobody_wait() -> None:
    async with site() as place:
        master = place.store(SYNC)
        server = await place.serve(master, in_sync_replicas=2)
        peer = await connect(place)
        place.put(master)
        await place.stop(server)
        await place.clock.drain()
        assert place.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
        assert peer.is_lost
        place.put(master)
        assert place.statuses[1:] == [OK]  # nobody to wait for any more


async def test_a_slave_behind_retention_hears_only_heartbeats(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site() as place:
        master = place.store(MASTER)
        place.put(master, 100)
        assert master.log.files.retire_oldest(place.clock.monotonic()) is not None
        await place.serve(master)
        peer = await connect(place)
        peer.send(encode_report(100))
        await place.clock.advance(seconds=11)
        frames = HaFrameBuffer().feed(peer.received)
        assert [(frame.log_offset, frame.body) for frame in frames] == [(100, b"")] * 2
        errors = [it.message for it in caplog.records if it.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "needs the log from 100 on, but it begins at 8192" in errors[0]
