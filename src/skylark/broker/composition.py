"""Every object of a broker, made and wired in one place; nothing else happens here.

::

    connection -> Dispatcher -> handlers (handler_list) -> services -> tables, MessageStore
    another endpoint -> BrokerServices (api.py) -> services -> tables, MessageStore
    message can be read -> PullService -> held pulls
    peer closed, timer -> ClientLiveness -> tables of clients
    tables -> TableSaver -> disk;   topics -> Registration -> name servers
    MessageStore <-> Replication;   master's tables -> SlaveSync -> tables

:class:`skylark.broker.app.Broker` leads the life of a :class:`BrokerGraph`, which is made at start,
when the port is known: it stands in every record and in every answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Final

from skylark.broker.api import (
    ApiInterceptor,
    BrokerServices,
    EndTransactionRequest,
    InterceptorChain,
    RecallRequest,
    ReplyRequest,
    SendBackRequest,
    SendRequest,
)
from skylark.broker.config import BrokerConfig
from skylark.broker.delay.delay_levels import ScheduleService
from skylark.broker.delay.timer_service import TimerDoor, TimerService
from skylark.broker.groups.broadcast_offsets import BroadcastOffsets
from skylark.broker.groups.client_liveness import ClientLiveness
from skylark.broker.groups.client_service import ClientService
from skylark.broker.groups.consumer_filters import ConsumerFilterTable
from skylark.broker.groups.consumer_offsets import OffsetService, OffsetTable
from skylark.broker.groups.consumer_table import BATCH_MS, ConsumerTable
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.groups.queue_locks import LockService, QueueLocks
from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.handler_list import Handlers, handlers_of
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.overload_guard import (
    LoopWatch,
    OutstandingBytes,
    OverloadGuard,
    SlowGroupWatch,
    WatchedClock,
)
from skylark.broker.pull.handlers import PullHandlers
from skylark.broker.pull.pull_checks import PullChecks
from skylark.broker.pull.pull_filters import PullFilters
from skylark.broker.pull.pull_messages import PullCounters, PullPolicy, PullService
from skylark.broker.remoting_interception import RemotingInterception
from skylark.broker.send.handlers import PutHandlers, SendCodec, codecs_of
from skylark.broker.send.message_policy import Diverter
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.put_pipeline import PutPipeline
from skylark.broker.send.recall import RecallStep
from skylark.broker.send.reply_handlers import ReplyStep
from skylark.broker.send.send_back import SendBackStep
from skylark.broker.send.send_checks import SendChecks
from skylark.broker.send.send_step import RetryChecks, SendStep
from skylark.broker.service_interception import intercept
from skylark.broker.slave.metadata_sync import SlaveSync, SlaveTables
from skylark.broker.slave.slave_deliveries import delivery_copies
from skylark.broker.stats.broker_stats import BrokerStats, idle_max_ms
from skylark.broker.stats.metrics_exporter import Exporter
from skylark.broker.stats.retention_watch import RetentionWatch
from skylark.broker.stats.stats_sampler import StatsSampler
from skylark.broker.stats.store_stats import DayTotals, StoreStats
from skylark.broker.table_saver import (
    CONFIG_DIRECTORY,
    SLOW_INTERVAL_MS,
    InThread,
    SettingsFile,
    TableSaver,
    load_tables,
)
from skylark.broker.topics.attributes import QUEUE_TYPE
from skylark.broker.topics.config_rebuild import LostTopicsCheck
from skylark.broker.topics.registration import MasterAddress, Registration
from skylark.broker.topics.topic_table import TopicTable
from skylark.broker.transaction.check_back import TransactionParts
from skylark.broker.transaction.end_transaction import EndTransactionStep
from skylark.broker.transaction.half_batches import SendHalvesRequest, SendHalvesStep
from skylark.broker.transaction.half_message import topic_of_half
from skylark.broker.transaction.handlers import EndTransactionCodec, SendHalvesCodec
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.clock import Clock
from skylark.core.config import InvalidConfigError
from skylark.core.hashing import UniqueIdGenerator
from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.filter.bloom import BloomFilter
from skylark.net.busy_poller import BusyPoller
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, Interceptor
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.net.transport import Network, TcpNetwork
from skylark.replication.replication_service import Replication
from skylark.store.config import BrokerRole
from skylark.store.config_files import (
    CONSUMER_FILTERS,
    DELAY_OFFSETS,
    MESSAGE_REQUEST_MODES,
    TRANSACTION_METRICS,
    ConfigFiles,
)
from skylark.store.file_system import FileSystem
from skylark.store.message_store import MessageStore
from skylark.store.reput import Arrival
from skylark.store.timer.timer_store import TimerStore
from skylark.wire.codes import RequestCode
from skylark.wire.message import pack_host

#: Portions in which answers leave. Larger than those of requests: a client with many threads pays
#: for each portion, while nobody waits long for one, for requests that come together are one work.
#: A Java consumer that catches up has its pulls of eight queues answered together, and gets 9 %
#: more messages than in portions of 32 KB.
ANSWERS_PER_WRITE_MAX: Final = 64
ANSWER_BYTES_PER_WRITE_MAX: Final = 128 << 10
#: Told of every message: what the broker itself reads.
_AWAITED_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
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
        api_interceptors: Iterable[ApiInterceptor],
        given: Mapping[str, str] | None,
    ) -> None:
        self.loop_watch = LoopWatch(clock)
        clock = self.clock = WatchedClock(clock, self.loop_watch)
        in_thread = clock.watched(in_thread)
        self.live = LiveSettings(config, now_ms=clock.now_ms(), given=given)
        self.exporter = Exporter(config, network, clock)
        self._make_tables(config)
        self.config_files = ConfigFiles(files, config.store.store_path_root_dir / CONFIG_DIRECTORY)
        self.saver = TableSaver(self.config_files, clock, in_thread=in_thread)
        self.saved = self.saver.add_tables(self.live, self.topics, self.groups, self.offsets)
        self.modes_saved = self.saver.on_change(MESSAGE_REQUEST_MODES, self.request_modes.snapshot)
        self._store_host = _store_host(config)
        self._lost_topics = LostTopicsCheck(config, self.topics, files)
        self.store = MessageStore(
            config.store,
            store_host=self._store_host,
            scheduler=clock,
            post=partial(_post_to, asyncio.get_running_loop(), clock),
            files=files,
            on_arrival=self._arrived,
            is_awaited=self._is_awaited,
            on_delete=lambda *gone: self.retention_watch.deleting(*gone),
            watch=partial(_watch, asyncio.get_running_loop(), clock),
        )
        self.retention_watch = RetentionWatch(
            self.live, self.store, self.offsets, self.consumers, clock
        )
        self.stats = BrokerStats(config.broker_cluster_name)
        self.store_stats = StoreStats(clock.now_ms())
        self.sampler = StatsSampler(self.stats, self.store_stats, DayTotals(), clock)
        self.outstanding = OutstandingBytes(self.held_size, config.held_size_max)
        self.guard = OverloadGuard(
            self.live,
            self.loop_watch,
            clock,
            arrival_of=attrgetter("arrived_at"),
            outstanding=self.outstanding,
            pool_is_empty=lambda: self.store.is_busy,
        )
        self._make_services(config, files, in_thread)
        self._make_client(config, network)
        self._make_replication(config, network, files, in_thread)
        self._make_handlers(files)
        #: What endpoints may use.
        self.services = intercept(
            self._broker_services(InterceptorChain(api_interceptors)),
            partial(topic_of_half, self.store),
        )
        self._make_servers(network, files, in_thread, tuple(interceptors))
        self.exporter.watch(self)
        self._set_limits(config)
        self.live.follow(self._follow)

    def _make_services(self, config: BrokerConfig, files: FileSystem, in_thread: InThread) -> None:
        clock = self.clock
        timer_store = self._timer_store(config, files)
        door = None if timer_store is None else TimerDoor(self.live, timer_store, clock)
        self.writer = MessageWriter(
            self.store,
            Diverter(len(config.store.delay_levels_ms), door),
            self.store_stats,
            clock,
            appended=self.guard.appended,
        )
        parts = TransactionParts(
            self.live, self.writer, self.producers, self.topics, self.offsets, self.stats, clock
        )
        self.transactions = TransactionService(parts)
        self.schedule = ScheduleService(self.live, self.writer, self.topics, self.stats, clock)
        self.timer: TimerService | None = None
        if timer_store is not None:
            self.timer = TimerService(
                self.live, timer_store, self.writer, self.stats, clock, in_thread=in_thread
            )

    def _make_client(self, config: BrokerConfig, network: Network) -> None:
        clock = self.clock
        self.limits = NetLimits(
            frames_per_write_max=ANSWERS_PER_WRITE_MAX,
            bytes_per_write_max=ANSWER_BYTES_PER_WRITE_MAX,
            connections_max=config.connection_count_max,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            write_buffer_max=config.write_buffer_size_max,
        )
        self.client = RemotingClient(
            network, clock, limits=self.limits, stamp=self.loop_watch.arrived_at
        )
        self.registration = Registration(
            self.live,
            self.topics,
            self.client,
            clock,
            on_master=self._master_changed,
        )

    def _make_replication(
        self, config: BrokerConfig, network: Network, files: FileSystem, in_thread: InThread
    ) -> None:
        self.replication = Replication(
            self.store,
            config.replication,
            network,
            self.clock,
            call=self.client.call,
            has_name_servers=lambda: bool(self.live.current.namesrv_addresses),
        )
        self.slave: SlaveSync | None = None
        if config.is_slave:
            self.slave = SlaveSync(
                self.live,
                SlaveTables(self.topics, self.groups, self.offsets, self.request_modes),
                delivery_copies(files, config, self.config_files, self.store),
                self.clock,
                call=self.client.call,
                delete_queues=self.delete_queues,
                modes_saved=self.modes_saved.mark,
                in_thread=in_thread,
            )

    def _make_servers(
        self,
        network: Network,
        files: FileSystem,
        in_thread: InThread,
        interceptors: tuple[Interceptor, ...],
    ) -> None:
        self.pull_handlers = PullHandlers(self.services.pulls)
        settings_file = SettingsFile(files, self.live, in_thread=in_thread)
        self._make_put_handlers()
        shared = handlers_of(self, files, settings_file)
        if self.services.interceptors:
            interceptors = (RemotingInterception(self.services.interceptors), *interceptors)
        interceptors = (*interceptors, self.guard)
        if self.exporter.is_on:
            interceptors += (self.exporter.rpc_times,)
        window_s = self.live.current.busy_poll_micros / 1e6
        self.poller = BusyPoller(window_s) if window_s and isinstance(network, TcpNetwork) else None
        self.server = self._server([*shared, self.pull_handlers], interceptors, network)
        self.fast_server = self._server(shared, interceptors, network)

    def _timer_store(self, config: BrokerConfig, files: FileSystem) -> TimerStore | None:
        if not config.timer_wheel_enable or config.store.broker_role is BrokerRole.SLAVE:
            return None
        root = config.store.store_path_root_dir
        return TimerStore(
            files, root, self.config_files, root / CONFIG_DIRECTORY, config.timer_options
        )

    def _make_tables(self, config: BrokerConfig) -> None:
        self.topics = TopicTable(self.live, self.clock)
        self.groups = GroupTable(self.live, self.clock)
        self.offsets = OffsetTable(self.live, self.clock)
        self.consumers = ConsumerTable()
        self.producers = ProducerTable()
        self.request_modes = RequestModes()
        self.locks = QueueLocks()
        self.filters = ConsumerFilterTable(
            BloomFilter(
                config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
            ),
            dead_kept_ms=lambda: self.live.current.filter_data_clean_time_span,
        )

    def _make_handlers(self, files: FileSystem) -> None:
        self.liveness = ClientLiveness(
            self.consumers, self.producers, self.locks, self.filters, self.clock
        )
        self.slow_groups = SlowGroupWatch(self.live, self.stats, self.groups, self.clock)
        self.send_checks = SendChecks(self.live, self.topics, self.clock)
        self.durability = Durability(self.store, files, self.saved.topics)
        self._make_pipeline()
        filters = PullFilters(
            self.live,
            self.groups,
            self.consumers,
            self.filters,
            steady_ms=self.clock.steady_ms,
        )
        self.pulls = PullService(
            PullPolicy(self.live, self._has_master),
            PullChecks(self.live, self.topics, self.groups, filters),
            self.store,
            self.offsets,
            BroadcastOffsets(self.live, self.consumers, self.offsets, self.store, self.clock),
            PullCounters(self.stats, self.store_stats, self.store, self.topics, self.clock),
            self.clock,
            self.loop_watch.arrived_at,
        )

    def _broker_services(self, interceptors: InterceptorChain) -> BrokerServices:
        return BrokerServices(
            puts=self.puts,
            pulls=self.pulls,
            offsets=OffsetService(self.store, self.topics, self.groups, self.offsets),
            locks=LockService(self.locks, self.clock),
            clients=ClientService(
                self.live,
                self.topics,
                self.groups,
                self.consumers,
                self.producers,
                self.filters,
                self.liveness,
                self.clock,
            ),
            topics=self.topics,
            groups=self.groups,
            interceptors=interceptors,
        )

    def _make_pipeline(self) -> None:
        """All that stores messages of clients."""
        retries = self.retries = RetryChecks(
            self.groups,
            self.topics,
            self.locks,
            steady_ms=self.clock.steady_ms,
            on_dead_letter=lambda group, topic: self.exporter.dead_letter(group, topic),
        )
        sends = SendStep(
            self.send_checks,
            self.durability,
            self.writer,
            self.topics,
            retries,
            self.stats,
            self.transactions,
            UniqueIdGenerator(
                ip=self._store_host[:-_PORT_SIZE],
                pid=os.getpid(),
                salt=self.clock.now_ms(),
                now_ms=self.clock.now_ms,
            ),
        )
        halves = SendHalvesStep(
            self.send_checks, self.durability, self.store, self.stats, self.transactions
        )
        decisions = EndTransactionStep(self.transactions, self.durability)
        self.puts = PutPipeline(
            self.writer,
            self.durability,
            {
                SendRequest: sends,
                SendHalvesRequest: halves,
                EndTransactionRequest: decisions,
                SendBackRequest: SendBackStep(
                    self.live,
                    self.writer,
                    self.topics,
                    self.groups,
                    self.stats,
                    self.durability,
                    on_dead_letter=self.exporter.dead_letter,
                ),
                ReplyRequest: ReplyStep(
                    self.send_checks,
                    self.durability,
                    self.writer,
                    self.topics,
                    self.producers,
                    self.stats,
                    self.clock,
                ),
                RecallRequest: RecallStep(
                    self.live, self.writer, self.topics, self.stats, self.durability, self.clock
                ),
            },
            after_put=[decisions.after_put],
        )

    def _make_put_handlers(self) -> None:
        send_codec = SendCodec(self.send_checks, self._store_host)
        self.put_handlers = PutHandlers(
            self.services.puts,
            {
                **codecs_of(
                    send_codec,
                    (
                        RequestCode.SEND_MESSAGE,
                        RequestCode.SEND_MESSAGE_V2,
                        RequestCode.SEND_BATCH_MESSAGE,
                    ),
                ),
                RequestCode.SEND_HALVES: SendHalvesCodec(self.send_checks),
                RequestCode.END_TRANSACTION: EndTransactionCodec(),
            },
        )

    def _server(
        self, handlers: Iterable[Handlers], interceptors: Iterable[Interceptor], network: Network
    ) -> RemotingServer:
        config = self.live.current
        dispatcher = Dispatcher(interceptors, tasks_max=config.request_count_max)
        for handler in handlers:
            handler.add_to(dispatcher)
        if self.poller is not None:
            dispatcher.after_runs = self.poller.handled
        return RemotingServer(
            dispatcher,
            network,
            self.clock,
            limits=self.limits,
            serialize_type=config.serialize_type.value,
            stamp=self.loop_watch.arrived_at,
        )

    @property
    def servers(self) -> tuple[RemotingServer, RemotingServer]:
        return self.server, self.fast_server

    # --- between the parts ------------------------------------------------------------------------

    def load(self) -> None:
        """Take over the tables that the last run has left."""
        load_tables(self.config_files, self.topics, self.groups, self.offsets)
        self.request_modes.load(self.config_files.load(MESSAGE_REQUEST_MODES))
        self.filters.load(self.config_files.load(CONSUMER_FILTERS), self.clock.now_ms())
        self.saver.every(
            CONSUMER_FILTERS, self.filters.snapshot, interval_ms=lambda: SLOW_INTERVAL_MS
        )

    def open_store(self) -> None:
        """Take over the messages. May take long, and may run in a thread while nothing is served:
        whoever opens a store owns it, and hands it over by returning."""
        self._lost_topics.check_folders()
        self.store.open(is_batch_topic=self._is_batch_topic)
        self._lost_topics.check(self.store.queues.topics())
        if self.store.replica is None:
            self.transactions.recover()
        else:
            self.store.replica.on_grown = self.pulls.waiting.queues_grown

    def bring_to_disk(self) -> None:
        """The end of an orderly stop, after ``store.stop()``; in any thread, as ``open_store``."""
        self.store.bring_to_disk()
        if self.timer is not None:
            self.timer.save()

    def resume(self) -> None:
        """Take over where the delivery of messages has stopped; after the store was opened."""
        if self.timer is not None:
            self.timer.load()
        self.schedule.load(self.config_files.load(DELAY_OFFSETS))
        if self.slave is not None:
            self.slave.load(self.config_files, self.saver)
        else:
            self.saver.every(
                DELAY_OFFSETS,
                self.schedule.snapshot,
                interval_ms=lambda: self.live.current.flush_delay_offset_interval,
            )
        counts = self.transactions.counts
        counts.load(self.config_files.load(TRANSACTION_METRICS))
        self.saver.every(
            TRANSACTION_METRICS,
            counts.snapshot,
            interval_ms=lambda: self.live.current.transaction_metric_flush_interval,
            changes=lambda: counts.change_count,
        )

    def _follow(self, config: BrokerConfig) -> None:
        """Hand changed settings to the parts that do not ask ``live`` for them."""
        self.store.apply_settings(config.store)
        self.replication.follow(config.replication)
        self._set_limits(config)

    def _set_limits(self, config: BrokerConfig) -> None:
        consumers, producers = self.consumers, self.producers
        consumers.notify_enabled = config.notify_consumer_ids_changed_enable
        consumers.notices.batch_ms = 0 if config.real_time_notify_consumer_change else BATCH_MS
        consumers.channel_expired_ms = config.channel_expired_timeout
        consumers.compensation_ms = config.subscription_expired_timeout
        producers.channel_expired_ms = config.channel_expired_timeout
        self.stats.idle_max_ms = idle_max_ms(config.max_stats_idle_time_in_minutes)
        self.outstanding.size_max = config.held_size_max
        self.pulls.held.count_max = config.held_pull_count_max

    def _is_batch_topic(self, topic: str) -> bool:
        config = self.topics.get(topic)
        return config is not None and config.attributes.get(QUEUE_TYPE) == "BatchCQ"

    def _is_awaited(self, topic: str, queue_id: int) -> bool:
        """Whether :meth:`_arrived` would do anything; asked for every message."""
        return (topic, queue_id) in self.pulls.waiting.awaited or topic in _AWAITED_TOPICS

    def _arrived(self, arrival: Arrival) -> None:
        self.pulls.waiting.arrived(arrival)
        if arrival.topic == SCHEDULE_TOPIC:
            self.schedule.arrived(arrival)
        elif arrival.topic == TIMER_TOPIC and self.timer is not None:
            self.timer.wake()

    def _master_changed(self, master: MasterAddress | None) -> None:
        """Who name servers lose is not given up: it may come back, and links to it may live."""
        if master is not None and self.slave is not None:
            self.replication.set_master(master.ha_addr, master.addr)
            self.slave.set_master(master.addr)
        self.pulls.waiting.wake_all()

    def _has_master(self) -> bool:
        """Whether a slave can send clients to its master; name servers hear late of its end."""
        if self.slave is None or self.registration.master is None:
            return False
        return self.slave.is_reached and not self.replication.status.is_cut_off

    def delete_queues(self, topics: Collection[str]) -> None:
        """Topics are gone: forget their messages, and what was counted of them."""
        for topic in topics:
            self.store.delete_topic(topic)
            self.stats.topic_deleted(topic)
            self.transactions.counts.topic_deleted(topic)
            if self.timer is not None:
                self.timer.topic_deleted(topic)

    def held_size(self) -> int:
        """Bytes held for all clients."""
        return sum(server.held_size() for server in self.servers)

    def connections(self) -> list[Connection]:
        return [connection for server in self.servers for connection in server.connections]


def _post_to(
    loop: asyncio.AbstractEventLoop, clock: WatchedClock, callback: Callable[[], None]
) -> None:
    """Have the loop do what a thread of the store has found to be done."""
    loop.call_soon_threadsafe(clock.run, callback)


def _watch(
    loop: asyncio.AbstractEventLoop, clock: WatchedClock, fd: int, callback: Callable[[], None]
) -> Callable[[], object]:
    """Have the loop do what the store wants to do when a descriptor can be read."""
    loop.add_reader(fd, clock.run, callback)
    return partial(loop.remove_reader, fd)


def _store_host(config: BrokerConfig) -> bytes:
    host = config.broker_ip1 or config.bind_address
    try:
        return pack_host(host, config.listen_port)
    except ValueError as error:
        raise InvalidConfigError(
            [f"brokerIP1: {host} is not an address, which it must be to stand in message ids"]
        ) from error
