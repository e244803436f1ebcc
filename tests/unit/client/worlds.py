"""Real name servers and brokers on a memory network and virtual time, and clients of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.instance_registry import InstanceTable
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)

T = TypeVar("T")

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


async def in_place(function: Any, /, *args: Any) -> None:
    function(*args)


class FakeProducer:
    """A member of a producer group that only says what it is told."""

    def __init__(self, group: str, *topics: str) -> None:
        self.group = group
        self._topics = frozenset(topics)

    def topics(self) -> Collection[str]:
        return self._topics


class FakeConsumer(FakeProducer):
    """A member of a consumer group, subscribed to everything in its topics."""

    def __init__(self, group: str, *topics: str) -> None:
        super().__init__(group, *topics)
        self.rebalances = 0
        self.persisted = 0
        self.balanced = True
        self.reset: list[tuple[str, Mapping[MessageQueue, int]]] = []

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_string="*", sub_version=1)
                for topic in sorted(self._topics)
            ],
        )

    async def rebalance(self) -> bool:
        self.rebalances += 1
        return self.balanced

    async def persist_offsets(self) -> None:
        self.persisted += 1


class World:
    """Servers come and go; clients are made with :meth:`client`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.network = MemoryNetwork(clock=self.clock)
        self.table = InstanceTable()
        self.name_servers: list[NameServer] = []
        self.brokers: dict[str, Broker] = {}
        self._forgets: dict[object, Any] = {}

    async def add_name_server(self, port: int = 9876) -> NameServer:
        server = NameServer(NamesrvConfig(listen_port=port), network=self.network, clock=self.clock)
        await server.start()
        self._forgets[server] = self.clock.on_advance(server.clock_advanced)
        self.name_servers.append(server)
        return server

    async def add_broker(self, name: str = "broker-a", port: int = 20911, **given: str) -> Broker:
        texts = {
            "brokerName": name,
            "brokerIP1": "127.0.0.1",
            "listenPort": str(port),
            "storePathRootDir": str(self.root / name),
            "namesrvAddr": self.namesrv,
            **SMALL_FILES,
            **given,
        }
        broker = Broker(
            load_broker_config(texts), network=self.network, clock=self.clock, in_thread=in_place
        )
        await broker.start()
        forget_advance = self.clock.on_advance(broker.clock_advanced)
        store = broker.features.store  # a thread syncs its log, in real time
        end_hold = self.clock.hold_while(lambda: store.disk_wait_count > 0)

        def forget() -> None:
            forget_advance()
            end_hold()

        self._forgets[broker] = forget
        self.brokers[name] = broker
        await self.clock.drain()
        return broker

    async def add_topic(self, topic: str, queue_count: int = 4) -> None:
        for broker in self.brokers.values():
            config = TopicConfig(
                topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count
            )
            broker.features.topics.table.update(config)
        await self.clock.advance(seconds=31)  # all of them register again

    async def stop(self, server: NameServer | Broker) -> None:
        self._forgets.pop(server)()
        if isinstance(server, NameServer):
            self.name_servers.remove(server)
        else:
            self.brokers = {k: b for k, b in self.brokers.items() if b is not server}
        await self.finish(server.stop())

    @property
    def namesrv(self) -> str:
        return ";".join(str(server.address) for server in self.name_servers)

    def options(self, **given: Any) -> ClientOptions:
        return ClientOptions(**{"namesrv": self.namesrv, "client_ip": "127.0.0.1", **given})

    async def finish(self, work: Awaitable[T]) -> T:
        """Await something that needs time to pass."""
        task = asyncio.ensure_future(work)
        for _ in range(100):
            await self.clock.drain()
            if task.done():
                break
            await self.clock.advance(seconds=0.5)
        return await task

    @asynccontextmanager
    async def client(
        self, client_id: str = "127.0.0.1@a", *, stream: bool = False, **given: Any
    ) -> AsyncIterator[ClientInstance]:
        """A started instance, stopped at the end; nothing of it may be left."""
        runtime = inline_runtime(self.network, self.clock)
        instance = self.table.acquire(self.options(**given), client_id, runtime, stream=stream)
        await instance.start()
        await self.clock.drain()
        try:
            yield instance
        finally:
            await self.finish(instance.release())


@asynccontextmanager
async def world(root: Path) -> AsyncIterator[World]:
    """An empty world; at its end no task, timer or connection may be left."""
    tasks_before = asyncio.all_tasks()
    made = World(root)
    try:
        yield made
    finally:
        for broker in tuple(made.brokers.values()):
            await made.stop(broker)
        for name_server in tuple(made.name_servers):
            await made.stop(name_server)
    await made.clock.drain()
    left = {task for task in asyncio.all_tasks() - tasks_before if not task.done()}
    assert not left, left
    assert made.network.connection_count == 0
    assert len(made.table) == 0
