"""Every object of a broker, made and wired in one place; nothing else happens here.

::

    connection -> Dispatcher -> handlers -> tables, MessageStore
    message can be read -> PullHandlers -> held pulls
    connection closed, timer -> ClientLiveness -> tables of clients, held pulls
    tables -> TableSaver -> disk;   topics -> Registration -> name servers

:class:`skylark.broker.app.Broker` leads the life of a :class:`BrokerGraph`, which is made at start,
when the port is known: it stands in every record and in every answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from skylark.broker.attributes import QUEUE_TYPE
from skylark.broker.client_liveness import ClientLiveness
from skylark.broker.config import BrokerConfig
from skylark.broker.consumers import ConsumerTable
from skylark.broker.filters import ConsumerFilterTable
from skylark.broker.groups import GroupTable
from skylark.broker.handlers.admin.broker import SettingsHandlers
from skylark.broker.handlers.admin.group import GroupHandlers
from skylark.broker.handlers.admin.topic import TopicHandlers
from skylark.broker.handlers.client import ClientHandlers
from skylark.broker.handlers.lock import LockHandlers
from skylark.broker.handlers.offset import OffsetHandlers
from skylark.broker.handlers.pull import PullHandlers
from skylark.broker.handlers.query import QueryHandlers
from skylark.broker.handlers.send import SendHandlers
from skylark.broker.live_settings import LiveSettings
from skylark.broker.message_writer import MessageWriter
from skylark.broker.offsets import OffsetTable
from skylark.broker.order_locks import QueueLocks
from skylark.broker.overload import LoopWatch, OverloadGuard
from skylark.broker.persist import (
    SLOW_INTERVAL_MS,
    InThread,
    SettingsFile,
    TableSaver,
    load_tables,
)
from skylark.broker.producers import ProducerTable
from skylark.broker.registration import Registration
from skylark.broker.rewriting import Diverter
from skylark.broker.sampling import StatsSampler
from skylark.broker.stats import BrokerStats
from skylark.broker.store_stats import DayTotals, StoreStats
from skylark.broker.topics import TopicTable
from skylark.core.clock import Clock
from skylark.core.config import InvalidConfigError
from skylark.core.hashing import UniqueIdGenerator
from skylark.filter.bloom import BloomFilter
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, Interceptor
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.net.transport import Network
from skylark.store.config_files import CONSUMER_FILTERS, ConfigFiles
from skylark.store.file_system import FileSystem
from skylark.store.message_store import MessageStore
from skylark.store.reput import Arrival
from skylark.wire.message import pack_host

CONFIG_DIRECTORY: Final = "config"
#: How long notices of changed groups are saved up without ``realTimeNotifyConsumerChange``.
NOTICE_BATCH_MS: Final = 15_000
_PORT_SIZE: Final = 4  # bytes of the port in a packed host


class BrokerGraph:
    """Every object of a broker, wired; its life is led by :class:`Broker`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        network: Network,
        clock: Clock,
        files: FileSystem,
        in_thread: InThread,
        interceptors: Iterable[Interceptor],
        given: Mapping[str, str] | None,
        ram_size: int | None,
    ) -> None:
        self.clock = clock
        self.live = LiveSettings(config, now_ms=clock.now_ms(), given=given)
        self._make_tables(config)
        self.config_files = ConfigFiles(files, config.store.store_path_root_dir / CONFIG_DIRECTORY)
        self.saver = TableSaver(self.config_files, clock, in_thread=in_thread)
        self.saved = self.saver.add_tables(self.live, self.topics, self.groups, self.offsets)
        self._store_host = _store_host(config)
        self.store = MessageStore(
            config.store,
            store_host=self._store_host,
            scheduler=clock,
            post=asyncio.get_running_loop().call_soon_threadsafe,
            files=files,
            on_arrival=self._arrived,
            ram_size=ram_size,
        )
        self.stats = BrokerStats(config.broker_cluster_name)
        self.store_stats = StoreStats(clock.now_ms())
        self.sampler = StatsSampler(self.stats, self.store_stats, DayTotals(), clock)
        self.guard = OverloadGuard(
            self.live, LoopWatch(clock), clock, pool_is_empty=lambda: self.store.is_busy
        )
        self.writer = MessageWriter(
            self.store,
            Diverter(len(config.store.delay_levels_ms)),
            self.store_stats,
            clock,
            appended=self.guard.appended,
        )
        self.limits = NetLimits(
            connections_max=config.connection_count_max,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            write_buffer_max=config.write_buffer_size_max,
        )
        self.client = RemotingClient(network, clock, limits=self.limits)
        self.registration = Registration(self.live, self.topics, self.client, clock)
        self._make_handlers()
        self.liveness = ClientLiveness(
            self.consumers,
            self.producers,
            self.locks,
            self.filters,
            clock,
            forget=[self.pulls.forget],
        )
        settings_file = SettingsFile(files, self.live, in_thread=in_thread)
        shared = [
            self.sends,
            OffsetHandlers(self.store, self.topics, self.groups, self.offsets),
            QueryHandlers(self.store),
            *self._client_handlers(),
            *self._admin_handlers(settings_file),
        ]
        interceptors = (*interceptors, self.guard)
        self.server = self._server([*shared, self.pulls], interceptors, network)
        self.fast_server = self._server(shared, interceptors, network)

    def _make_tables(self, config: BrokerConfig) -> None:
        self.topics = TopicTable(self.live, self.clock)
        self.groups = GroupTable(self.live, self.clock)
        self.offsets = OffsetTable(self.live, self.clock)
        self.consumers = ConsumerTable(
            notify_enabled=config.notify_consumer_ids_changed_enable,
            notice_batch_ms=0 if config.real_time_notify_consumer_change else NOTICE_BATCH_MS,
            channel_expired_ms=config.channel_expired_timeout,
        )
        self.producers = ProducerTable(channel_expired_ms=config.channel_expired_timeout)
        self.locks = QueueLocks()
        self.filters = ConsumerFilterTable(
            BloomFilter(
                config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
            )
        )

    def _make_handlers(self) -> None:
        self.sends = SendHandlers(
            self.live,
            self.writer,
            self.topics,
            self.groups,
            self.locks,
            self.stats,
            UniqueIdGenerator(
                ip=self._store_host[:-_PORT_SIZE],
                pid=os.getpid(),
                salt=self.clock.now_ms(),
                now_ms=self.clock.now_ms,
            ),
            self.clock,
            topics_saved=self.saved.topics,
            steady_ms=lambda: self.liveness.now_ms(),
        )
        self.pulls = PullHandlers(
            self.live,
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.consumers,
            self.filters,
            self.stats,
            self.store_stats,
            self.clock,
            steady_ms=lambda: self.liveness.now_ms(),
        )

    def _client_handlers(self) -> list[Any]:
        return [
            ClientHandlers(
                self.live,
                self.topics,
                self.groups,
                self.consumers,
                self.producers,
                self.filters,
                self.liveness,
                self.clock,
            ),
            LockHandlers(self.locks, self.liveness.now_ms),
        ]

    def _admin_handlers(self, settings_file: SettingsFile) -> list[Any]:
        return [
            TopicHandlers(
                self.live,
                self.topics,
                self.offsets,
                self.consumers,
                self.saved,
                delete_queues=self._delete_queues,
                announced=self.registration.announced,
            ),
            GroupHandlers(
                self.groups,
                self.consumers,
                self.producers,
                self.offsets,
                self.locks,
                self.saved,
                self.liveness.now_ms,
            ),
            SettingsHandlers(
                self.live,
                self.topics,
                settings_file,
                self.clock,
                register_all=self.registration.register_all,
            ),
        ]

    def _server(
        self, handlers: Iterable[Any], interceptors: Iterable[Interceptor], network: Network
    ) -> RemotingServer:
        config = self.live.current
        dispatcher = Dispatcher(interceptors, tasks_max=config.request_count_max)
        for handler in handlers:
            handler.add_to(dispatcher)
        server = RemotingServer(
            dispatcher,
            network,
            self.clock,
            limits=self.limits,
            serialize_type=config.serialize_type.value,
        )
        server.on_close(self.liveness.connection_closed)
        return server

    @property
    def servers(self) -> tuple[RemotingServer, RemotingServer]:
        return self.server, self.fast_server

    # --- between the parts ------------------------------------------------------------------------

    def load(self) -> None:
        """Take over what the last run has left: tables, then messages."""
        load_tables(self.config_files, self.topics, self.groups, self.offsets)
        self.filters.load(self.config_files.load(CONSUMER_FILTERS), self.clock.now_ms())
        self.saver.every(
            CONSUMER_FILTERS, self.filters.snapshot, interval_ms=lambda: SLOW_INTERVAL_MS
        )
        self.store.open(is_batch_topic=self._is_batch_topic)

    def _is_batch_topic(self, topic: str) -> bool:
        config = self.topics.get(topic)
        return config is not None and config.attributes.get(QUEUE_TYPE) == "BatchCQ"

    def _arrived(self, arrival: Arrival) -> None:
        self.pulls.arrived(arrival)

    def _delete_queues(self, topics: Collection[str]) -> None:
        for topic in topics:
            self.store.queues.destroy_topic(topic)
            self.stats.topic_deleted(topic)

    def connections(self) -> list[Connection]:
        return [connection for server in self.servers for connection in server.connections]


def _store_host(config: BrokerConfig) -> bytes:
    host = config.broker_ip1 or config.bind_address
    try:
        return pack_host(host, config.listen_port)
    except ValueError as error:
        raise InvalidConfigError(
            [f"brokerIP1: {host} is not an address, which it must be to stand in message ids"]
        ) from error
