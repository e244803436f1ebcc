"""Headers about positions in queues: committed offsets, bounds, search by time, reset.

``offset`` in these headers is a queue offset (message number), never a position in the log.
Counterpart of Java's ``QueryConsumerOffsetRequestHeader``, ``SearchOffsetRequestHeader``,
``ResetOffsetRequestHeader`` and others.
"""

from __future__ import annotations

from skylark.wire.fields import Header, Int32, Int64


class OffsetResponseHeader(Header, kw_only=True, rename="camel"):
    """One queue offset: the response to 14, 29, 30 and 31."""

    offset: Int64


class QueryConsumerOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """QUERY_CONSUMER_OFFSET: what a group has committed."""

    consumer_group: str
    topic: str
    queue_id: Int32
    #: false: never answer 0 for a group that has not committed anything.
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """UPDATE_CONSUMER_OFFSET: commit. What is missing is refused after group and topic (29)."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class SearchOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP: asks for the first queue offset stored at a time or later."""

    topic: str
    lite_topic: str | None = None
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None

    @property
    def is_upper(self) -> bool:
        """Whether the last message of equal time is meant; all but ``upper`` means the first."""
        return self.boundary_type is not None and self.boundary_type.lower() == "upper"


class GetMaxOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_MAX_OFFSET: the offset that the next message will get."""

    topic: str
    queue_id: Int32
    committed: bool = True


class QueueRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME: about the oldest message still held."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True, rename="camel"):
    """A store time in ms."""

    timestamp: Int64


class ResetOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """RESET_CONSUMER_CLIENT_OFFSET and INVOKE_BROKER_TO_RESET_OFFSET."""

    group: str
    topic: str
    #: -1: all queues.
    queue_id: Int32 = -1
    #: Absent or -1: by time.
    offset: Int64 | None = None
    #: -1: to the end.
    timestamp: Int64 = 0
    is_force: bool = False


class GetConsumerStatusRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """CLONE_GROUP_OFFSET: copy what one group has committed to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """QUERY_CORRECTION_OFFSET: the smallest offsets of some groups, against one to compare with."""

    #: Joined by commas.
    filter_groups: str | None = None
    compare_group: str
    topic: str
