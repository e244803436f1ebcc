"""Group membership of a push consumer: what the client instance calls on the control loop.

:class:`PushMember` knows the group and its subscriptions, lets the rebalancer work, saves offsets,
and serves what brokers request: offset resets (220), committed offsets (221), running info (307)
and a message to consume on demand (309). Names are as brokers know them. The half that pulls and
calls handlers is on the application's loop (:mod:`skylark.client.consumer.push.push_consumer`).

**Offset resets** (:class:`OffsetResets`), by a broker's request or to a time. The consumer pauses,
drops the queues concerned and forgets their messages at once. Ten seconds later, when commits in
progress have ended, it saves the new offsets and takes the queues up again from there. The broker
sends the same request to the other members. When resets overlap, the last one decides, and the
queues come back after it.

**Running info** (307) has the settings by Java's names, so that tools which know them show them.

Counterpart of the ``MQConsumerInner`` part of Java's ``DefaultMQPushConsumerImpl``, of its
``consumerRunningInfo`` and ``resetOffsetByTimeStamp``, and of ``resetOffset`` of
``MQClientInstance``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

from skylark.client.consumer.offset_persistence import OffsetStore
from skylark.client.consumer.process_queue import FlowControl, ProcessQueue
from skylark.client.consumer.push.consume_runner import PushSetup
from skylark.client.consumer.push.orderly_settlement import OrderlyStatus
from skylark.client.consumer.push.push_settings import PULL_BATCH_SIZE
from skylark.client.consumer.rebalance_executor import RebalanceExecutor
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater
from skylark.wire.bodies.admin_body import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumerData, ConsumeType
from skylark.wire.codes import CURRENT_VERSION, version_name
from skylark.wire.message import MessageRecord

logger = logging.getLogger(__name__)

RESET_WAIT_S: Final = 10.0
_ORDERLY_RESULTS: Final[Mapping[OrderlyStatus, CMResult]] = {
    OrderlyStatus.SUCCESS: CMResult.CR_SUCCESS,
    OrderlyStatus.SUSPEND: CMResult.CR_LATER,
    OrderlyStatus.COMMIT: CMResult.CR_COMMIT,
    OrderlyStatus.ROLLBACK: CMResult.CR_ROLLBACK,
}


class OffsetResets:
    """The offset resets of one consumer; it pauses while ``under_way`` is above zero."""

    def __init__(
        self,
        instance: ClientInstance,
        rebalancer: RebalanceExecutor,
        forget_messages: Callable[[ProcessQueue], None],
    ) -> None:
        """``forget_messages`` hands over to the loop that consumes."""
        self._instance = instance
        self._rebalancer = rebalancer
        self._forget_messages = forget_messages
        self.under_way = 0
        self._given_up: set[MessageQueue] = set()  # by resets since the first that is under way

    async def to_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets, in the queues that are ours."""
        self.under_way += 1
        try:
            ours = self._ours()
            mine = {queue: offset for queue, offset in offsets.items() if queue in ours}
            self._given_up.update(mine)
            for queue, offset in mine.items():
                logger.info("%s is reset to offset %d", queue, offset)
                process_queue = self._rebalancer.rebalance.table.get(queue)
                if process_queue is not None:
                    process_queue.dropped = True
                    self._forget_messages(process_queue)
            await self._instance.runtime.clock.sleep(RESET_WAIT_S)
            await self._rebalancer.jump(mine)
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._given_up.clear()
            self._instance.rebalance_soon()

    async def to_time(self, topics: Iterable[str], time_ms: int) -> None:
        """Continue with the messages stored at or after a time; raises SkylarkError."""
        wanted = frozenset(topics)
        link = self._instance.control_link
        offsets = {}
        for queue in sorted(self._ours()):
            if queue.topic in wanted:
                address = await link.lookup.master_of(queue)
                offsets[queue] = await link.calls.search_offset(address, queue, time_ms)
        await self.to_offsets(offsets)

    def _ours(self) -> set[MessageQueue]:
        """The queues that we have, or will have again after the resets under way."""
        return {*self._rebalancer.rebalance.table, *self._given_up}


