"""The features that the others build on: store, topics, groups, statistics, overload protection.

:class:`BrokerContext` holds the settings, the clock, the network and the files of a broker, and
:class:`Feature` is the base class of all features. See :mod:`skylark.broker.features` for how they
are put together, and for how to add one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from skylark.broker.api import BrokerServices
from skylark.broker.config import BrokerConfig
from skylark.broker.groups.client_liveness import ClientLiveness
from skylark.broker.groups.client_service import ClientService
from skylark.broker.groups.consumer_filters import ConsumerFilterTable
from skylark.broker.groups.consumer_offsets import OffsetService, OffsetTable
from skylark.broker.groups.consumer_table import BATCH_MS, ConsumerTable
from skylark.broker.groups.handlers import (
    AssignmentHandlers,
    ClientHandlers,
    LockHandlers,
    OffsetHandlers,
)
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.groups.queue_assignment import AssignmentService
from skylark.broker.groups.queue_locks import LockService, QueueLocks
from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.overload_guard import (
    LoopWatch,
    OverloadGuard,
    SlowGroupWatch,
    WatchedClock,
)
from skylark.broker.overload.processor_wait import processor_wait
from skylark.broker.pull.held_pull_runner import HeldPullRunner
from skylark.broker.stats.broker_stats import BrokerStats, idle_max_ms
from skylark.broker.stats.consumer_lag import LagReport
from skylark.broker.stats.metrics_exporter import Exporter
from skylark.broker.stats.retention_watch import RetentionWatch
from skylark.broker.stats.stats_sampler import StatsSampler
from skylark.broker.stats.store_stats import DayTotals, StoreStats
from skylark.broker.table_saver import (
    CONFIG_DIRECTORY,
    SLOW_INTERVAL_MS,
    InThread,
    SavedTables,
    TableSaver,
)
from skylark.broker.topics.attributes import QUEUE_TYPE
from skylark.broker.topics.config_rebuild import LostTopicsCheck
from skylark.broker.topics.registration import Registration
from skylark.broker.topics.topic_routes import TopicRoutes
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.core.config import InvalidConfigError
from skylark.core.errors import StoreError
from skylark.core.subscribers import Subscribers
from skylark.filter.bloom import BloomFilter
from skylark.net.client import RemotingClient
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.transport import Network
from skylark.store.config_files import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    MESSAGE_REQUEST_MODES,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    ConfigFiles,
)
from skylark.store.file_system import FileSystem
from skylark.store.message_store import MessageStore
from skylark.store.reput import Arrival
from skylark.store.retention import OnDelete
from skylark.store.store_results import PutStatus
from skylark.wire.message import pack_host

#: Limits on what is written to a socket at once. Larger than those of requests: a client with many
#: threads pays for each write, and waits for none of them long. A Java consumer that catches up has
#: its pulls of eight queues answered together, and gets 9 % more messages than with 32 KB.
ANSWERS_PER_WRITE_MAX: Final = 64
ANSWER_BYTES_PER_WRITE_MAX: Final = 128 << 10


class BrokerContext:
    """Settings, clock, network and files of one broker: what no feature owns."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        network: Network,
        clock: Clock,
        files: FileSystem,
        in_thread: InThread,
        given: Mapping[str, str] | None,
    ) -> None:
        """``given``: the properties that the broker was started with, known or not."""
        self.live = LiveSettings(config, now_ms=clock.now_ms(), given=given)
        self.loop_watch = LoopWatch(clock, processor_wait=processor_wait(clock))
        #: Reports the work that it starts to ``loop_watch``.
        self.clock = WatchedClock(clock, self.loop_watch)
        #: Runs a function that blocks, in a thread.
        self.in_thread = self.clock.watched(in_thread)
        self.network = network
        self.net_limits = NetLimits(
            frames_per_write_max=ANSWERS_PER_WRITE_MAX,
            bytes_per_write_max=ANSWER_BYTES_PER_WRITE_MAX,
            connections_max=config.connection_count_max,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            write_buffer_max=config.write_buffer_size_max,
        )
        #: For requests to name servers and to the master.
        self.client = RemotingClient(
            network, self.clock, limits=self.net_limits, watch=self.loop_watch
        )
        self.files = files
        #: The directory of the tables, and what saves them.
        self.config_files = ConfigFiles(files, config.store.store_path_root_dir / CONFIG_DIRECTORY)
        self.saver = TableSaver(self.config_files, self.clock, in_thread=self.in_thread)
        #: The packed address of this broker, as it stands in records and message ids.
        self.store_host = _store_host(config)


