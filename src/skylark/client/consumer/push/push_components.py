"""Composition of a running push consumer: makes its parts and connects them.

::

    control loop                                  the application's loop
    PushMember  <- instance, brokers              PullService -> PullLoop (one per queue)
    RebalanceExecutor  -- start_pull, stop_pull ------>     |  messages
    OffsetStore <- OffsetTable (both loops) -----  Runner -> pools of handlers
    OffsetResets                                        SendBackClient
    AssignedShares -- assign ------------------->  PopLoops -> PopLoop (one per assignment)

The last line only with ``client_rebalance=False``, and its right side only with pop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from skylark.client.consumer.broker_assignment import AssignedShares, BrokerAssignment
from skylark.client.consumer.consumer_send_back import SendBackClient
from skylark.client.consumer.offset_persistence import open_offset_store
from skylark.client.consumer.pop.pop_loops import PopLoops
from skylark.client.consumer.process_queue import MIB, FlowControl
from skylark.client.consumer.pull_api import QueueAccess, first_offset
from skylark.client.consumer.push.concurrent_runner import ConcurrentRunner
from skylark.client.consumer.push.consume_runner import (
    AssignedQueue,
    ConsumerServices,
    PushSetup,
    Runner,
)
from skylark.client.consumer.push.orderly_runner import OrderlyRunner
from skylark.client.consumer.push.pull_loop import PullContext
from skylark.client.consumer.push.pull_service import PullService
from skylark.client.consumer.push.push_member import OffsetResets, PushMember, received
from skylark.client.consumer.push.push_settings import limit
from skylark.client.consumer.rebalance import (
    RELOCK_FIRST_MS,
    RELOCK_INTERVAL_MS,
    Rebalance,
)
from skylark.client.consumer.rebalance_executor import RebalanceExecutor, announce
from skylark.client.consumer.start_position import parse_consume_timestamp, start_position
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import set_deserializer
from skylark.client.core.client_options import seconds
from skylark.core.errors import ClientError
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.message import MessageRecord

logger = logging.getLogger(__name__)


class PushParts:
    """The parts of a running push consumer; made on the loop that consumes."""

    def __init__(
        self,
        instance: ClientInstance,
        link: BrokerConnections,
        setup: PushSetup,
    ) -> None:
        """Raises ClientError for a broken offset file."""
        settings = setup.settings
        self.instance = instance
        self.link = link
        self.tasks = Tasks(f"consumer {setup.group}", limit=None)  # flow control bounds them
        self.group = instance.namespace.wrap(setup.group)  #: as brokers know it
        self._setup = setup
        self._settings = settings
        self._end_relock: Callable[[], None] | None = None
        self.offsets = open_offset_store(
            instance, self.group, clustering=settings.clustering, folder=settings.offset_folder
        )
        self.flow = FlowControl(
            count_max=settings.pull_threshold_for_queue,
            size_max=settings.pull_threshold_size_for_queue * MIB,
            span_max=settings.consume_concurrently_max_span,
            orderly=setup.is_orderly,
            error_delay_ms=round(seconds(instance.options.pull_error_delay) * 1000),
        )
        services = self._make_services()
        self.runner: Runner = (
            OrderlyRunner(services, self._lock_one)
            if setup.is_orderly
            else ConcurrentRunner(services)
        )
        self.pull_service = PullService(
            PullContext(
                services=services,
                access=QueueAccess(instance, link, self.group),
                flow=self.flow,
                runner=self.runner,
                group=self.group,
                is_paused=self._is_paused,
                first_offset=self._first_offset,
                offset_illegal=self._offset_illegal,
                save_soon=self._save_soon,
                subscription_lost=self._subscription_lost,
            )
        )
        #: Pops, where the mode allows it.
        self.pop_loops: PopLoops | None = None
        self.assignment: BrokerAssignment | None = None
        if not settings.shares_itself:
            strategy, mode = settings.allocation.name, settings.mode
            self.assignment = BrokerAssignment(
                instance, self.group, strategy, mode, sets_mode=settings.set_mode
            )
        if settings.mode != "pull":
            self.pop_loops = PopLoops(services, self.runner, self.group, self._is_paused)
        self.rebalancer = self._make_rebalancer()
        self.resets = OffsetResets(instance, self.rebalancer, self.pull_service.forget_messages)
        self.member = PushMember(
            instance,
            setup,
            offsets=self.offsets,
            rebalancer=self.rebalancer,
            resets=self.resets,
            flow=self.flow,
            consume=self._consume_directly,
            data_loop=link.loop,
        )
        if self.pop_loops is not None:
            self.member.pop_infos = self.pop_loops.infos

    def _make_services(self) -> ConsumerServices:
        instance, setup = self.instance, self._setup
        return ConsumerServices(
            setup=setup,
            instance=instance,
            link=self.link,
            offsets=self.offsets.table,
            sends_back=SendBackClient(
                self.link,
                self.group,
                reconsume_times_max=setup.settings.reconsume_times_max(is_orderly=setup.is_orderly),
                unit_mode=instance.options.unit_mode,
            ),
            clock=instance.runtime.clock,
            tasks=self.tasks,
            ran_dry=self._ran_dry,
        )

    def _make_rebalancer(self) -> RebalanceExecutor:
        settings = self._settings
        return RebalanceExecutor(
            self.instance,
            Rebalance(
                self.group,
                self.instance.client_id,
                settings.allocation,
                clustering=settings.clustering,
                orderly=self._setup.is_orderly,
                topic_count_max=limit(settings.pull_threshold_for_topic),
                topic_size_max=limit(settings.pull_threshold_size_for_topic),
            ),
            subscriptions=self._setup.subscriptions,
            offsets=self.offsets,
            first_offset=self._find_first_offset,
            data_plane=self.pull_service,
            on_abandoned=self._leave_alone,
            by_broker=self._make_shares(),
        )

    def _make_shares(self) -> AssignedShares | None:
        if self.assignment is None:
            return None
        return AssignedShares(
            self.instance, self.assignment, self.pop_loops, self._setup.pop_retries
        )

    # ---- life ------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start the periodic tasks."""
        if self.instance.metrics is not None:
            self.instance.metrics.add_source(
                self.instance.namespace.unwrap(self.group), self.pull_service
            )
            if self.pop_loops is not None:
                self.instance.metrics.add_source(
                    self.instance.namespace.unwrap(self.group), self.pop_loops
                )
        if self._setup.is_orderly:
            self._end_relock = await self.instance.add_periodic(
                f"locks of {self.member.group}",
                RELOCK_FIRST_MS / 1000,
                RELOCK_INTERVAL_MS / 1000,
                self.rebalancer.relock,
            )
        self.tasks.spawn(self.pull_service.expire_forever(), name="expire")

    async def require_mode(self, topics: Collection[str]) -> None:
        """Raise ClientError if brokers have another mode for the group than the consumer."""
        if self.assignment is not None:
            await self.instance.runtime.control.run(self.assignment.require_mode(topics))

    async def leave(self) -> None:
        """Wait for handlers, save offsets, release locks, and leave the group."""
        self.rebalancer.refuse()
        if self.instance.metrics is not None:
            self.instance.metrics.remove_source(self.pull_service)
            if self.pop_loops is not None:
                self.instance.metrics.remove_source(self.pop_loops)
        self.pull_service.close()
        if self.pop_loops is not None:
            await self.pop_loops.end_pops()
        if not await self.runner.close(self._settings.await_termination_ms / 1000):
            logger.warning(
                "handlers of %s have not ended: their messages will be delivered again",
                self.member.group,
            )
        if self.pop_loops is not None:
            await self.pop_loops.close()
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
        """Leave the group on the control loop, after the loop of the application was closed."""
        self.rebalancer.drop_all()
        try:
            await self.instance.unregister_consumer(self.member)
        finally:
            await self.instance.release()

    def announce(self, topic: str | None) -> None:
        """Send a changed subscription to brokers, after the start."""
        self.tasks.spawn(announce(self.instance, topic), name="announce")

    def _is_paused(self) -> bool:
        return self.member.is_paused

    # ---- between the two loops -------------------------------------------------------------------

    async def _lock_one(self, queue: MessageQueue) -> bool:
        return await self.instance.runtime.control.run(self.rebalancer.lock_one(queue))

    async def _first_offset(self, queue: MessageQueue) -> int:
        return await self.instance.runtime.control.run(self._find_first_offset(queue))

    async def _find_first_offset(self, queue: MessageQueue) -> int:
        """The start offset of a queue, on the control loop; raises SkylarkError."""
        stored = await self.offsets.read(queue)
        if stored is not None:
            self.offsets.table.update(queue, stored, increase_only=False)
        where = self._settings.consume_from_where
        time_ms = parse_consume_timestamp(self._setup.start_timestamp)
        start = start_position(queue.topic, stored, where, time_ms)
        return await first_offset(self.instance.control_link, queue, start, self.offsets.read)

    def _offset_illegal(self, assigned: AssignedQueue, next_offset: int) -> None:
        self.instance.runtime.control.post(
            self.rebalancer.offset_illegal, assigned.queue, assigned.process_queue, next_offset
        )

    def _save_soon(self, queues: Collection[MessageQueue]) -> None:
        self.instance.runtime.control.post(self.rebalancer.save_soon, queues)

    def _subscription_lost(self) -> None:
        self.instance.runtime.control.post(self.rebalancer.report_conflicts)

    def _ran_dry(self, queue: MessageQueue) -> None:
        if self._settings.clustering:  # a file would be written too often
            self.pull_service.ran_dry(queue)

    async def _consume_directly(self, record: MessageRecord, broker_name: str | None) -> Any:
        message = received(record, broker_name, self.instance.namespace.unwrap)
        if (deserialize := self._setup.settings.value_deserializer) is not None:
            set_deserializer((message,), deserialize)
        binding = self._setup.bindings.get(message.topic)
        if binding is None:
            raise ClientError(f"no handler for topic {message.topic}")
        return await self.runner.call(binding, message)
