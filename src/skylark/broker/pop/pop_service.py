"""Pops: hands out messages of any queue of a topic to any member of a group, and remembers them.

The checks come in Java's order (:mod:`skylark.broker.pop.pop_checks`). Then the pop reads queues in
a certain order (:mod:`skylark.broker.pop.queue_order`), until it has as many messages as it wants.
Of each queue the pop reads from where the group is, keeps a check-point of what it takes
(:mod:`skylark.broker.pop.pop_state`), and so moves on; no other consumer gets these messages until
their invisible time is over. A message of a retry topic is copied into the answer with the name of
the original topic and its receipt handle, unless ``popResponseReturnActualRetryTopic`` is set.

**Ordered pops** (``order=true``) take nothing from a queue that has messages in hand
(:mod:`skylark.broker.pop.order_pop`), never read retry topics, and leave the offset of the group
until messages are acknowledged.

**Waiting.** A pop that finds nothing waits until ``bornTime + pollTime``
(:mod:`skylark.broker.pop.waiting_pop_runner`); 209 if too many wait, 210 if its time is over.

What was taken is answered when its check-points are durable. A queue that cannot be read gives
nothing, and a check-point that cannot be kept leaves its messages where they are; if nothing else
was found, the pop gets that error.

Messages are views of the log, leased until the endpoint releases them. Counterpart of Java's
``PopMessageProcessor`` and ``PeekMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from skylark.broker.api import (
    LeasedMessages,
    NotificationOutcome,
    Peer,
    Pending,
    PopOutcome,
    PopResult,
)
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.notification import Notifications
from skylark.broker.pop.pop_checks import POP_COUNT_MAX, PopChecks, PopFilter
from skylark.broker.pop.pop_queues import Found, PopQueues
from skylark.broker.pop.queue_order import ANY_QUEUE, QueueOrder
from skylark.broker.pop.waiting_pop_runner import WaitingPopRunner, wait_time_ms
from skylark.broker.pull.held_request_runner import HeldRequest
from skylark.core.clock import Clock
from skylark.core.names import topic_of_pop_retry
from skylark.net.inbound import Watch
from skylark.store.reput import Arrival
from skylark.store.store_results import GetStatus
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from skylark.wire.pop_handle import (
    ORDER_REVIVE_QUEUE,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
)

#: A pop that comes later than this after its deadline was given up by its client.
LATE_MAX_MS: Final = 500

_FOUND: Final = GetStatus.FOUND.remark
_NOTHING: Final = GetStatus.NO_MESSAGE_IN_QUEUE.remark


class _Leased(msgspec.Struct):
    """The messages of several queues, as one body."""

    parts: list[LeasedMessages]
    views: Sequence[memoryview]
    size: int

    def release(self) -> None:
        for part in self.parts:
            part.release()


class PopMessages:
    """Runs pops and peeks; a part of :class:`~skylark.broker.api.PopService`."""

    def __init__(
        self,
        live: LiveSettings,
        checks: PopChecks,
        order: QueueOrder,
        queues: PopQueues,
        clock: Clock,
        *,
        awaited: dict[str, int],
        watch: Watch,
    ) -> None:
        self._live = live
        self._checks = checks
        self._order = order
        self._queues = queues
        self._clock = clock
        self._revive_turn = 0
        #: The waiting pops.
        self.waiting = WaitingPopRunner(
            self._pop_again,
            clock,
            awaited=awaited,
            is_taken=queues.is_taken,
            watch=watch,
        )

    def pop(self, peer: Peer, header: PopMessageRequestHeader) -> PopResult | Pending[PopOutcome]:
        """Messages now, or later if none are there and the request may wait; raises BrokerError."""
        if header.born_time == 0:
            header.born_time = self._clock.now_ms()
        return self._pop(self.waiting.new(peer, header))

    def _pop_again(self, held: HeldRequest) -> PopResult | Pending[PopOutcome]:
        return self._pop(held)

    def _pop(self, held: HeldRequest) -> PopResult | Pending[PopOutcome]:
        """Run a pop; its own Pending if it waits, perhaps again."""
        peer, header = held.peer, held.request
        checks, now_ms = self._checks, self._clock.now_ms()
        if now_ms - header.born_time - header.poll_time > LATE_MAX_MS:
            ip = self._live.current.broker_ip1
            remark = f"the broker[{ip}] pop message is timeout too much"
            header = PopMessageResponseHeader()
            return PopResult(ResponseCode.POLLING_TIMEOUT, remark, header)
        checks.broker("pop")
        checks.count(header.max_msg_nums)
        checks.attempt(header.attempt_id)
        checks.role()
        topic = checks.topic(peer, header)
        group = checks.group(header.consumer_group)
        wanted = checks.filter(header.exp_type, header.exp)
        checks.count_not_negative(header.max_msg_nums)
        checks.note_subscription(header.consumer_group, header.topic, header.exp_type, header.exp)
        answer = PopMessageResponseHeader(
            pop_time=now_ms,
            invisible_time=header.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE if header.order else self._next_revive_queue(),
            start_offset_info="",
            msg_offset_info="",
            order_count_info="" if header.order else None,
        )
        found = Found(header.max_msg_nums)
        try:
            for queue in self._order.of_pop(header, topic, group, found.is_full):
                self._queues.take(queue, header, wanted, answer, found)
        except BaseException:
            found.release()
            raise
        answer.rest_num = found.rest
        if found.count:
            return self._found(header, answer, found)
        if found.error is not None:
            raise found.error
        return self._wait(held, wanted, answer, found)

    def _next_revive_queue(self) -> int:
        """Check-points are spread over the queues of the revive topic."""
        ids = self._queues.revive_queue_ids
        self._revive_turn += 1
        return ids[(self._revive_turn - 1) % len(ids)]

    def _found(
        self, header: PopMessageRequestHeader, answer: PopMessageResponseHeader, found: Found
    ) -> PopResult | Pending[PopOutcome]:
        if found.rest > 0:
            # Pops of any queue and those of one queue do not wake each other.
            queue_id = max(ANY_QUEUE, header.queue_id)
            self.waiting.wake_one(header.topic, header.consumer_group, queue_id)
        answer.start_offset_info = encode_start_offsets(found.starts)
        answer.msg_offset_info = encode_message_offsets(found.offsets)
        if header.order:
            answer.order_count_info = encode_order_counts(found.counts)
        messages = _joined(found.parts)
        result = PopResult(ResponseCode.SUCCESS, _FOUND, answer, messages)
        if not found.waits_for:
            return result
        pending: Pending[PopOutcome] = Pending()
        pending.on_cancel = messages.release
        waits_for = iter(found.waits_for)

        def durable(_result: object) -> None:
            following = next(waits_for, None)
            if following is not None:
                following.then(durable)
            else:
                pending.set(result)

        durable(None)
        return pending

    def _wait(
        self,
        held: HeldRequest,
        wanted: PopFilter,
        answer: PopMessageResponseHeader,
        found: Found,
    ) -> PopResult | Pending[PopOutcome]:
        """Wait for messages, or give the answer that there are none."""
        header: PopMessageRequestHeader = held.request
        wait_ms = wait_time_ms(header.born_time, header.poll_time, self._clock.now_ms())
        code = ResponseCode.POLLING_TIMEOUT
        if wait_ms > 0 and header.max_msg_nums > 0 and not self.waiting.is_stopping:
            topic, group = header.topic, header.consumer_group
            queue_id = max(ANY_QUEUE, header.queue_id)
            if self.waiting.hold(
                topic, group, queue_id, held, wait_ms=wait_ms, tags=wanted.tags, sql=wanted.sql
            ):
                if found.has_skipped and found.rest > 0:
                    self.waiting.wake_one(topic, group, queue_id)  # more to look through
                return held.pending
            code = ResponseCode.POLLING_FULL
        return PopResult(code, _NOTHING, answer)

    def peek(self, peer: Peer, header: PeekMessageRequestHeader) -> PopResult:
        """What a pop would get; it stays where it is. Raises BrokerError."""
        checks = self._checks
        checks.broker("peeking")
        topic = checks.topic(peer, header)
        checks.group(header.consumer_group)
        checks.count_not_negative(header.max_msg_nums)
        found = Found(min(header.max_msg_nums, POP_COUNT_MAX))
        try:
            for queue in self._order.of_peek(header, topic, found.is_full):
                self._queues.peek(queue, header.consumer_group, found)
        except BaseException:
            found.release()
            raise
        answer = PopMessageResponseHeader(rest_num=found.rest)  # no times: nothing was popped
        if not found.count:
            return PopResult(ResponseCode.PULL_NOT_FOUND, _NOTHING, answer)
        return PopResult(ResponseCode.SUCCESS, _FOUND, answer, _joined(found.parts))


def _joined(parts: list[LeasedMessages]) -> LeasedMessages:
    if len(parts) == 1:
        return parts[0]
    views = [view for part in parts for view in part.views]
    return _Leased(parts, views, sum(part.size for part in parts))


class PopService:
    """Pops, peeks, notifications; a :class:`~skylark.broker.api.PopService`."""

    def __init__(self, messages: PopMessages, notifications: Notifications) -> None:
        self.pops = messages.waiting
        self.notifications = notifications.waiting
        self._messages = messages
        self._notifications = notifications

    def pop(self, peer: Peer, header: PopMessageRequestHeader) -> PopResult | Pending[PopOutcome]:
        return self._messages.pop(peer, header)

    def peek(self, peer: Peer, header: PeekMessageRequestHeader) -> PopResult:
        return self._messages.peek(peer, header)

    def notify(
        self, peer: Peer, header: NotificationRequestHeader
    ) -> NotificationResponseHeader | Pending[NotificationOutcome]:
        return self._notifications.notify(peer, header)

    def waiting_count(self, peer: Peer, header: PollingInfoRequestHeader) -> int:
        return self._notifications.waiting_count(peer, header, self.pops)

    def arrived(self, arrival: Arrival) -> None:
        """Wake the requests that wait for a new message."""
        self.pops.arrived(arrival)
        self.notifications.arrived(arrival)

    def has_room(self, topic: str, group: str, queue_id: int) -> None:
        """Wake one pop: a queue has no longer too many messages in flight."""
        origin = topic_of_pop_retry(topic, group)
        if origin == topic:
            self.pops.wake_of_queue(topic, group, queue_id)
            return
        for waits_for in self.pops.held.queues(origin, group):  # pops of every queue read retries
            self.pops.wake_one(origin, group, waits_for)
            return

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Wake a request that waits for messages of a queue, which have become visible."""
        self.pops.wake_of_queue(topic, group, queue_id)
        self.notifications.wake_of_queue(topic, group, queue_id)