def _store_host(config: BrokerConfig) -> bytes:
    host = config.broker_ip1 or config.bind_address
    try:
        return pack_host(host, config.listen_port)
    except ValueError as error:
        raise InvalidConfigError(
            [f"brokerIP1: {host} is not an address, which it must be to stand in message ids"]
        ) from error


class Handlers(Protocol):
    """The handlers of some request codes."""

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""


class Feature:
    """One feature: what it serves, and what it does when the broker starts and stops.

    A subclass makes its objects in the constructor, where nothing runs yet and nothing is read
    from the disk. All members below are optional.
    """

    def handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        """The handlers of its requests; those of clients call ``services``, where interceptors are
        called around each operation."""
        del services
        return ()

    def main_port_handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        """The handlers that only the main port has: the broker may hold their requests."""
        del services
        return ()

    async def start(self) -> None:
        """Load what was saved, and start the background work; before the ports open.

        If this raises, nothing of the feature runs.
        """

    async def drain(self) -> None:
        """Answer the requests that wait; new ones are refused already, connections still open."""

    async def stop(self) -> None:
        """End the background work; after the ports were closed."""


class TopicsFeature(Feature):
    """The topics, and their registration with the name servers."""

    def __init__(self, context: BrokerContext) -> None:
        live, clock = context.live, context.clock
        self._context = context
        self.table = TopicTable(live, clock)
        self.saved = context.saver.on_change(TOPICS, self.table.snapshot)
        self.table.changes.subscribe(lambda _change: self.saved.mark())
        #: For the start of the store, which has the queues of all topics.
        self.lost_topics = LostTopicsCheck(live.current, self.table, context.files)
        self.routes = TopicRoutes(live, self.table, context.client, clock)
        #: Starts last: clients come as soon as the name servers know the broker.
        self.registration = Registration(live, self.table, context.client, clock)
        #: Publishes the name of each topic whose messages are to be deleted.
        self.deleted: Subscribers[str] = Subscribers()

    async def start(self) -> None:
        self.table.load(self._context.config_files.load(TOPICS))

    async def stop(self) -> None:
        await self._context.client.close()  # all others that use it have stopped

    def delete_queues(self, topics: Collection[str]) -> None:
        """Delete the messages of deleted topics, and what was counted of them."""
        for topic in topics:
            self.deleted.publish(topic)


