"""The tables that a slave copies from its master, and some admin tools read (21, 43, 45, 60, 61,
201, 402).

Maps by queue or delay level have integer keys, which are bare on the wire. The timer's checkpoint
(60) is the one body here that is not JSON: seven longs, the beginning of the file ``timercheck``.

Counterpart of Java's ``TopicConfigAndMappingSerializeWrapper``, ``SubscriptionGroupWrapper``,
``ConsumerOffsetManager``, ``ScheduleMessageService``, ``TimerCheckpoint``, ``TimerMetrics``.
"""

from __future__ import annotations

import struct
from typing import ClassVar

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.wire.bodies.common_body import Body, DataVersion
from skylark.wire.bodies.config import (
    SubscriptionGroupConfig,
    TopicConfig,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
)
from skylark.wire.bodies.pop_body import SetMessageRequestModeRequestBody
from skylark.wire.fastjson_reader import SIZE_MAX
from skylark.wire.fields import Int32, Int64

# lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset,
# then the DataVersion: stateVersion, timestamp, counter
_TIMER_CHECKPOINT = struct.Struct(">qqqqqqq")
assert _TIMER_CHECKPOINT.size == 56


class TopicConfigSerializeWrapper(Body, kw_only=True):
    """A broker's topics, as registered by brokers before 3.0.11."""

    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper, kw_only=True):
    """A broker's topics and static-topic mappings (21, 103)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = msgspec.field(
        default_factory=dict
    )
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = msgspec.field(
        default_factory=dict
    )
    mapping_data_version: DataVersion = DataVersion()


class SubscriptionGroupWrapper(Body, kw_only=True):
    """A broker's consumer groups (201)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(
        default_factory=dict
    )
    forbidden_table: dict[str, dict[str, Int32]] = msgspec.field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class ConsumerOffsetSerializeWrapper(Body, kw_only=True):
    """Committed offsets by ``topic@group`` and queue (43)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    offset_table: dict[str, dict[int, Int64]] = msgspec.field(default_factory=dict)
    pull_offset_table: dict[str, dict[int, Int64]] | None = None  # since 5.5
    group_topic_map: dict[str, list[str]] | None = None  # derived from the table; since 5.5
    data_version: DataVersion | None = None  # since 5.0


class DelayOffsetSerializeWrapper(Body, kw_only=True):
    """Delay level to the next queue offset of the schedule topic (45)."""

    offset_table: dict[int, Int64] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None  # since 5.0


class MessageRequestModeSerializeWrapper(Body, kw_only=True):
    """Pull or pop, by topic and group (402)."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = (
        msgspec.field(default_factory=dict)
    )


class TimerMetric(Body, kw_only=True):
    """How many timed messages of a topic are waiting."""

    count: Int64 = 0
    time_stamp: Int64 = 0


class TimerMetrics(Body, kw_only=True):
    """Waiting timed messages by topic (61)."""

    timing_count: dict[str, TimerMetric] = msgspec.field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class TimerCheckpoint(msgspec.Struct, kw_only=True, frozen=True):
    """How far the timer of a broker has come (60)."""

    last_read_time_ms: int = 0
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    data_version: DataVersion = DataVersion()

    def encode(self) -> bytes:
        version = self.data_version
        return _TIMER_CHECKPOINT.pack(
            self.last_read_time_ms,
            self.last_timer_log_flush_pos,
            self.last_timer_queue_offset,
            self.master_timer_queue_offset,
            version.state_version,
            version.timestamp,
            version.counter,
        )

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint:
        """Read the checkpoint; what follows the seven longs (the rest of the file) is ignored."""
        if len(data) < _TIMER_CHECKPOINT.size:
            raise RemoteProtocolError(f"a timer checkpoint of {len(data)} bytes")
        read, flushed, queue, master, state, timestamp, counter = _TIMER_CHECKPOINT.unpack_from(
            data
        )
        return cls(
            last_read_time_ms=read,
            last_timer_log_flush_pos=flushed,
            last_timer_queue_offset=queue,
            master_timer_queue_offset=master,
            data_version=DataVersion(state_version=state, counter=counter, timestamp=timestamp),
        )
