"""Pull loop of one queue: pulls, decodes, filters and submits messages, again and again.

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
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from skylark.client.consumer.process_queue import (
    BROKER_FLOW_CONTROL_DELAY_MS,
    FAILURES_PER_LOG,
    FlowControl,
    Hold,
    HoldReason,
)
from skylark.client.consumer.pull_api import decode_messages, require_sql
from skylark.client.consumer.push.consume_runner import AssignedQueue, ConsumerServices, Runner
from skylark.client.consumer.push.push_settings import BULK_PULL_SIZE, PULL_BATCH_SIZE
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.broker_calls import PULL_TIMEOUT_S, Pulled, PullStatus
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import seconds
from skylark.client.core.hooks import call_hooks, hook_methods
from skylark.client.core.route_cache import MASTER_ID
from skylark.core.errors import BrokerError, RemoteProtocolError, SkylarkError
from skylark.core.names import is_retry_topic
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import PullSysFlag, ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader

logger = logging.getLogger(__name__)

SUSPEND_MS: Final = 15_000


class PullContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The objects that all pull loops of a consumer share."""

    services: ConsumerServices
    flow: FlowControl
    runner: Runner
    group: str  #: as brokers know it
    is_paused: Callable[[], bool]
    first_offset: Callable[[MessageQueue], Awaitable[int]]
    offset_illegal: Callable[[AssignedQueue, int], None]

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
        queue = assigned.queue
        self._namespace = context.services.instance.namespace
        self._topic_shown = (
            None if is_retry_topic(queue.topic) else self._namespace.unwrap(queue.topic)
        )
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
        pulled = await self._pull(subscription)
        self._failures = 0
        took_ms = context.services.clock.steady_ms() - started_ms
        self._counters.pulls += 1
        self._counters.pull_ms += took_ms
        received = self._counters.pulled
        self._broker_id = pulled.suggested_broker_id
        self.behind = max(0, pulled.max_offset - pulled.next_offset)
        if pulled.status is PullStatus.FOUND:
            found = self._take(pulled, subscription)
            assigned.meter.pulled("found", took_ms, self._counters.pulled - received)
            return found
        assigned.meter.pulled(pulled.status.name.lower(), took_ms, 0)
        self._offset = pulled.next_offset
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

    async def _pull(self, subscription: Subscription) -> Pulled:
        context, services, queue = self._context, self._context.services, self._assigned.queue
        settings, data = services.setup.settings, subscription.data
        target = services.link.lookup.routes.reader(queue.broker_name, self._broker_id)
        if target is None:
            target = await services.link.lookup.reader_of(queue, self._broker_id)
        if subscription.is_sql:
            require_sql(services.instance, target, queue)
        commit_offset = 0
        sys_flag = int(PullSysFlag.SUSPEND)
        if settings.clustering:
            commit_offset = context.services.offsets.read(queue) or 0
            if commit_offset > 0 and not target.is_slave:
                sys_flag |= PullSysFlag.COMMIT_OFFSET
        if settings.post_subscription_when_pull:
            sys_flag |= PullSysFlag.SUBSCRIPTION
        count = self._count_to_ask()
        header = PullMessageRequestHeader(
            consumer_group=context.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=self._offset,
            max_msg_nums=count,
            max_msg_bytes=settings.pull_batch_size_in_bytes,
            sys_flag=sys_flag,
            commit_offset=commit_offset,
            suspend_timeout_millis=SUSPEND_MS,
            subscription=data.sub_string if settings.post_subscription_when_pull else None,
            sub_version=subscription.pull_version,
            expression_type=data.expression_type,
            bulk=True if settings.pull_batch_size is None and count > PULL_BATCH_SIZE else None,
        )
        return await context.services.link.calls.pull(
            target.address, header, queue.broker_name, PULL_TIMEOUT_S
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

    def _take(self, pulled: Pulled, subscription: Subscription) -> bool:
        assigned = self._assigned
        messages, self._offset = self._decode(pulled)
        wanted = subscription.select(messages)
        if self._filters:
            wanted = list(wanted)
            call_hooks(self._filters, assigned.queue, wanted)
        if assigned.process_queue.dropped:
            return False
        if not wanted:
            self._advance()
            return False
        self._counters.pulled += len(wanted)
        self._context.runner.submit(assigned, wanted)
        return True

    # ---- decoding --------------------------------------------------------------------------------

    def _decode(self, pulled: Pulled) -> tuple[list[MessageExt], int]:
        """The messages, and the offset to continue at."""
        queue, topic = self._assigned.queue, self._topic_shown
        messages, error = decode_messages(pulled, queue, topic)
        if error is None:
            self._alone = False
            next_offset = pulled.next_offset
        else:
            next_offset = self._skip_undecodable(messages, pulled, error)
        if topic is None and self._namespace.name:
            shown = self._namespace.unwrap
            messages = [MessageExt(m.record, m.broker_name, shown(m.topic)) for m in messages]
        return messages, next_offset

    def _skip_undecodable(
        self, messages: list[MessageExt], pulled: Pulled, error: RemoteProtocolError
    ) -> int:
        """The next offset at a record that cannot be decoded: pull it alone, then skip it."""
        if messages:
            return messages[-1].queue_offset + 1
        if not self._alone:
            self._alone = True
            return self._offset
        self._alone = False
        queue = self._assigned.queue
        logger.error(
            "a message before offset %d of %s is lost: %s", pulled.next_offset, queue, error
        )
        self._context.services.setup.stats.undecodable += 1
        return pulled.next_offset
