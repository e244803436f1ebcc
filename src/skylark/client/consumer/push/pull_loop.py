"""Pull loop of one queue: pulls, filters and submits messages, again and again.

One task per queue, on the loop that consumes. One pull is always in flight, unless
:class:`~skylark.client.consumer.process_queue.FlowControl` holds it; a broker without messages
holds the pull for 15 s and responds as soon as one arrives, so the loop is neither busy nor late.
If a queue is far behind, a pull requests many messages (``bulk``), which halves the cost per
message here and at the broker; Apache's brokers still send 32.

**Responses.** Messages are added to the process queue and submitted to the runner. Without messages
the offset still moves, because others may have been filtered out. If the broker does not have the
offset (21), the loop ends: the control loop moves the queue and takes it up again. After an error
the loop waits and pulls again, without limit; only rebalancing gives a queue up.

**Faults.** A record that cannot be decoded, which no broker should send, is skipped, logged and
counted; messages before and after it are consumed. If a body cannot be decompressed, the handler
gets a RemoteProtocolError on access, so the message is retried and becomes a dead letter.

Counterpart of Java's ``PullMessageService``, ``PullAPIWrapper`` and
``DefaultMQPushConsumerImpl.pullMessage``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from skylark.client.consumer.process_queue import (
    BROKER_FLOW_CONTROL_DELAY_MS,
    FAILURES_PER_LOG,
    FlowControl,
    Hold,
    HoldReason,
)
from skylark.client.consumer.pull_api import PullTerms, QueueAccess
from skylark.client.consumer.push.consume_runner import AssignedQueue, ConsumerServices, Runner
from skylark.client.consumer.push.push_settings import BULK_PULL_SIZE, PULL_BATCH_SIZE
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.broker_calls import PULL_TIMEOUT_S, PullStatus
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import seconds
from skylark.client.core.hooks import call_hooks, hook_methods
from skylark.client.core.route_cache import MASTER_ID
from skylark.client.errors import UndecodableError
from skylark.core.errors import BrokerError, SkylarkError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import ResponseCode

logger = logging.getLogger(__name__)

SUSPEND_S: Final = 15.0
#: The broker does not have our subscription, although heartbeats have brought it.
_CONFLICT_CODES: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)


class PullContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The objects that all pull loops of a consumer share."""

    services: ConsumerServices
    access: QueueAccess
    flow: FlowControl
    runner: Runner
    group: str  #: as brokers know it
    is_paused: Callable[[], bool]
    first_offset: Callable[[MessageQueue], Awaitable[int]]
    offset_illegal: Callable[[AssignedQueue, int], None]
    save_soon: Callable[[Collection[MessageQueue]], None]
    subscription_lost: Callable[[], None]

    @property
    def error_delay_s(self) -> float:
        return seconds(self.services.instance.options.pull_error_delay)

    def subscription(self, topic: str) -> Subscription | None:
        return self.services.setup.subscriptions().get(topic)


