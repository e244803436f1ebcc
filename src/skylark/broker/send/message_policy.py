"""What the broker does with a message because of its properties: one table, one scan, one rewriter.

**The table.** :data:`POLICY` maps each property name that the broker acts upon to its action.
:class:`PropertyScanner` searches a property string for these names. If there is none, as in nearly
every message, the broker stores the string unchanged and appends its own properties. If the actions
are :data:`EDITS`, the string is parsed and encoded again. For the other actions the send step
(:mod:`skylark.broker.send.send_step`) also decides whether and where the message is stored.

**Properties.** Every single message gets three: ``MSG_REGION``, ``TRACE_ON`` and ``CLUSTER``. Java
parses the property string and writes it again, in the order of its hash map, with a separator at
the end. Consumers do not depend on that order, so here the three are appended, and the record has
the same length as in Java. A string with a name twice, or an item without name or value, is
normalised first: the last item of a name stays, as in Java.

**Delayed messages.** A message with ``DELAY`` goes to SCHEDULE_TOPIC_XXXX, into the queue of its
level, with its destination in ``REAL_TOPIC`` and ``REAL_QID``. These properties stay when it is
delivered.

**Timed messages.** A message with a delivery time goes to rmq_sys_wheel_timer, with the start of
its timer slot in ``TIMER_OUT_MS`` (:func:`slot_time`). A slot is delivered when it is over: so a
time that is a multiple of the precision belongs to the slot that ends there, and no message is
delivered early. A message with a past time is stored as an ordinary message. A delay level takes
precedence. A message that the timer has delivered still has ``TIMER_OUT_MS``, and is not timed
again.

Counterpart of ``HookUtils.handleScheduleMessage``, ``transformDelayLevelMessage`` and
``transformTimerMessage``, and of the property handling in ``SendMessageProcessor``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from skylark.broker.config import BrokerConfig
from skylark.broker.live_settings import LiveSettings
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError, broker_error
from skylark.core.names import SCHEDULE_TOPIC, SEND_FORBIDDEN_TOPICS, TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutStatus
from skylark.store.timer.timer_store import TimerStore
from skylark.wire import properties as names
from skylark.wire.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_NONE,
)

# ---- the table -----------------------------------------------------------------------------------

# Actions, as bits: members of an enumeration are slower, and every message needs this.
DELAY: Final = 1  # goes to the queue of its delay level
TIMER: Final = 2  # goes to the timer
HALF: Final = 4  # is a half message
PRIORITY: Final = 8  # the priority chooses the queue
REFUSE: Final = 16  # clients must not set the property
STRIP: Final = 32  # the broker removes the property
REPLACE: Final = 64  # the broker sets the property itself
NORMALISE: Final = 128  # the string has a name twice, or an item without name or value
#: A property of half messages; it matters only together with HALF.
OF_HALF: Final = 256
#: Actions that change nothing but the property string (:func:`edit_properties`).
EDITS: Final = STRIP | REPLACE | NORMALISE
#: Actions that decide whether the message is stored, and where.
DECISIONS: Final = DELAY | TIMER | HALF | PRIORITY | REFUSE

#: Any of these makes a timed message.
TIMER_NAMES: Final = (
    names.PROPERTY_TIMER_DELIVER_MS,
    names.PROPERTY_TIMER_DELAY_SEC,
    names.PROPERTY_TIMER_DELAY_MS,
)
#: Property name -> action.
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
_ACTED_UPON: Final = frozenset(POLICY)
#: Topics that no delayed message is delivered to: it would be delivered for ever, or look like a
#: message of the broker. Producers cannot send there, but a record may name any topic.
NO_DESTINATIONS: Final = SEND_FORBIDDEN_TOPICS | {TIMER_TOPIC}

_WITHOUT_PRIORITY: Final = (*TIMER_NAMES, names.PROPERTY_DELAY, names.PROPERTY_SHARDING_KEY)
_PRIORITY: Final = re.compile(r"\+?[0-9]{1,10}", re.ASCII)
_LEVEL_DIGITS_MAX: Final = 10
_INT64: Final = range(-(1 << 63), 1 << 63)
_SIGNED: Final = re.compile(r"[+-]?[0-9]{1,19}")


# ---- the scan ------------------------------------------------------------------------------------

_REMEMBERED_SIZE_MAX: Final = 4_096  # bytes of a cached property string
_ITEMS_MAX: Final = 64  # items of a cached shape
_SHAPES_MAX: Final = 4  # cached shapes with the same number of items
_SEEN_MAX: Final = 64  # lists of names that came once
_UNKNOWN_PER_REPLACEMENT: Final = 128  # a compilation takes as long as some 70 plain scans
_MISSES: Final = 16  # caches one of so many strings: if keys differ, a cached string never matches


class _Shape:
    """The names of a property string in order, their actions, and the place of the unique id."""

    __slots__ = ("actions", "id_group", "match")

    def __init__(self, item_names: tuple[str, ...], actions: int) -> None:
        self.actions = actions
        self.id_group = 0
        if names.PROPERTY_UNIQ_KEY in item_names:
            self.id_group = item_names.index(names.PROPERTY_UNIQ_KEY) + 1
        items = "\x02".join(f"{re.escape(name)}\x01([^\x02]++)" for name in item_names)
        self.match = re.compile(items + "\x02?").fullmatch


_NO_SHAPES: Final[list[_Shape]] = []


class PropertyScanner:
    """Finds the actions of property strings; on the hot path.

    Strings of one producer have the same names in the same order, and often differ in the unique id
    only. So the scanner caches shapes: all strings of one shape have the same actions.
    :func:`scan_properties` defines the result.

    A shape is compiled when its names come for the second time, because names may be data (a
    property for each user). Of each number of items the shapes that were used last stay. If more
    come in turns than are kept, a new one seldom replaces another: it would be replaced before it
    is used.
    """

    __slots__ = (
        "_actions", "_after", "_before", "_end", "_misses", "_seen", "_shapes", "_size", "_start",
        "_unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        self._shapes: dict[int, list[_Shape]] = {}  # by number of separators; the last used first
        self._seen: dict[int, None] = {}  # hashes of lists of names that came once, oldest first
        self._unknown = 0  # strings without a shape, since a shape was replaced
        # Cached string: the text before and after its unique id, and its actions.
        self._before = self._after = ""
        self._start = self._end = self._actions = 0
        self._size = -1
        self._misses = 0  # strings of a known shape that did not match the cached string

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
        shapes = self._shapes.get(text.count("\x02"), _NO_SHAPES)
        for shape in shapes:
            if (match := shape.match(text)) is not None:
                if shape is not shapes[0]:
                    shapes.remove(shape)
                    shapes.insert(0, shape)
                return self._found(text, shape, match)
        return self._scan_unknown(text)

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

    def _scan_unknown(self, text: str) -> tuple[str | None, int]:
        """Scan a string of no known shape, and compile its shape if the names came before."""
        properties = names.parse_properties(text)
        actions = _actions(text, properties)
        if not actions & NORMALISE and (
            0 < len(properties) <= _ITEMS_MAX and len(text) <= _REMEMBERED_SIZE_MAX
        ):
            self._unknown += 1
            item_names, seen = tuple(properties), self._seen
            if (key := hash(item_names)) not in seen:
                if len(seen) >= _SEEN_MAX:
                    del seen[next(iter(seen))]
                seen[key] = None
            else:
                self._add_shape(text.count("\x02"), item_names, actions)
        return properties.get(names.PROPERTY_UNIQ_KEY), actions

    def _add_shape(self, separators: int, item_names: tuple[str, ...], actions: int) -> None:
        shapes = self._shapes.setdefault(separators, [])
        if len(shapes) >= _SHAPES_MAX:
            if self._unknown < _UNKNOWN_PER_REPLACEMENT:
                return
            self._unknown = 0
            shapes.pop()
        shapes.insert(0, _Shape(item_names, actions))


def scan_properties(text: str) -> tuple[str | None, int]:
    """The unique id of a property string, if it has one, and the actions for its properties.

    This defines the result of :class:`PropertyScanner`.
    """
    properties = names.parse_properties(text)
    return properties.get(names.PROPERTY_UNIQ_KEY), _actions(text, properties)


def _actions(text: str, properties: dict[str, str]) -> int:
    """The actions for a property string, given the properties in it."""
    item_count = text.count("\x02") + (not text.endswith("\x02")) if text else 0
    actions = 0 if len(properties) == item_count else NORMALISE
    if not _ACTED_UPON.isdisjoint(properties):
        for name in _ACTED_UPON.intersection(properties):
            actions |= POLICY[name]
    return actions


# ---- the actions ---------------------------------------------------------------------------------


def edit_properties(text: str, added: Mapping[str, str]) -> str:
    """A property string after the actions :data:`EDITS`, with the properties of the broker.

    Replaced values stay at the place of the name's first item; what is missing is appended.
    """
    properties = names.parse_properties(text)
    properties.pop(names.PROPERTY_POP_CK, None)
    properties.update(added)
    return names.encode_properties(properties)


def delay_level(properties: dict[str, str]) -> int:
    """The delay level of a message, 0 without one; raises BrokerError if it is not a number."""
    text = properties.get(names.PROPERTY_DELAY)
    if text is None:
        return 0
    digits = text[1:] if text[0] in "+-" else text
    if not digits.isdecimal() or len(digits) > _LEVEL_DIGITS_MAX:
        raise BrokerError(f'For input string: "{text:.100}"', hint="DELAY must be a number")
    return int(text)


def take_priority(properties: dict[str, str]) -> int | None:
    """The priority of a message, None without one.

    Delayed, timed, half and ordered messages have none; the property is removed from them.
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
    """Whether these are the properties of a half message."""
    return properties.get(names.PROPERTY_TRAN_MSG, "").lower() == "true"


