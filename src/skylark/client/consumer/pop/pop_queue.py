"""An assignment to pop: the counter of its messages that are not settled yet, and its loop.

A push consumer in pop mode gets one assignment for each broker of a topic (or, with
``popShareQueueNum``, for some queues). :class:`PopLoop` pops there again and again: one request is
always at the broker, which holds it until a message arrives, unless more than
``pop_threshold_for_queue`` messages are not settled here, or handlers are slow and none is free
(:mod:`~skylark.client.consumer.pop.pop_pace`). After an error it waits and goes on; only
rebalancing ends it.

When the consumer stops, or the assignment is taken away, a loop pops no more; what its last
request brings is given back. Counterpart of Java's ``PopProcessQueue`` and of ``popMessage`` of
``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from skylark.client.consumer.pop.pop_failures import PopFailures
from skylark.client.consumer.pop.pop_options import POLL_S
from skylark.client.consumer.pop.pop_source import PopContext, PopSource
from skylark.client.consumer.pop.popped_message import PoppedRecord, PopReceipt
from skylark.client.consumer.push.consumer_stats import TopicCounters
from skylark.client.consumer.subscription import Subscription
from skylark.client.metrics import ConsumeMeter
from skylark.core.errors import SkylarkError
from skylark.wire.bodies.admin_body import PopProcessQueueInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.message import MessageRecord

logger = logging.getLogger(__name__)

#: Pauses of a loop: while the consumer is suspended, and while too many messages are not settled.
PAUSED_S: Final = 1.0
QUICK_ANSWER_S: Final = 0.02
FULL_S: Final = 0.05


class PopQueue:
    """One assignment, and the number of its messages that are not settled."""

    __slots__ = ("_drained", "_level", "counters", "dropped", "last_pop_ms", "meter", "queue",
                 "wait_ack")  # fmt: skip

    def __init__(
        self, queue: MessageQueue, counters: TopicCounters, meter: ConsumeMeter, now_ms: int
    ) -> None:
        self.queue = queue
        self.counters = counters
        self.meter = meter
        self.dropped = False
        self.wait_ack = 0  #: messages that are not settled
        self.last_pop_ms = now_ms
        self._level = 0
        self._drained: asyncio.Event | None = None

    def settled(self, count: int) -> None:
        """So many messages were acknowledged or given back."""
        self.wait_ack -= count
        if self._drained is not None and self.wait_ack <= self._level:
            self._drained.set()

    def drained(self, level: int) -> asyncio.Event:
        """An event for the time when no more than ``level`` messages are left."""
        self._level, self._drained = level, asyncio.Event()
        return self._drained

    def info(self) -> PopProcessQueueInfo:
        """For tools (307)."""
        return PopProcessQueueInfo(
            wait_ack_count=self.wait_ack,
            dropped=self.dropped,
            last_pop_timestamp=self.last_pop_ms,
        )


class PopTerms(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What all loops of a consumer share."""

    context: PopContext
    batch: int
    threshold: int  #: popThresholdForQueue
    error_delay_s: float
    is_running: Callable[[], bool]
    is_paused: Callable[[], bool]
    subscription: Callable[[str], Subscription | None]
    submit: Callable[[PopQueue, list[PoppedRecord]], None]
    room: Callable[[str], int]  #: messages of a topic that handlers would begin in time


class PopLoop:
    """Pops for one assignment."""

    def __init__(self, terms: PopTerms, pop_queue: PopQueue) -> None:
        self._terms = terms
        self._pop_queue = pop_queue
        self._clock = terms.context.link.clock
        self._source: PopSource[PoppedRecord] | None = None
        what = f"popping from {pop_queue.queue}"
        self._failures = PopFailures(what, terms.error_delay_s)
        self.behind = 0  #: messages that the broker had besides, at the last pop

    async def run(self) -> None:
        """Run until the assignment is taken away, or the consumer stops."""
        while self._may_pop():
            pause_s = await self._pause()
            if pause_s is not None:
                await self._clock.sleep(pause_s)
                continue
            try:
                pause_s = await self._round()
            except SkylarkError as error:
                pause_s = self._failures.pause_after(error)
            except Exception:
                logger.exception("popping from %s failed", self._pop_queue.queue)
                pause_s = self._terms.error_delay_s
            if pause_s:
                await self._clock.sleep(pause_s)

    def _may_pop(self) -> bool:
        return not self._pop_queue.dropped and self._terms.is_running()

    async def _pause(self) -> float | None:
        """How long not to pop; None if a pop may be sent. Waits for handlers, briefly."""
        terms, pop_queue = self._terms, self._pop_queue
        if terms.is_paused():
            return PAUSED_S
        if pop_queue.wait_ack > terms.threshold:
            level = terms.threshold // 2
        elif terms.room(pop_queue.queue.topic) <= 0:
            level = pop_queue.wait_ack - 1
        else:
            return None
        drained = pop_queue.drained(level)
        with contextlib.suppress(TimeoutError):
            await self._clock.wait_for(drained.wait(), FULL_S)
        return 0.0

    async def _round(self) -> float:
        """Pop once; returns how long to wait before the next."""
        terms, pop_queue = self._terms, self._pop_queue
        subscription = terms.subscription(pop_queue.queue.topic)
        if subscription is None:
            return terms.error_delay_s
        source = self._source
        if source is None or source.subscription is not subscription:
            source = self._source = PopSource(
                terms.context, pop_queue.queue, subscription, make_message
            )
        started_ms = self._clock.steady_ms()
        count = max(1, min(terms.batch, terms.room(pop_queue.queue.topic)))
        found = await source.pop(count, POLL_S)
        now_ms = self._clock.steady_ms()
        self._failures.ended()
        pop_queue.last_pop_ms = now_ms
        self.behind = source.rest
        counters = pop_queue.counters
        counters.pulls += 1
        counters.pull_ms += now_ms - started_ms
        status = "found" if found else "polling_full" if source.is_full else "no_new_msg"
        pop_queue.meter.pulled(status, now_ms - started_ms, len(found))
        if not found:
            if source.is_full:
                return terms.error_delay_s
            # A broker that answers at once did not hold the request.
            return 0.0 if now_ms - started_ms >= 1000 * QUICK_ANSWER_S else QUICK_ANSWER_S
        if not self._may_pop():
            terms.context.give_back_soon(found)
            return 0.0
        # Handlers may have become slow, or other loops may have popped, while the pop was held.
        room = max(0, terms.room(pop_queue.queue.topic))
        if len(found) > room:
            terms.context.give_back_soon(found[room:])
            del found[room:]
        if found:
            counters.pulled += len(found)
            terms.submit(pop_queue, found)
        return 0.0


def make_message(
    record: MessageRecord, broker_name: str, topic: str | None, receipt: PopReceipt
) -> PoppedRecord:
    """A message for a handler, which is acknowledged by its consumer."""
    return PoppedRecord(record, broker_name, topic, receipt, None)
