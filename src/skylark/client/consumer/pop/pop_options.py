"""Settings of pop consumption, and the delays after which a failed message comes again.

Durations are seconds or timedeltas. :class:`PopKeywords` has the same names as
:class:`PopSettings`, for constructors; the push consumer has its own settings of the same kind in
:mod:`skylark.client.consumer.push.push_settings`. Counterpart of the pop settings of Java's
``DefaultMQPushConsumer``, whose retry delays these are.
"""

from __future__ import annotations

from typing import Final, TypedDict

import msgspec

from skylark.client.consumer.consumer_send_back import RECONSUME_TIMES_MAX
from skylark.client.core.argument_checks import check_fields
from skylark.client.core.client_options import Duration, seconds
from skylark.client.core.serializers import Deserializer
from skylark.core.errors import ClientError, ConfigError
from skylark.wire.bodies.heartbeat import ConsumeFromWhere

#: Messages that a broker gives out for one pop.
POP_BATCH_MAX: Final = 32
INVISIBLE_MIN_S: Final = 1.0
INVISIBLE_MAX_S: Final = 12 * 3600.0
#: How long a broker may hold a pop that finds nothing.
POLL_S: Final = 15.0
NO_LIMIT: Final = -1

#: Seconds until the next delivery of a message that failed, by the number of earlier failures.
RETRY_DELAYS_S: Final = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip

#: ``initMode`` of a pop: where a group without committed offsets starts.
INIT_FIRST: Final = 0
INIT_LAST: Final = 1


def retry_delay_ms(reconsume_times: int, level: int = 0) -> int:
    """How long a failed message stays invisible: by its failures, or by the step of a handler."""
    step = level or reconsume_times
    return RETRY_DELAYS_S[min(max(step, 0), len(RETRY_DELAYS_S) - 1)] * 1000


def check_start(where: ConsumeFromWhere) -> None:
    """Raise ConfigError for a start that pops do not have."""
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        raise ConfigError(
            "consumers that pop, or may pop, cannot start at a time",
            hint="start at the first or last offset; `skylark group reset-offset` moves a group",
        )


def init_mode(where: ConsumeFromWhere) -> int:
    """Where a group without committed offsets starts: at the first message, or at the last."""
    is_first = where in (
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET,
    )
    return INIT_FIRST if is_first else INIT_LAST


def duration_ms(name: str, duration: Duration, least_s: float, hint: str) -> int:
    """A duration that is an argument of a call; raises ClientError if it is out of range."""
    duration_s = seconds(duration, name)
    if not least_s <= duration_s <= INVISIBLE_MAX_S:
        raise ClientError(
            f"{name} must be from {least_s:g} to {INVISIBLE_MAX_S:g} s, not {duration}", hint=hint
        )
    return round(duration_s * 1000)


class PopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a :class:`~skylark.aio.PopConsumer`."""

    #: how long others do not get a message that was received and not acknowledged
    invisible: Duration = 60.0
    #: messages of one request, at most 32
    batch: int = POP_BATCH_MAX
    #: retries before a message becomes a dead letter; -1: 16
    max_reconsume_times: int = NO_LIMIT
    #: where a group without committed offsets starts
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    #: makes ``message.value`` of a body, at its first use
    value_deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not INVISIBLE_MIN_S <= seconds(self.invisible) <= INVISIBLE_MAX_S:
            raise ConfigError(
                f"invisible is out of range [{INVISIBLE_MIN_S:g}, {INVISIBLE_MAX_S:g}] s:"
                f" {self.invisible}",
                hint="extend() changes the time of a single message",
            )
        if not 1 <= self.batch <= POP_BATCH_MAX:
            raise ConfigError(
                f"batch is out of range [1, {POP_BATCH_MAX}]: {self.batch}",
                hint="receive(n) sends several requests for more messages",
            )
        if self.max_reconsume_times < NO_LIMIT:
            raise ConfigError(
                f"max_reconsume_times is out of range [-1, 2147483647]: {self.max_reconsume_times}",
                hint="-1 means 16",
            )
        check_start(self.consume_from_where)

    @property
    def invisible_ms(self) -> int:
        return round(seconds(self.invisible) * 1000)

    @property
    def reconsume_times_max(self) -> int:
        """How often a message is delivered again before it becomes a dead letter."""
        known = self.max_reconsume_times
        return RECONSUME_TIMES_MAX if known == NO_LIMIT else known


class PopKeywords(TypedDict, total=False):
    """The settings as keywords of a constructor."""

    invisible: Duration
    batch: int
    max_reconsume_times: int
    consume_from_where: ConsumeFromWhere
    value_deserializer: Deserializer | None