class PushMember:
    """A member of a consumer group; a ``ConsumerMember`` of its client instance."""

    def __init__(
        self,
        instance: ClientInstance,
        setup: PushSetup,
        *,
        offsets: OffsetStore,
        rebalancer: RebalanceExecutor,
        resets: OffsetResets,
        flow: FlowControl,
        consume: Callable[[MessageRecord, str | None], Coroutine[Any, Any, Any]],
        data_loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``consume`` calls the handler of a message, on ``data_loop``."""
        self.group = instance.namespace.wrap(setup.group)
        self._instance = instance
        self._clock = instance.runtime.clock
        self._setup = setup
        self._offsets = offsets
        self._rebalancer = rebalancer
        self._resets = resets
        self._flow = flow
        self._consume = consume
        self._data_loop = data_loop
        #: The assignments that are popped, for running info.
        self.pop_infos: Callable[[], Mapping[MessageQueue, PopProcessQueueInfo]] = dict
        self._started_ms = self._clock.now_ms()

    # ---- what the instance needs -----------------------------------------------------------------

    def topics(self) -> Collection[str]:
        return tuple(self._setup.subscriptions())

    def consumer_data(self) -> ConsumerData:
        setup = self._setup
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=setup.settings.message_model,
            consume_from_where=setup.settings.consume_from_where,
            subscription_data_set=[each.data for each in setup.subscriptions().values()],
            unit_mode=self._instance.options.unit_mode,
        )

    @property
    def is_paused(self) -> bool:
        return self._setup.is_suspended() or self._resets.under_way > 0

    async def rebalance(self) -> bool:
        if self._rebalancer.closed:
            return True
        if self.is_paused:
            return False
        return await self._rebalancer.round()

    async def persist_offsets(self) -> None:
        self._setup.stats.snapshot(self._clock.steady_ms())
        queues = tuple(self._rebalancer.rebalance.table)
        self._offsets.table.retain(queues)
        await self._offsets.save(queues)

    # ---- what brokers request --------------------------------------------------------------------

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        await self._resets.to_offsets(
            {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        )

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return self._offsets.table.snapshot(topic)

    async def consume_directly(
        self, record: MessageRecord, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Call the handler with one message; no offset moves."""
        started_ms = self._clock.steady_ms()
        answer = ConsumeMessageDirectlyResult(order=self._setup.is_orderly)
        try:
            returned = await self._on_data_loop(self._consume(record, broker_name))
        except (RetryLater, DeadLetter) as error:
            answer.consume_result, answer.remark = CMResult.CR_LATER, str(error)
        except Exception as error:  # noqa: BLE001 - any error of a handler is the result
            answer.consume_result = CMResult.CR_THROW_EXCEPTION
            answer.remark = f"{type(error).__name__}: {error}"
        else:
            status = getattr(returned, "status", returned)
            answer.auto_commit = getattr(returned, "auto_commit", True)
            answer.consume_result = (
                _ORDERLY_RESULTS[status]
                if isinstance(status, OrderlyStatus)
                else CMResult.CR_SUCCESS
            )
        answer.spent_time_mills = self._clock.steady_ms() - started_ms
        return answer

    async def _on_data_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._data_loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._data_loop))

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """Settings, subscriptions, queues and rates, for tools; read from any thread."""
        setup, now_ms = self._setup, self._clock.steady_ms()
        subscriptions = tuple(setup.subscriptions().values())
        return ConsumerRunningInfo(
            properties=self._properties(),
            subscription_set=[each.data for each in subscriptions],
            mq_table={
                queue: process_queue.info(self._offsets.table.read(queue) or 0)
                for queue, process_queue in tuple(self._rebalancer.rebalance.table.items())
            },
            mq_pop_table=dict(self.pop_infos()),
            status_table={
                each.topic: setup.stats.status(each.topic, now_ms) for each in subscriptions
            },
            jstack=thread_stacks() if with_stacks else None,
        )

    def _properties(self) -> dict[str, str]:
        """All settings as text, and the other properties that tools show."""
        settings = self._setup.settings
        name_servers = self._instance.endpoint.namesrv
        found: Mapping[str, object] = {
            "consumerGroup": self.group,
            "messageModel": settings.message_model.value,
            "consumeFromWhere": settings.consume_from_where.value,
            "consumeTimestamp": self._setup.start_timestamp,
            "allocateMessageQueueStrategy": settings.allocation.name,
            "consumeThreadMin": settings.concurrency,
            "consumeThreadMax": settings.concurrency,
            "consumeConcurrentlyMaxSpan": settings.consume_concurrently_max_span,
            "pullThresholdForQueue": self._flow.count_max,
            "pullThresholdSizeForQueue": settings.pull_threshold_size_for_queue,
            "pullThresholdForTopic": settings.pull_threshold_for_topic,
            "pullThresholdSizeForTopic": settings.pull_threshold_size_for_topic,
            "pullInterval": settings.pull_interval_ms,
            "pullBatchSize": settings.pull_batch_size or PULL_BATCH_SIZE,
            "pullBatchSizeInBytes": settings.pull_batch_size_in_bytes,
            "postSubscriptionWhenPull": settings.post_subscription_when_pull,
            "maxReconsumeTimes": settings.max_reconsume_times,
            "suspendCurrentQueueTimeMillis": settings.suspend_current_queue_time_ms,
            "consumeTimeout": settings.consume_timeout_ms // 60_000,
            "awaitTerminationMillisWhenShutdown": settings.await_termination_ms,
            "clientRebalance": settings.shares_itself,
            "popInvisibleTime": settings.pop_invisible_time_ms,
            "popBatchNums": settings.pop_batch_nums,
            "popThresholdForQueue": settings.pop_threshold_for_queue,
            "PROP_CONSUMEORDERLY": self._setup.is_orderly,
            "PROP_THREADPOOL_CORE_SIZE": settings.concurrency,
            "PROP_CONSUMER_START_TIMESTAMP": self._started_ms,
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in name_servers),
            "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.value,
            "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
        }
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
        }


def thread_stacks() -> str:
    """The stack of each thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def received(
    record: MessageRecord, broker_name: str | None, shown_topic: Callable[[str], str]
) -> MessageExt:
    """A message to consume on demand, as handlers see it."""
    message = MessageExt(record, broker_name or "")
    return MessageExt(record, broker_name or "", shown_topic(message.topic))
