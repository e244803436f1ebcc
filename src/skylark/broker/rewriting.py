"""What a broker changes in a message before it stores it: properties, and the way of delayed ones.

**Properties.** Every single message gets three: ``MSG_REGION``, ``TRACE_ON`` and ``CLUSTER``. Java
takes the property string apart and writes it anew, in the order of its hash map. Nobody depends on
that order, so here the three are appended, and what the client sent stays as it is, unless the
string has something that must not stay (:func:`is_plain`): a name that the broker acts upon or sets
itself, an item without name or value, no separator at the end. Only then it is taken apart. Either
way the record has the length that it has in Java.

**Delayed messages.** A message with ``DELAY`` goes to SCHEDULE_TOPIC_XXXX, into the queue of its
level, and remembers in ``REAL_TOPIC`` and ``REAL_QID`` where it belongs. These properties stay when
it is delivered. Messages for any point in time need the timer wheel, which does not exist yet: they
are refused, except where they have a level, too, which wins.

Answers to ``HookUtils.handleScheduleMessage`` and ``transformDelayLevelMessage``.
"""

from __future__ import annotations

import re
from typing import Final

from skylark.core.errors import BrokerError
from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.results import PutStatus
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
_ACTED_UPON: Final = (
    *TIMER_NAMES,
    names.PROPERTY_DELAY,
    names.PROPERTY_TRAN_MSG,
    names.PROPERTY_INNER_NUM,
    names.PROPERTY_POP_CK,
    names.PROPERTY_MSG_REGION,
    names.PROPERTY_TRACE_ON,
    names.PROPERTY_CLUSTER,
)
# Items with name and value, each ended; what was taken is never given back, so one pass decides.
_PLAIN: Final = re.compile(
    rf"(?:(?!(?:{'|'.join(_ACTED_UPON)})\x01)[^\x01\x02]++\x01[^\x02]++\x02)++"
)
_LEVEL_DIGITS_MAX: Final = 10


def is_plain(text: str) -> bool:
    """Whether a property string can be stored as it is, with further properties behind it."""
    return _PLAIN.fullmatch(text) is not None


def delay_level(properties: dict[str, str]) -> int:
    """The delay level of a message, 0 without one; raises BrokerError if it is no number."""
    text = properties.get(names.PROPERTY_DELAY)
    if text is None:
        return 0
    digits = text[1:] if text[0] in "+-" else text
    if not digits.isdecimal() or len(digits) > _LEVEL_DIGITS_MAX:
        raise BrokerError(f'For input string: "{text:.100}"', hint="DELAY must be a number")
    return int(text)


class Diverter:
    """Sends delayed messages their way."""

    def __init__(self, level_count: int) -> None:
        self._level_count = level_count

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
                return PutStatus.WHEEL_TIMER_NOT_ENABLE
        if level > 0:
            level = min(level, self._level_count)
            properties[names.PROPERTY_DELAY] = str(level)
            properties[names.PROPERTY_REAL_TOPIC] = draft.topic
            properties[names.PROPERTY_REAL_QID] = str(draft.queue_id)
            draft.topic = SCHEDULE_TOPIC
            draft.queue_id = level - 1
        return None
