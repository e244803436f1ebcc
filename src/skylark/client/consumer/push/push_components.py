"""Composition of a running push consumer: makes its parts and connects them.

::

    control loop                                  the application's loop
    PushMember  <- instance, brokers              PullService -> PullLoop (one per queue)
    RebalanceExecutor  -- start_pull, stop_pull ------>     |  messages
    OffsetStore <- OffsetTable (both loops) -----  Runner -> pools of handlers
    OffsetResets                                        SendBackClient
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skylark.client.consumer.consumer_send_back import SendBackClient
from skylark.client.consumer.offset_persistence import LocalOffsets, OffsetStore, RemoteOffsets
from skylark.client.consumer.offset_table import LocalOffsetFile, local_offset_path
from skylark.client.consumer.process_queue import FlowControl
from skylark.client.consumer.push.concurrent_runner import ConcurrentRunner
from skylark.client.consumer.push.consume_runner import AssignedQueue, ConsumerServices, Runner
from skylark.client.consumer.push.consumer_offset_reset import OffsetResets
from skylark.client.consumer.push.consumer_running_info import running_info, running_properties
from skylark.client.consumer.push.consumer_stats import ConsumerStats
from skylark.client.consumer.push.message_handlers import Binding
from skylark.client.consumer.push.orderly_runner import OrderlyRunner
from skylark.client.consumer.push.pull_loop import PullContext
from skylark.client.consumer.push.pull_service import PullService
from skylark.client.consumer.push.push_member import PushMember, received
from skylark.client.consumer.push.push_settings import PushSettings, limit
from skylark.client.consumer.push.rebalance_executor import RebalanceExecutor
from skylark.client.consumer.rebalance import (
    RELOCK_FIRST_MS,
    RELOCK_INTERVAL_MS,
    Rebalance,
)
from skylark.client.consumer.start_position import parse_consume_timestamp
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import seconds
from skylark.core.errors import ClientError, SkylarkError
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.admin_body import ConsumerRunningInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.message import MessageRecord

log = logging.getLogger(__name__)

_MIB = 1024 * 1024


class PushParts:
    """Made on the loop that consumes, from start to stop."""

    def __init__(
        self,
        instance: ClientInstance,
        link: BrokerConnections,
        group: str,
        settings: PushSettings,
        *,
        bindings: Mapping[str, Binding],
        subscriptions: Callable[[], Mapping[str, Subscription]],
        is_orderly: bool,
        is_running: Callable[[], bool],
        is_suspended: Callable[[], bool],
        hooks: Sequence[object],
        stats: ConsumerStats,
    ) -> None:
        """``group`` is as the application knows it; raises ClientError for a broken offset file."""
        self.instance = instance
        self.link = link
        self.tasks = Tasks(f"consumer {group}", limit=None)  # flow control bounds them
        self.group = instance.namespace.wrap(group)  #: as brokers know it
        self._settings = settings
        self._bindings = bindings
        self._subscriptions = subscriptions
        self._is_orderly = is_orderly
        self._is_running = is_running
        self._stats = stats
        self._clock = instance.runtime.clock
        self._end_relock: Callable[[], None] | None = None
        created_ms = instance.runtime.clock.now_ms()
        timestamp = settings.start_timestamp(created_ms)
        self.offsets = self._offset_store()
        self.flow = FlowControl(
            count_max=settings.pull_threshold_for_queue,
            size_max=settings.pull_threshold_size_for_queue * _MIB,
            span_max=settings.consume_concurrently_max_span,
            orderly=is_orderly,
            error_delay_ms=round(seconds(instance.options.pull_error_delay) * 1000),
        )
        services = self._make_services(group, hooks)
        self.runner: Runner = (
            OrderlyRunner(services, self._lock_one) if is_orderly else ConcurrentRunner(services)
        )
        self.pull_service = PullService(self._make_context(services))
        self.rebalancer = self._make_rebalancer(parse_consume_timestamp(timestamp))
        self.resets = OffsetResets(instance, self.rebalancer, self.pull_service.forget_messages)
        self.member = PushMember(
            self.group,
            settings,
            unit_mode=instance.options.unit_mode,
            subscriptions=subscriptions,
            offsets=self.offsets,
            rebalancer=self.rebalancer,
            resets=self.resets,
            stats=stats,
            clock=self._clock,
            is_suspended=is_suspended,
            describe=self._describe,
            consume=self._consume_directly,
            data_loop=link.loop,
            is_orderly=is_orderly,
        )
        self._properties = running_properties(
            self.group,
            settings,
            timestamp,
            is_orderly=is_orderly,
            started_ms=created_ms,
            name_servers=instance.endpoint.namesrv,
        )

    def _make_services(self, group: str, hooks: Sequence[object]) -> ConsumerServices:
        instance, settings = self.instance, self._settings
        return ConsumerServices(
            group=group,
            client_id=instance.client_id,
            namespace=instance.namespace.name,
            settings=settings,
            hooks=hooks,
            bindings=self._bindings,
            offsets=self.offsets.table,
            sends_back=SendBackClient(
                self.link,
                self.group,
                reconsume_times_max=settings.reconsume_times_max(is_orderly=self._is_orderly),
                unit_mode=instance.options.unit_mode,
            ),
            stats=self._stats,
            clock=instance.runtime.clock,
            tasks=self.tasks,
            shown_queue=instance.namespace.unwrap_queue,
            metrics=instance.metrics,
        )

    def _make_context(self, services: ConsumerServices) -> PullContext:
        instance = self.instance
        return PullContext(
            services=services,
            link=self.link,
            flow=self.flow,
            runner=self.runner,
            group=self.group,
            subscription=lambda topic: self._subscriptions().get(topic),
            is_running=self._is_running,
            is_paused=lambda: self.member.is_paused,
            broker_version=instance.broker_version,
            shown_topic=instance.namespace.unwrap,
            first_offset=self._first_offset,
            offset_illegal=self._offset_illegal,
            error_delay_s=seconds(instance.options.pull_error_delay),
        )

    def _make_rebalancer(self, start_time_ms: int) -> RebalanceExecutor:
        settings = self._settings
        return RebalanceExecutor(
            self.instance,
            Rebalance(
                self.group,
                self.instance.client_id,
                settings.allocation,
                clustering=settings.clustering,
                orderly=self._is_orderly,
                topic_count_max=limit(settings.pull_threshold_for_topic),
                topic_size_max=limit(settings.pull_threshold_size_for_topic),
            ),
            self.group,
            settings,
            start_time_ms=start_time_ms,
            subscriptions=self._subscriptions,
            offsets=self.offsets,
            flow=self.flow,
            data_plane=self.pull_service,
            on_abandoned=self._leave_alone,
        )

    def _offset_store(self) -> OffsetStore:
        instance = self.instance
        if self._settings.clustering:
            return RemoteOffsets(self.group, lambda: instance.control_link)
        path = local_offset_path(self._settings.offset_folder, instance.client_id, self.group)
        return LocalOffsets(LocalOffsetFile(path))

    # ---- life ------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start what is done again and again."""
        if self.instance.metrics is not None:
            self.instance.metrics.add_source(
                self.instance.namespace.unwrap(self.group), self.pull_service
            )
        if self._is_orderly:
            self._end_relock = await self.instance.add_periodic(
                f"locks of {self.member.group}",
                RELOCK_FIRST_MS / 1000,
                RELOCK_INTERVAL_MS / 1000,
                self.rebalancer.relock,
            )
        else:
            self.tasks.spawn(self.pull_service.expire_forever(), name="expire")

    async def leave(self) -> None:
        """Let handlers finish, then give up everything; in the order of the specification."""
        self.rebalancer.refuse()
        if self.instance.metrics is not None:
            self.instance.metrics.remove_source(self.pull_service)
        self.pull_service.close()
        if not await self.runner.close(self._settings.await_termination_ms / 1000):
            log.warning("handlers of %s were still running, their messages will be"
                        " delivered again", self.member.group)  # fmt: skip
        if self._end_relock is not None:
            self._end_relock()
        try:
            await self.instance.runtime.control.run(self.rebalancer.close())
        finally:
            try:
                await self.instance.unregister_consumer(self.member)
            finally:
                self.rebalancer.drop_all()

    async def _leave_alone(self) -> None:
        """On the control loop, when the other one is gone."""
        self.rebalancer.drop_all()
        try:
            await self.instance.unregister_consumer(self.member)
        finally:
            await self.instance.release()

    def announce(self, topic: str | None) -> None:
        """Tell brokers of a subscription that came or went after the start."""
        self.tasks.spawn(self._announce(topic), name="announce")

    async def _announce(self, topic: str | None) -> None:
        try:
            if topic is not None:
                await self.instance.refresh_route(topic)
            await self.instance.heartbeat_all(whole=True)
            self.instance.rebalance_soon()
        except SkylarkError as error:
            log.warning("the next heartbeat will tell what is subscribed: %s", error)

    # ---- between the halves ----------------------------------------------------------------------

    async def _lock_one(self, queue: MessageQueue) -> bool:
        return await self.instance.runtime.control.run(self.rebalancer.lock_one(queue))

    async def _first_offset(self, queue: MessageQueue) -> int:
        return await self.instance.runtime.control.run(self.rebalancer.first_offset(queue))

    def _offset_illegal(self, assigned: AssignedQueue, next_offset: int) -> None:
        self.instance.runtime.control.post(
            self.rebalancer.offset_illegal, assigned.queue, assigned.process_queue, next_offset
        )

    def _describe(self, with_stacks: bool) -> ConsumerRunningInfo:
        return running_info(
            self._properties,
            self._subscriptions().values(),
            self.rebalancer.rebalance.table,
            self.offsets.table,
            self._stats,
            self.flow,
            self._clock.steady_ms(),
            with_stacks=with_stacks,
        )

    async def _consume_directly(self, record: MessageRecord, broker_name: str | None) -> Any:
        message = received(record, broker_name, self.instance.namespace.unwrap)
        binding = self._bindings.get(message.topic)
        if binding is None:
            raise ClientError(f"no handler for topic {message.topic}")
        return await self.runner.call(binding, message)
