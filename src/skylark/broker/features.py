"""The features of a broker on the way of a message, and the requests of administrators.

Each class makes the objects of one folder of ``skylark/broker`` and connects them to the features
that its constructor is given; the features that these are built on stand in
:mod:`skylark.broker.base_features`. :mod:`skylark.broker.app` lists all of them in the order of the
start, and describes how to add one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from skylark.broker.admin.client_relay import RelayHandlers
from skylark.broker.admin.group_handlers import GroupHandlers
from skylark.broker.admin.handler_base import BrokerParts
from skylark.broker.admin.message_query import QueryHandlers
from skylark.broker.admin.offset_reset import ResetHandlers
from skylark.broker.admin.refused_requests import Refusals
from skylark.broker.admin.runtime_info import RuntimeHandlers
from skylark.broker.admin.settings_handlers import SettingsHandlers
from skylark.broker.admin.stats_handlers import StatsHandlers
from skylark.broker.admin.storage_handlers import StorageHandlers
from skylark.broker.admin.store_cleaning import CleaningHandlers
from skylark.broker.admin.table_export import SyncHandlers
from skylark.broker.admin.topic_handlers import TopicHandlers
from skylark.broker.api import (
    BrokerServices,
    EndTransactionRequest,
    RecallRequest,
    ReplyRequest,
    SendBackRequest,
    SendRequest,
)
from skylark.broker.base_features import BaseFeatures, BrokerContext, Feature, Handlers
from skylark.broker.config import BrokerConfig
from skylark.broker.delay.delay_levels import ScheduleService
from skylark.broker.delay.timer_service import TimerService
from skylark.broker.groups.broadcast_offsets import BroadcastOffsets
from skylark.broker.pull.cold_reads import ColdReads
from skylark.broker.pull.handlers import PullHandlers
from skylark.broker.pull.pull_checks import PullChecks
from skylark.broker.pull.pull_messages import PullCounters, PullPolicy, PullService
from skylark.broker.send.handlers import PutCodec, PutHandlers, SendCodec
from skylark.broker.send.message_policy import Diverter
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.put_pipeline import PutPipeline, PutStep
from skylark.broker.send.recall import RecallHandlers, RecallStep
from skylark.broker.send.reply_handlers import ReplyHandlers, ReplyStep
from skylark.broker.send.send_back import SendBackHandlers, SendBackStep
from skylark.broker.send.send_checks import SendChecks
from skylark.broker.send.send_step import RetryChecks, SendStep
from skylark.broker.slave.metadata_sync import SlaveSync, SlaveTables
from skylark.broker.slave.slave_deliveries import DeliveryCopies
from skylark.broker.stats.metrics_exporter import by_topic
from skylark.broker.table_saver import CONFIG_DIRECTORY, SettingsFile
from skylark.broker.topics.config_rebuild import save_new_topics
from skylark.broker.topics.registration import MasterAddress
from skylark.broker.transaction.check_back import TransactionParts
from skylark.broker.transaction.commit_runs import CommitRunRequest, CommitRunStep
from skylark.broker.transaction.end_transaction import EndTransactionStep
from skylark.broker.transaction.half_batches import SendHalvesRequest, SendHalvesStep
from skylark.broker.transaction.handlers import (
    EndTransactionCodec,
    SendHalvesCodec,
    TransactionHandlers,
)
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.hashing import UniqueIdGenerator
from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.replication.replication_service import Replication
from skylark.store.config_files import DELAY_OFFSETS, TRANSACTION_METRICS
from skylark.store.timer.timer_store import TimerStore
from skylark.wire.codes import RequestCode

logger = logging.getLogger(__name__)

ADMIN_HANDLERS: Final = (
    QueryHandlers, TopicHandlers, GroupHandlers, SettingsHandlers, StatsHandlers, ResetHandlers,
    RelayHandlers, CleaningHandlers, SyncHandlers, RuntimeHandlers,
    StorageHandlers,
)  # fmt: skip
STOP_GRACE_S: Final = 3.0
#: How often a broker that stops checks whether its slaves have everything.
FEED_CHECK_S: Final = 0.02
_PORT_SIZE: Final = 4  # bytes of the port in a packed host


class ReplicationFeature(Feature):
    """Copies the log: serves the slaves of a master, or follows the master of a slave."""

    def __init__(self, base: BaseFeatures) -> None:
        context, storage, stats = base.context, base.storage, base.stats
        live = context.live
        self._live = live
        self._clock = context.clock
        self.service = Replication(
            storage.store,
            live.current.replication,
            context.network,
            context.clock,
            call=context.client.call,
            has_name_servers=lambda: bool(live.current.namesrv_addresses),
        )
        live.changes.subscribe(lambda config: self.service.follow(config.replication))
        stats.exporter.watch_replication(self.service, is_slave=live.current.is_slave)

    async def start(self) -> None:
        config = self._live.current
        try:
            await self.service.start(config.bind_address, config.ha_port)
        except BaseException:
            await self.service.stop()
            raise

    async def stop(self) -> None:
        try:
            await self._feed_slaves()
        finally:
            await self.service.stop()

    async def _feed_slaves(self) -> None:
        """Let slaves that are near have all: one of them may be the next master."""
        try:
            async with self._clock.timeout(STOP_GRACE_S):
                while any(
                    slave.in_sync and slave.diff
                    for slave in self.service.runtime_info().ha_connection_info
                ):
                    await self._clock.sleep(FEED_CHECK_S)
        except TimeoutError:
            logger.warning("a slave does not have everything after %.0f s", STOP_GRACE_S)


def make_timer_store(context: BrokerContext) -> TimerStore | None:
    """The files of the timer; None at a slave, and with ``timerWheelEnable=false``."""
    config = context.live.current
    if not config.timer_wheel_enable or config.is_slave:
        return None
    root = config.store.store_path_root_dir
    return TimerStore(
        context.files, root, context.config_files, root / CONFIG_DIRECTORY, config.timer_options
    )


class PutFeature(Feature):
    """Stores messages: what the features that send, decide and deliver have in common."""

    def __init__(
        self, base: BaseFeatures, replication: ReplicationFeature, timer_store: TimerStore | None
    ) -> None:
        context, storage, topics, _, stats, overload = base
        live, clock = context.live, context.clock
        self._context, self._topics = context, topics
        self._replication = replication.service
        self.writer = MessageWriter(
            storage.store,
            Diverter(live, timer_store, clock),
            stats.store_stats,
            clock,
            appended=overload.guard.appended,
        )
        self.checks = SendChecks(live, topics.table, clock)
        self.durability = Durability(storage.store, context.files, topics.saved)
        self.pipeline = PutPipeline(self.writer, self.durability)
        #: How the requests of each code are read and answered.
        self.codecs: dict[int, PutCodec] = {}
        uncopied = self.writer.uncopied
        stats.metrics.watch(
            "skylark_uncopied_messages_total",
            lambda: [((kind,), count) for kind, count in uncopied.counts.items()],
        )

    def add_request(
        self,
        request: type,
        step: PutStep,
        codec: PutCodec,
        *codes: int,
        after_put: Callable[[], None] | None = None,
    ) -> None:
        """Serve a kind of request that stores messages, under these request codes.

        ``after_put`` is called when all requests of one put have their outcomes.
        """
        self.pipeline.add_step(request, step, after_put=after_put)
        self.codecs.update(dict.fromkeys(codes, codec))

    def handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        return (PutHandlers(services.puts, self.codecs),)

    async def start(self) -> None:
        # Before the first message is accepted: see `config_rebuild`.
        if not self._context.live.current.is_slave:
            await save_new_topics(self._topics.table, self._topics.saved)

    async def drain(self) -> None:
        self._replication.stop_listening()
        try:
            async with self._context.clock.timeout(STOP_GRACE_S):
                await self.durability.wait_for_pending()
        except TimeoutError:
            logger.warning("messages still wait for disk or slaves after %.0f s", STOP_GRACE_S)
        self._replication.release()


class TransactionFeature(Feature):
    """Half messages, decisions about them, and check-backs; only a master has them."""

    def __init__(self, base: BaseFeatures, puts: PutFeature) -> None:
        context, storage, topics, groups, stats, _ = base
        self._context = context
        self.service = TransactionService(
            TransactionParts(
                context.live,
                puts.writer,
                groups.producers,
                topics.table,
                groups.offsets,
                stats.broker_stats,
                context.clock,
            )
        )
        halves = SendHalvesStep(
            puts.checks, puts.durability, storage.store, stats.broker_stats, self.service
        )
        decisions = EndTransactionStep(self.service, puts.durability)
        puts.add_request(
            SendHalvesRequest, halves, SendHalvesCodec(puts.checks), RequestCode.SEND_HALVES
        )
        puts.add_request(
            EndTransactionRequest,
            decisions,
            EndTransactionCodec(),
            RequestCode.END_TRANSACTION,
            after_put=decisions.after_put,
        )
        runs = CommitRunStep(self.service, puts.durability)
        puts.pipeline.add_step(CommitRunRequest, runs, after_put=runs.after_put)
        if not context.live.current.is_slave:
            storage.after_open.append(self.service.recover)
        counts = self.service.counts
        topics.deleted.subscribe(counts.topic_deleted)
        stats.metrics.watch("rocketmq_half_messages", by_topic(counts.waiting))
        stats.metrics.watch("rocketmq_commit_messages_total", by_topic(counts.committed))
        stats.metrics.watch("rocketmq_rollback_messages_total", by_topic(counts.rolled_back))
        if stats.exporter.is_on:
            latency = stats.metrics.finish_latency
            counts.on_committed = lambda topic, seconds: latency.labels(topic).observe(seconds)

    def handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        return (TransactionHandlers(services.puts, self.service),)

    async def start(self) -> None:
        live, counts = self._context.live, self.service.counts
        counts.load(self._context.config_files.load(TRANSACTION_METRICS))
        self._context.saver.every(
            TRANSACTION_METRICS,
            counts.snapshot,
            interval_ms=lambda: live.current.transaction_metric_flush_interval,
            changes=lambda: counts.change_count,
        )
        if not live.current.is_slave:
            self.service.start()

    async def stop(self) -> None:
        self.service.stop()


class SendFeature(Feature):
    """Sends of producers, send-backs of consumers, replies to requests, recalls."""

    def __init__(
        self, base: BaseFeatures, puts: PutFeature, transaction: TransactionFeature
    ) -> None:
        context, topics, groups, stats = base.context, base.topics, base.groups, base.stats
        live, clock, broker_stats = context.live, context.clock, stats.broker_stats
        self._context, self._checks = context, puts.checks
        self.retries = RetryChecks(
            groups.table,
            topics.table,
            groups.locks,
            steady_ms=clock.steady_ms,
            on_dead_letter=stats.exporter.dead_letter,
        )
        sends = SendStep(
            puts.checks,
            puts.durability,
            puts.writer,
            topics.table,
            self.retries,
            broker_stats,
            transaction.service,
            UniqueIdGenerator(
                ip=context.store_host[:-_PORT_SIZE],
                pid=os.getpid(),
                salt=clock.now_ms(),
                now_ms=clock.now_ms,
            ),
        )
        puts.add_request(
            SendRequest,
            sends,
            SendCodec(puts.checks, context.store_host),
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
        )
        puts.pipeline.add_step(
            SendBackRequest,
            SendBackStep(
                live,
                puts.writer,
                topics.table,
                groups.table,
                broker_stats,
                puts.durability,
                on_dead_letter=stats.exporter.dead_letter,
            ),
        )
        puts.pipeline.add_step(
            ReplyRequest,
            ReplyStep(
                puts.checks,
                puts.durability,
                puts.writer,
                topics.table,
                groups.producers,
                broker_stats,
                clock,
            ),
        )
        puts.pipeline.add_step(
            RecallRequest,
            RecallStep(live, puts.writer, topics.table, broker_stats, puts.durability, clock),
        )

    def handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        return (
            ReplyHandlers(self._checks, services.puts, self._context.store_host),
            RecallHandlers(self._context.live, services.puts),
            SendBackHandlers(services.puts),
        )


class DelayFeature(Feature):
    """Delivers delayed messages (delay levels) and timed messages (timer wheel) when due."""

    def __init__(
        self, base: BaseFeatures, puts: PutFeature, timer_store: TimerStore | None
    ) -> None:
        context, storage, topics, stats = base.context, base.storage, base.topics, base.stats
        live, clock, broker_stats = context.live, context.clock, stats.broker_stats
        self._context = context
        self.schedule = ScheduleService(live, puts.writer, topics.table, broker_stats, clock)
        storage.on_arrival[SCHEDULE_TOPIC] = self.schedule.arrived
        #: None at a slave, and with ``timerWheelEnable=false``.
        self.timer: TimerService | None = None
        if timer_store is not None:
            timer = self.timer = TimerService(
                live, timer_store, puts.writer, broker_stats, clock, in_thread=context.in_thread
            )
            storage.on_arrival[TIMER_TOPIC] = lambda _arrival: timer.wake()
            storage.after_sync.append(timer.save)
            topics.deleted.subscribe(timer.topic_deleted)
            stats.exporter.watch_timer(timer.enqueue_lag, timer.dequeue_lag, timer.timing_counts)

    async def start(self) -> None:
        live = self._context.live
        if self.timer is not None:
            self.timer.load()
        self.schedule.load(self._context.config_files.load(DELAY_OFFSETS))
        if live.current.is_slave:
            return
        saved = self._context.saver.every(
            DELAY_OFFSETS,
            self.schedule.snapshot,
            interval_ms=lambda: live.current.flush_delay_offset_interval,
        )
        self.schedule.start()
        saved.mark()  # soon: a start after the next crash then has little of the log to read
        if self.timer is not None:
            self.timer.start()

    async def stop(self) -> None:
        await self.schedule.stop()
        if self.timer is not None:
            await self.timer.stop()


class SlaveFeature(Feature):
    """Copies the tables of the master of a slave. Does nothing at a master."""

    def __init__(self, base: BaseFeatures, replication: ReplicationFeature) -> None:
        context, storage, topics, groups = base.context, base.storage, base.topics, base.groups
        config = context.live.current
        self._context = context
        self._registration = topics.registration
        self._replication = replication.service
        #: None at a master.
        self.sync: SlaveSync | None = None
        if config.is_slave:
            self.sync = SlaveSync(
                context.live,
                SlaveTables(topics.table, groups.table, groups.offsets, groups.request_modes),
                DeliveryCopies(
                    context.files,
                    config,
                    context.config_files,
                    lambda: storage.store.log.files.flushed_where,
                ),
                context.clock,
                call=context.client.call,
                delete_queues=topics.delete_queues,
                modes_saved=groups.modes_saved.mark,
                in_thread=context.in_thread,
            )
            topics.registration.master_changes.subscribe(self._set_master)

    def _set_master(self, master: MasterAddress | None) -> None:
        """A master that the name servers have lost is kept: links to it may live."""
        if master is not None and self.sync is not None:
            self._replication.set_master(master.ha_addr, master.addr)
            self.sync.set_master(master.addr)

    def has_master(self) -> bool:
        """Whether a slave can send clients to its master; name servers hear late of its end."""
        if self.sync is None or self._registration.master is None:
            return False
        return self.sync.is_reached and not self._replication.status.is_cut_off

    async def start(self) -> None:
        if self.sync is not None:
            self.sync.load(self._context.config_files, self._context.saver)
            self.sync.start()

    async def stop(self) -> None:
        if self.sync is not None:
            await self.sync.stop()


class PullFeature(Feature):
    """Pulls, and long polling for those that find nothing."""

    def __init__(self, base: BaseFeatures, slave: SlaveFeature) -> None:
        context, storage, topics, groups, stats, _ = base
        live, clock, store = context.live, context.clock, storage.store
        self.cold_reads = ColdReads(
            live, store, groups.consumers, clock, context.files.memory_size()
        )
        self.service = PullService(
            PullPolicy(live, slave.has_master, self.cold_reads),
            PullChecks(
                live,
                topics.table,
                groups.table,
                groups.consumers,
                groups.filters,
                clock.steady_ms,
            ),
            store,
            groups.offsets,
            BroadcastOffsets(live, groups.consumers, groups.offsets, store, clock),
            PullCounters(stats.broker_stats, stats.store_stats, store, topics.table, clock),
            clock,
            context.loop_watch,
        )
        storage.held_pulls = self.service.waiting
        topics.registration.master_changes.subscribe(lambda _: self.service.waiting.wake_all())
        stats.metrics.watch("skylark_held_pulls", lambda: len(self.service.held))
        self._on_held = stats.exporter.rpc_times.held if stats.exporter.is_on else None
        self._apply(live.current)
        live.changes.subscribe(self._apply)

    def main_port_handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        handlers = PullHandlers(services.pulls)
        handlers.on_held = self._on_held
        return (handlers,)

    def _apply(self, config: BrokerConfig) -> None:
        self.service.held.count_max = config.held_pull_count_max

    async def start(self) -> None:
        self.cold_reads.start()

    async def drain(self) -> None:
        self.service.waiting.stop()

    async def stop(self) -> None:
        self.cold_reads.stop()


class AdminFeature(Feature):
    """The requests of administrators and tools (``mqadmin``), and of slaves."""

    def __init__(
        self,
        base: BaseFeatures,
        replication: ReplicationFeature,
        delay: DelayFeature,
        slave: SlaveFeature,
        pull: PullFeature,
    ) -> None:
        context, storage, topics, groups, stats, _ = base
        parts = BrokerParts(
            live=context.live,
            settings_file=SettingsFile(context.files, context.live, in_thread=context.in_thread),
            clock=context.clock,
            loop_watch=context.loop_watch,
            files=context.files,
            store=storage.store,
            replication=replication.service,
            saved=groups.saved,
            topics=topics.table,
            groups=groups.table,
            offsets=groups.offsets,
            consumers=groups.consumers,
            producers=groups.producers,
            locks=groups.locks,
            filters=groups.filters,
            request_modes=groups.request_modes,
            stats=stats.broker_stats,
            sampler=stats.sampler,
            cold_reads=pull.cold_reads,
            popped_count=lambda *queue: stats.lags.popped_count(*queue),
            popped_report=lambda *message: stats.lags.popped_report(*message),
            timer=delay.timer,
            delay_progress=delay.schedule.progress,
            delay_offsets=delay.schedule.offsets if slave.sync is None else slave.sync.delays,
            delete_queues=topics.delete_queues,
            announced=topics.registration.announced,
            register_all=topics.registration.register_all,
        )
        self._handlers = (*(each(parts) for each in ADMIN_HANDLERS), Refusals())

    def handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        del services  # none of these requests has one
        return self._handlers
