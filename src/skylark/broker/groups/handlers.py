"""Remoting requests about groups: clients, offsets, queue locks and assignment of queues.

This module knows frames; what the requests mean is in the services that it calls:

========================  ======================================================================
:class:`ClientHandlers`   heartbeat (34), leaving (35), member list (38), check of a filter (46)
:class:`OffsetHandlers`   committed offsets (14, 15), where queues begin and end (29 to 32)
:class:`LockHandlers`     locks on queues for consumption in order (41, 42)
:class:`AssignmentHandlers`  a client's share of the queues (400), pull or pop (401)
========================  ======================================================================
"""

from __future__ import annotations

from typing import Final

from skylark.broker.api import ClientService, LockService, OffsetService
from skylark.broker.groups.consumer_offsets import RESET_REMARK
from skylark.broker.groups.queue_assignment import AssignmentService
from skylark.core.errors import BrokerError
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.wire.bodies.common_body import Body
from skylark.wire.bodies.heartbeat import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylark.wire.bodies.pop_body import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.admin import ConsumerGroupRequestHeader
from skylark.wire.headers.client_header import UnregisterClientRequestHeader
from skylark.wire.headers.offset import (
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

_MODE_PLACES: Final = map(str, range(len(MessageRequestMode)))
_MODE_TEXTS: Final = frozenset({None, *MessageRequestMode, *_MODE_PLACES})


class _AskedMode(Body, kw_only=True):
    """The mode in a request, as the client has written it: a name, or its place in the list."""

    mode: str | None = None


class ClientHandlers:
    """The requests by which clients join, stay in and leave groups."""

    def __init__(self, clients: ClientService) -> None:
        self._clients = clients
        self._listed_ids: list[str] = []  # of the last answer to 38
        self._listed_body = b""

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_hot(RequestCode.HEART_BEAT, self.heartbeat)
        dispatcher.add_hot(RequestCode.UNREGISTER_CLIENT, self.unregister)
        dispatcher.add_hot(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.get_consumer_list)
        dispatcher.add_hot(RequestCode.CHECK_CLIENT_CONFIG, self.check_client_config)

    def heartbeat(self, connection: Connection, request: Command) -> Command:
        """HEART_BEAT (34), both versions."""
        heartbeat = decode_body(HeartbeatData, request.body or b"")
        header = self._clients.heartbeat(
            connection, heartbeat, language=request.language, version=request.version
        )
        return success(request, header=header)

    def unregister(self, connection: Connection, request: Command) -> Command:
        """UNREGISTER_CLIENT (35)."""
        header = decode_ext(UnregisterClientRequestHeader, request.ext)
        self._clients.unregister(
            connection,
            producer_group=header.producer_group,
            consumer_group=header.consumer_group,
        )
        return response_to(request, ResponseCode.SUCCESS, ext={})

    def get_consumer_list(self, connection: Connection, request: Command) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP (38)."""
        group = decode_ext(ConsumerGroupRequestHeader, request.ext).consumer_group
        try:
            client_ids = self._clients.consumer_ids(connection, group)
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext={})
        if client_ids is not self._listed_ids:  # a changed group: all its members ask in a row
            self._listed_ids = client_ids
            self._listed_body = encode_body(
                GetConsumerListByGroupResponseBody(consumer_id_list=client_ids)
            )
        return response_to(request, ResponseCode.SUCCESS, ext={}, body=self._listed_body)

    def check_client_config(self, connection: Connection, request: Command) -> Command:
        """CHECK_CLIENT_CONFIG (46): whether the filter of a subscription can be used here."""
        body = decode_body(CheckClientRequestBody, request.body or b"")
        self._clients.check_filter(connection, body.group, body.subscription_data)
        return success(request)


class OffsetHandlers:
    """The requests about positions in queues."""

    def __init__(self, offsets: OffsetService) -> None:
        self._offsets = offsets

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        hot = {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.get_max,
            RequestCode.GET_MIN_OFFSET: self.get_min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.get_earliest_time,
        }
        for code, handler in hot.items():
            dispatcher.add_hot(code, handler)

    def query(self, connection: Connection, request: Command) -> Command:
        """QUERY_CONSUMER_OFFSET (14)."""
        header = decode_ext(QueryConsumerOffsetRequestHeader, request.ext)
        try:
            offset = self._offsets.committed(
                connection,
                header.consumer_group,
                header.topic,
                header.queue_id,
                set_zero_if_not_found=header.set_zero_if_not_found,
            )
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext={})
        return _offset_is(request, offset)

    def update(self, connection: Connection, request: Command) -> Command:
        """UPDATE_CONSUMER_OFFSET (15)."""
        header = decode_ext(UpdateConsumerOffsetRequestHeader, request.ext)
        try:
            committed = self._offsets.commit(
                connection,
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
            )
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext={})
        remark = None if committed else RESET_REMARK
        return response_to(request, ResponseCode.SUCCESS, remark, ext={})

    def search(self, connection: Connection, request: Command) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        header = decode_ext(SearchOffsetRequestHeader, request.ext)
        offset = self._offsets.offset_by_time(
            connection, header.topic, header.queue_id, header.timestamp, is_upper=header.is_upper
        )
        return _offset_is(request, offset)

    def get_max(self, connection: Connection, request: Command) -> Command:
        """GET_MAX_OFFSET (30)."""
        header = decode_ext(GetMaxOffsetRequestHeader, request.ext)
        return _offset_is(
            request, self._offsets.max_offset(connection, header.topic, header.queue_id)
        )

    def get_min(self, connection: Connection, request: Command) -> Command:
        """GET_MIN_OFFSET (31)."""
        header = decode_ext(QueueRequestHeader, request.ext)
        return _offset_is(
            request, self._offsets.min_offset(connection, header.topic, header.queue_id)
        )

    def get_earliest_time(self, connection: Connection, request: Command) -> Command:
        """GET_EARLIEST_MSG_STORETIME (32)."""
        header = decode_ext(QueueRequestHeader, request.ext)
        time_ms = self._offsets.earliest_store_time(connection, header.topic, header.queue_id)
        return success(request, header=GetEarliestMsgStoretimeResponseHeader(timestamp=time_ms))


def _offset_is(request: Command, offset: int) -> Command:
    return success(request, header=OffsetResponseHeader(offset=offset))


class LockHandlers:
    """The requests about queue locks."""

    def __init__(self, locks: LockService) -> None:
        self._locks = locks

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_hot(RequestCode.LOCK_BATCH_MQ, self.lock)
        dispatcher.add_hot(RequestCode.UNLOCK_BATCH_MQ, self.unlock)

    def lock(self, connection: Connection, request: Command) -> Command:
        """LOCK_BATCH_MQ (41)."""
        wanted = decode_body(LockBatchRequestBody, request.body or b"")
        held = self._locks.lock(connection, wanted.consumer_group, wanted.client_id, wanted.mq_set)
        return success(request, body=LockBatchResponseBody(lock_ok_mq_set=held))

    def unlock(self, connection: Connection, request: Command) -> Command:
        """UNLOCK_BATCH_MQ (42)."""
        given = decode_body(UnlockBatchRequestBody, request.body or b"")
        self._locks.unlock(connection, given.consumer_group, given.client_id, given.mq_set)
        return success(request)


class AssignmentHandlers:
    """The requests about which client consumes which queue, and how.

    An answer to 400 without assignments makes the client keep what it has; with an empty list it
    gives up all its queues.
    """

    def __init__(self, assignments: AssignmentService) -> None:
        self._assignments = assignments

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_cold(RequestCode.QUERY_ASSIGNMENT, self.query)
        dispatcher.add_cold(RequestCode.SET_MESSAGE_REQUEST_MODE, self.set_mode)

    async def query(self, _connection: Connection, request: Command) -> Command:
        """QUERY_ASSIGNMENT (400)."""
        question = decode_body(QueryAssignmentRequestBody, request.body or b"")
        if question.message_model is None:
            raise BrokerError("the message model is missing")
        mode = self._assignments.mode(question.topic, question.consumer_group)
        queues = await self._assignments.assign(question, mode)
        body = QueryAssignmentResponseBody()
        if queues is not None:
            body.message_queue_assignments = [
                MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in queues
            ]
        return success(request, body=body)

    async def set_mode(self, connection: Connection, request: Command) -> Command:
        """SET_MESSAGE_REQUEST_MODE (401)."""
        data = request.body or b""
        mode = decode_body(SetMessageRequestModeRequestBody, data)
        await self._assignments.set_mode(connection, mode)
        asked = decode_body(_AskedMode, data).mode
        if asked in _MODE_TEXTS:
            return success(request)
        # As in Java, an unknown mode leaves the default; but the client should know.
        return success(request, remark=f"there is no mode {asked:.100}: the mode is {mode.mode}")
