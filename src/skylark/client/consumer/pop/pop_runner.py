"""Runs handlers on popped messages, and acknowledges each or lets it come again.

===========================  ======================================================================
the handler                  what happens to the message
===========================  ======================================================================
returns                      it is acknowledged; a batch handler may return the index of the last
                             message that it accepts
raises RetryLater            it stays invisible for a step of the retry delays (10 s, 30 s, 1 min
                             ... 2 h): that of its failures, or that of ``level``
raises DeadLetter            it becomes a dead letter of the group
raises any other error       as RetryLater; the error is logged
has failed too often         it becomes a dead letter: it is sent back (36) and acknowledged; a
                             message of a dead-letter topic never is, it stays invisible for longer
takes long                   its invisible time is renewed, see
                             :mod:`~skylark.client.consumer.pop.pop_renewal`
hangs                        after ``consume_timeout`` a coroutine is cancelled, and has failed; a
                             plain function keeps its thread, and its message until ``renew_limit``
is not called in time        after half of the invisible time the message is given back, without
                             counting an attempt, and fewer are popped
is too late                  the result is dropped and counted (``stats.late``): the broker
                             delivers the message again
does not run any more        at the end of the consumer: the message is given back, without counting
                             an attempt
===========================  ======================================================================

Late is what ends after the invisible time, without renewal, past its limit, or after a refused
renewal. An ack that fails is logged: the message comes again. Counterpart of Java's
``ConsumeMessagePopConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from skylark.client.consumer.pop.pop_options import POP_BATCH_MAX, retry_delay_ms
from skylark.client.consumer.pop.pop_pace import PopPace
from skylark.client.consumer.pop.pop_queue import PopQueue
from skylark.client.consumer.pop.pop_receipts import wait_for_change
from skylark.client.consumer.pop.pop_renewal import PopRenewal
from skylark.client.consumer.pop.pop_source import PopContext
from skylark.client.consumer.pop.popped_message import PoppedRecord
from skylark.client.consumer.push.concurrent_settlement import (
    ALL_ACCEPTED,
    RECONSUME_LATER,
    Outcome,
    batches,
    outcome_of_error,
)
from skylark.client.consumer.push.consume_runner import Runner, report
from skylark.client.consumer.push.message_handlers import Binding, Job
from skylark.client.core.hooks import ConsumeContext
from skylark.client.errors import ReceiptExpiredError
from skylark.core.errors import SkylarkError

logger = logging.getLogger(__name__)

#: How often in a ``consume_timeout`` to look for handlers that hang.
EXPIRY_CHECKS: Final = 4


class PopRunner:
    """Runs handlers for all assignments of one consumer; shares the pools of its other runner."""

    def __init__(self, runner: Runner, context: PopContext, renew_limit_ms: int) -> None:
        """``renew_limit_ms``: how long after its pop a message is renewed; 0: not at all."""
        self.runner = runner
        self.setup = runner.services.setup
        self._context = context
        self._renewal = PopRenewal(context, renew_limit_ms, self._give_back_waiting)
        self.pace = PopPace(self.setup.settings.concurrency, self._renewal.patience_ms)
        self._claims = threading.Lock()  # a handler begins, or its messages are given back
        self.now_ms = runner.services.clock.steady_ms
        self._loop = asyncio.get_running_loop()
        self._accepted: list[PoppedRecord] = []
        self._left: list[PoppedRecord] = []  # messages whose handler was not called
        self._settling: set[asyncio.Task[None]] = set()  # acks and changes that a stop waits for

    def submit(self, pop_queue: PopQueue, messages: list[PoppedRecord]) -> None:
        """Call handlers with popped messages of one topic."""
        pop_queue.wait_ack += len(messages)
        self._renewal.watch(pop_queue, messages)
        binding = self.setup.bindings.get(messages[0].topic)
        if binding is None:
            logger.warning("no handler for topic %s: it is given back", messages[0].topic)
            self._context.spawn(self.fail(pop_queue, messages, RECONSUME_LATER))
            return
        jobs: list[Job] = [
            PopJob(self, pop_queue, binding, batch) for batch in batches(messages, binding.batch)
        ]
        self.pace.submitted(binding, len(jobs))
        # In a later turn, so that the next pop is sent before handlers run.
        self._loop.call_soon(self.runner.pools.submit, binding, jobs)

    def room(self, topic: str) -> int:
        """How many messages more of a topic, as brokers know it, may be popped now."""
        binding = self.setup.bindings.get(self._context.namespace.unwrap(topic))
        return POP_BATCH_MAX if binding is None else self.pace.room(binding)

    def claim(self, messages: Sequence[PoppedRecord]) -> bool:
        """A handler begins with the messages; False if they were given back. From any thread."""
        with self._claims:
            for message in messages:
                if message.is_settled:
                    return False
            for message in messages:
                message.is_begun = True
        return True

    # ---- results ---------------------------------------------------------------------------------

    def is_late(self, message: PoppedRecord, now_ms: int) -> bool:
        """Whether others may have the message by now."""
        return message.is_lost or now_ms >= message.receipt.visible_at_ms

    def accept(self, pop_queue: PopQueue, messages: Sequence[PoppedRecord], now_ms: int) -> None:
        """Handlers accepted messages: acknowledge them together, at the end of this turn."""
        pop_queue.settled(len(messages))
        in_time = [each for each in messages if not self.is_late(each, now_ms)]
        pop_queue.counters.consumed += len(in_time)
        if len(in_time) < len(messages):
            self._drop(messages, len(messages) - len(in_time))
        if not self._accepted and in_time:
            self._loop.call_soon(self._ack_accepted)
        for message in messages:
            message.is_settled = True
        self._accepted += in_time

    def _drop(self, messages: Sequence[PoppedRecord], count: int) -> None:
        self.setup.stats.late += count
        logger.warning(
            "%d results came after the invisible time and are dropped, the first about %s:"
            " the broker delivers the message again",
            count,
            messages[0],
        )

    def _ack_accepted(self) -> None:
        messages, self._accepted = self._accepted, []
        changing = [each for each in messages if each._changing is not None]
        if changing:
            messages = [each for each in messages if each._changing is None]
            for message in changing:
                self._settle(self._ack_after_change(message))
        if messages:
            for future, _ in self._context.receipts.ack(messages):
                future.add_done_callback(_log_failed_ack)

    async def _ack_after_change(self, message: PoppedRecord) -> None:
        await wait_for_change(message)
        for future, _ in self._context.receipts.ack([message]):
            future.add_done_callback(_log_failed_ack)

    async def fail(
        self, pop_queue: PopQueue, messages: Sequence[PoppedRecord], outcome: Outcome
    ) -> None:
        """Let messages that were not accepted come again, or make them dead letters."""
        pop_queue.settled(len(messages))
        now_ms = self.now_ms()
        in_time = [each for each in messages if not self.is_late(each, now_ms)]
        if len(in_time) < len(messages):
            self._drop(messages, len(messages) - len(in_time))
        for message in messages:
            message.is_settled = True
        await asyncio.gather(*(self._fail_one(each, outcome) for each in in_time))

    async def _fail_one(self, message: PoppedRecord, outcome: Outcome) -> None:
        times, level = message.record.reconsume_times, outcome.delay_level
        stats = self.setup.stats
        if self._context.is_dead(message, level):
            if await self._context.make_dead_letter(message):
                stats.sent_back += 1
            return
        try:
            await self._context.receipts.change(message, retry_delay_ms(times, max(0, level)))
            stats.sent_back += 1
        except ReceiptExpiredError:
            stats.late += 1
        except SkylarkError as error:
            logger.warning("%s comes again when its invisible time is over: %s", message, error)
        except Exception:  # such as an error of a hook
            logger.exception("%s comes again when its invisible time is over", message)

    async def expire_forever(self) -> None:
        """Cancel coroutines that run for longer than ``consume_timeout``."""
        timeout_ms = self.setup.settings.consume_timeout_ms
        while True:
            await self._context.link.clock.sleep(timeout_ms / 1000 / EXPIRY_CHECKS)
            self.runner.pools.cancel(partial(_began_before, self.now_ms() - timeout_ms))

    # ---- messages whose handler is not called ----------------------------------------------------

    def leave(self, pop_queue: PopQueue, messages: Sequence[PoppedRecord]) -> None:
        """The handler is not called: give the messages back, if that has not happened yet."""
        messages = [each for each in messages if not each.is_settled]
        if not messages:
            return
        now_ms = self.now_ms()
        in_time = [each for each in messages if not self.is_late(each, now_ms)]
        if len(in_time) < len(messages):
            self._drop(messages, len(messages) - len(in_time))
        for message in messages:
            message.is_settled = True
        pop_queue.settled(len(messages))
        self._give_back_soon(in_time)

    def _give_back_waiting(
        self, pop_queue: PopQueue, messages: Sequence[PoppedRecord]
    ) -> Sequence[PoppedRecord]:
        """Give back messages that still wait for their handler; returns the others."""
        with self._claims:
            waiting = [each for each in messages if not each.is_begun]
            if not waiting:
                return messages
            for message in waiting:
                message.is_settled = True
        logger.info(
            "%d messages of %s have waited long for a handler: they are given back",
            len(waiting),
            pop_queue.queue,
        )
        self.pace.gave_back()
        pop_queue.settled(len(waiting))
        self._give_back_soon(waiting)
        return [each for each in messages if each.is_begun]

    def _give_back_soon(self, messages: Sequence[PoppedRecord]) -> None:
        """Give settled messages back, all of this turn together."""
        if messages and not self._left:
            self._loop.call_soon(self._give_back_left)
        self._left += messages

    def _give_back_left(self) -> None:
        left, self._left = self._left, []
        if left:
            self._settle(self._context.receipts.give_back_settled(left))

    def _settle(self, work: Coroutine[Any, Any, None]) -> None:
        if self._context.tasks.closed:
            work.close()
            return
        task = self._context.tasks.spawn(work, name="settle")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def close(self) -> None:
        """After the handlers have ended: finish acks, and giving back."""
        self._ack_accepted()
        self._give_back_left()
        if self._settling:
            await asyncio.wait(self._settling)
        self._renewal.close()
        await self._context.receipts.flush()


def _began_before(time_ms: int, job: Job) -> bool:
    if not isinstance(job, PopJob) or job.started_ms > time_ms:
        return False
    logger.warning("a handler hangs and is cancelled: %s comes again", job.batch[0])
    return True


class PopJob(msgspec.Struct, eq=False):
    """One call of a handler with one batch of popped messages."""

    runner: PopRunner
    pop_queue: PopQueue
    binding: Binding
    batch: Sequence[PoppedRecord]
    context: ConsumeContext | None = None
    started_ms: int = 0

    def begin(self) -> bool:
        runner = self.runner
        now_ms = self.started_ms = runner.now_ms()
        if self.pop_queue.dropped or any(runner.is_late(each, now_ms) for each in self.batch):
            return False
        if not runner.claim(self.batch):
            return False
        hooks = runner.runner.hooks
        if hooks.any:
            self.context = hooks.before(self.pop_queue.queue, self.batch)
        return True

    def call(self) -> Any:
        binding = self.binding
        if binding.batch == 1:
            return binding.handler(self.batch[0])
        return binding.handler(list(self.batch))

    def finish(self, result: Any, error: BaseException | None) -> Coroutine[Any, Any, None] | None:
        runner, pop_queue, batch = self.runner, self.pop_queue, self.batch
        now_ms = runner.now_ms()
        took_ms = now_ms - self.started_ms
        runner.pace.ended(self.binding, took_ms)
        pop_queue.counters.consume_ms += took_ms
        is_index = type(result) is int and self.binding.batch > 1
        if result is not None and error is None and not is_index:
            runner.runner.warn_of_result(self.binding, result)
        outcome = Outcome(ack_index=result) if is_index else ALL_ACCEPTED
        if error is not None:
            report(runner.setup.group, self.binding, batch[0], error)
            outcome = outcome_of_error(error)
        accepted = min(max(0, outcome.ack_index + 1), len(batch))
        if self.context is not None:
            status = "RECONSUME_LATER" if outcome.ack_index < 0 else "CONSUME_SUCCESS"
            runner.runner.hooks.after(self.context, status, error, took_ms=took_ms)
        pop_queue.meter.consumed(accepted, len(batch) - accepted, took_ms)
        if accepted:
            runner.accept(pop_queue, batch[:accepted], now_ms)
        if accepted == len(batch):
            return None
        pop_queue.counters.failed += len(batch) - accepted
        return runner.fail(pop_queue, batch[accepted:], outcome)

    def discard(self) -> None:
        self.runner.pace.discarded(self.binding)
        self.runner.leave(self.pop_queue, self.batch)


def _log_failed_ack(future: asyncio.Future[None]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        logger.warning("messages are not acknowledged and come again: %s", error)
