"""Group membership of a push consumer: what the client instance calls on the control loop.

It knows the group and the subscriptions, lets the rebalancer work, saves offsets, and answers what
brokers ask (220, 221, 307, 309). Names are as brokers know them. The half that pulls and calls
handlers is on the application's loop (:mod:`skylark.client.consumer.push.push_consumer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from skylark.client.consumer.offset_persistence import OffsetStore
from skylark.client.consumer.push.consumer_offset_reset import OffsetResets
from skylark.client.consumer.push.consumer_stats import ConsumerStats
from skylark.client.consumer.push.orderly_settlement import OrderlyStatus
from skylark.client.consumer.push.push_settings import PushSettings
from skylark.client.consumer.push.rebalance_executor import RebalanceExecutor
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater
from skylark.client.core.route_cache import Route
from skylark.core.clock import Clock
from skylark.wire.bodies.admin_body import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumerData, ConsumeType
from skylark.wire.message import MessageRecord

_ORDERLY_RESULTS: Mapping[OrderlyStatus, CMResult] = {
    OrderlyStatus.SUCCESS: CMResult.CR_SUCCESS,
    OrderlyStatus.SUSPEND: CMResult.CR_LATER,
    OrderlyStatus.COMMIT: CMResult.CR_COMMIT,
    OrderlyStatus.ROLLBACK: CMResult.CR_ROLLBACK,
}


class PushMember:
    """A member of a consumer group."""

    def __init__(
        self,
        group: str,
        settings: PushSettings,
        *,
        unit_mode: bool,
        subscriptions: Callable[[], Mapping[str, Subscription]],
        offsets: OffsetStore,
        rebalancer: RebalanceExecutor,
        resets: OffsetResets,
        stats: ConsumerStats,
        clock: Clock,
        is_suspended: Callable[[], bool],
        describe: Callable[[bool], ConsumerRunningInfo],
        consume: Callable[[MessageRecord, str | None], Coroutine[Any, Any, Any]],
        data_loop: asyncio.AbstractEventLoop,
        is_orderly: bool,
    ) -> None:
        """``consume`` calls the handler of a message, on ``data_loop``."""
        self.group = group
        self._settings = settings
        self._unit_mode = unit_mode
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._rebalancer = rebalancer
        self._resets = resets
        self._stats = stats
        self._clock = clock
        self._is_suspended = is_suspended
        self._describe = describe
        self._consume = consume
        self._data_loop = data_loop
        self._is_orderly = is_orderly

    # ---- what the instance needs -----------------------------------------------------------------

    def topics(self) -> Collection[str]:
        return tuple(self._subscriptions())

    def route_changed(self, route: Route) -> None:
        """The next round sees it."""

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self._settings.message_model,
            consume_from_where=self._settings.consume_from_where,
            subscription_data_set=[each.data for each in self._subscriptions().values()],
            unit_mode=self._unit_mode,
        )

    @property
    def is_paused(self) -> bool:
        return self._is_suspended() or self._resets.under_way > 0

    async def rebalance(self) -> bool:
        if self._rebalancer.closed:
            return True
        if self.is_paused:
            return False
        return await self._rebalancer.round()

    async def persist_offsets(self) -> None:
        self._stats.snapshot(self._clock.steady_ms())
        await self._offsets.persist_all(tuple(self._rebalancer.rebalance.table))

    # ---- what brokers ask ------------------------------------------------------------------------

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        await self._resets.to_offsets(
            {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        )

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return self._offsets.table.snapshot(topic)

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return self._describe(with_stacks)

    async def consume_directly(
        self, record: MessageRecord, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Give one message to its handler; no offset moves."""
        started_ms = self._clock.steady_ms()
        answer = ConsumeMessageDirectlyResult(order=self._is_orderly)
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


def received(
    record: MessageRecord, broker_name: str | None, shown_topic: Callable[[str], str]
) -> MessageExt:
    """A message out of turn, as handlers see it."""
    message = MessageExt(record, broker_name or "")
    return MessageExt(record, broker_name or "", shown_topic(message.topic))
