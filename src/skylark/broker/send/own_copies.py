"""Copies that the broker makes of stored messages: what they add, and what they can do without.

The broker stores a message once more when a delayed or timed one is due, when a consumer gives one
back (retry, dead letter), when a half message is committed, and when it asks about one. Such a copy
is held to the record format only (:class:`skylark.store.commit_log.PutLimits`): its message was
acknowledged under the settings of then. The format has one limit that matters, 32,767 bytes
of properties, and most copies have properties that the message did not have.

* **Before a message is acknowledged**, :func:`copy_growth` says how much its copies will add. The
  store refuses a timed or half message (13) whose copies would not fit. A delayed message needs no
  room: the record that waits has all properties of the one that is delivered. Nor does a plain
  message, since most are never copied: 32,767 bytes of properties are stored.
* **A copy that does not fit** (a retry, a store that was written without this check, a checksum of
  properties that was switched on meanwhile) leaves out what the broker itself has added and readers
  can do without, one property after the other: :func:`without_optional`.
* **A copy that still does not fit** is not made. The message stays where it is; it is counted and
  logged once (:class:`UncopiedMessages`), and the broker goes on with the next one.

What a producer has set stays, except for WAIT, which means nothing in a copy.

Has no counterpart in Java, which tries such a copy for ever or drops the message.
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

log = logging.getLogger(__name__)

#: Statuses of copies that will never be stored, however often they are tried.
NEVER_STORED: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})
#: The largest long: TIMER_ENQUEUE_MS of a message that came too late to be placed.
NEVER_PLACED: Final = (1 << 63) - 1

# The longest values that copies can have, for a comparison of sizes.
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

#: Informative properties of the broker, the most dispensable first.
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
#: The destination of a message that waits; of no use in one that has arrived.
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

    ``topic`` is the one that the message is stored in: the timer topic, the half topic, or any
    other, of which no copies need room.
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
    """Properties of a copy for ``topic``, without as many optional ones as it takes to fit.

    Without all of them if it does not fit even then.
    """
    for name in _optional_of(topic, properties):
        if fits(properties):
            break
        properties = names.without_property(properties, name)
    return properties


def _optional_of(topic: str, properties: bytes) -> Iterator[bytes]:
    yield from _OPTIONAL
    find = names.find_raw_property
    if find(properties, _TRANSACTION_ID) == find(properties, _UNIQUE_ID):  # else set by a producer
        yield _TRANSACTION_ID
    if topic not in _WAITING_TOPICS:
        yield from _DESTINATION
    if find(properties, _DELAY) in _NO_DELAY:
        yield _DELAY


class UncopiedMessages:
    """Counts the messages that could not be copied, and logs each of them once."""

    def __init__(self) -> None:
        #: By what the copy would have been: delivery, timer, retry, check or commit.
        self.counts: Counter[str] = Counter()
        self._known: dict[tuple[str, int], None] = {}

    def add(self, kind: str, log_offset: int, topic: str, status: PutStatus) -> None:
        """The message at ``log_offset`` was not copied to ``topic``."""
        key = (kind, log_offset)
        if key in self._known:
            return
        if len(self._known) >= _REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = None
        self.counts[kind] += 1
        log.error(
            "the message at %d of the log cannot be copied to %s and stays where it is: %s (%s)",
            log_offset,
            topic,
            status.name,
            kind,
        )
