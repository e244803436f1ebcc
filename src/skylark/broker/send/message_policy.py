"""What a broker does with a message because of its properties: one table, one scan, one rewriter.

**The table.** :data:`POLICY` maps each property name that the broker acts upon to its action.
:class:`PropertyScanner` looks for these names in a property string; where there is none, the string
is stored as it came, with the broker's own properties behind it. Nearly every message is like that,
and *fast* means no more than that. For everything else the send step
(:mod:`skylark.broker.send.send_step`) carries out the actions and encodes the properties again.

**Properties.** Every single message gets three: ``MSG_REGION``, ``TRACE_ON`` and ``CLUSTER``. Java
takes the property string apart and writes it again, in the order of its hash map, with a separator
at the end. Consumers do not depend on that order, so here the three are appended, and the record
has the length that it has in Java. A string that reads as something else than it says (a name
twice, an item without a name or value) is normalised first: the last item of a name stays, as in
Java.

**Delayed messages.** A message with ``DELAY`` goes to SCHEDULE_TOPIC_XXXX, into the queue of its
level, and remembers in ``REAL_TOPIC`` and ``REAL_QID`` where it belongs. These properties stay when
it is delivered.

**Timed messages.** A message for any point in time goes to rmq_sys_wheel_timer, and remembers in
``TIMER_OUT_MS`` the start of its slot in the timer (:func:`slot_time`). A slot is delivered when it
is over: so a time that is a multiple of the precision belongs to the slot that ends there, and no
message comes early. A time that is past makes an ordinary message. A level, where there is one,
wins. What comes out of the timer still has ``TIMER_OUT_MS``, and is left alone.

Counterpart of ``HookUtils.handleScheduleMessage``, ``transformDelayLevelMessage`` and
``transformTimerMessage``, and of the property handling in ``SendMessageProcessor``.
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

# ---- the table -----------------------------------------------------------------------------------

# Actions, as bits: members of an enumeration are slower, and this is looked at for each message.
DELAY: Final = 1  # goes to the queue of its delay level
TIMER: Final = 2  # goes to the timer
HALF: Final = 4  # is a half message
PRIORITY: Final = 8  # the priority chooses the queue
REFUSE: Final = 16  # clients must not send that
STRIP: Final = 32  # the broker removes the property
REPLACE: Final = 64  # the broker sets the property itself
NORMALISE: Final = 128  # the string does not read as what it says
#: The name belongs to half messages; it matters only together with HALF.
OF_HALF: Final = 256
#: What :meth:`MessagePolicy.rewrite` has to see; the rest changes nothing.
REWRITES: Final = DELAY | TIMER | HALF | PRIORITY | REFUSE | STRIP | REPLACE | NORMALISE

#: Any of these makes a timed message.
TIMER_NAMES: Final = (
    names.PROPERTY_TIMER_DELIVER_MS,
    names.PROPERTY_TIMER_DELAY_SEC,
    names.PROPERTY_TIMER_DELAY_MS,
)
#: Property name -> action: which properties are special, and why.
POLICY: Final[dict[str, int]] = {
    names.PROPERTY_DELAY: DELAY,
    **dict.fromkeys(TIMER_NAMES, TIMER),
    names.PROPERTY_TRAN_MSG: HALF,
    names.PROPERTY_PRIORITY: PRIORITY,
    names.PROPERTY_INNER_NUM: REFUSE,
    names.PROPERTY_POP_CK: STRIP,
    names.PROPERTY_MSG_REGION: REPLACE,
    names.PROPERTY_TRACE_ON: REPLACE,
    names.PROPERTY_CLUSTER: REPLACE,
    names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: OF_HALF,
    names.PROPERTY_REAL_TOPIC: OF_HALF,
    names.PROPERTY_REAL_QID: OF_HALF,
    names.PROPERTY_TRANSACTION_ID: OF_HALF,
    names.PROPERTY_TRANSACTION_CHECK_TIMES: OF_HALF,
    names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET: OF_HALF,
    names.PROPERTY_CRC32: OF_HALF,
}
#: Where no delayed message belongs. It would be delivered again and again, or pass for one that the
#: broker has made itself. Producers cannot send there, but what stands in a record may be anything.
NO_DESTINATIONS: Final = SEND_FORBIDDEN_TOPICS | {TIMER_TOPIC}

_WITHOUT_PRIORITY: Final = (*TIMER_NAMES, names.PROPERTY_DELAY, names.PROPERTY_SHARDING_KEY)
_PRIORITY: Final = re.compile(r"\+?[0-9]{1,10}", re.ASCII)
_LEVEL_DIGITS_MAX: Final = 10
_INT64: Final = range(-(1 << 63), 1 << 63)
_SIGNED: Final = re.compile(r"[+-]?[0-9]{1,19}")


# ---- the scan ------------------------------------------------------------------------------------

_REMEMBERED_SIZE_MAX: Final = 4_096  # of property strings
_ITEMS_MAX: Final = 64  # in a shape that is remembered
_SHAPES_MAX: Final = 4  # with the same number of items
_ITEM_COUNTS_MAX: Final = 64
_MISSES: Final = 16  # of so many strings one is remembered: where keys differ, none is met again


class _Shape:
    """The names of a property string in their order, and what follows from them."""

    __slots__ = ("actions", "id_group", "match")

    def __init__(self, item_names: list[str]) -> None:
        self.actions = 0
        for name in item_names:
            self.actions |= POLICY.get(name, 0)
        self.id_group = 0
        if names.PROPERTY_UNIQ_KEY in item_names:
            self.id_group = item_names.index(names.PROPERTY_UNIQ_KEY) + 1
        items = "\x02".join(f"{re.escape(name)}\x01([^\x02]++)" for name in item_names)
        self.match = re.compile(items + "\x02?").fullmatch


class PropertyScanner:
    """Finds out what a property string asks of the broker. Hot.

    Strings of one producer have the same names in the same order, and often everything in common
    but the unique id. So the shape of a string is remembered: a string that has a known shape has
    its actions for all values. The meaning is that of :func:`scan_properties`.
    """

    __slots__ = ("_actions", "_after", "_before", "_end", "_misses", "_shapes", "_size", "_start")

    def __init__(self) -> None:
        self._shapes: dict[int, list[_Shape]] = {}
        # What stood around the last unique id, and the actions of that string.
        self._before = self._after = ""
        self._start = self._end = self._actions = 0
        self._size = -1
        self._misses = 0  # strings of a known shape that had something else in common

    def scan(self, text: str) -> tuple[str | None, int]:
        """The unique id of a message, if it has one, and the actions for its properties."""
        start, end = self._start, self._end
        if (
            len(text) == self._size
            and text.startswith(self._before)
            and text.endswith(self._after)
            and "\x02" not in (unique_id := text[start:end])
        ):
            return unique_id, self._actions
        for shape in self._shapes.get(text.count("\x02"), ()):
            if (match := shape.match(text)) is not None:
                return self._found(text, shape, match)
        return self._learn(text)

    def _found(self, text: str, shape: _Shape, match: re.Match[str]) -> tuple[str | None, int]:
        if not shape.id_group:
            return None, shape.actions
        unique_id = match[shape.id_group]
        self._misses += 1
        if self._misses % _MISSES == 1 and len(text) <= _REMEMBERED_SIZE_MAX:
            self._start, self._end = start, end = match.span(shape.id_group)
            self._before, self._after, self._size = text[:start], text[end:], len(text)
            self._actions = shape.actions
        return unique_id, shape.actions

    def _learn(self, text: str) -> tuple[str | None, int]:
        unique_id, actions = scan_properties(text)
        if actions & NORMALISE or not text or len(text) > _REMEMBERED_SIZE_MAX:
            return unique_id, actions
        item_names = [item.partition("\x01")[0] for item in text.removesuffix("\x02").split("\x02")]
        if len(item_names) > _ITEMS_MAX:
            return unique_id, actions
        key = text.count("\x02")
        if key not in self._shapes and len(self._shapes) >= _ITEM_COUNTS_MAX:
            self._shapes.clear()
        known = self._shapes.setdefault(key, [])
        known.insert(0, _Shape(item_names))
        del known[_SHAPES_MAX:]
        return unique_id, actions


def scan_properties(text: str) -> tuple[str | None, int]:
    """The unique id of a property string, if it has one, and the actions it asks for.

    This defines what :class:`PropertyScanner` finds.
    """
    if not text:
        return None, 0
    items = text.removesuffix("\x02").split("\x02")
    properties = names.parse_properties(text)
    actions = 0 if len(items) == len(properties) else NORMALISE
    for name in properties:
        actions |= POLICY.get(name, 0)
    return properties.get(names.PROPERTY_UNIQ_KEY), actions


# ---- the actions ---------------------------------------------------------------------------------


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
    if of_other_kind or is_half(properties):
        del properties[names.PROPERTY_PRIORITY]
        return None
    return priority


def is_half(properties: dict[str, str]) -> bool:
    """Whether the properties are those of a half message."""
    return properties.get(names.PROPERTY_TRAN_MSG, "").lower() == "true"


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
    """Redirects delayed and timed messages to the topics in which they wait."""

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
