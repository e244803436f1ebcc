"""Headers of reading messages: pull, and look-up by key or position.

Pull request and answer belong to Java's "fast codec" (malformed numbers abort). The four numbers of
the answer are needed with every code a consumer acts upon: 0 found, 19 nothing new, 20 nothing
matched, 21 offset illegal. Counterpart of Java's ``PullMessageRequestHeader``,
``QueryMessageRequestHeader`` and others.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from skylark.wire.fields import Header, Int32, Int64


class PullMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    strict_numbers: ClassVar[bool] = True

    consumer_group: str
    topic: str
    lite_topic: str | None = None
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    #: Bits of :class:`~skylark.wire.codes.PullSysFlag`.
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    #: Absent: TAG.
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: str | None = field(default=None, name="proxyFrowardClientId")
    #: Skylark only: lift the caps on count and bytes. Apache brokers ignore it.
    bulk: bool | None = None


class PullMessageResponseHeader(Header, kw_only=True, rename="camel"):
    """The offsets of the queue, and where the next pull begins."""

    strict_numbers: ClassVar[bool] = True

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    #: With code 16: what forbids reading (1 broker, 2 group, 3 topic, 4 broadcast, 5 subscription).
    forbidden_type: Int32 | None = None


class QueryMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """QUERY_MESSAGE: messages by key within a time range."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    #: K key, U unique key, T tag; absent: what the key looks like.
    index_type: str | None = None
    last_key: str | None = None
    #: Set by clients besides the typed header; up to 4.9.3 it is not part of what they sign.
    unique_key_query: bool | None = field(default=None, name="_UNIQUE_KEY_QUERY")


class QueryMessageResponseHeader(Header, kw_only=True, rename="camel"):
    """How far the index reaches; both are 0 with code 22 (nothing found)."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """VIEW_MESSAGE_BY_ID: one message by its position in the commit log."""

    topic: str | None = None
    offset: Int64
