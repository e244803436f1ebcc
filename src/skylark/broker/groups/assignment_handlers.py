"""Assignment of queues by the broker: a client asks for its share (400), an administrator decides
how a group gets its messages (401).

An answer to 400 without assignments tells the client to keep what it has; an empty list, to drop
all. So in doubt (no route, no members, an unknown strategy) there is none.

Answers to Java's ``QueryAssignmentProcessor``.
"""

from __future__ import annotations

import logging

from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.queue_assignment import allocate
from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.saved_replies import until_saved
from skylark.broker.table_saver import SavedTable
from skylark.broker.topics.topic_routes import TopicRoutes
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import (
    BrokerError,
    NoPermissionError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.core.names import is_retry_topic
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.store import config_tables
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.bodies.pop_body import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body

log = logging.getLogger(__name__)


class AssignmentHandlers:
    """The requests about who consumes which queue, and how."""

    def __init__(
        self,
        live: LiveSettings,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        modes: RequestModes,
        routes: TopicRoutes,
        *,
        modes_saved: SavedTable[config_tables.MessageRequestModeTable],
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._modes = modes
        self._routes = routes
        self._modes_saved = modes_saved

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_cold(RequestCode.QUERY_ASSIGNMENT, self.query)
        dispatcher.add_cold(RequestCode.SET_MESSAGE_REQUEST_MODE, self.set_mode)

    async def query(self, _connection: Connection, request: Command) -> Command:
        """QUERY_ASSIGNMENT (400)."""
        question = decode_body(QueryAssignmentRequestBody, request.body or b"")
        if question.message_model is None:
            raise BrokerError("the message model is missing")
        queues = await self._queues(question)
        body = QueryAssignmentResponseBody()
        if queues is not None:
            body.message_queue_assignments = [
                MessageQueueAssignment(message_queue=queue, mode=MessageRequestMode.PULL)
                for queue in queues
            ]
        return success(request, body=body)

    async def _queues(self, question: QueryAssignmentRequestBody) -> list[MessageQueue] | None:
        queues = await self._routes.read_queues(question.topic)
        if queues is None or question.message_model is MessageModel.BROADCASTING:
            return queues
        if not self._live.current.server_load_balancer_enable:
            return queues
        members = self._consumers.client_ids(question.consumer_group)
        if not members:
            return None
        return allocate(question.strategy_name, queues, members, question.client_id)

    async def set_mode(self, connection: Connection, request: Command) -> Command:
        """SET_MESSAGE_REQUEST_MODE (401)."""
        mode = decode_body(SetMessageRequestModeRequestBody, request.body or b"")
        topic, group = mode.topic, mode.consumer_group
        if is_retry_topic(topic):
            raise NoPermissionError("retry topic is not allowed to set mode")
        if topic not in self._topics:
            raise TopicNotExistError(f"topic[{topic}] not exist")
        if self._groups.find(group) is None:
            raise SubscriptionGroupNotExistError("subscription group does not exist")
        self._modes.set(mode)
        log.info("%r lets %s get the messages of %s by %s", connection, group, topic, mode.mode)
        self._modes_saved.mark()
        await until_saved(self._modes_saved)
        return success(request)
