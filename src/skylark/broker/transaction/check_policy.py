"""What to do with an undecided half message, and when to look at it again.

A round of checks goes through the half queue from the first undecided message on and asks
:func:`judge` about each. Java's rules, with two differences:

* A message whose producer set ``CHECK_IMMUNITY_TIME_IN_SECONDS`` is not copied to the end of the
  queue in every round until that time is over. It stays where it is, is remembered in
  :class:`Waiting`, and the round goes on behind it.
* A message is not given up in the round in which its producer was asked for the last time: there
  is an interval for the answer.

(Java also reads op messages in between; here every decision is known.)

Pure. Counterpart of Java's ``TransactionalMessageServiceImpl.check``, ``needDiscard`` and
``needSkip``.
"""

from __future__ import annotations

import enum
from array import array
from typing import Final

import msgspec

from skylark.broker.transaction.half_message import Half

#: Messages that can wait for the end of their immunity; beyond that a round ends at the next one.
WAITING_MAX: Final = 1_000_000


class Verdict(enum.Enum):
    """What a round does with an undecided half message."""

    GIVE_UP = "asked about too often, or too old: keep a copy elsewhere"
    STOP = "too young, as all behind it: the round ends here"
    WAIT = "immune: look at it when that is over"
    ASK = "ask its producer, and put a copy at the end of the queue"


class CheckRules(msgspec.Struct, frozen=True):
    """The settings that count."""

    timeout_ms: int  # transactionTimeOut
    check_count_max: int  # transactionCheckMax
    age_max_ms: int  # fileReservedTime


def judge(half: Half, rules: CheckRules, *, started_ms: int, now_ms: int) -> Verdict:
    """What a round that began at ``started_ms`` does with a message."""
    age_ms = now_ms - half.record.born_timestamp
    if half.record.store_timestamp >= started_ms:
        return Verdict.STOP
    if half.check_count >= max(1, rules.check_count_max) or age_ms > rules.age_max_ms:
        return Verdict.GIVE_UP
    if half.has_immunity:
        if age_ms <= half.immunity_ms(rules.timeout_ms):
            return Verdict.WAIT
    elif 0 <= age_ms <= rules.timeout_ms:
        return Verdict.STOP
    return Verdict.ASK


def due_ms(half: Half, rules: CheckRules) -> int:
    """When the immunity of a message is over."""
    return half.record.born_timestamp + half.immunity_ms(rules.timeout_ms) + 1


class Waiting:
    """Queue offsets of immune messages by the second in which they are due, 8 bytes each."""

    def __init__(self, count_max: int = WAITING_MAX) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._count_max = count_max
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offset: int, due_ms: int) -> bool:
        """Remember a message; False if there are too many."""
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
        """Take out what is due, in order of the queue."""
        offsets: list[int] = []
        for second in [second for second in self._buckets if second * 1000 <= now_ms]:
            offsets.extend(self._buckets.pop(second))
        self._count -= len(offsets)
        offsets.sort()
        return offsets
