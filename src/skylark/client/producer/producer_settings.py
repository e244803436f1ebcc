"""The settings of a producer, each with Java's name where it has one.

Sizes are bytes, durations seconds. :class:`ProducerKeywords` has the same names and lets the
constructors of producers, both flavours, take them as typed keywords, durations also as timedeltas.

``pending_max`` is about what a slow broker, with 3,000 messages a second, stores within
``send_timeout``; more messages would time out before the broker gets to them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypedDict

import msgspec

from skylark.client.core.argument_checks import check_fields
from skylark.client.core.client_options import Duration
from skylark.client.core.route_cache import DEFAULT_QUEUE_COUNT
from skylark.client.core.serializers import Serializer
from skylark.client.core.validation import MESSAGE_SIZE_MAX
from skylark.client.producer.send_accumulator import SIZE_MAX
from skylark.client.producer.send_request import COMPRESS_OVER, COMPRESSION_KINDS
from skylark.core.errors import ConfigError
from skylark.core.names import AUTO_CREATE_TOPIC
from skylark.wire.codes import ResponseCode
from skylark.wire.compress import COMPRESSION_LEVEL

BATCH_SIZE_LIMIT: Final = 2 * 1024 * 1024
#: Response codes after which another broker is tried (retryResponseCodes).
RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a producer."""

    topics: Sequence[str] = ()  #: topics: routes to load at the start
    send_timeout: float = 3.0  #: sendMsgTimeout: all attempts of one send together
    attempt_timeout: float | None = None  #: sendMsgMaxTimeoutPerRequest: all but the last attempt
    retries: int = 2  #: retryTimesWhenSendFailed: further attempts of ``send``
    retries_async: int = 2  #: retryTimesWhenSendAsyncFailed: of ``submit``
    retry_another_broker: bool = False  #: retryAnotherBrokerWhenNotStoreOK: may duplicate
    #: retryResponseCodes: response codes after which another broker is tried
    retry_codes: Collection[int] = RETRY_CODES
    max_message_size: int = MESSAGE_SIZE_MAX  #: maxMessageSize: of a body, or of a whole batch
    #: compressMsgBodyOverHowmuch: bodies from this size on are compressed
    compress_over: int = COMPRESS_OVER
    compress_type: str = "ZLIB"  #: compressType: ZLIB, LZ4 or ZSTD; old consumers know ZLIB only
    compress_level: int = COMPRESSION_LEVEL  #: compressLevel: 0 to 9
    topic_model: str = AUTO_CREATE_TOPIC  #: createTopicKey: model of topics that a send creates
    #: defaultTopicQueueNums: queues of a topic that a send creates
    topic_queue_count: int = DEFAULT_QUEUE_COUNT
    batching: bool = True  #: autoBatch: small messages that are sent at the same time share a batch
    linger: float = 0.0  #: batchMaxDelayMs: how long a message waits for others; 0: not at all
    batch_size_max: int = SIZE_MAX  #: batchMaxBytes: size of a batch
    pending_max: int = 8_192  #: backPressureForAsyncSendNum: messages in flight, then sends wait
    pending_bytes_max: int = 100 * 1024 * 1024  #: backPressureForAsyncSendSize: bytes of them
    value_serializer: Serializer | None = None  #: makes the bodies of messages that have a value

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("send_timeout", "max_message_size", "pending_max", "pending_bytes_max"):
            _require(self, name, getattr(self, name) > 0, "positive")
        for name in ("retries", "retries_async", "compress_over"):
            _require(self, name, getattr(self, name) >= 0, "zero or more")
        _require(self, "topic_queue_count", self.topic_queue_count > 0, "positive")
        _require(self, "linger", 0 <= self.linger <= 30, "between 0 and 30 seconds")
        in_range = 1 <= self.batch_size_max <= BATCH_SIZE_LIMIT
        _require(self, "batch_size_max", in_range, f"between 1 and {BATCH_SIZE_LIMIT}")
        _require(self, "compress_level", 0 <= self.compress_level <= 9, "between 0 and 9")
        kinds = ", ".join(COMPRESSION_KINDS)
        _require(self, "compress_type", self.compress_type in COMPRESSION_KINDS, f"one of {kinds}")
        if self.attempt_timeout is not None:
            _require(self, "attempt_timeout", self.attempt_timeout > 0, "positive")


class ProducerKeywords(TypedDict, total=False):
    """The names and types of :class:`ProducerSettings`."""

    topics: Sequence[str]
    send_timeout: Duration
    attempt_timeout: Duration | None
    retries: int
    retries_async: int
    retry_another_broker: bool
    retry_codes: Collection[int]
    max_message_size: int
    compress_over: int
    compress_type: str
    compress_level: int
    topic_model: str
    topic_queue_count: int
    batching: bool
    linger: Duration
    batch_size_max: int
    pending_max: int
    pending_bytes_max: int
    value_serializer: Serializer | None


def _require(settings: ProducerSettings, name: str, is_so: bool, rule: str) -> None:
    if not is_so:
        raise ConfigError(f"{name} must be {rule}, not {getattr(settings, name)!r}")
