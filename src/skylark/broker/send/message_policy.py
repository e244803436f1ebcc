"""What a broker changes in a message before it stores it: properties, and the way of delayed ones.

**Properties.** Every single message gets three: ``MSG_REGION``, ``TRACE_ON`` and ``CLUSTER``. Java
takes the property string apart and writes it anew, in the order of its hash map. Nobody depends on
that order, so here the three are appended, and what the client sent stays as it is, unless the
string has something that must not stay (:func:`is_plain`): a name that the broker acts upon or sets
itself, an item without name or value, no separator at the end. Only then it is taken apart. Either
way the record has the length that it has in Java.

**Delayed messages.** A message with ``DELAY`` goes to SCHEDULE_TOPIC_XXXX, into the queue of its
level, and remembers in ``REAL_TOPIC`` and ``REAL_QID`` where it belongs. These properties stay when
it is delivered.

**Timed messages.** A message for any point in time goes to rmq_sys_wheel_timer, and remembers in
``TIMER_OUT_MS`` the start of its slot in the timer (:func:`slot_time`). A slot is delivered when it
is over: so a time that is a multiple of the precision belongs to the slot that ends there, and no
message comes early. A time that is past makes an ordinary message. A level, where there is one,
wins. What comes out of the timer still has ``TIMER_OUT_MS``, and is left alone.

Answers to ``HookUtils.handleScheduleMessage``, ``transformDelayLevelMessage`` and
``transformTimerMessage``.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from skylark.broker.config import BrokerConfig
from skylark.core.errors import BrokerError, broker_error
from skylark.core.names import SCHEDULE_TOPIC, SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutStatus
from skylark.wire import properties as names
from skylark.wire.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_NONE,
)

#: Any of these makes a timer message.
TIMER_NAMES: Final = (
    names.PROPERTY_TIMER_DELIVER_MS,
    names.PROPERTY_TIMER_DELAY_SEC,
    names.PROPERTY_TIMER_DELAY_MS,
)
#: Where no delayed message belongs. It would be delivered again and again, or pass for one that the
#: broker has made itself. Producers cannot send there, but what stands in a record may be anything.
NO_DESTINATIONS: Final = SEND_FORBIDDEN_TOPICS | {TIMER_TOPIC}
_ACTED_UPON: Final = (
    *TIMER_NAMES,
    names.PROPERTY_DELAY,
    names.PROPERTY_TRAN_MSG,
    names.PROPERTY_PRIORITY,
    names.PROPERTY_INNER_NUM,
    names.PROPERTY_POP_CK,
    names.PROPERTY_MSG_REGION,
    names.PROPERTY_TRACE_ON,
    names.PROPERTY_CLUSTER,
)
_WITHOUT_PRIORITY: Final = (*TIMER_NAMES, names.PROPERTY_DELAY, names.PROPERTY_SHARDING_KEY)
_PRIORITY: Final = re.compile(r"\+?[0-9]{1,10}", re.ASCII)
_LEVEL_DIGITS_MAX: Final = 10
_INT64: Final = range(-(1 << 63), 1 << 63)
_REMEMBERED_SIZE_MAX: Final = 4_096  # of property strings
_SIGNED: Final = re.compile(r"[+-]?[0-9]{1,19}")


def plain_item(*also: str) -> str:
    """What one item of a plain property string matches; these names are none, either.

    There is one way at most to read an item, so that repeating it takes linear time. The repetition
    itself must not be possessive: Python 3.11 finds now this, now that for groups in such.
    """
    forbidden = "|".join((*_ACTED_UPON, *also))
    return rf"(?!(?:{forbidden})\x01)[^\x01\x02]++\x01[^\x02]++\x02"


_PLAIN: Final = re.compile(rf"(?:{plain_item()})+")
# The same, and the value of the last unique id on the way.
_PLAIN_WITH_ID: Final = re.compile(
    rf"(?:{names.PROPERTY_UNIQ_KEY}\x01([^\x02]++)\x02|{plain_item(names.PROPERTY_UNIQ_KEY)})+"
)


def is_plain(text: str) -> bool:
    """Whether a property string can be stored as it is, with further properties behind it."""
    return _PLAIN.fullmatch(text) is not None


class PlainIds:
    """Finds unique ids in property strings that can be stored as they are.

    Hot. Strings of one producer often have everything in common but the id, so this is looked at
    first: around the id, they match as the one before has matched.
    """

    __slots__ = ("_after", "_before", "_end", "_size", "_start")

    def __init__(self) -> None:
        self._before = self._after = ""  # what stood before the last id, and behind it
        self._start = self._end = 0
        self._size = -1

    def find(self, text: str) -> str | None:
        """The id; None if there is none, or if the string takes more thought."""
        start, end = self._start, self._end
        if (
            len(text) == self._size
            and text.startswith(self._before)
            and text.endswith(self._after)
            and "\x02" not in (unique_id := text[start:end])
        ):
            return unique_id
        match = _PLAIN_WITH_ID.fullmatch(text)
        if match is None or match[1] is None:
            return None
        if len(text) <= _REMEMBERED_SIZE_MAX:
            self._start, self._end = start, end = match.span(1)
            self._before, self._after, self._size = text[:start], text[end:], len(text)
        return match[1]


def delay_level(properties: dict[str, str]) -> int:
    """The delay level of a message, 0 without one; raises BrokerError if it is no number."""
    text = properties.get(names.PROPERTY_DELAY)
    if text is None:
        return 0
    digits = text[1:] if text[0] in "+-" else text
    if not digits.isdecimal() or len(digits) > _LEVEL_DIGITS_MAX:
        raise BrokerError(f'For input string: "{text:.100}"', hint="DELAY must be a number")
    return int(text)


def take_priority(properties: dict[str, str]) -> int | None:
    """The priority of a message, None without one.

    What is delayed, of a transaction or in an order has none, and loses the property.
    """
    text = properties.get(names.PROPERTY_PRIORITY, "")
    if not _PRIORITY.fullmatch(text) or (priority := int(text)) >= 1 << 31:
        return None
    of_other_kind = any(name in properties for name in _WITHOUT_PRIORITY)
    if of_other_kind or properties.get(names.PROPERTY_TRAN_MSG, "").lower() == "true":
        del properties[names.PROPERTY_PRIORITY]
        return None
    return priority


def slot_time(deliver_ms: int, precision_ms: int) -> int:
    """The start of the slot that is delivered at a time, or as soon after it as can be."""
    return (deliver_ms - 1) // precision_ms * precision_ms


class Timers(Protocol):
    """What the way into the timer depends on."""

    @property
    def precision_ms(self) -> int:
        """Width of a slot."""

    @property
    def delay_max_ms(self) -> int:
        """The longest delay that is accepted."""

    def now_ms(self) -> int:
        """Wall time."""

    def is_full(self, slot_time_ms: int) -> bool:
        """Whether a slot takes no more messages."""


class Diverter:
    """Sends delayed messages their way."""

    def __init__(self, level_count: int, timers: Timers | None = None) -> None:
        """Without ``timers``, timed messages are refused."""
        self._level_count = level_count
        self._timers = timers

    def divert(self, draft: Draft, properties: dict[str, str]) -> PutStatus | None:
        """Change both arguments for a delayed message; a status refuses it."""
        if draft.sys_flag & FLAG_TRANSACTION_MASK not in (
            FLAG_TRANSACTION_NONE,
            FLAG_TRANSACTION_COMMIT,
        ):
            return None
        level = delay_level(properties)
        if draft.topic != TIMER_TOPIC:
            if level > 0:
                for name in TIMER_NAMES:
                    properties.pop(name, None)
            elif names.PROPERTY_TIMER_OUT_MS not in properties and any(
                name in properties for name in TIMER_NAMES
            ):
                return self._divert_to_timer(draft, properties)
        if level > 0:
            level = min(level, self._level_count)
            properties[names.PROPERTY_DELAY] = str(level)
            properties[names.PROPERTY_REAL_TOPIC] = draft.topic
            properties[names.PROPERTY_REAL_QID] = str(draft.queue_id)
            draft.topic = SCHEDULE_TOPIC
            draft.queue_id = level - 1
        return None

    def _divert_to_timer(self, draft: Draft, properties: dict[str, str]) -> PutStatus | None:
        timers = self._timers
        if timers is None:
            return PutStatus.WHEEL_TIMER_NOT_ENABLE
        now_ms = timers.now_ms()
        deliver_ms = _deliver_time(properties, now_ms)
        if deliver_ms is None or deliver_ms - now_ms > timers.delay_max_ms:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        if deliver_ms <= now_ms:
            if names.PROPERTY_TIMER_DEL_UNIQKEY in properties:
                return PutStatus.WHEEL_TIMER_MSG_ILLEGAL  # what it would delete is delivered
            return None
        slot_time_ms = slot_time(deliver_ms, timers.precision_ms)
        if timers.is_full(slot_time_ms):
            return PutStatus.WHEEL_TIMER_FLOW_CONTROL
        properties[names.PROPERTY_TIMER_OUT_MS] = str(slot_time_ms)
        properties[names.PROPERTY_REAL_TOPIC] = draft.topic
        properties[names.PROPERTY_REAL_QID] = str(draft.queue_id)
        draft.topic, draft.queue_id = TIMER_TOPIC, 0
        return None


def _deliver_time(properties: dict[str, str], now_ms: int) -> int | None:
    """When a timed message wants to be delivered; None if that is no number."""
    for name, base_ms, unit_ms in (
        (names.PROPERTY_TIMER_DELAY_SEC, now_ms, 1_000),
        (names.PROPERTY_TIMER_DELAY_MS, now_ms, 1),
        (names.PROPERTY_TIMER_DELIVER_MS, 0, 1),
    ):
        text = properties.get(name)
        if text is not None:
            number = int(text) if _SIGNED.fullmatch(text) else None
            return None if number is None or number not in _INT64 else base_ms + number * unit_ms
    return None


def timer_refusal(status: PutStatus, config: BrokerConfig) -> BrokerError | None:
    """Why a timed message was refused; None if it was not because of its time."""
    if status is PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
        remark = (
            "timer message illegal, the delay time should not be bigger than the max delay"
            f" {config.timer_max_delay_sec * 1_000}ms; or if set del msg, the delay time should be"
            " bigger than the current time"
        )
    elif status is PutStatus.WHEEL_TIMER_FLOW_CONTROL:
        limit = config.timer_congest_num_each_slot
        remark = (
            f"timer message is under flow control, max num limit is {2 * limit} or the current"
            f" value is greater than {limit} and less than {2 * limit}, trigger random flow control"
        )
    else:
        return None
    return broker_error(status.code, remark)
