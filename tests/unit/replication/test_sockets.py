"""Master and slave over real sockets on both event loops, and their shares of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylark.core.clock import LoopClock
from skylark.net.transport import TcpNetwork
from skylark.net.turn_share import ReadPacer
from skylark.replication.config import ReplicationConfig
from skylark.replication.ha_client import HaClient
from skylark.replication.ha_server import HaServer
from skylark.store.commit_log import Draft
from skylark.store.config import BrokerRole, StoreConfig
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutStatus
from skylark.testing.memory_net import MemoryNetwork
from skylark.wire.ha_frame import encode_report
from tests.support.loops import on_both_loops
from tests.support.store_machine import HOST
from tests.unit.replication.sites import log_bytes

FILE_SIZE = 4 << 20
COUNT = 3_000
READ_SIZE = 32 * 1024


def open_store(root: Path, role: BrokerRole, clock: LoopClock) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=root,
        broker_role=role,
        mapped_file_size_commit_log=FILE_SIZE,
        mapped_file_size_consume_queue=60_000,
        max_hash_slot_num=500,
        max_index_num=4_000,
    )
    post = asyncio.get_running_loop().call_soon_threadsafe
    store = MessageStore(config, store_host=HOST, scheduler=clock, post=post)
    store.open()
    store.start()
    return store


@on_both_loops
async def test_a_log_of_several_files_is_copied_and_puts_are_acknowledged(tmp_path: Path) -> None:
    clock, network = LoopClock(), TcpNetwork()
    master = open_store(tmp_path / "master", BrokerRole.SYNC_MASTER, clock)
    slave = open_store(tmp_path / "slave", BrokerRole.SLAVE, clock)
    config = ReplicationConfig(in_sync_replicas=2, ha_sync_from_start=True)
    draft = Draft("TopicA", 0, bytes(3_000), b"TAGS\x01a\x02", born_host=HOST)
    for _ in range(COUNT):
        assert master.put(draft).status is PutStatus.PUT_OK
    assert len(master.log.files.files) > 2
    server = HaServer(master, config, network, clock)
    host, port = await server.start("127.0.0.1", 0)
    client = HaClient(slave, config, network, clock)
    client.start(f"{host}:{port}")
    answers: asyncio.Queue[PutStatus] = asyncio.Queue()
    async with clock.timeout(30):
        while slave.log.max_offset < master.log.max_offset:
            await clock.sleep(0.01)
        for _ in range(3):
            master.when_durable(master.put(draft), answers.put_nowait)
            assert await answers.get() is PutStatus.PUT_OK
        while slave.reader.max_offset("TopicA", 0) < COUNT + 3:
            await clock.sleep(0.01)
    assert log_bytes(slave) == log_bytes(master)
    assert sum(file.leases for file in master.log.files.files) == 0
    await client.stop()
    await server.stop()
    slave.close()
    master.close()


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of replication."""
    sizes: list[int] = []
    paced = ReadPacer.delivered

    def noted(pacer: ReadPacer, transport: Any, size: int) -> None:
        sizes.append(size)
        paced(pacer, transport, size)

    monkeypatch.setattr(ReadPacer, "delivered", noted)
    return sizes


async def sizes_per_turn(delivered: list[int], is_done: Callable[[], bool]) -> list[int]:
    """Bytes that were read in each turn of the loop."""
    per_turn: list[int] = []
    async with LoopClock().timeout(30):
        while not is_done():
            delivered.clear()
            await asyncio.sleep(0)
            per_turn.append(sum(delivered))
    return per_turn


def greedy_network() -> MemoryNetwork:
    """Reads as libuv does, 32 times from one socket before the next."""
    return MemoryNetwork(window_size=4 << 20, chunk_size=READ_SIZE, reads_per_turn=32)


async def test_a_slave_that_catches_up_serves_others_between_its_shares(
    tmp_path: Path, delivered: list[int]
) -> None:
    clock, network = LoopClock(), greedy_network()
    master = open_store(tmp_path / "master", BrokerRole.ASYNC_MASTER, clock)
    slave = open_store(tmp_path / "slave", BrokerRole.SLAVE, clock)
    config = ReplicationConfig(ha_sync_from_start=True)
    draft = Draft("TopicA", 0, bytes(3_000), b"TAGS\x01a\x02", born_host=HOST)
    for _ in range(COUNT):
        assert master.put(draft).status is PutStatus.PUT_OK
    server = HaServer(master, config, network, clock)
    host, port = await server.start("127.0.0.1", 9876)
    client = HaClient(slave, config, network, clock)
    client.start(f"{host}:{port}")
    per_turn = await sizes_per_turn(
        delivered, lambda: slave.log.max_offset >= master.log.max_offset
    )
    # A read that uses the share up, and before it less than a share.
    assert max(per_turn) < 64 * 1024 + READ_SIZE
    assert sum(per_turn) >= COUNT * 3_000
    await client.stop()
    await server.stop()
    for store in (master, slave):
        store.close()


async def test_a_master_reads_the_reports_of_a_slave_in_shares(
    tmp_path: Path, delivered: list[int]
) -> None:
    clock, network = LoopClock(), greedy_network()
    master = open_store(tmp_path / "master", BrokerRole.ASYNC_MASTER, clock)
    server = HaServer(master, ReplicationConfig(), network, clock)
    host, port = await server.start("127.0.0.1", 9876)
    transport, _ = await network.connect(asyncio.Protocol, host, port, timeout_s=1, clock=clock)
    reports = encode_report(0) * 100_000
    transport.write(reports)
    seen = 0

    def all_read() -> bool:
        nonlocal seen
        seen += sum(delivered)
        return seen == len(reports)

    assert max(await sizes_per_turn(delivered, all_read)) < 64 * 1024 + READ_SIZE
    transport.close()
    await server.stop()
    master.close()
