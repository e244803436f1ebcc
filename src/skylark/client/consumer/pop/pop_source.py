"""One place to pop from: a topic on a broker, seen by one consumer.

:meth:`PopSource.pop` sends a request and returns the messages for the application. It acknowledges
those that the broker sent although their tag does not match (it compares hashes), or that a filter
hook removed, and makes those that were delivered too often dead letters, which no broker does for
popped messages. Both happen in the background, and a failure means another delivery. Messages of a
dead-letter topic are for the application, however often they were delivered before.

A dead letter is stored by the broker that the message came from (36), or not at all: the message
then is delivered again when its invisible time is over. Pulled messages are published to the retry
topic in that case; there a popped one would become an ordinary retry.

Counterpart of ``popMessage`` and ``processPopResult`` of Java's ``DefaultMQPushConsumerImpl``,
which acknowledges, and so drops, what was delivered too often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic

import msgspec

from skylark.client.consumer.consumer_send_back import STRAIGHT_TO_DEAD_LETTERS, SendBackClient
from skylark.client.consumer.pop.pop_receipts import PopReceipts, wait_for_change
from skylark.client.consumer.pop.popped_message import (
    MakeMessage,
    MessageT,
    PopDecoder,
    PoppedRecord,
)
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.hooks import call_hooks
from skylark.client.core.namespace import Namespace
from skylark.client.core.pop_calls import PopCalls
from skylark.core.errors import SkylarkError
from skylark.core.lifecycle import Tasks
from skylark.core.names import is_dlq_topic
from skylark.core.retry_policy import decide_retry
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.headers.pop import PopMessageRequestHeader

logger = logging.getLogger(__name__)

#: The queue of a request for messages of any queue.
ANY_QUEUE = -1


class PopContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What all sources of one consumer share."""

    link: BrokerConnections
    namespace: Namespace
    group: str  #: as brokers know it
    client_id: str
    receipts: PopReceipts
    sends_back: SendBackClient
    tasks: Tasks
    invisible_ms: int
    init_mode: int
    reconsume_times_max: int
    filters: Sequence[Callable[..., Any]] = ()  #: methods of filter hooks

    def is_dead(self, failed: PoppedRecord, delay_level: int = 0) -> bool:
        """Whether a message that has failed once more becomes a dead letter.

        A dead letter that was popped never does: it would be stored once more.
        """
        if is_dlq_topic(failed.receipt.topic):
            return False
        failures = failed.record.reconsume_times + 1
        return decide_retry(failures, self.reconsume_times_max, delay_level=delay_level).is_dead

    # ---- what happens to messages in the background ----------------------------------------------

    def drop(self, messages: Sequence[PoppedRecord]) -> None:
        """Acknowledge messages that match no subscription."""
        for message in messages:
            message.is_settled = True
        for future, _ in self.receipts.ack(messages):
            future.add_done_callback(_log_failed_ack)

    def make_dead_letter_soon(self, message: PoppedRecord) -> None:
        """Make a message a dead letter, in the background."""
        self.spawn(self.make_dead_letter(message))

    async def make_dead_letter(self, message: PoppedRecord) -> bool:
        """Store a copy among the dead letters, then acknowledge; returns whether it is stored."""
        message.is_settled = True
        try:
            is_stored = await self.sends_back.return_to_broker(message, STRAIGHT_TO_DEAD_LETTERS)
        except BaseException:  # a cancellation
            message.is_settled = False
            raise
        if not is_stored:
            return False  # it is delivered again when its invisible time is over
        try:
            await wait_for_change(message)
            for future, _ in self.receipts.ack([message]):
                await future
        except SkylarkError as error:
            logger.info("dead letter %s is not acknowledged and comes again: %s", message, error)
        return True

    def give_back_soon(self, messages: Sequence[PoppedRecord]) -> None:
        """Give messages back in the background, also while the consumer ends and after that."""
        work = self.receipts.give_back(messages)
        self.link.adopt(self.link.loop.create_task(work, name=f"give back {self.group}"))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run background work, unless the consumer ends."""
        if self.tasks.closed:
            work.close()
        else:
            self.tasks.spawn(work, name="settle")


class PopSource(Generic[MessageT]):
    """A topic on one broker, or one queue of it."""

    def __init__(
        self,
        context: PopContext,
        queue: MessageQueue,
        subscription: Subscription,
        make: MakeMessage[MessageT],
    ) -> None:
        """``queue`` as brokers know it; its number may be :data:`ANY_QUEUE`."""
        self.queue = queue
        self.subscription = subscription
        self._context = context
        self._calls = PopCalls(context.link)
        self._clock = context.link.clock
        self._shown_queue = context.namespace.unwrap_queue(queue)
        self._decoder = PopDecoder(
            queue.topic,
            context.group,
            queue.broker_name,
            shown_topic=self._shown_queue.topic,
            make=make,
            time=context.receipts.time_of(queue.broker_name),
        )
        self.is_full = False  #: the broker had no room to hold the last pop
        self.rest = 0  #: messages that the broker had besides, at the last pop

    async def pop(self, count_max: int, poll_s: float) -> list[MessageT]:
        """Messages, at most ``count_max``; waits up to ``poll_s`` for the first.

        Raises BrokerError, TransportError or RemoteProtocolError.
        """
        context, queue, data = self._context, self.queue, self.subscription.data
        address = await context.link.lookup.master_of(queue)
        header = PopMessageRequestHeader(
            consumer_group=context.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=count_max,
            invisible_time=context.invisible_ms,
            poll_time=round(poll_s * 1000),
            init_mode=context.init_mode,
            exp_type=data.expression_type,
            exp=data.sub_string,
            client_id=context.client_id,
        )
        sent_ms = self._clock.steady_ms()
        popped = await self._calls.pop(address, header, queue.broker_name)
        self.is_full = popped.is_full
        self.rest = popped.header.rest_num
        if not popped.body:
            return []
        found = self._decoder.decode(popped, sent_ms, self._clock.steady_ms())
        return self._wanted(found)

    def _wanted(self, found: list[MessageT]) -> list[MessageT]:
        context = self._context
        most = context.reconsume_times_max
        wanted = self.subscription.select(found)
        if context.filters:
            wanted = list(wanted)
            call_hooks(context.filters, self._shown_queue, wanted)
        if len(wanted) < len(found):
            known = set(map(id, wanted))
            context.drop([each for each in found if id(each) not in known])
        if is_dlq_topic(self.queue.topic):  # they have failed too often by nature
            return wanted
        if any(each.record.reconsume_times > most for each in wanted):
            for message in wanted:
                if message.record.reconsume_times > most:
                    logger.warning(
                        "%s was delivered %d times: it becomes a dead letter",
                        message,
                        message.record.reconsume_times,
                    )
                    context.make_dead_letter_soon(message)
            wanted = [each for each in wanted if each.record.reconsume_times <= most]
        return wanted


def _log_failed_ack(future: asyncio.Future[None]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        logger.info("messages that match no subscription are not acknowledged now: %s", error)