class StoreFeature(Feature):
    """The message store; features subscribe here to what happens in it."""

    #: The pulls that wait; set by the feature that holds them.
    held_pulls: HeldPullRunner

    def __init__(self, context: BrokerContext, topics: TopicsFeature) -> None:
        loop, clock = asyncio.get_running_loop(), context.clock

        def post(callback: Callable[[], None]) -> None:
            """Run on the loop what a thread of the store has found to do."""
            loop.call_soon_threadsafe(clock.run, callback)

        def watch(fd: int, callback: Callable[[], None]) -> Callable[[], object]:
            """Run on the loop what the store does when a descriptor can be read."""
            loop.add_reader(fd, clock.run, callback)
            return partial(loop.remove_reader, fd)

        self._live = context.live
        self._in_thread = context.in_thread
        self._topics = topics.table
        self._lost_topics = topics.lost_topics
        self.store = MessageStore(
            context.live.current.store,
            store_host=context.store_host,
            scheduler=clock,
            post=post,
            files=context.files,
            on_arrival=self._arrived,
            is_awaited=self._is_awaited,
            on_delete=lambda *range_: self.before_delete(*range_),
            watch=watch,
        )
        topics.deleted.subscribe(self.store.delete_topic)
        #: Called for each message of a topic that can be read; for topics of the broker itself.
        self.on_arrival: dict[str, Callable[[Arrival], object]] = {}
        #: The topics for whose messages ``on_awaited`` is called, with how often they are awaited.
        self.awaited_topics: dict[str, int] = {}
        self.on_awaited: Callable[[Arrival], object] = lambda _arrival: None
        #: Called before a file of the log is deleted (see ``retention.OnDelete``).
        self.before_delete: OnDelete = lambda *_range: None
        #: Called in a thread, after the store was opened and before others use it.
        self.after_open: list[Callable[[], None]] = []
        #: Called in a thread at a stop, when the log is on disk and before the store closes.
        self.after_sync: list[Callable[[], None]] = []

    def _is_awaited(self, topic: str, queue_id: int) -> bool:
        """Whether :meth:`_arrived` would do anything; called for every message."""
        return (
            (topic, queue_id) in self.held_pulls.awaited
            or topic in self.awaited_topics
            or topic in self.on_arrival
        )

    def _arrived(self, arrival: Arrival) -> None:
        self.held_pulls.arrived(arrival)
        if arrival.topic in self.awaited_topics:
            self.on_awaited(arrival)
        if arrival.topic in self.on_arrival:
            self.on_arrival[arrival.topic](arrival)

    async def start(self) -> None:
        """Recover in a thread, so that a name server on this loop still answers."""
        try:
            await _to_the_end(self._in_thread(self._open))
            self.store.start()
        except BaseException:
            await self.stop()
            raise
        self._live.changes.subscribe(lambda config: self.store.apply_settings(config.store))

    def _open(self) -> None:
        self._lost_topics.check_folders()
        self.store.open(is_batch_topic=self._is_batch_topic)
        self._lost_topics.check(self.store.queues.topics())
        if self.store.replica is not None:
            self.store.replica.on_grown = self.held_pulls.queues_grown
        for function in self.after_open:
            function()

    def _is_batch_topic(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.attributes.get(QUEUE_TYPE) == "BatchCQ"

    async def stop(self) -> None:
        self.store.stop()
        try:
            await _to_the_end(self._in_thread(self._sync))
        finally:
            self.store.close()

    def _sync(self) -> None:
        self.store.bring_to_disk()
        for function in self.after_sync:
            function()


async def _to_the_end(work: Awaitable[None]) -> None:
    """Wait for a thread, which cannot be stopped: a caller that is cancelled waits as well."""
    future = asyncio.ensure_future(work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


class GroupsFeature(Feature):
    """Clients and their groups: subscriptions, offsets, queue locks, queue assignment."""

    def __init__(
        self, context: BrokerContext, storage: StoreFeature, topics: TopicsFeature
    ) -> None:
        live, clock, saver = context.live, context.clock, context.saver
        self._context = context
        self.table = GroupTable(live, clock)
        self.offsets = OffsetTable(live, clock)
        self.consumers = ConsumerTable()
        self.producers = ProducerTable()
        self.request_modes = RequestModes()
        self.locks = QueueLocks()
        self.filters = ConsumerFilterTable(
            BloomFilter(
                live.current.max_error_rate_of_bloom_filter,
                live.current.expect_consumer_num_use_filter,
            ),
            dead_kept_ms=lambda: live.current.filter_data_clean_time_span,
        )
        self.saved = SavedTables(
            topics=topics.saved,
            groups=saver.on_change(SUBSCRIPTION_GROUPS, self.table.snapshot),
            offsets=saver.every(
                CONSUMER_OFFSETS,
                self.offsets.snapshot,
                interval_ms=lambda: live.current.flush_consumer_offset_interval,
                changes=lambda: self.offsets.change_count,
                before_write=partial(_log_on_disk, self.offsets, storage.store),
            ),
        )
        self.table.changes.subscribe(lambda _version: self.saved.groups.mark())
        self.modes_saved = saver.on_change(MESSAGE_REQUEST_MODES, self.request_modes.snapshot)
        self.liveness = ClientLiveness(
            self.consumers, self.producers, self.locks, self.filters, clock
        )
        self.offset_service = OffsetService(storage.store, topics.table, self.table, self.offsets)
        self.lock_service = LockService(self.locks, clock)
        self.client_service = ClientService(
            live,
            topics.table,
            self.table,
            self.consumers,
            self.producers,
            self.filters,
            self.liveness,
            clock,
        )
        self._assignment = AssignmentService(
            live,
            topics.table,
            self.table,
            self.consumers,
            self.request_modes,
            topics.routes,
            modes_saved=self.modes_saved,
        )
        self._apply(live.current)
        live.changes.subscribe(self._apply)

    def handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        return (
            OffsetHandlers(services.offsets),
            ClientHandlers(services.clients),
            LockHandlers(services.locks),
            AssignmentHandlers(self._assignment),
        )

    def _apply(self, config: BrokerConfig) -> None:
        consumers = self.consumers
        consumers.notify_enabled = config.notify_consumer_ids_changed_enable
        consumers.notices.batch_ms = 0 if config.real_time_notify_consumer_change else BATCH_MS
        consumers.channel_expired_ms = config.channel_expired_timeout
        consumers.compensation_ms = config.subscription_expired_timeout
        self.producers.channel_expired_ms = config.channel_expired_timeout

    async def start(self) -> None:
        files = self._context.config_files
        self.table.load(files.load(SUBSCRIPTION_GROUPS))
        self.offsets.load(files.load(CONSUMER_OFFSETS))
        self.request_modes.load(files.load(MESSAGE_REQUEST_MODES))
        self.filters.load(files.load(CONSUMER_FILTERS), self._context.clock.now_ms())
        self._context.saver.every(
            CONSUMER_FILTERS, self.filters.snapshot, interval_ms=lambda: SLOW_INTERVAL_MS
        )
        await self.liveness.start()

    async def drain(self) -> None:
        # The clients that remain need not learn that each of the others was disconnected.
        await self.liveness.stop()

    async def stop(self) -> None:
        await self.liveness.stop()


async def _log_on_disk(offsets: OffsetTable, store: MessageStore) -> None:
    """Wait until the disk has what the offsets of POP depend on; raises StoreError."""
    if not offsets.log_grown:
        return
    offsets.log_grown = False
    try:
        await _sync_log(store)
    except BaseException:
        offsets.log_grown = True
        raise


async def _sync_log(store: MessageStore) -> None:
    """Wait until what the log has now is on disk, however slow that is; raises if a sync fails."""
    failed_before = store.failed_sync_count
    status = None
    while status is not PutStatus.PUT_OK:
        if store.failed_sync_count > failed_before or store.has_stopped:
            raise StoreError("the log cannot be written to disk")
        answered: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        store.when_all_on_disk(partial(_answer, answered))
        status = await answered


def _answer(future: asyncio.Future[PutStatus], status: PutStatus) -> None:
    if not future.done():
        future.set_result(status)


class StatsFeature(Feature):
    """Statistics, metrics, and the watch over messages that retention is about to delete."""

    def __init__(
        self,
        context: BrokerContext,
        storage: StoreFeature,
        topics: TopicsFeature,
        groups: GroupsFeature,
    ) -> None:
        live, clock, store = context.live, context.clock, storage.store
        self.broker_stats = BrokerStats(
            live.current.broker_cluster_name,
            idle_max_ms=lambda: idle_max_ms(live.current.max_stats_idle_time_in_minutes),
        )
        self.store_stats = StoreStats(clock.now_ms())
        self.sampler = StatsSampler(self.broker_stats, self.store_stats, DayTotals(), clock)
        self.retention_watch = RetentionWatch(live, store, groups.offsets, groups.consumers, clock)
        self.exporter = Exporter(live.current, context.network, clock)
        self.metrics = self.exporter.metrics
        storage.before_delete = self.retention_watch.deleting
        for counts in (self.broker_stats, self.exporter):
            topics.deleted.subscribe(counts.topic_deleted)
            groups.table.deleted.subscribe(counts.group_deleted)
        self.exporter.watch_topics(live, topics.table, self.broker_stats)
        self.exporter.watch_clients(groups.consumers, groups.producers)
        self.exporter.watch_store(store)
        self.lags = LagReport(
            topics.table, groups.table, groups.offsets, groups.consumers, store.reader, clock
        )
        self.exporter.watch_lags(self.lags)
        self.metrics.watch(
            "skylark_retention_endangered_messages",
            lambda: [
                ((each.group, each.topic), each.message_count)
                for each in self.retention_watch.endangered
            ],
        )
        self.metrics.watch(
            "skylark_name_servers",
            lambda: [
                ((address,), state is True) for address, state in topics.registration.states.items()
            ],
        )
        if self.exporter.is_on:
            context.loop_watch.on_turn = self.metrics.loop_turn.observe

    async def start(self) -> None:
        await self.exporter.start()
        await self.sampler.start()
        self.retention_watch.start()

    async def stop(self) -> None:
        self.retention_watch.stop()
        await self.sampler.stop()
        await self.exporter.stop()


class OverloadFeature(Feature):
    """Refuses requests that the broker cannot handle in time, and disables slow groups."""

    def __init__(
        self,
        context: BrokerContext,
        storage: StoreFeature,
        groups: GroupsFeature,
        stats: StatsFeature,
        held_size: Callable[[], int],
    ) -> None:
        """``held_size``: the bytes held for all clients."""
        live, clock = context.live, context.clock
        #: An interceptor of the remoting endpoint.
        self.guard = OverloadGuard(
            live,
            context.loop_watch,
            clock,
            held_size=held_size,
            pool_is_empty=lambda: storage.store.is_busy,
        )
        self._loop_watch = context.loop_watch
        self._slow_groups = SlowGroupWatch(live, stats.broker_stats, groups.table, clock)
        stats.metrics.watch("skylark_outstanding_bytes", held_size)
        stats.metrics.watch(
            "skylark_requests_refused_total",
            lambda: [((why.value,), count) for why, count in self.guard.refused_counts.items()],
        )

    async def start(self) -> None:
        self._slow_groups.start()

    async def stop(self) -> None:
        self._slow_groups.stop()
        self._loop_watch.close()


class BaseFeatures(NamedTuple):
    """The features of this module: every other feature may use them."""

    context: BrokerContext
    storage: StoreFeature
    topics: TopicsFeature
    groups: GroupsFeature
    stats: StatsFeature
    overload: OverloadFeature
