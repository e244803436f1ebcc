"""The settings of a lite pull consumer, each with Java's name where it has one.

Sizes are bytes, durations seconds. :class:`LitePullKeywords` has the same names and lets the
constructors of both flavours take them as typed keywords, durations also as timedeltas. Counterpart
of the fields of Java's ``DefaultLitePullConsumer``; ``pullThreadNums`` has no counterpart,
because pulls need no threads here.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final, TypedDict

import msgspec

from skylark.client.consumer.allocation import Allocation, Averagely
from skylark.client.consumer.start_position import consume_timestamp, parse_consume_timestamp
from skylark.client.core.argument_checks import check_fields
from skylark.client.core.client_options import Duration
from skylark.client.core.serializers import Deserializer
from skylark.core.errors import ConfigError
from skylark.wire.bodies.heartbeat import ConsumeFromWhere, MessageModel

AUTO_COMMIT_INTERVAL_MIN_S: Final = 1.0


class LitePullSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a lite pull consumer."""

    auto_commit: bool = True  #: autoCommit: a poll commits what earlier polls returned
    auto_commit_interval: float = 5.0  #: autoCommitIntervalMillis: at most so often; at least 1
    poll_timeout: float = 5.0  #: pollTimeoutMillis: of a poll that is given none
    pull_batch_size: int = 10  #: pullBatchSize: messages of one pull
    pull_threshold_for_all: int = 10_000  #: pullThresholdForAll: messages of all queues that wait
    pull_threshold_for_queue: int = 1_000  #: pullThresholdForQueue: messages of a queue
    #: pullThresholdSizeForQueue: bytes of them
    pull_threshold_size_for_queue: int = 100 * 1024 * 1024
    consume_max_span: int = 2_000  #: consumeMaxSpan: offsets from the first to the last that wait
    suspend_max: float = 20.0  #: brokerSuspendMaxTimeMillis: how long brokers hold an empty pull
    suspend_timeout: float = 30.0  #: consumerTimeoutMillisWhenSuspend: of such a pull
    metadata_interval: float = 30.0  #: topicMetadataCheckIntervalMillis: of topic listeners
    #: where a group without committed offsets starts
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    #: and at what time, with CONSUME_FROM_TIMESTAMP: half an hour ago unless given; text is
    #: yyyyMMddHHmmss in local time
    consume_timestamp: str | datetime | None = None
    #: CLUSTERING shares messages among the members, BROADCASTING gives all to each
    message_model: MessageModel = MessageModel.CLUSTERING
    #: allocateMessageQueueStrategy: how queues are shared; all members must use the same
    allocation: Allocation = Averagely()
    offset_folder: Path | None = None  #: where broadcasting consumers save their offsets
    #: makes ``message.value`` of a body, at its first use
    value_deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in (
            "poll_timeout",
            "pull_batch_size",
            "pull_threshold_for_all",
            "pull_threshold_for_queue",
            "pull_threshold_size_for_queue",
            "consume_max_span",
            "suspend_max",
            "metadata_interval",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)!r}")
        if self.suspend_timeout < self.suspend_max:
            raise ConfigError(
                f"suspend_timeout ({self.suspend_timeout:g} s) must not be less than suspend_max"
                f" ({self.suspend_max:g} s)",
            )
        if isinstance(self.consume_timestamp, str):
            parse_consume_timestamp(self.consume_timestamp)

    @property
    def clustering(self) -> bool:
        """Whether the members of the group share the messages."""
        return self.message_model is MessageModel.CLUSTERING

    @property
    def commit_interval_s(self) -> float:
        """Time between two automatic commits."""
        return max(AUTO_COMMIT_INTERVAL_MIN_S, self.auto_commit_interval)

    def start_time_ms(self, created_ms: int) -> int:
        """The time to begin at with CONSUME_FROM_TIMESTAMP, for a consumer made at that time."""
        return parse_consume_timestamp(consume_timestamp(self.consume_timestamp, created_ms))


class LitePullKeywords(TypedDict, total=False):
    """The names and types of :class:`LitePullSettings`."""

    auto_commit: bool
    auto_commit_interval: Duration
    poll_timeout: Duration
    pull_batch_size: int
    pull_threshold_for_all: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    consume_max_span: int
    suspend_max: Duration
    suspend_timeout: Duration
    metadata_interval: Duration
    consume_from_where: ConsumeFromWhere
    consume_timestamp: str | datetime | None
    message_model: MessageModel
    allocation: Allocation
    offset_folder: Path | None
    value_deserializer: Deserializer | None
