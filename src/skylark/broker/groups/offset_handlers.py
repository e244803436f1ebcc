"""Offsets: what groups have committed (14, 15), and where queues begin and end (29 to 32).

A commit needs a group and a topic that exist; neither is created by it. Everything else may be
asked for anything: an unknown queue is empty. Answers to ``ConsumerManageProcessor`` and a part of
``AdminBrokerProcessor``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from skylark.broker.groups.consumer_offsets import RESET_REMARK, OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.store.consume_queue import Boundary
from skylark.store.message_store import MessageStore
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext
from skylark.wire.headers.offset import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

NO_TIME: Final = -1  # store time of a message that does not exist


class OffsetHandlers:
    """The requests about positions in queues."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, groups: GroupTable, offsets: OffsetTable
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
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

    def query(self, _connection: Connection, request: Command) -> Command:
        """QUERY_CONSUMER_OFFSET (14)."""
        header = decode_ext(QueryConsumerOffsetRequestHeader, request.ext)
        try:
            offset = self._offsets.query(
                header.consumer_group,
                header.topic,
                header.queue_id,
                set_zero_if_not_found=header.set_zero_if_not_found,
                starts_in_memory=partial(self._starts_in_memory, header.topic, header.queue_id),
            )
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext={})
        return success(request, header=OffsetResponseHeader(offset=offset))

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return False
        entry = queue.read_entry(0)
        return entry is not None and self._store.reader.is_in_memory(entry.log_offset)

    def update(self, _connection: Connection, request: Command) -> Command:
        """UPDATE_CONSUMER_OFFSET (15)."""
        header = decode_ext(UpdateConsumerOffsetRequestHeader, request.ext)
        group, topic = header.consumer_group, header.topic
        try:
            if group not in self._groups:
                raise SubscriptionGroupNotExistError(f"Group {group} not exist!")
            if topic not in self._topics:
                raise TopicNotExistError(f"Topic {topic} not exist!")
            if header.queue_id is None:
                raise InvalidParameterError(f"QueueId is null, topic is {topic}")
            if header.commit_offset is None:
                raise InvalidParameterError(f"Offset is null, topic is {topic}")
            done = self._offsets.commit_of_client(
                group, topic, header.queue_id, header.commit_offset
            )
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext={})
        return response_to(request, ResponseCode.SUCCESS, None if done else RESET_REMARK, ext={})

    def search(self, _connection: Connection, request: Command) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        header = decode_ext(SearchOffsetRequestHeader, request.ext)
        boundary = Boundary.UPPER if header.is_upper else Boundary.LOWER
        offset = self._store.reader.offset_by_time(
            header.topic, header.queue_id, header.timestamp, boundary
        )
        return success(request, header=OffsetResponseHeader(offset=offset))

    def get_max(self, _connection: Connection, request: Command) -> Command:
        """GET_MAX_OFFSET (30)."""
        header = decode_ext(GetMaxOffsetRequestHeader, request.ext)
        offset = self._store.reader.max_offset(header.topic, header.queue_id)
        return success(request, header=OffsetResponseHeader(offset=offset))

    def get_min(self, _connection: Connection, request: Command) -> Command:
        """GET_MIN_OFFSET (31)."""
        header = decode_ext(GetMinOffsetRequestHeader, request.ext)
        offset = self._store.reader.min_offset(header.topic, header.queue_id)
        return success(request, header=OffsetResponseHeader(offset=offset))

    def get_earliest_time(self, _connection: Connection, request: Command) -> Command:
        """GET_EARLIEST_MSG_STORETIME (32)."""
        header = decode_ext(GetEarliestMsgStoretimeRequestHeader, request.ext)
        time_ms = self._store.reader.earliest_store_time(header.topic, header.queue_id)
        answer = GetEarliestMsgStoretimeResponseHeader(
            timestamp=NO_TIME if time_ms is None else time_ms
        )
        return success(request, header=answer)