class PullLoop:
    """The pull loop of one queue."""

    def __init__(self, context: PullContext, assigned: AssignedQueue, offset: int) -> None:
        self._context = context
        self._assigned = assigned
        self._offset = offset
        self._broker_id = MASTER_ID
        self.behind = 0  #: messages at the broker that were not pulled yet
        self._alone = False  # pull one message, because the next may be undecodable
        self._failures = 0  # pulls that failed, one after the other
        self._counters = assigned.counters
        self._filters = hook_methods(context.services.setup.hooks, "filter_messages")

    async def run(self, delay_ms: int) -> None:
        """Run until the queue is given up."""
        context, clock = self._context, self._context.services.clock
        await clock.sleep(delay_ms / 1000)
        pause_s = context.services.setup.settings.pull_interval_ms / 1000
        while True:
            hold = self._hold()
            if hold is not None:
                if hold.delay_ms is None:
                    return
                if hold.reason is not HoldReason.OFFSET_UNCHECKED:
                    await self._wait(hold.reason, hold.delay_ms / 1000)
                    continue
            try:
                if hold is not None:
                    await self._check_offset()
                    continue
                found = await self._round()
            except SkylarkError as error:
                if self._assigned.process_queue.dropped:
                    return
                await clock.sleep(self._delay_after(error))
                continue
            except Exception:
                logger.exception("pulling %s failed", self._assigned.queue)
                await clock.sleep(context.error_delay_s)
                continue
            if found and pause_s:
                await clock.sleep(pause_s)

    def _hold(self) -> Hold | None:
        context, assigned = self._context, self._assigned
        hold = context.flow.may_pull(
            assigned.process_queue,
            context.services.clock.steady_ms(),
            running=context.services.setup.is_running(),
            paused=context.is_paused(),
            subscribed=context.subscription(assigned.queue.topic) is not None,
        )
        if hold is not None and hold.should_log:
            logger.warning("%s is not pulled: %s", assigned.queue, hold.reason.value)
        return hold

    async def _wait(self, reason: HoldReason, delay_s: float) -> None:
        """Wait; fast handlers end it at half the limit, so that they do not run out of messages."""
        clock, process_queue = self._context.services.clock, self._assigned.process_queue
        if reason is not HoldReason.COUNT:
            await clock.sleep(delay_s)
            return
        drained = asyncio.Event()
        process_queue.call_when_drained(self._context.flow.count_max // 2, drained.set)
        try:
            await clock.wait_for(drained.wait(), delay_s)
        except TimeoutError:
            pass
        finally:
            process_queue.call_when_drained(0, None)

    def _delay_after(self, error: SkylarkError) -> float:
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            return BROKER_FLOW_CONTROL_DELAY_MS / 1000
        if isinstance(error, BrokerError) and error.code in _CONFLICT_CODES:
            self._context.subscription_lost()
        if self._failures % FAILURES_PER_LOG == 0:
            logger.warning("pulling %s failed: %s", self._assigned.queue, error)
        self._failures += 1
        return self._context.error_delay_s

    async def _check_offset(self) -> None:
        """Read the start offset again, because others may have committed before the lock."""
        self._offset = await self._context.first_offset(self._assigned.queue)
        self._assigned.process_queue.offset_checked = True

    # ---- one pull --------------------------------------------------------------------------------

    async def _round(self) -> bool:
        """Pull once; returns whether there were messages for handlers."""
        context, assigned = self._context, self._assigned
        subscription = context.subscription(assigned.queue.topic)
        if subscription is None:
            return False
        started_ms = context.services.clock.steady_ms()
        try:
            pulled, self._broker_id = await context.access.pull(
                assigned.queue, subscription, self._offset, self._terms(), self._broker_id
            )
        except UndecodableError as error:
            self._skip_undecodable(error)
            return False
        self._failures = 0
        self._alone = False
        took_ms = context.services.clock.steady_ms() - started_ms
        self._counters.pulls += 1
        self._counters.pull_ms += took_ms
        received = self._counters.pulled
        self.behind = max(0, pulled.max_offset - pulled.next_offset)
        self._offset = pulled.next_offset
        if pulled.status is PullStatus.FOUND:
            found = self._take(pulled.messages)
            assigned.meter.pulled("found", took_ms, self._counters.pulled - received)
            return found
        assigned.meter.pulled(pulled.status.name.lower(), took_ms, 0)
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning("%s continues at offset %d", assigned.queue, pulled.next_offset)
            if not assigned.process_queue.dropped:
                # The offset may be saved before the control loop gets this event.
                context.services.offsets.update(assigned.queue, self._offset, increase_only=False)
            assigned.process_queue.dropped = True
            context.offset_illegal(assigned, pulled.next_offset)
        else:
            self._advance()
        return False

    def _terms(self) -> PullTerms:
        services = self._context.services
        settings, count = services.setup.settings, self._count_to_ask()
        commit_offset = 0
        if settings.clustering:
            commit_offset = services.offsets.read(self._assigned.queue) or 0
        return PullTerms(
            count_max=count,
            size_max=settings.pull_batch_size_in_bytes,
            suspend_s=SUSPEND_S,
            timeout_s=PULL_TIMEOUT_S,
            bulk=settings.pull_batch_size is None and count > PULL_BATCH_SIZE,
            commit_offset=commit_offset,
            is_registered=True,
            with_subscription=settings.post_subscription_when_pull,
        )

    def _count_to_ask(self) -> int:
        """How many messages the next pull may bring."""
        if self._alone:
            return 1
        context = self._context
        count = context.services.setup.settings.pull_batch_size
        if count is not None:
            return count
        if self.behind <= PULL_BATCH_SIZE:
            return PULL_BATCH_SIZE
        room = context.flow.room(self._assigned.process_queue)
        return max(PULL_BATCH_SIZE, min(BULK_PULL_SIZE, room))

    def _advance(self) -> None:
        """Commit the pull offset if no message waits: the others were filtered out."""
        assigned = self._assigned
        if not assigned.process_queue.count and not assigned.process_queue.dropped:
            self._context.services.offsets.update(assigned.queue, self._offset)

    def _take(self, wanted: list[MessageExt]) -> bool:
        assigned = self._assigned
        if self._filters:
            call_hooks(self._filters, assigned.queue, wanted)
        if assigned.process_queue.is_closing:
            return False
        if not wanted:
            self._advance()
            return False
        self._counters.pulled += len(wanted)
        self._context.runner.submit(assigned, wanted)
        return True

    def _skip_undecodable(self, error: UndecodableError) -> None:
        """A record cannot be decoded: pull it alone, then skip it."""
        if self._alone:
            logger.error("%s: it is skipped: %s", error, error.__cause__)
            self._context.services.setup.stats.undecodable += 1
            self._offset = error.next_offset
        self._alone = not self._alone
