"""Masters and slaves with real stores, on a network and disks in memory and on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from skylark.replication.config import ReplicationConfig
from skylark.replication.ha_client import HaClient
from skylark.replication.ha_server import HaServer
from skylark.replication.log_check import answer_log_check, ask_log_check
from skylark.replication.slave import TailAnswer
from skylark.store.config import BrokerRole, StoreConfig
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import Command
from tests.support.store_machine import HOST, ROOT, SMALL, Ledger

HA_HOST: Final = "127.0.0.1"
HA_PORT: Final = 10_912
HA_ADDRESS: Final = f"{HA_HOST}:{HA_PORT}"
QUEUES: Final = (("TopicA", 0), ("TopicA", 1), ("TopicB", 7))

T = TypeVar("T")


class Inline(Executor):
    """A worker that has done everything by the time it is asked."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asks the future
            future.set_exception(error)
        return future


class Site:
    """A network, a clock, and what was started on them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(clock=self.clock)
        self.ledger = Ledger(random.Random(1))
        self._rng = random.Random(2)
        self.statuses: list[PutStatus] = []
        self._running: list[HaServer | HaClient] = []
        self._stores: list[MessageStore] = []

    def store(
        self, role: BrokerRole, disk: FaultyFileSystem | None = None, **settings: Any
    ) -> MessageStore:
        config = StoreConfig(store_path_root_dir=ROOT, broker_role=role, **{**SMALL, **settings})
        store = MessageStore(
            config,
            store_host=HOST,
            scheduler=self.clock,
            post=asyncio.get_running_loop().call_soon,
            files=disk or FaultyFileSystem(),
            make_worker=lambda _name: Inline(),
        )
        store.open()
        store.start()
        self._stores.append(store)
        return store

    async def serve(self, store: MessageStore, **settings: Any) -> HaServer:
        server = HaServer(store, ReplicationConfig(**settings), self.network, self.clock)
        await server.start(HA_HOST, HA_PORT)
        self._running.append(server)
        return server

    def follow(
        self, store: MessageStore, master: MessageStore | None = None, **settings: Any
    ) -> HaClient:
        """A slave; with ``master`` it can ask whether the logs agree."""

        async def check(log_offset: int, size: int, crc: int) -> TailAnswer:
            async def call(request: Command) -> Command:
                assert master is not None
                return answer_log_check(master.log.files, request)

            return await ask_log_check(call, log_offset, size, crc)

        client = HaClient(
            store,
            ReplicationConfig(**settings),
            self.network,
            self.clock,
            check_tail=None if master is None else check,
        )
        client.start(HA_ADDRESS)
        self._running.append(client)
        return client

    def put(self, store: MessageStore, count: int = 1) -> None:
        """Messages whose senders wait; what they hear goes to ``statuses``."""
        for _ in range(count):
            result = self.ledger.put(store, self._rng.choice(QUEUES))
            assert result.status is PutStatus.PUT_OK
            store.when_durable(result, self.statuses.append)

    async def stop(self, running: HaServer | HaClient) -> None:
        self._running.remove(running)
        await running.stop()

    def close(self, store: MessageStore) -> None:
        self._stores.remove(store)
        store.close()

    def abandon(self, store: MessageStore) -> None:
        """The machine of this store has stopped: nothing is closed."""
        self._stores.remove(store)

    async def end(self) -> None:
        for running in reversed(self._running):
            await running.stop()
        for store in self._stores:
            store.close()
        await self.clock.drain()
        assert self.network.connection_count == 0


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """A site that is empty again in the end."""
    place = Site()
    yield place
    await place.end()


def log_bytes(store: MessageStore) -> bytes:
    """All that a log holds, from its first file on."""
    content = b""
    for file in store.log.files.files:
        with file.lease(0, file.readable) as lease:
            content += bytes(lease.view)
    return content


class Peer(asyncio.Protocol):
    """A raw end of a connection, for slaves and masters that misbehave."""

    def __init__(self) -> None:
        self.received = b""
        self.transport: asyncio.Transport | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


async def connect(place: Site) -> Peer:
    """A slave that is none of ours."""
    _, peer = await place.network.connect(Peer, HA_HOST, HA_PORT, timeout_s=1, clock=place.clock)
    return peer
