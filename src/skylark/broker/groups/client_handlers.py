"""Clients as members of groups: heartbeat (34), goodbye (35), who is there (38), filters (46).

**Heartbeat.** Each consumer group of it is looked up, which creates it where that is allowed; a
group that cannot be had is passed over and the answer stays 0. Its retry topic is made. Then the
group's table takes the member and its subscriptions, and SQL92 filters are compiled. Producer
groups need no look-up. The answer tells the client whether it may leave its subscriptions out next
time (see :mod:`skylark.broker.groups.consumer_table`).

Notices of a change are sent before the answer, also to the client itself, as in Java. In one thing
we differ: the retry topic is marked as ordered if the group subscribes to an ordered topic, and a
heartbeat without subscriptions does not take that mark away again.

Answers to ``ClientManageProcessor`` and a part of ``ConsumerManageProcessor``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from skylark.broker.groups.client_channel import ClientChannel, channel_of
from skylark.broker.groups.client_liveness import ClientLiveness
from skylark.broker.groups.consumer_table import ConsumerTable, HeartbeatResult
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pull.consumer_filters import SQL92, ConsumerFilterTable
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError
from skylark.core.names import retry_topic
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.sql_eval import compile_sql
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.wire.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    SubscriptionData,
)
from skylark.wire.codes import RequestCode, ResponseCode, TopicSysFlag
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.client_header import (
    HeartbeatResponseHeader,
    UnregisterClientRequestHeader,
)
from skylark.wire.headers.common import ConsumerGroupRequestHeader

#: Types of expressions that select by tag; no type means the same.
TAG_TYPES: Final = (None, "", "TAG")


class ClientHandlers:
    """The requests by which clients join, stay in and leave groups."""

    def __init__(
        self,
        live: LiveSettings,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        producers: ProducerTable,
        filters: ConsumerFilterTable,
        liveness: ClientLiveness,
        clock: TimeSource,
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._producers = producers
        self._filters = filters
        self._liveness = liveness
        self._clock = clock
        self._listed_ids: list[str] = []  # of the last answer to 38
        self._listed_body = b""

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.HEART_BEAT, self.heartbeat)
        dispatcher.add_hot(RequestCode.UNREGISTER_CLIENT, self.unregister)
        dispatcher.add_hot(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.get_consumer_list)
        dispatcher.add_hot(RequestCode.CHECK_CLIENT_CONFIG, self.check_client_config)

    def heartbeat(self, connection: Connection, request: Command) -> Command:
        """HEART_BEAT (34), both versions."""
        heartbeat = decode_body(HeartbeatData, request.body or b"")
        channel = channel_of(connection, heartbeat.client_id, request)
        now_ms = self._liveness.now_ms()
        results = [
            result
            for data in heartbeat.consumer_data_set
            if (result := self._join(data, heartbeat, channel, now_ms)) is not None
        ]
        config = self._live.current
        takes_new = config.enable_register_producer or not config.reject_transaction_message
        for producer in heartbeat.producer_data_set:
            # Who is registered already must not fall silent by a change of the settings.
            if takes_new or self._producers.knows(producer.group_name, connection):
                self._producers.heartbeat(producer.group_name, channel, now_ms)
        self._liveness.tell(result.notice for result in results if result.notice is not None)
        sub_change = heartbeat.heartbeat_fingerprint == 0 or any(r.sub_changed for r in results)
        return success(
            request, header=HeartbeatResponseHeader(supports_v2=True, sub_change=sub_change)
        )

    def _join(
        self, data: ConsumerData, heartbeat: HeartbeatData, channel: ClientChannel, now_ms: int
    ) -> HeartbeatResult | None:
        """Take one consumer group of a heartbeat; None: the group is passed over."""
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

    def unregister(self, connection: Connection, request: Command) -> Command:
        """UNREGISTER_CLIENT (35)."""
        header = decode_ext(UnregisterClientRequestHeader, request.ext)
        if header.producer_group is not None:
            self._producers.unregister(header.producer_group, connection)
        if header.consumer_group is not None:
            group = self._groups.get(header.consumer_group)  # a goodbye creates nothing
            removed = self._consumers.unregister(
                header.consumer_group,
                connection,
                self._liveness.now_ms(),
                notify=group is None or group.notify_consumer_ids_changed_enable,
            )
            self._liveness.left(removed)
        return response_to(request, ResponseCode.SUCCESS, ext={})

    def get_consumer_list(self, _connection: Connection, request: Command) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP (38)."""
        group = decode_ext(ConsumerGroupRequestHeader, request.ext).consumer_group
        client_ids = self._consumers.client_ids(group)
        if not client_ids:
            remark = f"no consumer for this group, {group}"
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark, ext={})
        if client_ids is not self._listed_ids:  # a changed group: all its members ask in a row
            self._listed_ids = client_ids
            self._listed_body = encode_body(
                GetConsumerListByGroupResponseBody(consumer_id_list=client_ids)
            )
        return response_to(request, ResponseCode.SUCCESS, ext={}, body=self._listed_body)

    def check_client_config(self, _connection: Connection, request: Command) -> Command:
        """CHECK_CLIENT_CONFIG (46): whether the filter of a subscription can be used here."""
        body = decode_body(CheckClientRequestBody, request.body or b"")
        data = body.subscription_data
        if data is None or data.expression_type in TAG_TYPES:
            return success(request)
        if not self._live.current.enable_property_filter:
            raise BrokerError(
                f"The broker does not support consumer to filter message by {data.expression_type}",
                hint="set enablePropertyFilter=true",
            )
        if data.expression_type != SQL92:
            raise FilterSyntaxError(f"the expression type {data.expression_type:.100} is unknown")
        compile_sql(data.sub_string)
        return success(request)
