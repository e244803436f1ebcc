"""Client service: heartbeats, unregistration, member lists, checks of filters.

**Heartbeat.** The service looks up each consumer group of a heartbeat, which creates the group if
the settings allow it; it skips a group that cannot be created, and the heartbeat still succeeds. It
creates the group's retry topic. Then it adds the member and its subscriptions to the consumer
table, and compiles SQL92 filters. Producer groups need no look-up. The result says whether the
client may leave its subscriptions out next time (see
:mod:`skylark.broker.groups.consumer_table`).

The service sends notices of a change before it returns, also to the client itself, as in Java. One
difference: the retry topic is marked as ordered if the group subscribes to an ordered topic, and a
heartbeat without subscriptions does not remove that mark.

A :class:`~skylark.broker.api.ClientService`. Counterpart of Java's ``ClientManageProcessor`` and of
a part of ``ConsumerManageProcessor``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from skylark.broker.api import Peer
from skylark.broker.groups.client_channel import ClientChannel, channel_of
from skylark.broker.groups.client_liveness import ClientLiveness
from skylark.broker.groups.consumer_filters import SQL92, ConsumerFilterTable
from skylark.broker.groups.consumer_table import ConsumerTable, HeartbeatResult
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.core.errors import BrokerError
from skylark.core.names import retry_topic
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.sql_eval import compile_sql
from skylark.wire.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    SubscriptionData,
)
from skylark.wire.codes import TopicSysFlag
from skylark.wire.headers.client_header import HeartbeatResponseHeader

#: Types of expressions that select by tag; no type means the same.
TAG_TYPES: Final = (None, "", "TAG")


@dataclass(eq=False)
class ClientService:
    """Registers clients in their groups."""

    _live: LiveSettings
    _topics: TopicTable
    _groups: GroupTable
    _consumers: ConsumerTable
    _producers: ProducerTable
    _filters: ConsumerFilterTable
    _liveness: ClientLiveness
    _clock: Clock

    def heartbeat(
        self, peer: Peer, heartbeat: HeartbeatData, *, language: str | int | None, version: int
    ) -> HeartbeatResponseHeader:
        """Register or renew the groups of a client; both versions of heartbeats."""
        peer.client_id = heartbeat.client_id
        channel = channel_of(peer, heartbeat.client_id, language=language, version=version)
        now_ms = self._clock.steady_ms()
        results = [
            result
            for data in heartbeat.consumer_data_set
            if (result := self._join(data, heartbeat, channel, now_ms)) is not None
        ]
        config = self._live.current
        takes_new = config.enable_register_producer or not config.reject_transaction_message
        for producer in heartbeat.producer_data_set:
            # A changed setting must not expire producers that are registered already.
            if takes_new or self._producers.knows(producer.group_name, peer):
                self._producers.heartbeat(producer.group_name, channel, now_ms)
        self._liveness.watch(peer)
        self._liveness.notify(result.notice for result in results if result.notice is not None)
        sub_change = heartbeat.heartbeat_fingerprint == 0 or any(r.sub_changed for r in results)
        return HeartbeatResponseHeader(supports_v2=True, sub_change=sub_change)

    def _join(
        self, data: ConsumerData, heartbeat: HeartbeatData, channel: ClientChannel, now_ms: int
    ) -> HeartbeatResult | None:
        """Register the client in one consumer group of its heartbeat; None: it is skipped."""
        rejected = self._live.current.reject_pull_consumer_enable
        if rejected and data.consume_type is ConsumeType.CONSUME_ACTIVELY:
            return None
        group = self._groups.find(data.group_name)
        if group is None:
            return None
        fingerprint = heartbeat.heartbeat_fingerprint
        is_full = fingerprint == 0 or not heartbeat.without_sub
        subscriptions = data.subscription_data_set if is_full else self._known(data.group_name)
        self._topics.ensure(
            retry_topic(data.group_name),
            queue_count=group.retry_queue_nums,
            sys_flag=TopicSysFlag.UNIT_SUB if data.unit_mode else 0,
            order=any(self._topics.is_order(each.topic) for each in subscriptions),
        )
        result = self._consumers.heartbeat(
            data,
            channel,
            now_ms,
            fingerprint=fingerprint,
            without_sub=heartbeat.without_sub,
            notify=group.notify_consumer_ids_changed_enable,
        )
        if is_full:
            self._filters.register(data.group_name, subscriptions, self._clock.now_ms())
        return result

    def _known(self, group_name: str) -> Iterable[SubscriptionData]:
        group = self._consumers.group(group_name)
        return () if group is None else group.subscriptions.values()

    def unregister(
        self, peer: Peer, *, producer_group: str | None, consumer_group: str | None
    ) -> None:
        """A client leaves a producer group, a consumer group, or both."""
        if producer_group is not None:
            self._producers.unregister(producer_group, peer)
        if consumer_group is not None:
            group = self._groups.get(consumer_group)  # leaving a group does not create it
            removed = self._consumers.unregister(
                consumer_group,
                peer,
                self._clock.steady_ms(),
                notify=group is None or group.notify_consumer_ids_changed_enable,
            )
            self._liveness.left(removed)

    def consumer_ids(self, _peer: Peer, group: str) -> list[str]:
        """The members of a consumer group; raises BrokerError if it has none.

        The same list, not to be changed, until the members change.
        """
        client_ids = self._consumers.client_ids(group)
        if not client_ids:
            raise BrokerError(f"no consumer for this group, {group}")
        return client_ids

    def check_filter(self, _peer: Peer, _group: str, subscription: SubscriptionData | None) -> None:
        """Raise FilterSyntaxError for an invalid filter, BrokerError if only tags are enabled."""
        if subscription is None or (kind := subscription.expression_type) in TAG_TYPES:
            return
        if not self._live.current.enable_property_filter:
            raise BrokerError(
                f"The broker does not support consumer to filter message by {kind}",
                hint="set enablePropertyFilter=true",
            )
        if kind != SQL92:
            raise FilterSyntaxError(f"the expression type {kind:.100} is unknown")
        compile_sql(subscription.sub_string)
