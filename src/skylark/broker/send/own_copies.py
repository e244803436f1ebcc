"""Copies that the broker makes of stored messages: properties that they add or can drop.

The broker copies a message when a delayed or timed one is due, when a consumer sends one back
(retry, dead letter), when a half message is committed, and with each check-back. Only the record
format limits such a copy (:class:`skylark.store.commit_log.PutLimits`): its message was
acknowledged, and the settings may have changed since. The limit of the format is 32,767 bytes of
properties, and most copies have more properties than their message.

* **Before a message is acknowledged**, :func:`copy_growth` computes how much its copies will add.
  The store refuses a timed or half message (13) whose copies would not fit. A delayed message needs
  no room: its record has all properties of the delivered copy. Nor does an ordinary message, since
  most are never copied: 32,767 bytes of properties are stored.
* **A copy that does not fit** (a retry, a store written without this check, a property checksum
  that was enabled later) drops properties that the broker has added and readers do not need, one by
  one: :func:`without_optional`.
* **A copy that still does not fit** is not made. The message stays where it is, is counted and
  logged once (:class:`UncopiedMessages`), and the broker continues with the next one.

Properties that a producer has set stay, except for WAIT, which has no meaning in a copy.

Has no counterpart in Java, which retries such a copy for ever or drops the message.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from skylark.broker.send.message_policy import TIMER_NAMES
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.store.store_results import PutStatus
from skylark.wire import properties as names

logger = logging.getLogger(__name__)

#: Statuses after which another attempt to store a copy is pointless.
NEVER_STORED: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})
#: The largest long: TIMER_ENQUEUE_MS of a message that came too late for the timer wheel.
NEVER_PLACED: Final = (1 << 63) - 1

# The longest values that copies can have, to compute sizes.
_TIME_MS: Final = "9" * 13
_COUNT: Final = "9" * 10
_OFFSET: Final = str(NEVER_PLACED)
_TIMER_ADDS: Final = {
    names.PROPERTY_TIMER_ENQUEUE_MS: str(NEVER_PLACED),
    names.PROPERTY_TIMER_DEQUEUE_MS: _TIME_MS,
    names.PROPERTY_TIMER_ROLL_TIMES: _COUNT,
}
_CHECK_BACK_ADDS: Final = {
    names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET: _OFFSET,
    names.PROPERTY_TRANSACTION_CHECK_TIMES: _COUNT,
    names.PROPERTY_WAIT: "false",
}
_COMMIT_OF_TIMED_ADDS: Final = {names.PROPERTY_TIMER_OUT_MS: _TIME_MS, **_TIMER_ADDS}

#: Properties of the broker that readers do not need, the least important first.
_OPTIONAL: Final = tuple(
    name.encode()
    for name in (
        names.PROPERTY_TIMER_ENQUEUE_MS,
        names.PROPERTY_TIMER_DEQUEUE_MS,
        names.PROPERTY_TIMER_ROLL_TIMES,
        names.PROPERTY_CLUSTER,
        names.PROPERTY_TRACE_ON,
        names.PROPERTY_MSG_REGION,
        names.PROPERTY_WAIT,
        names.PROPERTY_ORIGIN_MESSAGE_ID,
    )
)
#: The destination of a delayed, timed or half message; useless in a delivered one.
_DESTINATION: Final = tuple(
    name.encode() for name in (names.PROPERTY_REAL_QID, names.PROPERTY_REAL_TOPIC)
)
_WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, CHECK_MAX_TIME_TOPIC})
_TRANSACTION_ID: Final = names.PROPERTY_TRANSACTION_ID.encode()
_UNIQUE_ID: Final = names.PROPERTY_UNIQ_KEY.encode()
_DELAY: Final = names.PROPERTY_DELAY.encode()
_NO_DELAY: Final = (b"0", b"-1")  # how the broker marks a dead letter
_REMEMBERED_MAX: Final = 10_000


def copy_growth(topic: str, properties: bytes) -> int:
    """Bytes of properties by which copies of a client's message may exceed its record.

    ``topic`` is the topic of the record; only records of the timer and half topics need room.
    """
    if topic == TIMER_TOPIC:
        added = _TIMER_ADDS
    elif topic == HALF_TOPIC:
        added = _CHECK_BACK_ADDS
    else:
        return 0
    found = names.parse_properties(properties)
    if topic == HALF_TOPIC and any(name in found for name in TIMER_NAMES):
        added = added | _COMMIT_OF_TIMED_ADDS
    longest = names.encode_properties({**found, **added}).encode()
    return max(0, len(longest) - len(properties))


def without_optional(topic: str, properties: bytes, fits: Callable[[bytes], bool]) -> bytes:
    """Properties of a copy for ``topic``, without optional ones until they fit.

    Drops all optional ones if they do not fit even then.
    """
    for name in _optional_of(topic, properties):
        if fits(properties):
            break
        properties = names.without_property(properties, name)
    return properties


def _optional_of(topic: str, properties: bytes) -> Iterator[bytes]:
    yield from _OPTIONAL
    find = names.find_raw_property
    if find(properties, _TRANSACTION_ID) == find(properties, _UNIQUE_ID):  # set by the broker
        yield _TRANSACTION_ID
    if topic not in _WAITING_TOPICS:
        yield from _DESTINATION
    if find(properties, _DELAY) in _NO_DELAY:
        yield _DELAY


class UncopiedMessages:
    """Counts the messages that could not be copied, and logs each of them once."""

    def __init__(self) -> None:
        #: Counts by purpose of the copy: delivery, timer, retry, check or commit.
        self.counts: Counter[str] = Counter()
        self._known: dict[tuple[str, int], None] = {}

    def add(self, kind: str, log_offset: int, topic: str, status: PutStatus) -> None:
        """Count and log a message that was not copied to ``topic``."""
        key = (kind, log_offset)
        if key in self._known:
            return
        if len(self._known) >= _REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = None
        self.counts[kind] += 1
        logger.error(
            "the broker cannot copy the message at log offset %d to %s: %s (%s)",
            log_offset,
            topic,
            status.name,
            kind,
        )
