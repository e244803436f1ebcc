"""Runs handlers on messages in any order, and settles each message.

It executes the decisions of :mod:`skylark.client.consumer.push.concurrent_settlement`.

===========================  ======================================================================
the handler                  what happens to the message
===========================  ======================================================================
returns                      it is consumed; a batch handler may return the index of the last
                             message that it accepts
raises RetryLater            it is sent back to the broker, with that delay level
raises DeadLetter            it becomes a dead letter of the group
raises any other error       as RetryLater; the error is logged
is cancelled                 the same, whether by itself or by something that it awaits
hangs                        after ``consume_timeout`` a coroutine is cancelled, and its messages
                             are sent back; so is the message of a plain function, which keeps its
                             thread. A later result is ignored
does not exist               it is sent back: the topic of a retry is no longer subscribed
===========================  ======================================================================

Broadcasting consumers send nothing back: messages that fail are logged and lost. After a queue was
given up all results are ignored; its next owner gets the messages again.

Counterpart of Java's ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from skylark.client.consumer.process_queue import (
    EXPIRED_COUNT_MAX,
    EXPIRED_DELAY_LEVEL,
    ProcessQueue,
)
from skylark.client.consumer.push.concurrent_settlement import (
    ALL_ACCEPTED,
    HUNG,
    RECONSUME_LATER,
    RESUBMIT_DELAY_MS,
    Outcome,
    batches,
    outcome_of_error,
    send_backs,
    settle,
)
from skylark.client.consumer.push.consume_runner import (
    AssignedQueue,
    ConsumerServices,
    Runner,
    report,
)
from skylark.client.consumer.push.message_handlers import Binding, Job
from skylark.client.core.client_message import MessageExt
from skylark.client.core.hooks import ConsumeContext
from skylark.core.names import is_retry_topic

logger = logging.getLogger(__name__)

#: How long accepted messages may wait to be settled; if the queue moves then, they are redelivered.
SETTLE_MS: Final = 100


class ConcurrentRunner(Runner):
    """Runs handlers for all queues of one consumer, in any order."""

    def __init__(self, services: ConsumerServices) -> None:
        super().__init__(services)
        self.now_ms = services.clock.steady_ms
        self._loop = asyncio.get_running_loop()

    def submit(self, assigned: AssignedQueue, messages: list[MessageExt]) -> None:
        assigned.process_queue.put(messages)
        # In a later turn, so that the next pull is sent before handlers run.
        self._loop.call_soon(self._hand_out, assigned, messages)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        return process_queue.is_handed_out

    def _hand_out(self, assigned: AssignedQueue, messages: Sequence[MessageExt]) -> None:
        for topic, of_topic in self._by_topic(assigned, messages):
            binding = self.services.setup.bindings.get(topic)
            if binding is None:
                logger.warning(
                    "no handler for topic %s: %d messages are sent back", topic, len(of_topic)
                )
                self._spawn(self.fail(assigned, of_topic, RECONSUME_LATER))
                continue
            jobs: list[Job] = (
                [ConcurrentJob(self, assigned, binding, (message,)) for message in of_topic]
                if binding.batch == 1
                else [
                    ConcurrentJob(self, assigned, binding, batch)
                    for batch in batches(of_topic, binding.batch)
                ]
            )
            self.pools.submit(binding, jobs)

    def _by_topic(
        self, assigned: AssignedQueue, messages: Sequence[MessageExt]
    ) -> Iterator[tuple[str, Sequence[MessageExt]]]:
        if is_retry_topic(assigned.queue.topic):
            for topic, of_topic in groupby(messages, key=lambda message: message.topic):
                yield topic, list(of_topic)
        elif messages:
            yield messages[0].topic, messages

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self.services.tasks.closed:
            work.close()
        else:
            self.services.tasks.spawn(work, name="settle")

    def accepted(
        self, assigned: AssignedQueue, batch: Sequence[MessageExt], took_ms: int, now_ms: int
    ) -> None:
        """All messages of a batch were accepted. Called per message: settles many at once later."""
        messages = assigned.accepted
        if not messages:
            self._loop.call_soon(self._settle_accepted, assigned, now_ms)
            assigned.accepted_since_ms = now_ms
        messages += batch
        if took_ms:
            assigned.meter.consumed(len(batch), 0, took_ms)
        else:
            assigned.quick_count += 1
            assigned.quick_messages += len(batch)
        if now_ms - assigned.accepted_since_ms >= SETTLE_MS:
            self._settle_accepted(assigned, now_ms)  # blocking handlers delay the scheduled call

    def _settle_accepted(self, assigned: AssignedQueue, now_ms: int) -> None:
        """Remove accepted messages, and update the committed offset."""
        messages, assigned.accepted = assigned.accepted, []
        if not messages:
            return
        assigned.counters.consumed += len(messages)
        if assigned.quick_count:
            assigned.meter.consumed_at_once(assigned.quick_count, assigned.quick_messages)
            assigned.quick_count = assigned.quick_messages = 0
        process_queue = assigned.process_queue
        if process_queue.dropped:
            return
        offset = process_queue.remove(messages, now_ms)
        if offset >= 0 and not process_queue.dropped:
            self.commit(assigned, offset)

    async def fail(
        self, assigned: AssignedQueue, batch: Sequence[MessageExt], outcome: Outcome
    ) -> None:
        """Send back the messages of a batch that were not accepted."""
        services, process_queue = self.services, assigned.process_queue
        clustering = services.setup.settings.clustering
        if not clustering:
            lost = len(batch) - max(0, outcome.ack_index + 1)
            logger.warning("%d messages of %s failed and are lost", lost, assigned.queue)
        kept = []
        failed = send_backs(process_queue, batch, outcome, clustering=clustering)
        with process_queue.going_back(failed):
            for message in failed:
                if await services.sends_back.give(message, outcome.delay_level):
                    services.setup.stats.sent_back += 1
                else:
                    kept.append(message)
        settled = settle(process_queue, batch, kept, services.clock.steady_ms())
        if settled.offset is not None:
            self.commit(assigned, settled.offset)
        if settled.resubmit:
            self._spawn(self._again(assigned, settled.resubmit))

    async def _again(self, assigned: AssignedQueue, messages: Sequence[MessageExt]) -> None:
        await self.services.clock.sleep(RESUBMIT_DELAY_MS / 1000)
        if not assigned.process_queue.dropped:
            self._hand_out(assigned, messages)

    async def expire(self, assigned: AssignedQueue) -> None:
        """Cancel coroutines that run for longer than ``consume_timeout``, which makes them fail.

        The messages of other handlers are sent back here: of plain functions, and of coroutines
        that went on when they were cancelled.
        """
        services, process_queue = self.services, assigned.process_queue
        now_ms = services.clock.steady_ms()
        self._settle_accepted(assigned, now_ms)
        timeout_ms = services.setup.settings.consume_timeout_ms
        self._cancel_hung(assigned, now_ms, timeout_ms)
        for _ in range(EXPIRED_COUNT_MAX):
            message = process_queue.expired(services.clock.steady_ms(), timeout_ms)
            if message is None or process_queue.dropped:
                return
            if services.setup.settings.clustering:
                logger.warning("a handler hangs: %s is sent back", message)
                with process_queue.going_back([message]):
                    if not await services.sends_back.give(message, EXPIRED_DELAY_LEVEL):
                        return
                services.setup.stats.sent_back += 1
            else:
                logger.warning("a handler hangs: %s failed and is lost", message)
            offset = process_queue.remove_first(message, services.clock.steady_ms())
            if offset >= 0 and not process_queue.dropped:
                self.commit(assigned, offset)

    def _cancel_hung(self, assigned: AssignedQueue, now_ms: int, timeout_ms: int) -> None:
        def is_hung(job: Job) -> bool:
            return (
                isinstance(job, ConcurrentJob)
                and not job.is_hung
                and job.assigned is assigned
                and now_ms - job.started_ms > timeout_ms
            )

        for job in self.pools.cancel(is_hung):
            assert isinstance(job, ConcurrentJob)
            logger.warning(
                "handler %s hangs and is cancelled: %s and %d more messages have failed",
                job.binding.name,
                job.batch[0],
                len(job.batch) - 1,
            )
            job.is_hung = True
            # The cancelled handler has as long again to end, before a check sends them back.
            assigned.process_queue.start(job.batch, now_ms)


class ConcurrentJob(msgspec.Struct, eq=False):
    """One call of a handler with one batch."""

    runner: ConcurrentRunner
    assigned: AssignedQueue
    binding: Binding
    batch: Sequence[MessageExt]
    context: ConsumeContext | None = None
    started_ms: int = 0
    is_hung: bool = False  # it was cancelled after consume_timeout: it fails, however it ends

    def begin(self) -> bool:
        process_queue = self.assigned.process_queue
        if process_queue.dropped or process_queue.closing_ms is not None:
            return False
        runner = self.runner
        self.started_ms = runner.now_ms()
        process_queue.start(self.batch, self.started_ms)
        if runner.hooks.any:
            self.context = runner.hooks.before(self.assigned.queue, self.batch)
        return True

    def call(self) -> Any:
        binding = self.binding
        if binding.batch == 1:
            return binding.handler(self.batch[0])
        return binding.handler(list(self.batch))

    def finish(self, result: Any, error: BaseException | None) -> Coroutine[Any, Any, None] | None:
        assigned, batch = self.assigned, self.batch
        now_ms = self.runner.now_ms()
        took_ms = now_ms - self.started_ms
        assigned.counters.consume_ms += took_ms
        is_index = type(result) is int and self.binding.batch > 1
        if error is None and not is_index and not self.is_hung:
            if result is not None:
                self.runner.warn_of_result(self.binding, result)
            if self.context is None:
                # The common case, for each message.
                self.runner.accepted(assigned, batch, took_ms, now_ms)
                return None
        outcome = Outcome(ack_index=result) if is_index else ALL_ACCEPTED
        return self._settle(outcome, error, now_ms)

    def _settle(
        self, outcome: Outcome, error: BaseException | None, now_ms: int
    ) -> Coroutine[Any, Any, None] | None:
        runner, assigned, batch = self.runner, self.assigned, self.batch
        if self.is_hung:
            outcome = HUNG
        elif error is not None:
            report(runner.services.setup.group, self.binding, batch[0], error)
            outcome = outcome_of_error(error)
        accepted = min(max(0, outcome.ack_index + 1), len(batch))
        took_ms = now_ms - self.started_ms
        if self.context is not None:
            status = "RECONSUME_LATER" if outcome.ack_index < 0 else "CONSUME_SUCCESS"
            runner.hooks.after(self.context, status, error, took_ms=took_ms)
        if accepted == len(batch):
            runner.accepted(assigned, batch, took_ms, now_ms)
            return None
        assigned.counters.consumed += accepted
        assigned.counters.failed += len(batch) - accepted
        assigned.meter.consumed(accepted, len(batch) - accepted, took_ms)
        return runner.fail(assigned, batch, outcome)

    def discard(self) -> None:
        """The messages stay in the queue; its next owner gets them."""
