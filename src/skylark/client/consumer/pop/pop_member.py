"""Group membership of a :class:`~skylark.aio.PopConsumer`: what its client instance calls.

A pop consumer owns no queues: it joins the group so that brokers keep its subscriptions and tools
show it. There is nothing to rebalance, and no offsets to save: brokers keep both the offsets and
the state of each message. Lives on the control loop, like all members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from skylark.client.consumer.subscription import Subscription
from skylark.client.core.client_instance import ClientInstance
from skylark.wire.bodies.admin_body import ConsumerRunningInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)


class PopMember:
    """A ``ConsumerMember``; the consumer replaces ``subscriptions`` as a whole."""

    def __init__(self, instance: ClientInstance, group: str, where: ConsumeFromWhere) -> None:
        """``group`` as brokers know it."""
        self.group = group
        self.subscriptions: Mapping[str, Subscription] = {}
        self._instance = instance
        self._where = where
        self._started_ms = instance.runtime.clock.now_ms()

    def __repr__(self) -> str:
        return f"<PopMember {self.group}>"

    def topics(self) -> Collection[str]:
        return tuple(self.subscriptions)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_POP,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=self._where,
            subscription_data_set=[each.data for each in self.subscriptions.values()],
            unit_mode=self._instance.options.unit_mode,
        )

    async def rebalance(self) -> bool:
        return True

    async def persist_offsets(self) -> None:
        """Brokers have the offsets."""

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """No committed offsets in memory (221)."""
        del topic
        return {}

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """Settings and subscriptions for tools (307), without thread stacks."""
        del with_stacks
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(map(str, self._instance.endpoint.namesrv)),
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_POP.value,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=[each.data for each in self.subscriptions.values()],
        )
