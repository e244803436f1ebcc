"""Requests about groups: create, change, delete, list, ban from a topic, list connections.

A change is answered when it is on disk. Reading a group (352) creates it, as other requests for a
group do. The answer to 203 has two fields that Java does not have: topics that members subscribe to
differently, and the queues that they have locked.
"""

from __future__ import annotations

import logging

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.table_pages import PageRequest
from skylark.broker.table_saver import until_saved
from skylark.core.errors import (
    BrokerError,
    ConsumerNotOnlineError,
    SubscriptionGroupNotExistError,
)
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.bodies.config import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.admin import (
    ConsumerGroupRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GroupRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from skylark.wire.headers.client_header import GetProducerConnectionListRequestHeader
from skylark.wire.headers.ha import (
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
)

logger = logging.getLogger(__name__)


class GroupHandlers(AdminHandlers):
    """The requests about consumer groups and about connected clients."""

    # --- changes ----------------------------------------------------------------------------------

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    async def update(self, connection: Connection, request: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        requested = decode_body(SubscriptionGroupConfig, request.body or b"")
        self._broker.groups.update(requested)
        logger.info("%r set group %s", connection, requested.group_name)
        await until_saved(self._broker.saved.groups)
        return success(request)

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    async def update_list(self, connection: Connection, request: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""
        requested = decode_body(SubscriptionGroupList, request.body or b"").group_config_list
        self._broker.groups.update_all(requested)
        logger.info("%r set %d groups", connection, len(requested))
        await until_saved(self._broker.saved.groups)
        return success(request)

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    async def delete(self, connection: Connection, request: Command) -> Command:
        """DELETE_SUBSCRIPTIONGROUP (207)."""
        header = decode_ext(DeleteSubscriptionGroupRequestHeader, request.ext)
        if self._broker.groups.delete(header.group_name):
            logger.info("%r deleted group %s", connection, header.group_name)
        if header.clean_offset:
            self._broker.offsets.remove_group(header.group_name)
            self._broker.saved.offsets.mark()
        await until_saved(self._broker.saved.groups, self._broker.saved.offsets)
        return success(request)

    @handles(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    async def forbid(self, _connection: Connection, request: Command) -> Command:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): set or read the ban of a group."""
        header = decode_ext(UpdateGroupForbiddenRequestHeader, request.ext)
        group, topic = header.group, header.topic
        if header.readable is not None:
            self._broker.groups.set_may_read(group, topic, header.readable)
            await until_saved(self._broker.saved.groups)
        readable = self._broker.groups.may_read(group, topic)
        body = GroupForbidden(group=group, topic=topic, readable=readable)
        return success(request, body=body, remark="")

    # --- reading ----------------------------------------------------------------------------------

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def get(self, _connection: Connection, request: Command) -> Command:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""
        config = self._broker.groups.find(decode_ext(GroupRequestHeader, request.ext).group)
        if config is None:
            raise SubscriptionGroupNotExistError("No group in this broker")
        return success(request, body=config)

    @handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def get_all(self, _connection: Connection, request: Command) -> Command:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), whole or in pages."""
        header = decode_ext(GetAllSubscriptionGroupRequestHeader, request.ext)
        page = PageRequest(
            seq=header.group_seq, data_version=header.data_version, count=header.max_group_num
        )
        return success(
            request,
            header=GetAllSubscriptionGroupResponseHeader(total_group_num=len(self._broker.groups)),
            body=self._broker.groups.page(page),
        )

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def get_consumers(self, _connection: Connection, request: Command) -> Command:
        """GET_CONSUMER_CONNECTION_LIST (203)."""
        group = decode_ext(ConsumerGroupRequestHeader, request.ext).consumer_group
        body = self._broker.consumers.connection_list(group)
        if body is None:
            raise ConsumerNotOnlineError(f"the consumer group[{group}] not online")
        body.subscription_conflicts = self._broker.consumers.conflicts(group) or None
        body.queue_locks = self._broker.locks.held(group, self._broker.clock.steady_ms()) or None
        return success(request, body=body)

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def get_producers(self, _connection: Connection, request: Command) -> Command:
        """GET_PRODUCER_CONNECTION_LIST (204)."""
        group = decode_ext(GetProducerConnectionListRequestHeader, request.ext).producer_group
        body = self._broker.producers.connection_list(group)
        if body is None:
            raise BrokerError(f"the producer group[{group}] not exist")
        return success(request, body=body)

    @handles(RequestCode.GET_ALL_PRODUCER_INFO)
    def get_all_producers(self, _connection: Connection, request: Command) -> Command:
        """GET_ALL_PRODUCER_INFO (328)."""
        return success(request, body=self._broker.producers.table_info())
