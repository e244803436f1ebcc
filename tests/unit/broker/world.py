"""A broker without a store: all tables and handlers, on a memory network and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from skylark.broker.admin.group_handlers import GroupHandlers
from skylark.broker.admin.handler_base import BrokerParts
from skylark.broker.admin.settings_handlers import SettingsHandlers
from skylark.broker.admin.topic_handlers import TopicHandlers
from skylark.broker.groups.client_liveness import ClientLiveness
from skylark.broker.groups.client_service import ClientService
from skylark.broker.groups.consumer_filters import ConsumerFilterTable
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.handlers import ClientHandlers, LockHandlers
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.groups.queue_locks import LockService, QueueLocks
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.table_saver import SettingsFile, TableSaver
from skylark.broker.topics.topic_table import TopicTable
from skylark.filter.bloom import BloomFilter
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.store.config_files import ConfigFiles
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.admin_body import ConsumerConnection
from skylark.wire.bodies.common_body import Body
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import SERIALIZE_JSON, Command
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.frame import FrameBuffer
from tests.unit.broker.tables import add_tables, live_settings, load_tables

HOST: Final = "127.0.0.1"
PORT: Final = 10_911
ADDRESS: Final = f"{HOST}:{PORT}"
FOREVER: Final = NetLimits(idle_timeout_s=1e9)
CONFIG: Final = Path("/store/config")
SETTINGS_PATH: Final = "/broker.conf"


async def no_pop(*_message: object) -> None:
    """Nothing is popped in this broker."""


class World:
    """A broker on a memory network, and its clients."""

    def __init__(
        self,
        *,
        clock: VirtualClock | None = None,
        serialize_type: int = SERIALIZE_JSON,
        notice_batch_ms: int = 0,
        **texts: str,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.network = MemoryNetwork(clock=self.clock)
        self.plan = FaultPlan(1)
        self.disk = FaultyFileSystem(self.plan)
        self.disk_is_free = asyncio.Event()  # what is written waits for it
        self.disk_is_free.set()
        self.live = live_settings(**{"brokerConfigPath": SETTINGS_PATH, **texts})
        self.topics = TopicTable(self.live, self.clock)
        self.groups = GroupTable(self.live, self.clock)
        self.offsets = OffsetTable(self.live, self.clock)
        self.consumers = ConsumerTable(notice_batch_ms=notice_batch_ms)
        self.producers = ProducerTable()
        self.stats = BrokerStats("DefaultCluster")
        self.groups.deleted.subscribe(self.stats.group_deleted)
        self.locks = QueueLocks()
        self.filters = ConsumerFilterTable(BloomFilter(20, 32))
        self.saver = TableSaver(
            ConfigFiles(self.disk, CONFIG), self.clock, in_thread=self._in_place
        )
        self.saved = add_tables(self.saver, self.live, self.topics, self.groups, self.offsets)
        #: What was done by others, in this order.
        self.calls: list[Any] = []
        self.liveness = ClientLiveness(
            self.consumers, self.producers, self.locks, self.filters, self.clock
        )
        dispatcher = Dispatcher()
        for handlers in self._handlers():
            handlers.add_to(dispatcher)
        self.server = RemotingServer(
            dispatcher, self.network, self.clock, limits=FOREVER, serialize_type=serialize_type
        )
        self.clock.on_advance(self.liveness.clock_advanced)
        self.peers: list[Peer] = []
        self._has_power = True

    def _handlers(self) -> list[Any]:
        nothing: Any = None
        parts = BrokerParts(
            live=self.live,
            settings_file=SettingsFile(self.disk, self.live, in_thread=self._in_place),
            clock=self.clock,
            loop_watch=nothing,
            files=nothing,
            store=nothing,
            replication=nothing,
            saved=self.saved,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            consumers=self.consumers,
            producers=self.producers,
            locks=self.locks,
            filters=self.filters,
            request_modes=nothing,
            stats=self.stats,
            sampler=nothing,
            cold_reads=nothing,
            popped_count=lambda *_: 0,
            popped_report=no_pop,
            timer=None,
            delay_progress=dict,
            delay_offsets=nothing,
            delete_queues=self._delete_queues,
            announced=self._announced,
            register_all=self._register_all,
        )
        return [
            ClientHandlers(
                ClientService(
                    self.live,
                    self.topics,
                    self.groups,
                    self.consumers,
                    self.producers,
                    self.filters,
                    self.liveness,
                    self.clock,
                )
            ),
            LockHandlers(LockService(self.locks, self.clock)),
            *(each(parts) for each in (TopicHandlers, GroupHandlers, SettingsHandlers)),
        ]

    async def _in_place(self, function: Callable[..., None], /, *args: Any) -> None:
        await self.disk_is_free.wait()
        self.calls.append(f"write {args[0].name}")
        function(*args)

    def _delete_queues(self, topics: Collection[str]) -> None:
        self.calls.append(("delete queues", *topics))

    async def _announced(self) -> None:
        self.calls.append("announced")

    async def _register_all(self) -> None:
        self.calls.append(f"register all, version {self.topics.version.counter}")

    def after_power_loss(self) -> tuple[TopicTable, GroupTable, OffsetTable]:
        """Cut the power; what a broker finds on disk that is started then."""
        self._has_power = False
        live = live_settings()
        topics, groups = TopicTable(live, self.clock), GroupTable(live, self.clock)
        offsets = OffsetTable(live, self.clock)
        load_tables(ConfigFiles(self.disk.power_loss(), CONFIG), topics, groups, offsets)
        return topics, groups, offsets

    async def start(self) -> None:
        await self.saver.start()
        await self.liveness.start()
        await self.server.start(HOST, PORT)

    async def stop(self) -> None:
        self.disk_is_free.set()
        for peer in self.peers:
            await peer.close()
        await self.liveness.stop()
        await self.server.stop()
        if self._has_power:
            await self.saver.stop()

    def peer(self, language: str = "JAVA") -> Peer:
        """One more client with a connection of its own."""
        peer = Peer(self, language)
        self.peers.append(peer)
        return peer

    async def raw_peer(self) -> RawPeer:
        _, raw = await self.network.connect(
            lambda: RawPeer(self.clock), HOST, PORT, timeout_s=1.0, clock=self.clock
        )
        return raw


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[World]:
    world = World(**options)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


class Peer:
    """A client, and the notices (40) that it got."""

    def __init__(self, world: World, language: str) -> None:
        self.notices: list[Command] = []
        self._clock = world.clock
        dispatcher = Dispatcher()
        dispatcher.add_hot(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._note)
        self._client = RemotingClient(
            world.network, world.clock, limits=FOREVER, dispatcher=dispatcher, language=language
        )

    def _note(self, _connection: Connection, notice: Command) -> None:
        self.notices.append(notice)

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: Body | bytes | None = None
    ) -> Command:
        content = encode_body(body) if isinstance(body, Body) else body
        return await self._client.call(ADDRESS, Command(code=code, ext=ext, body=content))

    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: Body | bytes | None = None
    ) -> Command:
        """Ask, and see to it that notices to others have arrived as well."""
        answer = await self.ask(code, ext, body)
        await self._clock.drain()
        return answer

    async def oneway(self, code: int, body: Body) -> None:
        await self._client.oneway(ADDRESS, Command(code=code, body=encode_body(body)))
        await self._clock.drain()

    async def join(
        self, group: str, *topics: str, client_id: str = "c", **fields: Any
    ) -> dict[str, str]:
        """A heartbeat of one consumer group; the ext fields of its answer."""
        subscriptions = [SubscriptionData(topic=topic, sub_string="*") for topic in topics]
        beat = heartbeat(consumer(group, *subscriptions), client_id=client_id, **fields)
        answer = await self.call(RequestCode.HEART_BEAT, {}, beat)
        assert answer.code == 0
        return answer.ext or {}

    async def connections(self, group: str) -> ConsumerConnection:
        """The answer to 203."""
        answer = await self.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        assert answer.code == 0, answer.remark
        return decode_body(ConsumerConnection, answer.body or b"")

    @property
    def is_connected(self) -> bool:
        return self._client.connected(ADDRESS)

    async def disconnect(self) -> None:
        self._client.disconnect(ADDRESS)
        await self._clock.drain()

    async def close(self) -> None:
        await self._client.close()


class RawPeer(asyncio.Protocol):
    """A connection that writes any bytes and keeps the frames that come back."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._buffer = FrameBuffer()
        self._frames: list[Command] = []
        self.is_closed = False
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._frames += self._buffer.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True

    async def send(self, data: bytes) -> list[Command]:
        """Write a frame; everything that came since the last time."""
        assert self._transport is not None
        self._transport.write(data)
        await self._clock.drain()
        return self.take()

    def take(self) -> list[Command]:
        frames, self._frames = self._frames, []
        return frames

    def put_back(self, frames: Iterable[Command]) -> None:
        self._frames += frames

    async def close(self) -> None:
        assert self._transport is not None
        self._transport.close()
        await self._clock.drain()


def consumer(
    group: str,
    *subscriptions: SubscriptionData,
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
    message_model: MessageModel = MessageModel.CLUSTERING,
    unit_mode: bool = False,
) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type=consume_type,
        message_model=message_model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        subscription_data_set=list(subscriptions),
        unit_mode=unit_mode,
    )


def heartbeat(
    *consumers: ConsumerData,
    client_id: str = "c",
    producers: Collection[str] = (),
    fingerprint: int = 0,
    without_sub: bool = False,
) -> HeartbeatData:
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=list(consumers),
        producer_data_set=[ProducerData(group_name=name) for name in producers],
        heartbeat_fingerprint=fingerprint,
        without_sub=without_sub,
    )
