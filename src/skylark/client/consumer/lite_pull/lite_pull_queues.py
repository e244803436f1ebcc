"""Assigned queues of a lite pull consumer: one pull task each, and the batches not polled yet.

Everything here lives on the loop of the application. Each queue has a pull task::

    dropped: end      paused: 1 s      too many messages wait: 50 ms
    pull from the offset; the broker holds an empty pull for 20 s
        found: add a batch      any response: continue at the next offset
        flow control (215): 20 ms      start offset unknown: 3 s      other errors: 1 s

**Consume offset.** The offset of the first message of a queue that was not handed out to the
application; a commit uses it. Batches may be handed out in parts.

**Faults.** A message that cannot be decoded, which no broker should send, is pulled once more
alone, then skipped and logged; the messages before and after it are handed out. If a body cannot
be decompressed, the application gets the error on access.

**Seek.** Drops the waiting batches of the queue and replaces its task, so that the response to a
pull in flight is ignored.

Counterpart of Java's ``PullTaskImpl``, ``AssignedMessageQueue`` and the ``consumeRequestCache`` of
``DefaultLitePullConsumerImpl``.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import msgspec

from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullSettings
from skylark.client.consumer.process_queue import (
    BROKER_FLOW_CONTROL_DELAY_MS,
    FAILURES_PER_LOG,
    FLOW_CONTROL_DELAY_MS,
    NOTHING_TO_COMMIT,
    FlowControl,
    ProcessQueue,
    queue_level,
)
from skylark.client.consumer.pull_api import PullTerms
from skylark.client.consumer.pull_consumer_base import PullConsumerSession
from skylark.client.consumer.rate_limited_log import RateLimitedLog
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import seconds
from skylark.client.core.hooks import call_hooks, hook_methods
from skylark.client.core.route_cache import MASTER_ID
from skylark.client.errors import UndecodableError
from skylark.client.metrics import QueueLevel
from skylark.core.errors import BrokerError, ClientError, SkylarkError
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import ResponseCode

logger = logging.getLogger(__name__)

#: After the first offset of a queue could not be found out.
FIRST_OFFSET_DELAY_S: Final = 3.0
FLOW_CONTROL_DELAY_S: Final = FLOW_CONTROL_DELAY_MS / 1000
_NOW: Final = 0.0


class LiteQueue(msgspec.Struct, eq=False):
    """One assigned queue."""

    queue: MessageQueue
    process_queue: ProcessQueue
    paused: bool = False
    pull_offset: int | None = None  #: None until the first offset is known
    consume_offset: int = NOTHING_TO_COMMIT
    alone: bool = False  #: pull one message, because the next may be undecodable
    broker_id: int = MASTER_ID  #: the broker id that the last response suggested
    behind: int = 0  #: messages at the broker that were not pulled yet
    failures: int = 0  #: pulls that failed, one after the other
    task: asyncio.Task[None] | None = None


class Batch(msgspec.Struct, eq=False):
    """Fetched messages of one queue; those before ``taken`` were handed out."""

    source: LiteQueue
    messages: list[MessageExt]
    taken: int = 0


class LiteQueues:
    """See the module docstring."""

    def __init__(
        self,
        session: PullConsumerSession,
        settings: LitePullSettings,
        subscription_of: Callable[[str], Subscription],
        hooks: Sequence[object],
    ) -> None:
        """``subscription_of`` returns the subscription to a topic, as brokers know it."""
        self.queues: dict[MessageQueue, LiteQueue] = {}
        self._session = session
        self._access = session.access
        self._settings = settings
        self._clock = clock = session.clock
        self._subscription_of = subscription_of
        self._error_delay_s = seconds(session.instance.options.pull_error_delay)
        self._filters = hook_methods(hooks, "filter_messages")
        self._meter = functools.cache(partial(session.instance.consume_meter, session.group))
        self._terms = PullTerms(
            count_max=settings.pull_batch_size,
            suspend_s=settings.suspend_max,
            timeout_s=settings.suspend_timeout,
            lite=True,
        )
        self._start_time_ms = settings.start_time_ms(clock.now_ms())
        self._terms_alone = msgspec.structs.replace(self._terms, count_max=1)
        self._flow = FlowControl(
            count_max=settings.pull_threshold_for_queue,
            size_max=settings.pull_threshold_size_for_queue,
            span_max=settings.consume_max_span,
        )
        self._limited_log = RateLimitedLog(logger, clock)
        self._waiting: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self._tasks = Tasks("lite pull")

    # ---- assignment ------------------------------------------------------------------------

    def add(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Start to pull, unless the queue was already taken away, or the start was cancelled."""
        if process_queue.dropped or self._tasks.closed:
            return
        found = self.queues[queue] = LiteQueue(queue, process_queue)
        self._start(found)

    def remove(self, queue: MessageQueue) -> None:
        """Stop pulling, and drop the waiting messages of the queue."""
        found = self.queues.pop(queue, None)
        if found is not None:
            found.process_queue.dropped = True
            self._forget(found)

    def remove_topic(self, topic: str) -> None:
        """Remove all queues of a topic."""
        for queue in [queue for queue in self.queues if queue.topic == topic]:
            self.remove(queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset."""
        found = self.queues[queue]
        self._forget(found)
        found.process_queue.clear()
        found.pull_offset = found.consume_offset = offset
        self._start(found)

    def pause(self, queues: Collection[MessageQueue], *, paused: bool) -> None:
        """Pause or resume pulls of these queues."""
        for queue in queues:
            found = self.queues.get(queue)
            if found is not None and found.paused != paused:
                found.paused = paused
                self._start(found)  # ends the pull in flight, or the wait

    def is_paused(self, queue: MessageQueue) -> bool:
        found = self.queues.get(queue)
        return found is not None and found.paused

    async def stop(self) -> None:
        """End all pulls and waits."""
        self._waiting.clear()
        self.wake()
        await self._tasks.cancel_and_wait()

    def _start(self, found: LiteQueue) -> None:
        if found.task is not None:
            found.task.cancel()
        found.task = self._tasks.spawn(self._pull_on(found), name=str(found.queue))

    def _forget(self, found: LiteQueue) -> None:
        if found.task is not None:
            found.task.cancel()
        self._waiting = deque(batch for batch in self._waiting if batch.source is not found)

    def levels(self) -> list[QueueLevel]:
        """The level of each queue; for any thread."""
        shown = self._session.namespace.unwrap
        return [
            queue_level(shown, found.queue, found.process_queue, found.behind)
            for found in tuple(self.queues.values())
            if not found.process_queue.dropped
        ]

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait to be handed out."""
        return self._front() is not None

    # ---- handing out -----------------------------------------------------------------------------

    async def wait(self, deadline: float) -> None:
        """Wait for messages to :meth:`take`, for the deadline, or for :meth:`wake`."""
        if self._front() is not None:
            return
        self._arrived.clear()
        try:
            await self._clock.wait_for(
                self._arrived.wait(), max(0.0, deadline - self._clock.monotonic())
            )
        except TimeoutError:
            return

    def wake(self) -> None:
        """End a wait."""
        self._arrived.set()

    def take(self, count: int | None = None) -> list[MessageExt]:
        """Messages of one queue, at most ``count``; none if nothing waits."""
        batch = self._front()
        if batch is None:
            return []
        end = len(batch.messages) if count is None else batch.taken + count
        taken = batch.messages[batch.taken : end]
        batch.taken += len(taken)
        if batch.taken == len(batch.messages):
            self._waiting.popleft()
        source = batch.source
        offset = source.process_queue.remove(taken, self._clock.now_ms())
        if offset != NOTHING_TO_COMMIT:
            source.consume_offset = offset
        return taken

    def put_back(self, queue: MessageQueue, messages: list[MessageExt]) -> None:
        """Hand out messages again, before all others, whose caller was interrupted.

        If the queue was given up, or continues at a lower offset, they are pulled again instead.
        """
        found = self.queues.get(queue)
        offset = messages[0].queue_offset
        if found is None or found.process_queue.dropped or offset >= found.consume_offset:
            return
        process_queue = found.process_queue
        offset_max = process_queue.queue_offset_max
        process_queue.put(messages)
        process_queue.queue_offset_max = max(offset_max, process_queue.queue_offset_max)
        found.consume_offset = offset
        self._waiting.appendleft(Batch(found, messages))
        self.wake()

    def _front(self) -> Batch | None:
        waiting = self._waiting
        while waiting:
            # Another thread may drop the queue at any time.
            if not waiting[0].source.process_queue.dropped:
                return waiting[0]
            waiting.popleft()
        return None

    # ---- pulling ---------------------------------------------------------------------------------

    async def _pull_on(self, found: LiteQueue) -> None:
        while True:
            delay_s = self._hold_s(found)
            if delay_s is None:
                return
            if delay_s == _NOW:
                try:
                    delay_s = await self._pull(found)
                except Exception:  # such as an error of a hook
                    logger.exception("cannot pull %s", found.queue)
                    delay_s = self._error_delay_s
            await self._clock.sleep(delay_s)

    def _hold_s(self, found: LiteQueue) -> float | None:
        """The pause before the next pull; None: never."""
        hold = self._flow.may_pull(found.process_queue, self._clock.now_ms(), paused=found.paused)
        if hold is not None:
            if hold.should_log:
                logger.info("%s is not pulled for now: %s", found.queue, hold.reason.value)
            return None if hold.delay_ms is None else hold.delay_ms / 1000
        waiting = len(self._waiting) * self._settings.pull_batch_size
        return _NOW if waiting <= self._settings.pull_threshold_for_all else FLOW_CONTROL_DELAY_S

    async def _pull(self, found: LiteQueue) -> float:
        """Pull once; returns the delay until the next pull."""
        if found.pull_offset is None:
            try:
                found.pull_offset = await self._first_offset(found.queue)
            except (SkylarkError, OSError) as error:
                self._limited_log.failed(
                    found.queue.broker_name,
                    error,
                    "cannot get the start offset of %s now",
                    found.queue,
                )
                return FIRST_OFFSET_DELAY_S
        try:
            subscription = self._subscription_of(found.queue.topic)
            terms = self._terms_alone if found.alone else self._terms
            began = self._clock.monotonic()
            result, found.broker_id = await self._access.pull(
                found.queue, subscription, found.pull_offset, terms, found.broker_id
            )
        except UndecodableError as error:
            return self._skip_undecodable(found, error)
        except BrokerError as error:
            if error.code == ResponseCode.FLOW_CONTROL:
                return BROKER_FLOW_CONTROL_DELAY_MS / 1000
            return self._failed(found, error)
        except SkylarkError as error:
            return self._failed(found, error)
        found.failures = 0
        found.alone = False
        found.pull_offset = result.next_offset
        found.behind = max(0, result.max_offset - result.next_offset)
        messages = result.messages
        if self._filters and messages:
            call_hooks(self._filters, found.queue, messages)
        took_ms = (self._clock.monotonic() - began) * 1000
        meter = self._meter(found.queue.topic)
        meter.pulled(result.status.name.lower(), took_ms, len(messages))
        if messages and not found.process_queue.dropped:
            found.process_queue.put(messages)
            self._waiting.append(Batch(found, messages))
            self.wake()
        return _NOW

    def _failed(self, found: LiteQueue, error: SkylarkError) -> float:
        if found.failures % FAILURES_PER_LOG == 0:
            logger.warning("cannot pull %s: %s", found.queue, error)
        found.failures += 1
        return self._error_delay_s

    def _skip_undecodable(self, found: LiteQueue, error: UndecodableError) -> float:
        if found.alone:
            logger.error("%s: it is skipped: %s", error, error.__cause__)
            found.pull_offset = error.next_offset
        found.alone = not found.alone
        return _NOW

    async def _first_offset(self, queue: MessageQueue) -> int:
        return await self._access.first_offset(
            queue,
            self._session.stored_offset,
            self._settings.consume_from_where,
            self._start_time_ms,
        )


def require_queue(queues: LiteQueues, queue: MessageQueue) -> LiteQueue:
    """The queue, if it is ours; raises ClientError."""
    found = queues.queues.get(queue)
    if found is None or found.process_queue.dropped:
        raise ClientError(
            f"The message queue is not in assigned list, may be rebalancing, message queue: {queue}"
        )
    return found
