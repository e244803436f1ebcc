"""Positions in queues: the offsets that groups have committed, and where queues begin and end.

A commit needs a group and a topic that exist; it creates neither. All other questions may be asked
about any queue: an unknown queue is empty.

An :class:`~skylark.broker.api.OffsetService`. Counterpart of Java's ``ConsumerManageProcessor`` and
of a part of ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from skylark.broker.api import Peer
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import (
    InvalidParameterError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.store.consume_queue import Boundary
from skylark.store.message_store import MessageStore

NO_TIME: Final = -1  # store time of a message that does not exist


class OffsetService:
    """Answers questions about offsets, and commits them."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, groups: GroupTable, offsets: OffsetTable
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    def committed(
        self,
        _peer: Peer,
        group: str,
        topic: str,
        queue_id: int,
        *,
        set_zero_if_not_found: bool | None = None,
    ) -> int:
        """The offset that a group has committed; raises BrokerError (22) if there is none."""
        return self._offsets.query(
            group,
            topic,
            queue_id,
            set_zero_if_not_found=set_zero_if_not_found,
            starts_in_memory=partial(self._starts_in_memory, topic, queue_id),
        )

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return False
        entry = queue.read_entry(0)
        return entry is not None and self._store.reader.is_in_memory(entry.log_offset)

    def commit(
        self, _peer: Peer, group: str, topic: str, queue_id: int | None, offset: int | None
    ) -> bool:
        """Commit an offset; False if an administrator has reset the group, and this is ignored."""
        if group not in self._groups:
            raise SubscriptionGroupNotExistError(f"Group {group} not exist!")
        if topic not in self._topics:
            raise TopicNotExistError(f"Topic {topic} not exist!")
        if queue_id is None:
            raise InvalidParameterError(f"QueueId is null, topic is {topic}")
        if offset is None:
            raise InvalidParameterError(f"Offset is null, topic is {topic}")
        return self._offsets.commit_of_client(group, topic, queue_id, offset)

    def min_offset(self, _peer: Peer, topic: str, queue_id: int) -> int:
        """The first offset that can be read."""
        return self._store.reader.min_offset(topic, queue_id)

    def max_offset(self, _peer: Peer, topic: str, queue_id: int) -> int:
        """The offset behind the last message that can be read."""
        return self._store.reader.max_offset(topic, queue_id)

    def offset_by_time(
        self, _peer: Peer, topic: str, queue_id: int, time_ms: int, *, is_upper: bool = False
    ) -> int:
        """The offset of the first message stored at or after a time; ``is_upper``: of the last one
        stored at or before it."""
        boundary = Boundary.UPPER if is_upper else Boundary.LOWER
        return self._store.reader.offset_by_time(topic, queue_id, time_ms, boundary)

    def earliest_store_time(self, _peer: Peer, topic: str, queue_id: int) -> int:
        """When the first message of a queue was stored; -1 for an empty queue."""
        time_ms = self._store.reader.earliest_store_time(topic, queue_id)
        return NO_TIME if time_ms is None else time_ms