def slot_time(deliver_ms: int, precision_ms: int) -> int:
    """The start of the first slot that ends at or after a delivery time."""
    return (deliver_ms - 1) // precision_ms * precision_ms


class Diverter:
    """Redirects delayed and timed messages to the schedule topic and the timer topic."""

    def __init__(self, live: LiveSettings, timer: TimerStore | None, clock: TimeSource) -> None:
        """Refuses timed messages if ``timer`` is None."""
        self._live = live
        self._level_count = len(live.current.store.delay_levels_ms)
        self._timer = timer
        self._clock = clock

    def divert(self, draft: Draft, properties: dict[str, str]) -> PutStatus | None:
        """Change both arguments for a delayed or timed message; returns a status to refuse it."""
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
        config, timer = self._live.current, self._timer
        if timer is None:
            return PutStatus.WHEEL_TIMER_NOT_ENABLE
        now_ms = self._clock.now_ms()
        deliver_ms = _deliver_time(properties, now_ms)
        if deliver_ms is None or deliver_ms - now_ms > config.timer_max_delay_sec * 1_000:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        if deliver_ms <= now_ms:
            if names.PROPERTY_TIMER_DEL_UNIQKEY in properties:
                return PutStatus.WHEEL_TIMER_MSG_ILLEGAL  # its target is delivered already
            return None
        slot_time_ms = slot_time(deliver_ms, timer.precision_ms)
        # Java refuses some messages already at the limit, and all at twice the limit.
        if timer.slot_count_at(slot_time_ms) > config.timer_congest_num_each_slot:
            return PutStatus.WHEEL_TIMER_FLOW_CONTROL
        properties[names.PROPERTY_TIMER_OUT_MS] = str(slot_time_ms)
        properties[names.PROPERTY_REAL_TOPIC] = draft.topic
        properties[names.PROPERTY_REAL_QID] = str(draft.queue_id)
        draft.topic, draft.queue_id = TIMER_TOPIC, 0
        return None


def _deliver_time(properties: dict[str, str], now_ms: int) -> int | None:
    """The delivery time of a timed message; None if it is not a number."""
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
    """The error for a timed message that was refused; None if its time is not the reason."""
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
