"""NOTIFICATION (200054): waits until a pop would find messages, and takes none. POLLING_INFO too.

A proxy asks so before it pops for a client. With ``useMessageFilterForNotification`` a queue with
less than ``maxMessageFilterNumForNotification`` messages counts only if one of them has a tag that
the request wants. A queue with more counts unseen, because a pop has to look through it. Messages
of retry topics, and requests with an SQL filter, are not filtered.

A notification that finds nothing waits like a pop, in a line of its own. Counterpart of Java's
``NotificationProcessor`` and ``PollingInfoProcessor``.
"""

from __future__ import annotations

from skylark.broker.api import NotificationOutcome, Peer, Pending
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.order_pop import OrderPops
from skylark.broker.pop.pop_checks import PopChecks, PopFilter
from skylark.broker.pop.pop_queues import PopQueues
from skylark.broker.pop.queue_order import ANY_QUEUE, QueueOrder
from skylark.broker.pop.waiting_pop_runner import WaitingPopRunner, wait_time_ms
from skylark.broker.pull.held_request_runner import HeldRequest
from skylark.core.clock import Clock
from skylark.net.inbound import Watch
from skylark.wire.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
)


class Notifications:
    """Runs notifications; a part of :class:`~skylark.broker.api.PopService`."""

    def __init__(
        self,
        live: LiveSettings,
        checks: PopChecks,
        order: QueueOrder,
        queues: PopQueues,
        order_pops: OrderPops,
        clock: Clock,
        *,
        awaited: dict[str, int],
        watch: Watch,
    ) -> None:
        self._live = live
        self._checks = checks
        self._order = order
        self._queues = queues
        self._order_pops = order_pops
        self._clock = clock
        #: The waiting notifications.
        self.waiting = WaitingPopRunner(
            self._notify,
            clock,
            awaited=awaited,
            is_taken=queues.is_taken,
            watch=watch,
        )

    def notify(
        self, peer: Peer, header: NotificationRequestHeader
    ) -> NotificationResponseHeader | Pending[NotificationOutcome]:
        """Wait until a pop would find messages; raises BrokerError."""
        if header.born_time == 0:
            header.born_time = self._clock.now_ms()
        return self._notify(self.waiting.new(peer, header))

    def _notify(
        self, held: HeldRequest
    ) -> NotificationResponseHeader | Pending[NotificationOutcome]:
        peer, header = held.peer, held.request
        self._check(peer, header)
        self._checks.attempt(header.attempt_id)
        wanted = PopFilter()
        is_filtered = self._live.current.pop.use_message_filter_for_notification
        if is_filtered and header.exp_type:
            wanted = self._checks.filter(header.exp_type, header.exp)
        else:
            header.exp = None  # of any size, and not used while the request waits
        if self._has_messages(peer, header, wanted):
            return NotificationResponseHeader(has_msg=True)
        wait_ms = wait_time_ms(header.born_time, header.poll_time, self._clock.now_ms())
        if wait_ms <= 0 or self.waiting.is_stopping:
            return NotificationResponseHeader()
        is_held = self.waiting.hold(
            header.topic,
            header.consumer_group,
            max(ANY_QUEUE, header.queue_id),
            held,
            wait_ms=wait_ms,
            tags=wanted.tags,
            sql=wanted.sql,
        )
        return held.pending if is_held else NotificationResponseHeader(polling_full=True)

    def _check(
        self, peer: Peer, header: NotificationRequestHeader | PollingInfoRequestHeader
    ) -> None:
        self._checks.broker("peeking")
        self._checks.topic(peer, header)
        self._checks.group(header.consumer_group)

    def _has_messages(
        self, peer: Peer, header: NotificationRequestHeader, wanted: PopFilter
    ) -> bool:
        topic = self._checks.topic(peer, header)
        for queue in self._order.of_topic(topic, header.queue_id):
            if self._queue_has_messages(queue.topic, queue.queue_id, header, wanted):
                return True
        everything = PopFilter()
        for retries in self._order.retry_topics(header.topic, header.consumer_group):
            for queue in self._order.of_topic(retries):
                if self._queue_has_messages(queue.topic, queue.queue_id, header, everything):
                    return True
        return False

    def _queue_has_messages(
        self, topic: str, queue_id: int, header: NotificationRequestHeader, wanted: PopFilter
    ) -> bool:
        group = header.consumer_group
        if header.order and self._order_pops.is_blocked(
            header.topic, group, queue_id, self._clock.now_ms(), attempt_id=header.attempt_id
        ):
            return False
        count = self._queues.behind(topic, group, queue_id)
        count_max = self._live.current.pop.max_message_filter_num_for_notification
        if wanted.tags is None or not 0 < count < count_max:
            return count > 0
        return self._queues.has_matching(topic, group, queue_id, wanted)

    def waiting_count(
        self, peer: Peer, header: PollingInfoRequestHeader, pops: WaitingPopRunner
    ) -> int:
        """POLLING_INFO (200055): how many pops wait; raises BrokerError."""
        self._check(peer, header)
        return pops.held.count(header.topic, header.consumer_group, header.queue_id)
