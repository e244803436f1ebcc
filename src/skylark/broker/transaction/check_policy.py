"""Decides what a round of check-backs does with an undecided half message.

A round scans the half queue from the first undecided message on and calls :func:`choose_action` for
each. The rules are Java's, with two differences:

* Java copies a message with ``CHECK_IMMUNITY_TIME_IN_SECONDS`` to the end of the queue in every
  round of its immunity. Here it stays where it is, :class:`ImmuneMessages` remembers it, and the
  round continues after it.
* A message is not given up in the round of its last check-back: the producer has one interval to
  answer.

(Java also reads op messages in between; here all decisions are in memory.)

Pure. Counterpart of Java's ``TransactionalMessageServiceImpl.check``, ``needDiscard`` and
``needSkip``.
"""

from __future__ import annotations

import enum
from array import array
from typing import Final

import msgspec

from skylark.broker.transaction.half_message import Half

#: Messages that can wait for the end of their immunity; a round ends at the first beyond that.
WAITING_MAX: Final = 1_000_000


class CheckAction(enum.Enum):
    """What a round does with an undecided half message."""

    GIVE_UP = "checked too often, or too old: move it to TRANS_CHECK_MAX_TIME_TOPIC"
    STOP = "too young, as all messages after it: the round ends here"
    WAIT = "immune: check it when its immunity is over"
    CHECK_BACK = "send a check-back, and put a copy at the end of the queue"


class CheckRules(msgspec.Struct, frozen=True):
    """The settings of check-backs."""

    timeout_ms: int  # transactionTimeOut
    check_count_max: int  # transactionCheckMax
    age_max_ms: int  # fileReservedTime


def choose_action(half: Half, rules: CheckRules, *, started_ms: int, now_ms: int) -> CheckAction:
    """The action for a message in a round that began at ``started_ms``."""
    age_ms = now_ms - half.record.born_timestamp
    if half.record.store_timestamp >= started_ms:
        return CheckAction.STOP
    if half.check_count >= max(1, rules.check_count_max) or age_ms > rules.age_max_ms:
        return CheckAction.GIVE_UP
    if half.has_immunity:
        if age_ms <= half.immunity_ms(rules.timeout_ms):
            return CheckAction.WAIT
    elif 0 <= age_ms <= rules.timeout_ms:
        return CheckAction.STOP
    return CheckAction.CHECK_BACK


def due_ms(half: Half, rules: CheckRules) -> int:
    """The time at which the immunity of a message ends."""
    return half.record.born_timestamp + half.immunity_ms(rules.timeout_ms) + 1


class ImmuneMessages:
    """Queue offsets of immune messages by the second in which their immunity ends, 8 bytes each."""

    def __init__(self, count_max: int = WAITING_MAX) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._count_max = count_max
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offset: int, due_ms: int) -> bool:
        """Add a message; False if there are too many."""
        if self._count >= self._count_max:
            return False
        second = -(-due_ms // 1000)
        bucket = self._buckets.get(second)
        if bucket is None:
            bucket = self._buckets[second] = array("q")
        bucket.append(offset)
        self._count += 1
        return True

    def due(self, now_ms: int) -> list[int]:
        """Remove and return the messages whose immunity is over, in order of the queue."""
        offsets: list[int] = []
        for second in [second for second in self._buckets if second * 1000 <= now_ms]:
            offsets.extend(self._buckets.pop(second))
        self._count -= len(offsets)
        offsets.sort()
        return offsets
