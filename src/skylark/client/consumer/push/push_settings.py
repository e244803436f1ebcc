"""Settings of a push consumer and their checks, each with the name of Java's client.

Durations are seconds or timedeltas, sizes of thresholds MiB, as in Java. A value out of range is a
ConfigError (``pull_batch_size is out of range [1, 1024]: 0``). :class:`PushKeywords` has the same
names, for constructors. Counterpart of the fields of Java's ``DefaultMQPushConsumer`` and of
``checkConfig``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias, TypedDict

import msgspec

from skylark.client.consumer.allocation import Allocation, Averagely
from skylark.client.consumer.broker_assignment import BROKER_STRATEGIES, Mode
from skylark.client.consumer.consumer_send_back import RECONSUME_TIMES_MAX
from skylark.client.consumer.pop.pop_options import POP_BATCH_MAX, check_start
from skylark.client.consumer.push import orderly_settlement as orderly
from skylark.client.consumer.start_position import consume_timestamp, parse_consume_timestamp
from skylark.client.core.argument_checks import check_fields
from skylark.client.core.client_options import Duration, seconds
from skylark.client.core.serializers import Deserializer
from skylark.core.errors import ConfigError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere, MessageModel

#: Called when the share of a topic changes: topic, all queues, those of this consumer.
QueueListener: TypeAlias = Callable[[str, frozenset[MessageQueue], frozenset[MessageQueue]], object]

NO_LIMIT: Final = -1
BATCH_MAX: Final = 1024
#: Default number of messages of one pull, and of one of a queue that is further behind.
PULL_BATCH_SIZE: Final = 32
BULK_PULL_SIZE: Final = 256

# attribute -> smallest, largest
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "concurrency": (1, 1000),
    "consume_concurrently_max_span": (1, 65_535),
    "pull_threshold_for_queue": (1, 65_535),
    "pull_threshold_size_for_queue": (1, 1024),
    "pull_threshold_for_topic": (1, 6_553_500),
    "pull_threshold_size_for_topic": (1, 102_400),
    "pull_interval_ms": (0, 65_535),
    "pull_batch_size": (1, BATCH_MAX),
    "pull_batch_size_in_bytes": (1, 2**31 - 1),
    "pop_invisible_time_ms": (5_000, 300_000),
    "pop_batch_nums": (1, POP_BATCH_MAX),
    "pop_threshold_for_queue": (1, 65_535),
    "renew_limit_ms": (1, 2**53),
    "max_reconsume_times": (0, 2**31 - 1),
    "consume_timeout_ms": (1, 2**53),
    "await_termination_ms": (0, 2**53),
}
_OPTIONAL: Final = frozenset(
    {"pull_threshold_for_topic", "pull_threshold_size_for_topic", "max_reconsume_times"}
)


class PushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a push consumer."""

    #: consumeThreadMin/Max: handlers that run at a time
    concurrency: int = 20
    #: CLUSTERING shares messages among the members of the group, BROADCASTING gives all to each
    message_model: MessageModel = MessageModel.CLUSTERING
    #: where a group without committed offsets starts
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    #: and at what time, with CONSUME_FROM_TIMESTAMP: half an hour ago unless given; text is
    #: yyyyMMddHHmmss in local time
    consume_timestamp: str | datetime | None = None
    #: allocateMessageQueueStrategy: how queues are shared; all members must use the same
    allocation: Allocation = Averagely()
    #: offsets from the first message that is not settled to the last that was pulled
    consume_concurrently_max_span: int = 2000
    #: messages of a queue that may wait here
    pull_threshold_for_queue: int = 1000
    #: MiB of them
    pull_threshold_size_for_queue: int = 100
    #: messages of all queues together, evenly; -1: no limit
    pull_threshold_for_topic: int = NO_LIMIT
    #: MiB of them; -1: no limit
    pull_threshold_size_for_topic: int = NO_LIMIT
    #: pause between pulls
    pull_interval: Duration = 0.0
    #: messages of one pull; None: 32, and up to 256 of a queue that is further behind, from brokers
    #: that give so many (Skylark's)
    pull_batch_size: int | None = None
    #: bytes of them
    pull_batch_size_in_bytes: int = 256 * 1024
    #: send the subscription with every pull
    post_subscription_when_pull: bool = False
    #: retries before a message becomes a dead letter; -1: 16, and unlimited in order
    max_reconsume_times: int = NO_LIMIT
    #: suspendCurrentQueueTimeMillis: pause of a queue whose message failed, in order
    suspend_current_queue_time: Duration = 1.0
    #: a handler that takes longer counts as hung
    consume_timeout: Duration = 15 * 60.0
    #: awaitTerminationMillisWhenShutdown: how long a stop waits for running handlers
    await_termination: Duration = 30.0
    #: "pull" owns queues; "pop" takes messages from any queue and acknowledges each of them; "auto"
    #: follows the setting of the brokers, see :mod:`~skylark.client.consumer.broker_assignment`
    mode: Mode = "pull"
    #: clientRebalance: members share the queues, not the brokers; None: only with mode "pull"
    client_rebalance: bool | None = None
    #: set the mode of the group at the brokers when the consumer starts
    set_mode: bool = False
    #: popInvisibleTime: how long others do not get a popped message that is not acknowledged
    pop_invisible_time: Duration = 60.0
    #: popBatchNums: messages of one pop
    pop_batch_nums: int = POP_BATCH_MAX
    #: popThresholdForQueue: popped messages of a broker that may wait here
    pop_threshold_for_queue: int = 96
    #: hide popped messages for longer while their handlers run
    renew: bool = True
    #: and for how long at most
    renew_limit: Duration = 3600.0
    #: rocketmq.client.localOffsetStoreDir: where broadcasting consumers save their offsets
    offset_folder: Path | None = None
    #: called with the queues of a topic when the share changes
    queue_listener: QueueListener | None = None
    #: makes ``message.value`` of a body, at its first use
    value_deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None or (name in _OPTIONAL and value == NO_LIMIT):
                continue
            if not low <= value <= high:
                setting, unit = name.removesuffix("_ms"), " ms" if name.endswith("_ms") else ""
                raise ConfigError(f"{setting} is out of range [{low}, {high}]: {value}{unit}")
        if isinstance(self.consume_timestamp, str):
            parse_consume_timestamp(self.consume_timestamp)
        self._check_mode()

    def _check_mode(self) -> None:
        if self.client_rebalance and self.mode != "pull":
            raise ConfigError(f"mode={self.mode!r} needs client_rebalance=False: brokers assign")
        if self.set_mode and (self.mode == "auto" or self.shares_itself):
            raise ConfigError(
                "set_mode=True needs mode='pop', or mode='pull' with client_rebalance=False"
            )
        if self.mode != "pull":
            check_start(self.consume_from_where)
        if self.shares_itself:
            return
        if not self.clustering:
            raise ConfigError("BROADCASTING needs mode='pull' and client_rebalance=True")
        if self.allocation.name not in BROKER_STRATEGIES:
            raise ConfigError(
                f"brokers cannot assign queues by {self.allocation.name}",
                hint=f"they know {' and '.join(BROKER_STRATEGIES)}",
            )

    @property
    def shares_itself(self) -> bool:
        """Whether the members share the queues among themselves; otherwise brokers assign them."""
        if self.client_rebalance is None:
            return self.mode == "pull"
        return self.client_rebalance

    @property
    def clustering(self) -> bool:
        """Whether the members of the group share the messages."""
        return self.message_model is MessageModel.CLUSTERING

    @property
    def pull_interval_ms(self) -> int:
        return _ms(self.pull_interval)

    @property
    def suspend_current_queue_time_ms(self) -> int:
        return _ms(self.suspend_current_queue_time)

    @property
    def consume_timeout_ms(self) -> int:
        return _ms(self.consume_timeout)

    @property
    def await_termination_ms(self) -> int:
        return _ms(self.await_termination)

    @property
    def pop_invisible_time_ms(self) -> int:
        return _ms(self.pop_invisible_time)

    @property
    def renew_limit_ms(self) -> int:
        return _ms(self.renew_limit)

    def start_timestamp(self, created_ms: int) -> str:
        """``consume_timestamp`` as text, for a consumer that was made at ``created_ms``."""
        return consume_timestamp(self.consume_timestamp, created_ms)

    def reconsume_times_max(self, *, is_orderly: bool) -> int:
        """How often a message is delivered again before it becomes a dead letter."""
        if self.max_reconsume_times != NO_LIMIT:
            return self.max_reconsume_times
        return orderly.RECONSUME_TIMES_MAX if is_orderly else RECONSUME_TIMES_MAX


class PushKeywords(TypedDict, total=False):
    """The settings as keywords of a constructor."""

    concurrency: int
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    consume_timestamp: str | datetime | None
    allocation: Allocation
    consume_concurrently_max_span: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    pull_threshold_for_topic: int
    pull_threshold_size_for_topic: int
    pull_interval: Duration
    pull_batch_size: int | None
    pull_batch_size_in_bytes: int
    post_subscription_when_pull: bool
    max_reconsume_times: int
    suspend_current_queue_time: Duration
    consume_timeout: Duration
    await_termination: Duration
    mode: Mode
    client_rebalance: bool | None
    set_mode: bool
    pop_invisible_time: Duration
    pop_batch_nums: int
    pop_threshold_for_queue: int
    renew: bool
    renew_limit: Duration
    offset_folder: Path | None
    queue_listener: QueueListener | None
    value_deserializer: Deserializer | None


def limit(value: int) -> int | None:
    """A limit as a number, or None for none."""
    return None if value == NO_LIMIT else value


def _ms(duration: Duration) -> int:
    return round(seconds(duration) * 1000)
