"""Master and slave over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
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
from tests.support.loops import on_both_loops
from tests.support.store_machine import HOST
from tests.unit.replication.sites import log_bytes

FILE_SIZE = 4 << 20
COUNT = 3_000


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


@on_both_loops
async def test_a_slave_that_catches_up_serves_others_between_its_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered: list[int] = []  # since the last turn of the loop
    paced = ReadPacer.delivered

    def noted(pacer: ReadPacer, transport: Any, size: int) -> None:
        delivered.append(size)
        paced(pacer, transport, size)

    monkeypatch.setattr(ReadPacer, "delivered", noted)
    clock, network = LoopClock(), TcpNetwork()
    master = open_store(tmp_path / "master", BrokerRole.ASYNC_MASTER, clock)
    slave = open_store(tmp_path / "slave", BrokerRole.SLAVE, clock)
    config = ReplicationConfig(ha_sync_from_start=True)
    draft = Draft("TopicA", 0, bytes(3_000), b"TAGS\x01a\x02", born_host=HOST)
    for _ in range(COUNT):
        assert master.put(draft).status is PutStatus.PUT_OK
    server = HaServer(master, config, network, clock)
    host, port = await server.start("127.0.0.1", 0)
    client = HaClient(slave, config, network, clock)
    client.start(f"{host}:{port}")
    per_turn: list[int] = []
    async with clock.timeout(30):
        while slave.log.max_offset < master.log.max_offset:
            await asyncio.sleep(0)
            per_turn.append(sum(delivered))
            delivered.clear()
    # A read of 256 KB that uses the share up, and before it less than a share.
    assert max(per_turn) <= (256 + 64) * 1024
    assert sum(per_turn) >= COUNT * 3_000
    await client.stop()
    await server.stop()
    for store in (master, slave):
        store.close()
