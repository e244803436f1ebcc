"""Requests about topics: create, change, delete, list, and which groups consume them.

A change is answered when it is on disk and the name servers have it (or did not answer), so that a
client that gets the answer finds the topic, also after a crash.

Deleting a topic (215) removes its configuration, its offsets and its queues in one turn of the
loop, so that no other request sees a part of it; the log keeps the messages until they expire.
"""

from __future__ import annotations

import logging

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.table_pages import PageRequest
from skylark.broker.table_saver import until_saved
from skylark.core.errors import BrokerError, TopicNotExistError
from skylark.net.connection import Connection
from skylark.net.success_response import UNSET_REMARK, success
from skylark.wire.bodies.admin_body import QuerySubscriptionResponseBody
from skylark.wire.bodies.common_body import GroupList, TopicList
from skylark.wire.bodies.config import CreateTopicListRequestBody, TopicConfig, TopicFilterType
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.admin import (
    CreateTopicRequestHeader,
    GroupRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    TopicRequestHeader,
)
from skylark.wire.headers.ha import GetAllTopicConfigRequestHeader, GetAllTopicConfigResponseHeader

logger = logging.getLogger(__name__)


class TopicHandlers(AdminHandlers):
    """The requests about topics."""

    # --- changes ----------------------------------------------------------------------------------

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
    async def update(self, connection: Connection, request: Command) -> Command:
        """UPDATE_AND_CREATE_TOPIC (17)."""
        header = decode_ext(CreateTopicRequestHeader, request.ext)
        if header.topic_filter_type not in TopicFilterType.__members__:
            raise BrokerError(f"topicFilterType = [{header.topic_filter_type:.100}] value invalid")
        requested = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=TopicFilterType[header.topic_filter_type],
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        if self._broker.topics.update(requested, header.attributes or ""):
            logger.info("%r set topic %s", connection, header.topic)
        return await self._saved_and_announced(request)

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    async def update_list(self, connection: Connection, request: Command) -> Command:
        """UPDATE_AND_CREATE_TOPIC_LIST (18)."""
        requested = decode_body(CreateTopicListRequestBody, request.body or b"").topic_config_list
        if self._broker.topics.update_all(requested):
            logger.info("%r set %d topics", connection, len(requested))
        return await self._saved_and_announced(request)

    async def _saved_and_announced(self, request: Command) -> Command:
        """The answer to a change; waits also if nothing changed, for earlier changes."""
        await until_saved(self._broker.saved.topics)
        await self._broker.announced()
        return success(request, remark=UNSET_REMARK)

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER)
    async def delete(self, connection: Connection, request: Command) -> Command:
        """DELETE_TOPIC_IN_BROKER (215)."""
        topic = decode_ext(TopicRequestHeader, request.ext).topic
        existed = topic in self._broker.topics
        gone = self._broker.topics.delete(topic, self._broker.offsets.groups_of(topic))
        for name in gone:
            self._broker.offsets.remove_topic(name)
        self._broker.delete_queues(gone)
        if existed:
            logger.info("%r deleted topic %s", connection, topic)
        self._broker.saved.offsets.mark()
        await until_saved(self._broker.saved.topics, self._broker.saved.offsets)
        return success(request)

    # --- reading ----------------------------------------------------------------------------------

    @handles(RequestCode.GET_TOPIC_CONFIG)
    def get(self, _connection: Connection, request: Command) -> Command:
        """GET_TOPIC_CONFIG (351). No topic has a mapping: there are no static topics."""
        topic = decode_ext(TopicRequestHeader, request.ext).topic
        config = self._broker.topics.get(topic)
        if config is None:
            raise TopicNotExistError(f"No topic in this broker. topic: {topic}")
        return success(request, body=config)

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG)
    def get_all(self, _connection: Connection, request: Command) -> Command:
        """GET_ALL_TOPIC_CONFIG (21), whole or in pages."""
        header = decode_ext(GetAllTopicConfigRequestHeader, request.ext)
        page = PageRequest(
            seq=header.topic_seq, data_version=header.data_version, count=header.max_topic_num
        )
        return success(
            request,
            header=GetAllTopicConfigResponseHeader(total_topic_num=len(self._broker.topics)),
            body=self._broker.topics.page(page),
        )

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def get_system_topics(self, _connection: Connection, request: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        return success(request, body=TopicList(topic_list=sorted(self._broker.topics.system_names)))

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def get_groups(self, _connection: Connection, request: Command) -> Command:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups that are online, and those with offsets."""
        topic = decode_ext(TopicRequestHeader, request.ext).topic
        online, known = (
            self._broker.consumers.groups_of_topic(topic),
            self._broker.offsets.groups_of(topic),
        )
        return success(request, body=GroupList(group_list=list(dict.fromkeys(online + known))))

    @handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def get_topics_of_group(self, _connection: Connection, request: Command) -> Command:
        """QUERY_TOPICS_BY_CONSUMER (343): topics for which the group has offsets."""
        group = decode_ext(GroupRequestHeader, request.ext).group
        body = TopicList(
            topic_list=self._broker.offsets.topics_of(group),
            broker_addr=self._broker.live.current.broker_addr,
        )
        return success(request, body=body)

    @handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def get_subscription(self, _connection: Connection, request: Command) -> Command:
        """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""
        header = decode_ext(QuerySubscriptionByConsumerRequestHeader, request.ext)
        body = QuerySubscriptionResponseBody(
            group=header.group,
            topic=header.topic,
            subscription_data=self._broker.consumers.subscription(header.group, header.topic or ""),
        )
        return success(request, body=body)
