"""Timer delivery: stores the copies of timed messages that are due or rolled; handles failed puts.

A delivered message has the body, flags, times and hosts of the one that was sent, and its
properties, including ``REAL_TOPIC`` and ``TIMER_OUT_MS``, and two more: ``TIMER_ENQUEUE_MS``, when
it was put into the wheel (the largest long if it came too late for that), and
``TIMER_DEQUEUE_MS``, the time of delivery. The copy is not held to settings such as
``maxMessageSize``: the message was acknowledged. A message of which no record can be made stays in
the timer topic, and is counted (:mod:`skylark.broker.send.own_copies`).

Counterpart of Java's ``TimerDequeuePutMessageService``, and of ``convert`` and ``doPut`` in
``TimerMessageStore``.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field
from typing import Final

from skylark.broker.delay.timer_copies import CopyKey, TimerCopies
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_policy import NO_DESTINATIONS
from skylark.broker.send.message_writer import MessageWriter, copy_of
from skylark.broker.send.own_copies import NEVER_PLACED, NEVER_STORED
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError
from skylark.core.names import is_system_topic
from skylark.store.store_results import PutStatus
from skylark.store.timer.timer_log import Unit
from skylark.store.timer.timer_store import TimerStore
from skylark.wire import properties as names
from skylark.wire.message import MessageRecord, RecordError, decode_record

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 3
_QUEUE_ID_DIGITS_MAX: Final = 9
_HOPELESS: Final = NEVER_STORED | {
    PutStatus.WHEEL_TIMER_NOT_ENABLE,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
}


class Outcome(enum.Enum):
    """The result of a delivery."""

    DELIVERED = enum.auto()  # or rolled
    DROPPED = enum.auto()  # it is gone, was recalled, or cannot be copied
    FAILED = enum.auto()  # to be tried again


def delete_key(topic: str, text: str) -> str:
    """The key by which a recall finds its message: topic and unique id.

    ``text`` is the id or, from Java before 5.5, both. A recall applies only within its topic.
    """
    prefix = f"{topic}+"
    return text if text.startswith(prefix) else prefix + text


@dataclass(eq=False)
class Delivery:
    """Stores the copies of timed messages; the caller repeats a failed one."""

    _live: LiveSettings
    _timer: TimerStore
    _writer: MessageWriter
    _stats: BrokerStats
    _clock: TimeSource
    _tried: tuple[int, int] = (-1, 0)  # log offset of the message that failed last, and how often
    #: Copies that a crash has left: they are not made again.
    copies: TimerCopies = field(default_factory=TimerCopies)

    def record(self, log_offset: int, size: int) -> MessageRecord | None:
        """The message of a unit or queue entry; None if the log does not have it."""
        lease = self._writer.store.log.lease(log_offset, size) if size > 0 else None
        if lease is None:
            return None
        with lease:
            try:
                record = decode_record(lease.view, log_start=log_offset)
            except RecordError as error:
                logger.warning(
                    "cannot read the timed message at log offset %s: %s", log_offset, error
                )
                return None
        return record if record.total_size == size else None

    def due(self, unit: Unit, deleted: dict[str, str | None]) -> Outcome:
        """Deliver or roll the message of a unit, unless it was recalled.

        ``deleted`` has the keys of recalled messages, with the topic of the recall until used.
        """
        record = self.record(unit.log_offset, unit.size)
        if record is None:
            logger.warning(
                "a timed message was deleted before it was due: log offset %s", unit.log_offset
            )
            return Outcome.DROPPED
        properties = dict(record.properties)
        real_topic = properties.get(names.PROPERTY_REAL_TOPIC, "")
        key = delete_key(real_topic, properties.get(names.PROPERTY_UNIQ_KEY, ""))
        if key in deleted:
            deleted[key] = None
            return Outcome.DROPPED
        properties[names.PROPERTY_TIMER_ENQUEUE_MS] = str(unit.write_time_ms)
        if unit.is_rolled:
            times = properties.get(names.PROPERTY_TIMER_ROLL_TIMES, "0")
            times = str(int(times) + 1 if times.isdecimal() and len(times) < 10 else 1)
            properties[names.PROPERTY_TIMER_ROLL_TIMES] = times
        outcome = self._put(record, properties, is_rolled=unit.is_rolled)
        if outcome is not Outcome.FAILED:
            self._timer.counts.add(real_topic, -1, self._clock.now_ms())
        return outcome

    def late(self, record: MessageRecord) -> Outcome:
        """Deliver a message that came too late for the wheel; it is not counted."""
        properties = dict(record.properties)
        properties[names.PROPERTY_TIMER_ENQUEUE_MS] = str(NEVER_PLACED)
        return self._put(record, properties, is_rolled=False)

    def _put(
        self, record: MessageRecord, properties: dict[str, str], *, is_rolled: bool
    ) -> Outcome:
        if not is_rolled and names.PROPERTY_TIMER_DEL_UNIQKEY in properties:
            return Outcome.DROPPED  # a recall that came too late
        properties[names.PROPERTY_TIMER_DEQUEUE_MS] = str(self._clock.now_ms())
        topic, queue_id = record.topic, record.queue_id
        if not is_rolled:
            topic = properties.get(names.PROPERTY_REAL_TOPIC, "")
            text = properties.get(names.PROPERTY_REAL_QID, "")
            if not topic or not text.isdecimal() or len(text) > _QUEUE_ID_DIGITS_MAX:
                return _drop(record, "it has no destination")
            if topic in NO_DESTINATIONS:
                return _drop(record, f"{topic} is not allowed")
            queue_id = int(text)
        if self.copies and self.copies.take(CopyKey.of(record, properties, topic, queue_id)):
            return Outcome.DELIVERED
        try:
            result = self._writer.put_own(copy_of(record, topic, queue_id), properties)
        except BrokerError as error:  # its delay level is no number
            return _drop(record, error)
        if result.status.stored:
            self._stats.put(topic, 1, result.size, is_system=is_system_topic(topic))
            return Outcome.DELIVERED
        return self._failed(record.log_offset, topic, result.status)

    def _failed(self, log_offset: int, topic: str, status: PutStatus) -> Outcome:
        """Whether to repeat a put that failed."""
        if status is PutStatus.SERVICE_NOT_AVAILABLE:  # the store takes no messages for now
            return Outcome.FAILED
        if status in _HOPELESS:
            self._writer.uncopied.add("timer", log_offset, topic, status)
            return Outcome.DROPPED
        tried_offset, tries = self._tried
        tries = tries + 1 if tried_offset == log_offset else 1
        self._tried = (log_offset, tries)
        settings = self._live.current
        is_skipped = status is PutStatus.UNKNOWN_ERROR and settings.timer_skip_unknown_error
        if not is_skipped and (settings.timer_enable_retry_until_success or tries < TRIES_MAX):
            return Outcome.FAILED
        logger.error(
            "dropped a timed message for %s after %s tries: %s (log offset %s)",
            topic, tries, status.name, log_offset,
        )  # fmt: skip
        return Outcome.DROPPED


def _drop(record: MessageRecord, reason: object) -> Outcome:
    logger.warning("dropped the timed message at log offset %s: %s", record.log_offset, reason)
    return Outcome.DROPPED
