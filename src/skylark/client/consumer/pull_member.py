"""Group membership of a pull consumer: its heartbeat data and its assigned queues.

A :class:`PullMember` lives on the control loop, like all members
(:mod:`skylark.client.core.member_table`), and executes the decisions of
:class:`~skylark.client.consumer.rebalance.Rebalance` by a
:class:`~skylark.client.consumer.rebalance_executor.RebalanceExecutor`. It notifies the consumer on
the loop of the application through :class:`QueueEvents`, in order. A queue that is taken away is
marked as dropped, and its committed offset saved, at once, even while the application blocks its
loop. If that loop was closed without a stop of the consumer, the member leaves the group, because
otherwise no member would consume its queues.

The consumer replaces ``subscriptions`` and ``assigned`` as a whole; the member reads them.

Counterpart of Java's ``RebalancePullImpl``, ``RebalanceLitePullImpl`` and the ``MQConsumerInner``
of both pull consumers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from skylark.client.consumer.allocation import Allocation
from skylark.client.consumer.offset_persistence import OffsetStore
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.rebalance import Rebalance, Settled
from skylark.client.consumer.rebalance_executor import RebalanceExecutor
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.control_loop import Handover
from skylark.wire.bodies.admin_body import ConsumerRunningInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)

NO_COMMIT = -1


class QueueEvents:
    """Receives changes of the assigned queues, on the loop of the application; base class."""

    def queue_opened(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """A queue was assigned to this consumer."""

    def queue_released(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """A queue was taken away; it is marked as dropped, and its offset is saved."""

    def queues_settled(self, settled: Settled) -> None:
        """The queues of a topic have changed, and the events for each queue have been sent."""


class PullMember:
    """A ``ConsumerMember``; see the module docstring."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        strategy: Allocation,
        store: OffsetStore,
        handover: Handover,
        events: QueueEvents,
        *,
        clustering: bool = True,
    ) -> None:
        """``group`` as brokers know it."""
        self.group = group
        self.subscriptions: Mapping[str, Subscription] = {}
        #: Queues that the application assigned; without them, rebalancing decides.
        self.assigned: Mapping[MessageQueue, ProcessQueue] = {}
        self._instance = instance
        self._clock = instance.runtime.clock
        self._store = store
        self._clustering = clustering
        self._handover = handover
        self._events = events
        self._executor = RebalanceExecutor(
            instance,
            Rebalance(group, instance.client_id, strategy, clustering=clustering, push=False),
            subscriptions=lambda: self.subscriptions,
            offsets=store,
            first_offset=_find_later,
            data_plane=self,
            on_abandoned=self._leave_alone,
        )
        self._compared: frozenset[str] = frozenset()  # members whose subscriptions were compared
        self._saved: dict[MessageQueue, int] = {}  # of queues that are not shared by rebalancing
        self._started_ms = self._clock.now_ms()

    def __repr__(self) -> str:
        return f"<PullMember {self.group} {len(self.process_queues)} queues>"

    # ---- what the instance needs -----------------------------------------------------------------

    def topics(self) -> Collection[str]:
        chosen = {queue.topic for queue in tuple(self.assigned)}
        return frozenset(self.subscriptions) | chosen

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=MessageModel.CLUSTERING
            if self._clustering
            else MessageModel.BROADCASTING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=[each.data for each in self.subscriptions.values()],
            unit_mode=self._instance.options.unit_mode,
        )

    @property
    def process_queues(self) -> Mapping[MessageQueue, ProcessQueue]:
        """All queues of this consumer, shared or assigned; from any thread."""
        return {**self._executor.rebalance.table, **self.assigned}

    async def read_offset(self, queue: MessageQueue) -> int | None:
        """The stored offset; memory gets it if the queue is in our share.

        Of other queues memory has only our commits: it is saved periodically, and an offset that
        was only read could overwrite a later commit of another client.
        """
        offset = await self._store.read(queue)
        if offset is not None and queue in self._executor.rebalance.table:
            self._store.table.update(queue, offset, increase_only=False)
        return offset

    async def persist_offsets(self) -> None:
        """Save the committed offsets; see :meth:`_unsaved`."""
        ours, changed = self._unsaved()
        saved = await self._store.save([*ours, *changed])
        self._saved.update({queue: saved[queue] for queue in changed if queue in saved})

    async def _persist_last(self) -> None:
        ours, changed = self._unsaved()
        await self._store.save([*ours, *changed], wait=True)

    def _unsaved(self) -> tuple[Collection[MessageQueue], Collection[MessageQueue]]:
        """Our queues, and others (not shared by rebalancing) with offsets to save.

        Other clients may commit the latter too, so they are saved once for each commit and never
        again. (Java's classic consumer forgets them if its application registered no
        listener.)
        """
        table, ours = self._store.table, self.process_queues
        changed = [
            queue
            for queue, offset in table.snapshot().items()
            if queue not in ours
            and queue.topic not in self.subscriptions
            and self._saved.get(queue) != offset
        ]
        return ours, changed

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """The committed offsets in memory (221)."""
        return self._store.table.snapshot(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """Settings, subscriptions and queues for tools (307), without thread stacks."""
        del with_stacks
        committed = self._store.table.snapshot()
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(map(str, self._instance.endpoint.namesrv)),
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_ACTIVELY.value,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=[each.data for each in self.subscriptions.values()],
            mq_table={
                queue: process_queue.info(committed.get(queue, NO_COMMIT))
                for queue, process_queue in self.process_queues.items()
            },
        )

    # ---- rebalancing -----------------------------------------------------------------------------

    async def rebalance(self) -> bool:
        """Take up and give up queues; returns whether we have exactly those that we should have.

        Pulls contain their subscription, so no broker refuses those of a member that differs from
        the rest of its group, as it does with push consumers: they are compared when members come.
        """
        balanced = await self._executor.round()
        members = self._executor.rebalance.members
        is_alone = members <= {self._instance.client_id}
        if members != self._compared and (is_alone or self._executor.report_conflicts()):
            self._compared = members
        return balanced

    def start_pull(
        self, queue: MessageQueue, process_queue: ProcessQueue, offset: int, delay_ms: int
    ) -> bool:
        """See :class:`~skylark.client.consumer.rebalance_executor.DataPlane`, also the next ones.

        The pull task finds the start offset, and pulls at once.
        """
        del offset, delay_ms
        return self._handover.post(self._events.queue_opened, queue, process_queue)

    def stop_pull(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        self._handover.post(self._events.queue_released, queue, process_queue)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        del process_queue
        return False

    def alive_ms(self) -> int | None:
        return None if self._handover.loop.is_closed() else self._clock.steady_ms()

    def queues_changed(self, settled: Settled) -> None:
        self._handover.post(self._events.queues_settled, settled)

    # ---- the end ---------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Save everything, then leave the group; from any loop."""
        try:
            await self._instance.runtime.control.run(self._persist_last())
        finally:
            await self._instance.unregister_consumer(self)
            self._executor.rebalance.drop_all()

    async def _leave_alone(self) -> None:
        """In a separate task, because the release may end the rebalance task."""
        try:
            await self.leave()
        finally:
            await self._instance.release()


async def _find_later(queue: MessageQueue) -> int:
    """No start offset yet: the pull task finds it, on the loop of the application."""
    del queue
    return NO_COMMIT
