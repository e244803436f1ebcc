"""The feature POP: consumption without queue ownership (``broker/pop``).

See :mod:`skylark.broker.features` for the other features on the way of a message. The requests use
the state (:mod:`skylark.broker.pop.pop_state`); the revive brings back what was not acknowledged.
Only a master has state: a slave refuses the requests, and copies the log and the tables.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from skylark.broker.api import BrokerServices
from skylark.broker.base_features import BaseFeatures, Feature, Handlers
from skylark.broker.config import BrokerConfig
from skylark.broker.features import DelayFeature, PutFeature
from skylark.broker.pop.acknowledge import (
    Acknowledger,
    AckStep,
    BatchAckStep,
    ChangeInvisibleTimeStep,
)
from skylark.broker.pop.handlers import (
    AckCodec,
    BatchAckCodec,
    ChangeInvisibleTimeCodec,
    PopHandlers,
)
from skylark.broker.pop.notification import Notifications
from skylark.broker.pop.order_locks import OrderLocks
from skylark.broker.pop.order_pop import OrderPops
from skylark.broker.pop.pop_checks import PopChecks
from skylark.broker.pop.pop_queues import PopCounters, PopQueues
from skylark.broker.pop.pop_record_writer import PopRecordWriter
from skylark.broker.pop.pop_service import PopMessages, PopService
from skylark.broker.pop.pop_state import PopState
from skylark.broker.pop.popped_lookup import PoppedLookup
from skylark.broker.pop.queue_order import QueueOrder, drawing
from skylark.broker.pop.retry_topics import ReviveTables
from skylark.broker.pop.revive_runner import ReviveRunner, TimerProgress
from skylark.store.config_files import CONSUMER_ORDER_INFOS
from skylark.store.config_tables import ConsumerOrderInfoTable
from skylark.wire.bodies.pop_body import BatchAckMessageRequestBody
from skylark.wire.codes import RequestCode
from skylark.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
)


def _by_queue(numbers: dict[int, int]) -> list[tuple[tuple[str], int]]:
    """Numbers of revive queues, as a metric has them."""
    return [((str(queue_id),), number) for queue_id, number in numbers.items()]


class PopFeature(Feature):
    """Pops and what they need: state, acks, ordered consumption, waiting, revive."""

    def __init__(self, base: BaseFeatures, puts: PutFeature, delay: DelayFeature) -> None:
        context, storage, topics, groups, stats, _ = base
        live, clock, store = context.live, context.clock, storage.store
        self._context, self._storage, self._topics, self._groups = context, storage, topics, groups
        records = PopRecordWriter(live, puts.writer, puts.durability, clock)
        self.state = PopState(live, records, groups.offsets, groups.saved.offsets, clock)
        self.state.totals.has_group = groups.table.__contains__
        self.order_pops = OrderPops()
        checks = PopChecks(live, topics.table, groups.table, groups.consumers, clock)
        order = QueueOrder(live, topics.table, drawing(random.Random()))
        queues = PopQueues(
            live,
            store,
            self.state,
            groups.offsets,
            self.order_pops,
            PopCounters(stats.broker_stats, stats.store_stats, topics.table),
            clock,
        )
        watch, awaited = context.loop_watch, storage.awaited_topics
        messages = PopMessages(live, checks, order, queues, clock, awaited=awaited, watch=watch)
        notifications = Notifications(
            live,
            checks,
            order,
            queues,
            self.order_pops,
            clock,
            awaited=awaited,
            watch=watch,
        )
        self.service = PopService(messages, notifications)
        self.order_locks = OrderLocks(live, self.order_pops, clock, self.service.wake)
        queues.order_locks = self.order_locks
        self.state.in_flight_counts.on_room = self.service.has_room
        self._add_acks(base, puts, checks)
        storage.on_awaited = self.service.arrived
        self._on_held = stats.exporter.rpc_times.held if stats.exporter.is_on else None
        stats.metrics.watch("skylark_held_pops", lambda: len(self.service.pops.held))
        self._apply(live.current)
        live.changes.subscribe(self._apply)
        #: None where nothing is popped: at a slave, and without the timer wheel.
        self.revive: ReviveRunner | None = None
        timer = delay.timer
        if timer is not None and not live.current.is_slave:
            self.revive = ReviveRunner(
                live,
                self.state,
                puts.writer,
                ReviveTables(topics.table, topics.saved, groups.table, groups.offsets),
                TimerProgress(
                    delivered_before_ms=timer.delivered_before_ms,
                    saved_until_ms=lambda: timer.timer.checkpoint.saved.last_read_time_ms,
                ),
                stats.broker_stats,
                clock,
            )
            revive = self.revive
            storage.on_arrival[revive.topic] = lambda arrival: revive.arrived(arrival.queue_id)
            storage.after_open.append(revive.recover)
            self._watch(base, revive)
        for deleted, forget in (
            (topics.deleted, self.state.topic_deleted),
            (groups.table.deleted, self.state.group_deleted),
        ):
            deleted.subscribe(forget)
            deleted.subscribe(lambda _name: self._clean_order())
        stats.lags.popped_count = self._in_flight
        stats.lags.popped_until = self._popped_until

    def _watch(self, base: BaseFeatures, revive: ReviveRunner) -> None:
        """Reports of single messages, and Java's metrics of the revive and of check-points."""
        metrics, state = base.stats.metrics, self.state
        live, clock, store = base.context.live, base.context.clock, base.storage.store
        lookup = PoppedLookup(live, store, state, self.order_pops, clock)
        base.stats.lags.popped_report = lookup.report
        metrics.watch("rocketmq_pop_revive_lag", lambda: _by_queue(revive.lags()))
        metrics.watch("rocketmq_pop_revive_latency", lambda: _by_queue(revive.latencies_ms()))
        totals = state.totals
        metrics.watch("rocketmq_pop_revive_in_message_total", lambda: list(totals.written_rows()))
        metrics.watch("rocketmq_pop_revive_out_message_total", lambda: list(totals.read_rows()))
        metrics.watch(
            "rocketmq_pop_revive_retry_messages_total", lambda: list(totals.copied_rows())
        )
        metrics.watch("skylark_pop_put_off_messages_total", lambda: revive.copies.put_off_count)
        metrics.watch("rocketmq_pop_offset_buffer_size", lambda: state.offset_count)
        metrics.watch("rocketmq_pop_checkpoint_buffer_size", lambda: state.held_count)

    def _add_acks(self, base: BaseFeatures, puts: PutFeature, checks: PopChecks) -> None:
        context, storage, topics, groups = base.context, base.storage, base.topics, base.groups
        acks = Acknowledger(
            context.live,
            checks,
            topics.table,
            storage.store,
            self.state,
            groups.offsets,
            self.order_pops,
            context.clock,
        )
        acks.on_order_changed = self.order_locks.changed
        acks.on_order_free = self.service.wake
        acks.on_acked = base.stats.broker_stats.acked
        acks.on_check_point = base.stats.broker_stats.kept_check_point
        puts.add_request(
            AckMessageRequestHeader,
            AckStep(acks, puts.durability, lambda: puts.pipeline.put_number),
            AckCodec(),
            RequestCode.ACK_MESSAGE,
        )
        puts.add_request(
            BatchAckMessageRequestBody,
            BatchAckStep(acks),
            BatchAckCodec(),
            RequestCode.BATCH_ACK_MESSAGE,
        )
        puts.add_request(
            ChangeInvisibleTimeRequestHeader,
            ChangeInvisibleTimeStep(acks),
            ChangeInvisibleTimeCodec(),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        )

    def main_port_handlers(self, services: BrokerServices) -> Sequence[Handlers]:
        handlers = PopHandlers(services.pops)
        handlers.on_held = self._on_held
        return (handlers,)

    def _apply(self, config: BrokerConfig) -> None:
        for waiting in (self.service.pops, self.service.notifications):
            waiting.held.count_max = config.pop.max_pop_polling_size
            waiting.held.per_key_max = config.pop.pop_polling_size
            waiting.force_interval = config.pop.pop_long_polling_force_notify_interval
        threshold = config.pop.pop_inflight_message_threshold
        limited = config.pop.enable_pop_message_threshold
        self.state.in_flight_counts.threshold = threshold if limited else None

    def _in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Messages of a queue that are popped and not acknowledged, in order or not."""
        in_hand = self.order_pops.in_hand(topic, group, queue_id)
        return self.state.in_flight(topic, group, queue_id) + in_hand

    def _popped_until(self, topic: str, group: str, queue_id: int) -> int:
        """The end of what was popped of a queue; -1 if nothing was."""
        next_offset = self.state.next_offset(topic, group, queue_id)
        in_hand = self.order_pops.end_offset(topic, group, queue_id)
        return in_hand if next_offset is None else max(next_offset, in_hand)

    def _order_snapshot(self) -> ConsumerOrderInfoTable:
        self._clean_order()
        return self.order_pops.snapshot()

    def _clean_order(self) -> None:
        topics, groups = self._topics.table, self._groups.table
        self.order_pops.clean(
            lambda name: 0 if (topic := topics.get(name)) is None else topic.read_queue_nums,
            lambda name: name in groups,
            self._context.clock.now_ms(),
        )

    async def start(self) -> None:
        live = self._context.live
        self.order_pops.load(self._context.config_files.load(CONSUMER_ORDER_INFOS))
        if live.current.is_slave:
            return
        self._context.saver.every(
            CONSUMER_ORDER_INFOS,
            self._order_snapshot,
            interval_ms=lambda: live.current.flush_consumer_offset_interval,
            changes=lambda: self.order_pops.change_count,
        )
        self.order_locks.start()
        if self.revive is not None:
            self.revive.acknowledge_void()
        await self.state.start(lambda: self._storage.store.log.max_offset)
        if self.revive is not None:
            await self.revive.start()

    async def drain(self) -> None:
        self.service.pops.stop()
        self.service.notifications.stop()

    async def stop(self) -> None:
        self.order_locks.stop()
        if self.revive is not None:
            await self.revive.stop()
        await self.state.stop()
