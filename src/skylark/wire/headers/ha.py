"""Headers between brokers: a slave reads its master's tables, replicas agree on positions.

Topics and groups are read in pages since 5.3: the request names the first index, the page size and
the ``dataVersion`` it began with; all three absent asks for everything at once, as 4.x does.
Messages themselves flow over the HA stream, which has no remoting frames. Counterpart of
Java's ``GetAllTopicConfigRequestHeader``, ``ExchangeHAInfoRequestHeader`` and others.
"""

from __future__ import annotations

from skylark.wire.fields import Header, Int32, Int64


class GetAllTopicConfigRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_ALL_TOPIC_CONFIG (21): asks for a page of topics, or for all if no field is set."""

    topic_seq: Int32 | None = None
    #: A DataVersion as JSON, or empty.
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetAllTopicConfigResponseHeader(Header, kw_only=True, rename="camel"):
    """Absent total: the answer holds everything."""

    total_topic_num: Int32 | None = None


class GetAllSubscriptionGroupRequestHeader(Header, kw_only=True, rename="camel"):
    """Asks for a page of subscription groups (201), or for all if no field is set."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetAllSubscriptionGroupResponseHeader(Header, kw_only=True, rename="camel"):
    """Absent total: the answer holds everything."""

    total_group_num: Int32 | None = None


class ExchangeHAInfoHeader(Header, kw_only=True, rename="camel"):
    """EXCHANGE_BROKER_HA_INFO, question and answer alike; all absent = only asking."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffsetRequestHeader(Header, kw_only=True, rename="camel"):
    """RESET_MASTER_FLUSH_OFFSET: sets how far a slave may report its master's log as flushed."""

    master_flush_offset: Int64


class LogCheckRequestHeader(Header, kw_only=True, rename="camel"):
    """LOG_CHECK, Skylark only: the checksum of ``size`` log bytes that end at ``logOffset``."""

    log_offset: Int64
    size: Int32


class LogCheckResponseHeader(Header, kw_only=True, rename="camel"):
    """CRC-32 of these bytes, unsigned."""

    crc32: Int64
