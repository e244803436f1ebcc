"""Runs handlers on the messages of each queue in order, one batch at a time.

It executes the decisions of :mod:`skylark.client.consumer.push.orderly_settlement`. One task per
queue runs while the queue has messages, and at most ``concurrency`` handlers at a time.

===========================  ======================================================================
the handler                  what happens to its messages
===========================  ======================================================================
returns                      they are consumed
raises RetryLater or other   the queue waits for ``suspend_current_queue_time``, then the handler
                             gets the same messages again; after ``max_reconsume_times`` they
                             become dead letters
raises DeadLetter            they become dead letters at once
returns OrderlyResult        as the result says: another wait, or commits by the handler
returns an ack index         all of the batch is accepted, or none if it is less than all
is cancelled                 as if it had raised
hangs                        after ``consume_timeout`` a coroutine is cancelled, as if it had
                             raised; the queue of a plain function stops
waits for its turn           it is not called if the queue or its lock is lost before
===========================  ======================================================================

The lock of a queue must not be released while a handler works on it (:meth:`OrderlyRunner.is_busy`,
read by the control thread). The runner marks the queue as busy before it checks ``dropped``, and
the control thread sets ``dropped`` before it checks for busy, so one of them always sees the
other. Counterpart of Java's ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from skylark.client.consumer.consumer_send_back import STRAIGHT_TO_DEAD_LETTERS
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.push.consume_runner import (
    AssignedQueue,
    CallJob,
    ConsumerServices,
    NotCalled,
    Runner,
    report,
)
from skylark.client.consumer.push.message_handlers import Binding
from skylark.client.consumer.push.orderly_settlement import (
    ALL_ACCEPTED,
    SUSPENDED,
    OrderlyResult,
    OrderlyStatus,
    Step,
    after_lock,
    exhausted,
    next_step,
    settle,
)
from skylark.client.core.client_message import DeadLetter, MessageExt
from skylark.core.names import is_retry_topic
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

#: How long to wait at the end until exhausted messages are published.
SETTLE_WAIT_S: Final = 5.0


class OrderlyRunner(Runner):
    """Runs handlers for all queues of one consumer, each queue in order."""

    def __init__(
        self, services: ConsumerServices, lock: Callable[[MessageQueue], Awaitable[bool]]
    ) -> None:
        """``lock`` requests the lock of one queue from its broker."""
        super().__init__(services)
        self._lock = lock
        self._busy: set[ProcessQueue] = set()
        self._running: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._closed = False
        self._reconsume_times_max = services.setup.settings.reconsume_times_max(is_orderly=True)

    def submit(self, assigned: AssignedQueue, messages: list[MessageExt]) -> None:
        dispatch = assigned.process_queue.put(messages)
        if dispatch and not self._closed:
            process_queue = assigned.process_queue
            task = self.services.tasks.spawn(self._consume(assigned), name="orderly")
            self._running[process_queue] = task
            task.add_done_callback(lambda _: self._running.pop(process_queue, None))

    async def _consume(self, assigned: AssignedQueue) -> None:
        """The task of one queue, until it is empty or given up."""
        services, process_queue = self.services, assigned.process_queue
        begun_ms: int | None = None
        while not self._closed:
            now_ms = services.clock.steady_ms()
            step = next_step(
                process_queue, now_ms, begun_ms, clustering=services.setup.settings.clustering
            )
            if step.step is Step.LOCK:
                await services.clock.sleep(step.delay_ms / 1000)
                locked = await self._lock(assigned.queue)
                step = after_lock(process_queue, locked=locked, now_ms=services.clock.steady_ms())
            if step.step is Step.END:
                return
            if step.step is Step.RESUBMIT:
                begun_ms = None
                await services.clock.sleep(step.delay_ms / 1000)
                continue
            begun_ms = now_ms if begun_ms is None else begun_ms
            batch = process_queue.take(self._batch_size(assigned.queue), now_ms)
            if not batch:
                return
            rerun_ms = await self._handle(assigned, batch)
            if rerun_ms is not None:
                begun_ms = None
                await services.clock.sleep(rerun_ms / 1000)

    def _batch_size(self, queue: MessageQueue) -> int:
        if is_retry_topic(queue.topic):
            return 1  # each may have another handler
        topic = self.services.instance.namespace.unwrap(queue.topic)
        binding = self.services.setup.bindings.get(topic)
        return 1 if binding is None else binding.batch

    async def _handle(self, assigned: AssignedQueue, batch: Sequence[MessageExt]) -> int | None:
        """Call the handler with a batch and settle it; returns the pause in ms, or None."""
        services, process_queue = self.services, assigned.process_queue
        self._busy.add(process_queue)
        try:
            if process_queue.is_closing:
                process_queue.make_again(batch)
                return None
            try:
                result, error = await self._call(assigned, batch)
            except NotCalled:
                process_queue.make_again(batch)  # not a failure: the handler was not called
                return None
            if self._given_up(process_queue):
                return None
            published = await self._give_away(batch, result, error)
            settled = settle(
                process_queue,
                batch,
                result,
                published,
                suspend_ms=services.setup.settings.suspend_current_queue_time_ms,
            )
            if settled.offset is not None:
                self.commit(assigned, settled.offset, increase_only=False)
            return settled.rerun_ms
        finally:
            self._busy.discard(process_queue)

    def _given_up(self, process_queue: ProcessQueue) -> bool:
        """Checked repeatedly, because another thread may set it at any time."""
        return process_queue.dropped

    def _may_call(self, process_queue: ProcessQueue) -> bool:
        """Whether the queue is still ours and locked; a handler may have waited long."""
        if process_queue.is_closing:
            return False
        services = self.services
        return not services.setup.settings.clustering or process_queue.is_lock_valid(
            services.clock.steady_ms()
        )

    async def _call(
        self, assigned: AssignedQueue, batch: Sequence[MessageExt]
    ) -> tuple[OrderlyResult, BaseException | None]:
        services = self.services
        binding = services.setup.bindings.get(batch[0].topic)
        if binding is None:
            logger.warning("no handler for topic %s: %s waits", batch[0].topic, assigned.queue)
            return SUSPENDED, None
        context = self.hooks.before(assigned.queue, batch) if self.hooks.any else None
        started_ms = services.clock.steady_ms()
        error: BaseException | None = None
        try:
            argument = batch[0] if binding.batch == 1 else list(batch)
            may_call = partial(self._may_call, assigned.process_queue)
            returned = await self.pools.call(binding, argument, may_call)
            result = self._result_of(returned, len(batch), binding)
        except NotCalled:
            raise
        except Exception as raised:  # noqa: BLE001 - any error suspends the queue
            report(services.setup.group, binding, batch[0], raised)
            result, error = SUSPENDED, raised
        took_ms = services.clock.steady_ms() - started_ms
        counters = assigned.counters
        counters.consume_ms += took_ms
        if result.status in (OrderlyStatus.SUSPEND, OrderlyStatus.ROLLBACK):
            counters.failed += len(batch)
            assigned.meter.consumed(0, len(batch), took_ms)
        else:
            counters.consumed += len(batch)
            assigned.meter.consumed(len(batch), 0, took_ms)
        if context is not None:
            self.hooks.after(context, result.status.value, error, took_ms=took_ms)
        return result, error

    def _result_of(self, returned: Any, count: int, binding: Binding) -> OrderlyResult:
        if isinstance(returned, OrderlyResult):
            return returned
        if isinstance(returned, OrderlyStatus):
            return OrderlyResult(returned)
        if type(returned) is int and binding.batch > 1:
            return SUSPENDED if returned < count - 1 else ALL_ACCEPTED
        if returned is not None:
            self.warn_of_result(binding, returned)
        return ALL_ACCEPTED

    async def _give_away(
        self, batch: Sequence[MessageExt], result: OrderlyResult, error: BaseException | None
    ) -> list[MessageExt]:
        """Send messages back or publish them; returns those that a broker has stored."""
        sends_back = self.services.sends_back
        gone: list[MessageExt] = []
        if isinstance(error, DeadLetter):
            gone += [m for m in batch if await sends_back.give(m, STRAIGHT_TO_DEAD_LETTERS)]
        else:
            for message in exhausted(batch, result, self._reconsume_times_max):
                if await sends_back.publish(message):
                    gone.append(message)
        self.services.setup.stats.sent_back += len(gone)
        return gone

    async def expire(self, assigned: AssignedQueue) -> None:
        """Cancel coroutines that hang; a queue waits for plain functions without limit.

        All queues of the consumer at once, because calls do not know theirs.
        """
        del assigned
        services = self.services
        limit_ms = services.clock.steady_ms() - services.setup.settings.consume_timeout_ms
        self.pools.cancel(
            lambda job: (
                isinstance(job, CallJob)
                and job.started_ms is not None
                and job.started_ms < limit_ms
            )
        )

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        return process_queue in self._busy

    async def close(self, wait_s: float) -> bool:
        self._closed = True
        for process_queue, task in tuple(self._running.items()):
            if process_queue not in self._busy:
                task.cancel()  # no handler runs
        ended = await self.pools.close(wait_s)
        try:
            async with self.services.clock.timeout(SETTLE_WAIT_S):
                while ended and self._running:
                    await asyncio.wait(tuple(self._running.values()))
        except TimeoutError:
            return False
        return ended
